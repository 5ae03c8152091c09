"""The last verdict of each comparison in reports, with its moment, so that a withdrawn one is explained.

The key of a comparison is its tenant (or all tenants), its arm, and the length of its period in whole hours. Verdicts
on periods of another length are not stored: such a period has a fixed beginning and another length at each report. The
newest _MOST verdicts of a ledger are one position in the store, without texts or ids of questions.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ragbandit.router.comparison import NOT_KNOWN, Comparison, Difference, words
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.reporting.next_steps import NOW_S
from ragbandit.router.reporting.reading import Report, ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.positions import lock_position, move_position, position_of
from ragbandit.shared.errors import StoreError
from ragbandit.shared.texts.formats import counted, moment

log = logging.getLogger("ragbandit.report")

#: largest number of stored verdicts of a ledger
_MOST: Final = 64
#: an hour in seconds; a verdict that stays the same is stored again only after this time
_HOUR_S: Final = 3_600.0


def report_with_last_verdict(
    database: Database, scope: ReportScope, *, policy: PolicySettings, against: str | None = None, now: float
) -> Report:
    """Make a report as `reporting.report.report` does. Store its verdict if its period has whole hours and ends now.

    If an earlier verdict on the same comparison is withdrawn, the report says why. now: seconds since 1970
    """
    made = report(database, scope, policy=policy, against=against, now=now)
    total = made.total
    hours = round((made.until - made.since) / _HOUR_S)
    is_rolling = abs(made.until - made.since - hours * _HOUR_S) < NOW_S
    if total is None or not is_rolling or abs(now - made.until) > NOW_S:
        return made
    reader = f"last verdicts:{scope.label}"
    with database.read() as connection:
        stored = position_of(connection, reader)
    key = f"{made.tenant or ''}/{total.second_arm}/{hours}"
    last = stored.get(key)
    if last is not None and last["at"] >= made.until:  # a newer report has stored its verdict
        return made
    is_new = last is None or last["verdict"] != total.verdict or now - last["at"] > _HOUR_S
    if total.verdict != NOT_KNOWN and is_new:
        said = {"verdict": total.verdict, "at": now, "low": total.reward.low, "high": total.reward.high}
        _store(database, {key: said}, reader=reader, now=now)
    if last is None or last["verdict"] == total.verdict:
        return made
    why = _why(made, total, last=last)
    if why is None:
        newer = report(database, replace(scope, since=last["at"]), policy=policy, against=total.second_arm, now=now)
        why = _newer_questions(newer.total, total, last=last)
    text = f"{_former(last)}; {why}."
    return replace(made, withdrawn=text, sentence=f"{made.sentence} {text}")


def _store(database: Database, verdict: Mapping[str, Any], *, reader: str, now: float) -> None:
    """Add a verdict by its key. If the store cannot be written, a warning is logged, and the report goes on."""
    try:
        with database.write() as connection:
            lock_position(connection, reader, now=now)
            verdicts = {**position_of(connection, reader), **verdict}
            newest = dict(sorted(verdicts.items(), key=lambda one: -one[1]["at"])[:_MOST])
            move_position(connection, reader, position=newest, now=now)
    except StoreError as error:
        log.warning("the verdict of a report was not stored: %s", error)


def _former(last: Mapping[str, Any]) -> str:
    interval = words.interval_words(Difference(low=last["low"], high=last["high"]))
    return f"At {moment(last['at'])} the report said {last['verdict']} (reward {interval} a question)"


def _why(report: Report, total: Comparison, *, last: Mapping[str, Any]) -> str | None:
    """Why the last verdict does not hold any more; None if nothing but the questions has changed."""
    if report.state is not None:
        return f"now the report has a state: {report.state}"
    if total.reward.low is None or total.reward.high is None:
        return f"now there is no interval (missing: {total.missing})"
    return next((f"since then {change.what}" for change in report.changes if change.at > last["at"]), None)


def _newer_questions(newer: Comparison | None, total: Comparison, *, last: Mapping[str, Any]) -> str:
    questions = counted(0 if newer is None else newer.questions, "question")
    estimate = None if newer is None else newer.reward.estimate
    if estimate is not None and not last["low"] <= estimate <= last["high"]:
        return f"the newest {questions} differ"
    interval = words.interval_words(total.reward)
    return f"with {questions} since then, and without those that left the period, the interval is {interval}"
