"""Checks what a coordinator asks for against the policy of the site, before any data is read or any code runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedwild.contract import Discovers, Method, Welcomes
from fedwild.core.errors import UserError
from fedwild.core.rng import Rng
from fedwild.core.text import count
from fedwild.data import ClassRoles, DataSettings
from fedwild.models import build
from fedwild.openset import FitScore
from fedwild.runs.accountant import Mechanism, largest_epsilon
from fedwild.runs.config import Config
from fedwild.runs.experiment import check_embedding
from fedwild.runs.privacy import planned_mechanisms
from fedwild.sites.policy import COMPONENTS, Policy, allows


class Refused(UserError):
    """Something that the policy of this site does not allow; `short` is the reason sent to the coordinator."""

    def __init__(self, what: str, rule: str) -> None:
        super().__init__(f"{what} is refused by this site's policy: {rule}.")
        self.short = f"{what} is refused by the policy of this site"


def check_data(policy: Policy, data: DataSettings) -> None:
    """Refuse images that would need too much memory. Called before files are read."""
    if data.size is not None and data.size > policy.max_side:
        raise Refused(f"data.size = {data.size}", f"max_side = {policy.max_side}")


def check_config(policy: Policy, config: Config) -> None:
    """Refuse components and settings that the policy does not allow. Called before the method is made."""
    assert config.model is not None
    named = {"methods": config.method.name, "networks": config.model.name}
    named |= {f"{kind}s": part.name for kind, part in config.parts.items()}
    for field, name in named.items():
        if not allows(getattr(policy, field), name):
            raise Refused(f"{COMPONENTS[field].kind}.name = {name!r}", f"{field} does not contain it")
    cls = COMPONENTS["methods"].get(config.method.name)
    if issubclass(cls, Welcomes) and not policy.welcome:
        raise Refused(f"method.name = {config.method.name!r}", "it welcomes newcomers, and welcome = false")
    if issubclass(cls, Discovers) and not policy.discovery:
        raise Refused(f"method.name = {config.method.name!r}", "it discovers classes, and discovery = false")
    secure = config.federation.secure
    if policy.require_secure_sums and secure != "required":
        raise Refused(f"federation.secure = {secure!r}", "require_secure_sums = true")
    check_numbers(policy, config.method.params.model_dump(), cls.traits.sends_embeddings)


def check_privacy(policy: Policy, config: Config, method: Method, samples: int) -> None:
    """Refuse a run with less differential privacy than the policy requires; `samples` are for training at this site.

    The cost of the planned rounds is computed from the noise that this site adds, whatever epsilon the run claims.
    """
    privacy = config.privacy
    if policy.require_privacy == "none" and not policy.max_epsilon:
        return
    needed = f"require_privacy = {policy.require_privacy!r}, max_epsilon = {policy.max_epsilon:g}"
    if privacy.level == "none" or policy.require_privacy not in ("none", privacy.level):
        raise Refused(f"privacy.level = {privacy.level!r}", needed)
    if privacy.seed != "secret":
        raise Refused(
            f"privacy.seed = {privacy.seed!r}", "the noise must be secret, because the coordinator has the seed"
        )
    delta = 1.0 if privacy.delta is None else privacy.delta
    # Without a limit below 1/n, a mechanism may publish one of n samples.
    if delta > policy.max_delta or (privacy.level == "sample" and delta * samples >= 1):
        raise Refused(
            f"privacy.delta = {delta:g}", f"max_delta = {policy.max_delta:g}, and below 1/{samples} for samples"
        )
    plans = planned_mechanisms(privacy.level, method.phases(), config.federation.participation, [samples])
    cost = largest_epsilon((Mechanism(rate, privacy.noise or 0.0, times) for rate, times in plans), delta)
    limit = policy.max_epsilon * (1 + 1e-9) if policy.max_epsilon else math.inf
    if cost > limit or math.isinf(cost):
        raise Refused(f"a run that costs epsilon = {cost:.4g}", f"max_epsilon = {policy.max_epsilon:g}")


def check_numbers(policy: Policy, settings: Mapping[str, Any], sends_embeddings: bool) -> None:
    """Refuse settings of a method outside the limits, whatever the method calls them: `epochs`, `discover_epochs`."""
    for key, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        what = f"method.{key} = {value}"
        if key.endswith(("rounds", "stages")) and value > policy.max_rounds:
            raise Refused(what, f"max_rounds = {policy.max_rounds}")
        if key.endswith("epochs") and value > policy.max_epochs:
            raise Refused(what, f"max_epochs = {policy.max_epochs}")
        if key.endswith("batch_size") and value < policy.min_batch_size:
            raise Refused(what, f"min_batch_size = {policy.min_batch_size}")
        if sends_embeddings and is_count(key) and value < policy.min_count:
            raise Refused(what, f"min_count = {policy.min_count}")


def is_count(setting: str) -> bool:
    """Whether a setting of a method is the number of samples behind what clients send."""
    return setting.startswith("min_") and setting.endswith("count")


def check_method(policy: Policy, method: Method) -> None:
    """Refuse a plan with too many rounds. Called before the plan is made."""
    rounds = sum(phase.rounds for phase in method.phases())
    if rounds > policy.max_rounds:
        raise Refused(f"a plan of {rounds} rounds", f"max_rounds = {policy.max_rounds}")


def check_network(policy: Policy, config: Config, method: Method, shape: tuple[int, ...], outputs: int) -> None:
    """Refuse a network that is too large, or whose embeddings are samples. Called before memory is reserved for it."""
    assert config.model is not None
    part = config.model
    if ":" in part.name:
        # The operator allowed this code. Unlike a registered network, it may need real tensors to be made.
        with Rng(0).seeded("size"):
            network = build(part.name, shape, outputs, params=part.params.model_dump())
    else:
        with torch.device("meta"):
            network = build(part.name, shape, outputs, params=part.params.model_dump())
    parameters = sum(parameter.numel() for parameter in network.parameters())
    if parameters > policy.max_parameters:
        raise Refused(f"a network of {parameters} parameters", f"max_parameters = {policy.max_parameters}")
    check_embedding(method, network, part.name)


def check_classes(policy: Policy, roles: ClassRoles, classes: Sequence[str]) -> None:
    """Refuse more classes than allowed: each is an output of the network."""
    number = max(len(classes), sum(len(names) for names in roles))
    if number > policy.max_classes:
        raise Refused(f"a run with {number} classes", f"max_classes = {policy.max_classes}")


def check_samples(policy: Policy, method: Method, labels: Mapping[str, int]) -> None:
    """Refuse to train where a few samples could be read from what leaves; `labels` are training samples by class."""
    total = sum(labels.values())
    if 0 < total < policy.min_count:
        raise Refused(f"training on {count(total, 'sample')}", f"min_count = {policy.min_count}")
    sends_classes = method.traits.sends_embeddings and not any(map(is_count, type(method.params).model_fields))
    if sends_classes or any(isinstance(phase, FitScore) for phase in method.phases()):
        few = [name for name, number in sorted(labels.items()) if number < policy.min_count]
        if few:
            what = f"sending a mean for each class (method {method.name})"
            raise Refused(what, f"class {few[0]!r} has {labels[few[0]]} samples, min_count = {policy.min_count}")
