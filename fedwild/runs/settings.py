"""Settings of a run that belong to no component: who takes part, how the model is measured, where clients run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedwild.core.settings import Settings


class FederationSettings(Settings):
    """Who takes part, and what the run starts from."""

    clients: int | None = Field(
        None, ge=1, le=1_000_000, description="number of clients; by default 10, or as the data determines"
    )
    participation: float = Field(1.0, gt=0, le=1, description="random share of the clients that takes part in a round")
    min_clients: int = Field(1, ge=1, description="a round fails if fewer clients reply")
    max_update: float = Field(
        100,
        gt=0,
        description="reject a reply whose update is more than this many times as large as the others' and the weights",
    )
    max_weight: float = Field(
        1.0, gt=0, le=1, description="largest share of a round's samples that may be counted for one client"
    )
    arrivals: dict[str, Annotated[int, Field(ge=0, strict=True)] | Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict,
        description="client name = the round (from 0) or the phase in which it arrives",
    )
    secure: Literal["no", "required", "where-possible"] = Field(
        "no",
        description="secure sums: the server learns sums over clients, no single reply; required rejects methods that "
        "need single replies",
    )
    secure_threshold: float = Field(
        2 / 3, gt=0.5, le=1, description="share of a round's clients that must stay until its secure sum is complete"
    )
    secure_range: float = Field(
        16384, gt=0, le=2.0**30, description="largest absolute weight, or value per sample, that secure sums can add"
    )
    start_from: str | None = Field(
        None, min_length=1, description="folder of a finished run, whose global model is the initial model of this run"
    )


class EvaluationSettings(Settings):
    """When and how the model is measured."""

    every: int = Field(1, ge=0, description="rounds between evaluations; 0 evaluates only at the end")
    accept: float = Field(0.95, gt=0, le=1, description="share of known validation samples that the threshold accepts")

    def is_due(self, index: int, last: int) -> bool:
        """Return whether the round with this index is evaluated: every `every` rounds, and the last."""
        return index == last or (self.every > 0 and (index + 1) % self.every == 0)


class EngineSettings(Settings):
    """Where clients run. You can resume a run with another engine; the number of workers never changes the result."""

    name: Literal["local", "ray", "flower"] = Field(
        "local", description="local: processes on this machine; ray: a Ray cluster; flower: real sites (coordinate)"
    )
    workers: int | None = Field(None, ge=0, le=256, description="worker processes (one per core); 0 = in this process")
    device: str = Field("cpu", description="cpu, cuda, cuda:0 ...")
    max_reply_mb: float = Field(1024, gt=0, description="larger replies are rejected")
    address: str | None = Field(
        None,
        min_length=1,
        description="ray: address of the cluster, such as auto; by default a new one on this machine",
    )
    superlink: str | None = Field(
        None, min_length=1, description="flower: HOST:PORT of a SuperLink that already runs on this machine"
    )
    listen: str | None = Field(
        None,
        min_length=1,
        description="flower: HOST:PORT where the coordinator listens, unless superlink is set",
    )
    certificates: str | None = Field(
        None,
        min_length=1,
        description="flower: folder made by `fedwild flower keys`; without it, there is no TLS",
    )
    wait: float = Field(
        600, gt=0, description="flower: seconds to wait for sites, at the start or when too few are connected"
    )
    answer_within: float | None = Field(
        None, gt=0, description="flower: seconds that a site has for a job; without it, no limit while it is connected"
    )


class PrivacySettings(Settings):
    """Differential privacy of the trained model."""

    level: Literal["none", "client", "sample"] = Field(
        "none", description="what the model does not reveal: whether a client took part, or whether a sample was used"
    )
    clip: float = Field(
        1.0, gt=0, description="largest L2 norm of a client's update (client) or of a sample's gradient (sample)"
    )
    noise: float | None = Field(
        None, ge=0, description="standard deviation of the noise divided by clip; by default computed from epsilon"
    )
    epsilon: float | None = Field(None, gt=0, description="largest epsilon that all planned rounds may cost")
    delta: float | None = Field(
        None, gt=0, lt=1, description="must be below 1/n; by default n**-1.1 for n clients (client) or samples (sample)"
    )
    seed: Literal["run", "secret"] = Field(
        "run", description="run: noise from the run's seed, which must stay secret; secret: drawn, not reproducible"
    )

    @model_validator(mode="after")
    def _check_level(self) -> PrivacySettings:
        if self.level == "none":
            given = sorted(self.model_dump(exclude_defaults=True))
            if given:
                raise ValueError(f"{', '.join(given)} set without a level; set level = 'client' or 'sample'")
        elif self.noise is None and self.epsilon is None:
            raise ValueError(f"level = {self.level!r} needs noise or epsilon; set one of them")
        return self
