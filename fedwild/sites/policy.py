"""The policy of a site: what a coordinator may do there. Its operator writes it; without one, the default holds.

`review.py` checks runs and jobs against it, `permits.py` asks the operator for new runs.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedwild.core.errors import UserError, unknown_name
from fedwild.core.registry import Registry
from fedwild.core.settings import Settings, validate
from fedwild.core.toml import read_toml, toml_value
from fedwild.methods import METHODS
from fedwild.models import MODELS
from fedwild.runs.components import KINDS

WIDTH = 100
ALL = "*"
"""Stands for all names in a list of a policy."""
Names = list[str]


def _every(description: str) -> Any:
    return Field(default_factory=lambda: [ALL], description=description)


class Policy(Settings):
    """What a coordinator may do at a site."""

    approve: Literal["automatic", "ask"] = Field(
        "automatic",
        description='"automatic": a run that this policy allows starts by itself; "ask": you approve each new run, at '
        "the terminal or with `fedwild site approve`",
    )
    approve_within: float = Field(3600, gt=0, description="seconds that a new run waits for your approval")
    methods: Names = _every('methods that may run here; "*" stands for all of fedwild')
    networks: Names = _every("networks that may be trained here")
    objectives: Names = _every("training objectives")
    corrections: Names = _every("corrections of local training")
    scores: Names = _every("unknown scores")
    estimators: Names = _every("estimators of the number of novel classes")
    aggregations: Names = _every("aggregations of replies")
    import_paths: Names = Field(
        default_factory=list, description="your own code that may run here, such as mynet:Small; other code never runs"
    )
    class_names: Names = _every("class names that may leave this site; samples of other classes take no part")
    welcome: bool = Field(True, description="whether methods that welcome newcomers may run")
    discovery: bool = Field(True, description="whether methods that discover classes in unlabelled samples may run")
    require_secure_sums: bool = Field(
        False, description="whether single replies must never leave, so that every phase needs secure sums"
    )
    require_privacy: Literal["none", "client", "sample"] = Field(
        "none", description="the level of differential privacy that a run must have, with secret noise"
    )
    max_epsilon: float = Field(
        0.0, ge=0, description="largest epsilon that the planned rounds may cost this site; 0: no limit"
    )
    max_delta: float = Field(
        1.0, gt=0, le=1, description="largest delta of differential privacy, if a run has or needs it"
    )
    max_rounds: int = Field(1000, ge=1, description="largest number of rounds of a run")
    max_epochs: int = Field(1000, ge=1, description="largest number of training epochs in a round")
    min_batch_size: int = Field(8, ge=1, description="smallest batch: the weights reveal single samples")
    min_count: int = Field(
        5, ge=1, description="smallest number of samples behind each mean, count or figure that leaves this site"
    )
    max_side: int = Field(512, ge=1, description="largest side, in pixels, to which images may be resized")
    max_classes: int = Field(1000, ge=1, description="largest number of classes of a run")
    max_parameters: int = Field(200_000_000, ge=1, description="largest number of parameters of a network")
    max_reply_mb: float = Field(1024, gt=0, description="largest size of a reply, in megabytes")
    max_job_seconds: float = Field(3600, gt=0, description="longest time to work on one request, in seconds")

    def check_names(self) -> None:
        """Reject names of components that do not exist, so that a typing error does not go unnoticed."""
        for field, registry in COMPONENTS.items():
            for name in getattr(self, field):
                if name != ALL and name not in self.import_paths and name not in registry.names():
                    raise unknown_name(f"policy: {field}: {registry.kind}", name, [ALL, *registry.names()])
        for path in self.import_paths:
            if not all(path.partition(":")):
                raise UserError(f"policy: import_paths: {path!r} is not an import path: write it as module:Class.")

    def to_toml(self) -> str:
        """Return the policy as a file with comments."""
        lines = [
            "# The policy of a fedwild site: what a coordinator may do here. Give it with `fedwild site --policy`."
        ]
        for name, field in type(self).model_fields.items():
            text = f"{field.description}."
            comment = textwrap.wrap(text[0].upper() + text[1:], WIDTH, initial_indent="# ", subsequent_indent="# ")
            lines += ["", *comment, f"{name} = {toml_value(getattr(self, name))}"]
        return "\n".join(lines) + "\n"

    def describe_values(self) -> str:
        """Return all settings in one line."""
        return ", ".join(f"{name} = {toml_value(value)}" for name, value in self.model_dump().items())

    def digest(self) -> str:
        """Return the SHA-256 of the settings, by which the audit log refers to a policy."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()


COMPONENTS: dict[str, Registry[Any]] = {
    "methods": METHODS,
    "networks": MODELS,
    **{f"{kind}s": registry for kind, (registry, _) in KINDS.items()},
}
"""The lists of components in a policy, and where their names are registered."""


def allows(names: Sequence[str], name: str) -> bool:
    """Whether a list of a policy contains a name."""
    return ALL in names or name in names


def read_policy(path: Path | None) -> Policy:
    """Return the policy of a file, or the default without one."""
    if path is None:
        return Policy()
    policy = validate(Policy, read_toml(path), "policy")
    policy.check_names()
    return policy
