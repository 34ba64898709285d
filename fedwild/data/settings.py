"""What a user may say about data and about how it is dealt to clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from fedwild.core.settings import Settings


def _as_names(value: Any) -> Any:
    """Class names are strings: `[0, 1]` in a config file means `['0', '1']`."""
    if isinstance(value, (list, tuple)):
        return [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in value]
    return value


SITES = "sites"
"""What `data.name` says if every client has its data at a site of its own."""
Names = Annotated[list[str], BeforeValidator(_as_names)]
Count = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[int, Field(ge=1)]


class NewcomerSettings(Settings):
    """A client that brings data of its own, under its own names for classes."""

    name: str = Field(
        description="Its data: a path to an image folder, .npz or .csv, or a data set's name.", min_length=1
    )
    classes: Names | None = Field(None, description="Only these of its classes, by its own names; without it, all.")
    domains: Names | None = Field(None, description="Only these of its domains, if its data has several.")
    labels: dict[str, str] = Field(
        default_factory=dict, description="Its own name of a class = the name that the federation has for it."
    )
    resize: bool = Field(False, description="Convert its images to the federation's size and number of channels.")
    train_samples: Positive | None = Field(None, description="At most this many training samples, at random.")
    test_samples: Positive | None = Field(None, description="At most this many test samples, at random.")
    welcomed: bool = Field(False, description="It is a member already when the run begins.")


class DataSettings(Settings):
    """Which data, which of its classes are known, and how samples become inputs."""

    name: str | list[str] = Field(
        "digits",
        description="Data set name, several (each a domain), or a path to your image folder, .npz or .csv.",
    )
    coordinator: str | None = Field(
        None,
        min_length=1,
        description="With `fedwild coordinate`: test data of the coordinator's own, as a path or a data set's name.",
    )
    domains: Names | None = Field(None, description="Only these domains of the data; without it, all.")
    newcomers: dict[str, NewcomerSettings] = Field(
        default_factory=dict,
        description="Clients with data of their own, by name: table with name, classes, labels ...",
    )
    known: Names | Count | Literal["all"] | None = Field(
        None,
        description="Known classes: names, how many, or 'all'. Default: digits 6, other data all.",
    )
    novel: Names | Count = Field(
        0, description="Classes whose training samples clients hold without labels: names or how many."
    )
    stages: list[Positive] = Field(
        default_factory=list,
        description="How many of the novel classes turn up in each stage, in order; without it, all in the first.",
    )
    unknown: Names | Count | Literal["rest"] = Field(
        "rest", description="Classes that appear only in the test data: names, how many, or the rest."
    )
    class_seed: Count | None = Field(
        None, description="Choose classes given as counts at random with this seed; without it, in order."
    )
    known_by_client: dict[str, Names] = Field(
        default_factory=dict,
        description="Per client name, the known classes whose labels it sees; the rest is unlabelled to it.",
    )
    validation: float = Field(
        0.1, ge=0, lt=1, description="Share of each client's labelled samples kept for validation."
    )
    public: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of samples set apart as public unlabelled data before partitioning.",
    )
    public_from: Literal["train", "test"] = Field(
        "train",
        description="Where public data comes from; 'test' takes the first half (or `public`) of it.",
    )
    unlabelled_known: float = Field(
        0.0, ge=0, lt=1, description="Share of each client's known samples that joins its unlabelled pool."
    )
    test_fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Share of your own data used as test data when it has no test split (stratified).",
    )
    size: Positive | None = Field(None, le=4096, description="Resize images to this many pixels a side (bilinear).")
    channels: Literal[1, 3] | None = Field(None, description="Convert images to grey (1) or colour (3).")
    mean: float | list[float] | None = Field(
        None, description="Subtracted from inputs in [0, 1]: one number or one per channel."
    )
    std: float | list[float] | None = Field(
        None, description="Inputs are divided by this after `mean`: one or one per channel."
    )
    augment: list[Literal["crop", "flip"]] = Field(
        default_factory=list,
        description="Random changes of training images: 'crop' (reflect pad 4), 'flip' (left-right).",
    )
    train_samples: Positive | None = Field(
        None, description="Use at most this many training samples per domain, at random."
    )
    test_samples: Positive | None = Field(None, description="Use at most this many test samples per domain, at random.")

    @property
    def at_sites(self) -> bool:
        """Whether the data is where the clients are, and not here."""
        return self.name == SITES

    @property
    def names(self) -> list[str]:
        """The data sets asked for, as a list."""
        return [self.name] if isinstance(self.name, str) else list(self.name)

    @field_validator("name")
    @classmethod
    def _some_name(cls, value: str | list[str]) -> str | list[str]:
        names = [value] if isinstance(value, str) else value
        if not names or not all(name.strip() for name in names):
            raise ValueError("give at least one data set name or path")
        if len(set(names)) < len(names):
            raise ValueError("each data set may be named only once")
        return value

    @field_validator("known", "novel", "unknown")
    @classmethod
    def _no_repeats(cls, value: Any) -> Any:
        if isinstance(value, list) and len(set(value)) < len(value):
            raise ValueError("a class is named twice")
        return value

    @field_validator("std")
    @classmethod
    def _positive_spread(cls, value: Any) -> Any:
        values = value if isinstance(value, list) else [] if value is None else [value]
        if any(v <= 0 for v in values):
            raise ValueError("must be above 0")
        return value

    @field_validator("mean", "std", mode="after")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if value == []:
            raise ValueError("give one number, or one per channel")
        return value

    @model_validator(mode="after")
    def _some_known(self) -> DataSettings:
        if self.known in (0, []):
            raise ValueError("known: at least one class must be known")
        return self


class PartitionSettings(Settings):
    """How training data is dealt to clients. Settings of another partition than the chosen one are errors."""

    name: str | None = Field(
        None,
        description="iid, dirichlet, classes, shards, quantity, domain, owner; also 'dirichlet:0.1', '#C=2'. "
        "Default: owner or domain if the data has several, else dirichlet.",
    )
    beta: float | None = Field(
        None, gt=0, description="dirichlet, quantity: concentration; smaller is more uneven (0.5)."
    )
    min_samples: Count | None = Field(
        None, description="dirichlet, quantity: redraw until every client has as many (10)."
    )
    balance: bool | None = Field(None, description="dirichlet: a client with its fair share gets no more (true).")
    k: Positive | None = Field(None, description="classes: how many classes each client has (2).")
    shards_per_client: Positive | None = Field(None, description="shards: label-sorted shards each client gets (2).")
    clients_per_domain: Positive | None = Field(None, description="domain: clients that share one domain (1).")

    @property
    def params(self) -> dict[str, Any]:
        """The settings that were given, apart from the name."""
        return {key: value for key, value in self.model_dump(exclude={"name"}).items() if value is not None}
