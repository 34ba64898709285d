"""Which phases of a run secure sums protect, and why they cannot protect the others."""

from __future__ import annotations

from fedwild.contract import Method, Phase
from fedwild.contract.sums import NotSummable, sums_of
from fedwild.core.errors import UserError
from fedwild.runs.settings import FederationSettings


def obstacle(phase: Phase) -> str | None:
    """Return why a phase cannot be protected, or None if it can."""
    try:
        sums_of(phase)
    except NotSummable as problem:
        return str(problem)
    return None


def is_protected(phase: Phase, secure: str) -> bool:
    """Return whether the replies of a phase are summed securely."""
    return secure != "no" and obstacle(phase) is None


def check_protection(method: Method, federation: FederationSettings, privacy: str) -> None:
    """Reject settings and methods that need single replies where secure sums are required, and a missing package."""
    secure = federation.secure
    if secure == "no":
        return
    if privacy == "sample":
        raise UserError(
            f"federation.secure = {secure!r} is not allowed with privacy.level = 'sample': the accountant needs the "
            "number of samples of each client. Use one of them, or privacy.level = 'client'."
        )
    if federation.max_weight < 1:
        raise UserError(
            f"federation.max_weight = {federation.max_weight:g} is not allowed with federation.secure = {secure!r}: "
            "the weights of single clients are not known. Use one of them."
        )
    problems = obstacles(method)
    if secure == "required" and problems:
        name, reason = next(iter(problems.items()))
        raise UserError(
            f"federation.secure = 'required' is not allowed with method {method.name!r}: its phase {name!r} cannot be "
            f"protected, because {reason}. Set federation.secure = 'where-possible' to protect the other phases only."
        )


def obstacles(method: Method) -> dict[str, str]:
    """Return the phases that cannot be protected, by name, with the reason."""
    found = {phase.name: obstacle(phase) for phase in method.phases()}
    return {name: reason for name, reason in found.items() if reason is not None}


def protection_notes(method: Method, secure: str) -> list[str]:
    """Return notes on which phases are protected, for the log, the terminal and the report."""
    if secure == "no":
        return []
    problems = obstacles(method)
    protected = list(dict.fromkeys(phase.name for phase in method.phases() if phase.name not in problems))
    summary = f"secure sums protect {join(protected)}" if protected else "secure sums protect no phase of this method"
    return [summary, *(f"secure sums do not protect {name}: {reason}" for name, reason in problems.items())]


def join(names: list[str]) -> str:
    """Return names as the phases of a sentence."""
    return f"the phase{'s' if len(names) > 1 else ''} {', '.join(names)}"
