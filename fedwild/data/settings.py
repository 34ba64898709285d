"""Settings of the data: which data, which classes are known, and how samples become inputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from fedwild.core.settings import Settings


def _as_names(value: Any) -> Any:
    """Return numbers in a list as text: class names `[0, 1]` in a config file mean `["0", "1"]`."""
    if isinstance(value, (list, tuple)):
        return [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in value]
    return value


SITES = "sites"
"""The value of `data.name` if every client has its data at its own site."""
Names = Annotated[list[str], BeforeValidator(_as_names)]
Count = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1)]
SomeNames = Annotated[list[str], BeforeValidator(_as_names), Field(min_length=1)]
"""At least one name."""


class NewcomerSettings(Settings):
    """A newcomer: a client with its own data and its own names for classes."""

    name: str = Field(
        description="Its data: the path of an image folder, .npz or .csv, or the name of a data set.", min_length=1
    )
    classes: SomeNames | None = Field(
        None, description="Use only these classes, by the names that the newcomer uses (default: all)."
    )
    domains: SomeNames | None = Field(None, description="Use only these of its domains (default: all).")
    labels: dict[str, str] = Field(
        default_factory=dict, description="Maps its own names of classes to those of the federation."
    )
    resize: bool = Field(False, description="Convert its images to the size and number of channels of the federation.")
    train_samples: Positive | None = Field(
        None, description="Use at most this many training samples, chosen at random."
    )
    test_samples: Positive | None = Field(None, description="Use at most this many test samples, chosen at random.")
    welcomed: bool = Field(False, description="Whether it is already a member when the run starts.")


class DataSettings(Settings):
    """Which data, which of its classes are known, and how samples become inputs."""

    name: str | list[str] = Field(
        "digits",
        description="A data set, a list of them (each a domain), or the path of an image folder, .npz or .csv file.",
    )
    coordinator: str | None = Field(
        None,
        min_length=1,
        description="Test data of the coordinator (with `fedwild coordinate`): a path or the name of a data set.",
    )
    domains: SomeNames | None = Field(None, description="Use only these domains of the data (default: all).")
    newcomers: dict[str, NewcomerSettings] = Field(
        default_factory=dict,
        description="Clients with their own data, by name: tables with name, classes, labels and so on.",
    )
    known: Names | Count | Literal["all"] | None = Field(
        None, description="Known classes: names, a number, or 'all' (default: 6 for digits, all for other data)."
    )
    novel: Names | Count = Field(
        0, description="Novel classes, whose training samples have no labels: names or a number."
    )
    stages: list[Positive] = Field(
        default_factory=list,
        description="Number of novel classes that appear in each stage, in order (default: all in the first).",
    )
    unknown: Names | Count | Literal["rest"] = Field(
        "rest", description="Unknown classes, which are only in the test data: names, a number, or 'rest'."
    )
    class_seed: Count | Literal["run"] | None = Field(
        None,
        description="Choose classes that are given as numbers at random with this seed, or 'run' for the seed of the "
        "run (default: in order).",
    )
    known_among: Positive | None = Field(
        None, description="If data.known is a number, choose among this many classes with the most training samples."
    )
    known_by_client: dict[str, Names] = Field(
        default_factory=dict,
        description="By client name, the known classes whose labels it sees; its other samples are unlabelled.",
    )
    validation: float = Field(
        0.1, ge=0, lt=1, description="Share of the labelled samples of each client that is kept for validation."
    )
    public: float = Field(
        0.0, ge=0, lt=1, description="Share of the samples that becomes public unlabelled data before the partition."
    )
    public_from: Literal["train", "test"] = Field(
        "train", description="Source of the public data; 'test' uses the first half (or `public`) of the test data."
    )
    unlabelled_known: float = Field(
        0.0, ge=0, lt=1, description="Share of the known samples of each client that moves to its unlabelled pool."
    )
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="Share of your own data that becomes test data if it has none (stratified)."
    )
    size: Positive | None = Field(None, le=1024, description="Resize images to this many pixels per side (bilinear).")
    channels: Literal[1, 3] | None = Field(None, description="Convert images to greyscale (1) or colour (3).")
    mean: float | list[float] | None = Field(
        None, description="Subtracted from inputs in [0, 1]: one number or one per channel."
    )
    std: float | list[float] | None = Field(
        None, description="Divides inputs after `mean` is subtracted: one number or one per channel."
    )
    augment: list[Literal["crop", "flip", "rotate"]] = Field(
        default_factory=list,
        description="Random changes of training images: 'crop' (shift by up to 4 pixels), 'flip' (left-right), "
        "'rotate' (by up to 15 degrees).",
    )
    train_samples: Positive | None = Field(
        None, description="Use at most this many training samples per domain, chosen at random."
    )
    test_samples: Positive | None = Field(
        None, description="Use at most this many test samples per domain, chosen at random."
    )

    @property
    def at_sites(self) -> bool:
        """Whether the data is at real sites and not on this machine."""
        return self.name == SITES

    @property
    def names(self) -> list[str]:
        """The names of the data sets, as a list."""
        return [self.name] if isinstance(self.name, str) else list(self.name)

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str | list[str]) -> str | list[str]:
        names = [value] if isinstance(value, str) else value
        if not names or not all(name.strip() for name in names):
            raise ValueError("at least one name or path is required")
        if len(set(names)) < len(names):
            raise ValueError("each data set may occur only once")
        return value

    @field_validator("known", "novel", "unknown")
    @classmethod
    def _reject_repeats(cls, value: Any) -> Any:
        if isinstance(value, list) and len(set(value)) < len(value):
            raise ValueError("a class is named twice")
        return value

    @field_validator("mean", "std")
    @classmethod
    def _check_level(cls, value: Any, info: ValidationInfo) -> Any:
        if value == []:
            raise ValueError("it must be one number, or one per channel")
        values = value if isinstance(value, list) else [] if value is None else [value]
        if info.field_name == "std" and any(v <= 0 for v in values):
            raise ValueError("it must be greater than 0")
        return value

    @model_validator(mode="after")
    def _check_known(self) -> DataSettings:
        if self.known in (0, []):
            raise ValueError("known: at least one class must be known")
        return self
