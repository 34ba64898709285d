"""The coordinator's requests as a site reads them: what is malformed is rejected before anything is done."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedwild.contract import Method, Step
from fedwild.contract.engine import SECURE_KINDS, Job
from fedwild.contract.schedule import plan_of
from fedwild.core.errors import BadReply, UserError
from fedwild.core.settings import validate
from fedwild.core.version import __version__
from fedwild.data import ClassRoles, DataSettings
from fedwild.runs.config import Config
from fedwild.runs.protection import is_protected
from fedwild.sites.envelope import PROTOCOL

ACTIVITIES = {
    "local": "training",
    "validate": "scoring validation samples",
    "measure": "measuring",
    "advertise": "agreeing on keys for a secure sum",
    "share": "sharing keys for a secure sum",
    "masked": "training; the reply is masked",
    "unmask": "helping to unmask the sum",
}
"""The kinds of jobs that a site answers, as the operator sees them."""


@dataclass(frozen=True)
class Setup:
    """What a site needs to know about a run: settings, class roles, sample shape, and whether it is a newcomer."""

    config: dict[str, Any]
    roles: ClassRoles
    shape: tuple[int, ...]
    newcomer: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "roles": self.roles._asdict()}

    @classmethod
    def from_json(cls, fields: Any) -> Setup:
        try:
            roles = ClassRoles(*(tuple(fields["roles"][key]) for key in ClassRoles._fields))
            names = [name for part in roles for name in part]
            shape = tuple(fields["shape"])
            if not all(isinstance(name, str) for name in names) or not all(map(is_count, shape)):
                raise TypeError("classes must be text, and sides whole numbers")
            return cls(dict(fields["config"]), roles, shape, bool(fields["newcomer"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadReply(f"the setup of the run is malformed: {error!r}") from error


def sent_config(config: Config) -> dict[str, Any]:
    """Return a run's settings for its sites, without the coordinator's paths and addresses."""
    table = config.decisive()
    table["data"] = {**table["data"], "coordinator": None, "newcomers": {}}
    table["federation"] = {**table["federation"], "start_from": None}
    cleaned: dict[str, Any] = json.loads(json.dumps(table))
    return cleaned


def version_fields() -> dict[str, Any]:
    """Return the version of fedwild and of the protocol, which every request holds."""
    return {"version": __version__, "protocol": PROTOCOL}


def check_version(head: Mapping[str, Any], they: str, we: str) -> None:
    """Reject a message from another version of fedwild, whose results may differ."""
    theirs, ours = {key: head.get(key) for key in version_fields()}, version_fields()
    if theirs != ours:
        raise UserError(
            f"{they} has fedwild {str(theirs['version'])[:40]} and {we} {ours['version']}: install the same version on "
            "both."
        )


def own_settings(data: Any, path: str) -> DataSettings:
    """Return the coordinator's data settings, with this site's data in place of its own."""
    if not isinstance(data, Mapping):
        raise BadReply("the request has no data settings")
    settings = {**data, "name": path, "coordinator": None, "newcomers": {}}
    return validate(DataSettings, settings, "data")


def job_of(head: Mapping[str, Any], name: str) -> Job:
    """Return the job of a request. Reject a job for another client, and one that sites do not answer."""
    try:
        fields = dict(head["job"])
        job = Job(**{**fields, "step": Step(**fields["step"]), "classes": tuple(fields["classes"])})
        step = job.step
        well_formed = isinstance(step.phase, str) and is_count(step.round) and is_count(step.index)
        well_formed = well_formed and (job.state is None or is_count(job.state)) and not math.isnan(job.threshold)
        if not well_formed or not all(isinstance(label, str) for label in job.classes):
            raise TypeError("a field has the wrong type")
    except (KeyError, TypeError, ValueError) as error:
        raise BadReply(f"the job is malformed: {error!r}") from error
    if job.kind not in ACTIVITIES:
        raise BadReply(f"a site does not answer jobs of kind {str(job.kind)[:40]!r}")
    if job.client != name:
        raise BadReply(f"a job for {str(job.client)[:40]!r} was sent to {name!r}")
    # Of the fields that only serve on one machine, none is left.
    return replace(job, start=0, stop=0)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def run_of(head: Mapping[str, Any]) -> str:
    """Return the run's id, which becomes the name of a folder."""
    run = head.get("run")
    if not isinstance(run, str) or not (run.isascii() and run.isalnum()) or len(run) > 64:
        raise BadReply("the request has no valid run id")
    return run


def first_index(job: Job, config: Config, method: Method) -> int:
    """Return the index of the first round of the plan that a job belongs to.

    Reject a job that the plan does not need: another round, a single reply where a secure sum is planned, or an
    evaluation in a round that is not evaluated.
    """
    plan = plan_of(method)
    steps = [(planned.step.phase, planned.step.round) for planned in plan]
    asked = (job.step.phase, job.step.round)
    place = steps.index(asked) if asked in steps else -1
    if place < 0 or job.step.index < place:
        raise BadReply(f"the plan of the run has no round {job.step.round + 1} of phase {job.step.phase[:40]!r}")
    first = job.step.index - place
    kinds = SECURE_KINDS if is_protected(plan[place].phase, config.federation.secure) else ("local",)
    if config.evaluation.is_due(job.step.index, first + len(steps) - 1):
        kinds = (*kinds, "validate", "measure")
    if job.kind not in kinds:
        raise BadReply(f"round {job.step.index + 1} needs jobs of kind {', '.join(kinds)}, not {job.kind!r}")
    return first
