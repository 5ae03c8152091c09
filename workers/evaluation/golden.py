"""Golden questions: each period all arms answer the questions of `learning.golden`, and the policy learns the outcomes.

That a period is done is an entry of the audit log, so any process can go on with an interrupted run. On the same host
it uses the stored answers again, and their dollars count for `learning.golden_dollars`.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.advice import Ask
from ragbandit.router.offline.estimation import no_progress
from ragbandit.router.offline.warm import enter
from ragbandit.router.storage.access.audit_log import last_entry, record
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.telemetry.routines import Routine
from ragbandit.workers.evaluation import runs
from ragbandit.workers.evaluation.advise import RunOptions, Sources
from ragbandit.workers.evaluation.command import write_records
from ragbandit.workers.evaluation.paired import PairedRun

log = logging.getLogger("ragbandit.worker")

ACTION: Final = "golden"
#: duration of the lease unless it is renewed, and time between renewals, seconds
LEASE_S, RENEW_S = 60.0, 15.0
#: failed answers are asked again TRIES times in the first PART of a period
PART, TRIES = 0.25, 6
_KEPT_RUNS: Final = 30


def ask_golden(settings: Settings, *, ledger: Ledger, holder: str, clock: Callable[[], float]) -> float | None:
    """Ask the golden questions if that is due and no other process does. Returns seconds until the next try, or None.

    clock: time that decides which period it is, see `DeadlineClock`. Raises StoreError, InvalidInput, ConfigError and
    NotReady.
    """
    number, passed = divmod(clock(), settings.learning.golden_s)
    period = str(int(number))
    lease = Lease(database=ledger.database, name="golden")
    if _is_done(ledger, period) or not lease.acquire(holder=holder, lease_s=LEASE_S):
        return None
    renew = partial(lease.acquire, holder=holder, lease_s=LEASE_S)
    renewal = Routine("renew the lease of the golden questions", renew, every_s=RENEW_S, at_once=False).start()
    try:
        if _is_done(ledger, period):  # by the last holder of the lease
            return None
        tried_for_s = PART * settings.learning.golden_s
        is_done = _run(settings, ledger=ledger, period=period, is_last=passed >= tried_for_s)
        return None if is_done else tried_for_s / TRIES
    finally:
        renewal.close()
        lease.release(holder=holder)


def _is_done(ledger: Ledger, period: str) -> bool:
    with ledger.database.read() as connection:
        return last_entry(connection, action=ACTION, target=_target(ledger, period)) is not None


def _target(ledger: Ledger, period: str) -> str:
    return f"{period} {ledger.label}"


def _run(settings: Settings, *, ledger: Ledger, period: str, is_last: bool) -> bool:
    """Ask the questions and let the policy learn. Returns False if some are asked again, because arms failed."""
    options = settings.learning
    folder = Path(settings.data_dir) / "golden"
    sources = Sources(settings=settings, ask=Ask(), progress=no_progress, warn=log.warning)
    rows = runs.distinct(runs.read_questions(Path(str(options.golden)), family="ours"))
    # Answers to the same questions in earlier runs have another version, so all are asked again.
    loaded = RunOptions(pipelines={}).arms_of(settings, learns=True).items()
    arms = {name: replace(arm, version=f"{arm.version} {period}") for name, arm in loaded}
    extra = {"action": "golden", "questions": len(rows), "arms": len(arms), "dollars": options.golden_dollars}
    log.info("golden questions are asked, for these dollars at most", extra=extra)
    with runs.Answers(folder / f"{period}.jsonl", resume=True) as stored:
        stored.forget_failed()
        run = PairedRun(rows=rows, arms=arms, answers=stored, settings=settings, family="ours", progress=no_progress)
        run.budget, run.warn, run.learns_failures = options.golden_dollars, log.warning, False
        run.finish(concurrency=1)
    facts = {**run.facts(), "failed": sum(run.failures.values())}
    if run.failures and not is_last:
        log.warning("arms failed at golden questions; these are asked again", extra={"action": "golden", **facts})
        return False
    outcomes = folder / f"{period}.outcomes.jsonl"
    write_records(outcomes, run.records)
    if run.records:
        enter(sources.of_log(outcomes, skip_bad=False), ledger=ledger, settings=settings, encoder=sources.encoder)
    with ledger.database.write() as connection:
        record(connection, actor="service", action=ACTION, target=_target(ledger, period), facts=facts)
    for old in sorted(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)[: -2 * _KEPT_RUNS]:
        old.unlink()
    log.info("golden questions were asked", extra={"action": "golden", **facts})
    return True
