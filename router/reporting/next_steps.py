"""The next step to a verdict: a command to copy, or what prevents it.

`report --decide` needs questions that other arms answered and that can be asked again, functions for arms of the user's
code, and a judge or people who score the answers. Words in capitals stand for names that only the user knows.
"""

import math
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ragbandit.router.config.settings import JudgeSettings
from ragbandit.router.reporting.compared_questions import read_compared_questions
from ragbandit.router.reporting.reading import Report, ReportScope, newest_since
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.texts.formats import iso_time

#: `Report.why` of an arm that the reader chose
AS_ASKED: Final = "as asked"
#: if the end of a report differs from now by fewer than this number of seconds, its period ends now
NOW_S: Final = 120.0
#: number of newest questions among which one must be found that can be asked again. If there is none, a sample of this
#: size of the whole period is read
_LOOKED_AT: Final = 400


class NextStep(NamedTuple):
    text: str
    #: whether a learner can take the step, too, since it needs no function of the user
    is_ours: bool


def verdict_step(
    database: Database,
    report: Report,
    scope: ReportScope,
    *,
    options: str,
    worker_arms: Collection[str],
    judge: JudgeSettings,
) -> NextStep | None:
    """The command that buys the verdict, or what prevents it; None if nothing is compared. Raises StoreError.

    options: see `options_of`. worker_arms: arms that RagBandit runs; the user's code runs the others
    """
    arm = report.compared_arm
    if arm is None or scope.reward is None:
        return None
    if arm not in scope.configured:
        return NextStep(f"a verdict on {arm} cannot be bought: it is not configured any more (`arms`)", False)
    for period in _periods(database, replace(scope, most=_LOOKED_AT)):
        questions = read_compared_questions(
            database, period, against=arm, secret=None, arms=scope.configured, by_model=judge.generator is not None
        )
        if questions.refusal is None:
            break
    if questions.refusal is not None:
        return NextStep(f"a verdict cannot be bought yet: {questions.refusal}", False)
    others, own = {question.arm for question in questions.askable}, scope.configured - {*worker_arms}
    needs_functions = arm in own or others <= own
    given, notes = f"{options} --decide", []
    if needs_functions:
        given += " --module MODULE:NAME"
        functions = ", ".join(sorted(own & {arm, *others}))
        notes.append(f"MODULE:NAME maps {functions} to your functions")
    if judge.generator is None and scope.reward.check is None:
        given += " --judge labels"
        notes.append("people label the answers, since neither judge.generator nor reward.check scores them")
    text = f"decide now: `ragbandit report{given}` says how many questions a verdict takes, and for how much"
    return NextStep(text + (f" ({'; '.join(notes)})" if notes else ""), not needs_functions)


def _periods(database: Database, scope: ReportScope) -> Iterator[ReportScope]:
    """Yield the newest part of the scope, which is read equally fast in a store of any size, then the whole scope."""
    with database.read() as connection:
        since = newest_since(connection, scope, count=scope.most)
    if since is not None:
        yield replace(scope, since=since)
    yield scope


def rating_advice(report: Report, *, options: str | None = None) -> str | None:
    """Number of answers to rate for a verdict, and the command if its options are given; None if it is not known."""
    arm = report.compared_arm
    if report.to_rate is None or arm is None:
        return None
    these = f"{report.to_rate:,} more answers" if report.to_rate > 1 else "one more answer"
    text = f"rate {these} of {arm}: then it is perhaps known"
    return text if options is None else f"{text}; `ragbandit report{options} --rate` puts them on the page Labels"


def options_of(report: Report, *, label: str | None = None, now: float) -> str:
    """Options of a command that reads the same questions of the same ledger and compares with the same arm.

    label: label of the ledger; None for the configured one
    """
    options: list[str] = ["--since", _age(now - report.since)]
    if abs(now - report.until) >= NOW_S:
        options = [part for name in ("since", "until") for part in (f"--{name}", str(iso_time(getattr(report, name))))]
    options += [] if report.tenant is None else ["--tenant", report.tenant]
    if report.compared_arm is not None and report.why == AS_ASKED:
        options += ["--against", report.compared_arm]
    options += [] if label is None else ["--label", label]
    return _joined(options)


def _joined(options: Sequence[str]) -> str:
    return "".join(f" {shlex.quote(option)}" for option in options)


def _age(seconds: float) -> str:
    """A time as an option of the command line: whole days or hours, rounded up."""
    hours = max(math.ceil(seconds / 3600.0 - 1e-6), 1)
    return f"{hours // 24}d" if hours % 24 == 0 else f"{hours}h"
