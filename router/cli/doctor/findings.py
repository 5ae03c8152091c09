"""Findings: what a check says. And the run of all checks, each with a time limit of its own."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import RagBanditError

Level = Literal["ok", "warning", "problem"]
#: longest wait for a check, seconds; all run at the same time
LIMIT_S: Final = 8.0
#: the meaning of a finding whose check could not be made, until `_one_per_cause` names the checks
_SKIPPED: Final = "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found."""

    #: what was looked at: "Redis memory", "schema"
    check: str
    level: Level
    #: what is so
    found: str
    #: what that means; empty where all is well
    means: str = ""
    #: what to do about it; empty where all is well
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Installation:
    """What the checks look at."""

    settings: Settings
    #: seconds since the epoch, by this host
    clock: Callable[[], float] = time.time


#: its name, and what looks: the findings, none where it has nothing to say
Check = tuple[str, Callable[[Installation], Sequence[Finding]]]


def fine(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check=check, level="ok", found=found)


def warning(check: str, found: str, *, means: str, remedy: str) -> Finding:
    """It works, and may not for long, or not as expected."""
    return Finding(check=check, level="warning", found=found, means=means, remedy=remedy)


def problem(check: str, found: str, *, means: str, remedy: str) -> Finding:
    """It does not work, or something is lost or open."""
    return Finding(check=check, level="problem", found=found, means=means, remedy=remedy)


def run_checks(installation: Installation, checks: Sequence[Check], *, limit_s: float = LIMIT_S) -> list[Finding]:
    """The findings of all checks in their order; one that raises or takes longer than limit_s is itself a problem."""
    findings: list[Sequence[Finding] | None] = [None] * len(checks)

    def look(number: int, name: str, check: Callable[[Installation], Sequence[Finding]]) -> None:
        try:
            findings[number] = check(installation)
        except RagBanditError as error:
            findings[number] = [_failed(name, error.message, remedy=error.remedy)]
        except Exception as error:
            findings[number] = [_failed(name, f"{type(error).__name__}: {error}"[:300], remedy=None)]

    threads = [
        threading.Thread(target=look, args=(number, name, check), daemon=True)
        for number, (name, check) in enumerate(checks)
    ]
    give_up = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))
    late = [(_late(name, limit_s),) if each is None else each for (name, _), each in zip(checks, findings, strict=True)]
    return _one_per_cause([finding for each in late for finding in each])


def _one_per_cause(findings: Sequence[Finding]) -> list[Finding]:
    """The findings; what stopped several checks is reported once, with the names of the checks."""
    checks: dict[str, list[str]] = {}
    for finding in findings:
        if finding.means == _SKIPPED:
            checks.setdefault(finding.found, []).append(finding.check)
    reported = []
    for finding in findings:
        if finding.means != _SKIPPED:
            reported.append(finding)
        elif finding.check == checks[finding.found][0]:
            others = ", ".join(checks[finding.found][1:])
            means = f"skipped because of this: {others}" if others else "this could not be checked"
            reported.append(replace(finding, means=means))
    return reported


def _failed(name: str, message: str, *, remedy: str | None) -> Finding:
    return problem(name, message, means=_SKIPPED, remedy=remedy or "mend this, then run the doctor again")


def _late(name: str, limit_s: float) -> Finding:
    return problem(
        name,
        f"no answer within {limit_s:g} s",
        means=_SKIPPED,
        remedy="what it asks hangs, or the network on the way does: check that host, then run the doctor again",
    )
