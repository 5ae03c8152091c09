"""Golden questions: each period the arms that workers run answer the questions of `learning.golden`.

The policy learns the outcomes. The store has the state of the period (done or not, dollars so far, time of the next
try), so any process can continue an interrupted run. On the same host it reuses the stored answers.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ragbandit.additions.evaluation.compared_arms import load_compared_arms
from ragbandit.additions.evaluation.file_questions import FileQuestions
from ragbandit.additions.evaluation.kept_answers import AnswerFile
from ragbandit.additions.evaluation.outcomes import OutcomeReader
from ragbandit.additions.evaluation.warm import enter_rows
from ragbandit.additions.golden.period import PeriodState
from ragbandit.additions.golden.questions import read_golden
from ragbandit.additions.golden.settings import GoldenSection
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.estimation import no_progress
from ragbandit.router.offline.logs.jsonl import write_records
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.telemetry.routines import Routine
from ragbandit.workers.asking.question_run import QuestionRun
from ragbandit.workers.asking.stop import Stop

log = logging.getLogger("ragbandit.worker")

#: duration of the lease unless it is renewed, and time between renewals, seconds
LEASE_S, RENEW_S = 60.0, 15.0
#: failed answers are asked again TRIES times in the first PART of a period
PART, TRIES = 0.25, 6
_RUNS_WITH_FILES: Final = 30  #: number of runs whose files stay; files of older runs are deleted


def ask_golden(settings: Settings, *, ledger: Ledger, holder: str, clock: Callable[[], float]) -> None:
    """Ask the golden questions if they are due and no other process asks them.

    clock: returns the time that decides the period, see `DeadlineClock`. Raises StoreError, InvalidInput, ConfigError
    and NotReady.
    """
    lease = Lease(database=ledger.database, name="golden")
    read = partial(PeriodState.read, ledger, period_s=settings.learning.of(GoldenSection).golden_s)
    if not read(now=clock()).is_due or not lease.acquire(holder=holder, lease_s=LEASE_S):
        return
    renew = partial(lease.acquire, holder=holder, lease_s=LEASE_S)
    renewal = Routine("renew the lease of the golden questions", renew, every_s=RENEW_S, at_once=False).start()
    try:
        state = read(now=clock())  # the last holder of the lease may have changed it
        if state.is_due:
            _ask_and_learn(settings, ledger=ledger, state=state)
    finally:
        renewal.close()
        lease.release(holder=holder)


def _ask_and_learn(settings: Settings, *, ledger: Ledger, state: PeriodState) -> None:
    """Ask the questions and let the policy learn, unless some are asked again later, because arms failed."""
    options, period = settings.learning.of(GoldenSection), state.period
    tried_for_s = PART * options.golden_s
    folder = Path(settings.data_dir) / "golden"
    outcomes = OutcomeReader(settings=settings, progress=no_progress)
    rows = read_golden(str(options.golden))
    # Answers to the same questions in earlier runs have another version, so all are asked again.
    loaded = load_compared_arms(settings, learns=True).items()
    arms = {name: replace(arm, version=f"{arm.version} {period}") for name, arm in loaded}
    extra = {"action": "golden", "questions": len(rows), "arms": len(arms), "dollars": options.golden_dollars}
    log.info("golden questions are asked, for these dollars at most", extra=extra)
    with AnswerFile(folder / f"{period}.jsonl", resume=True) as stored:
        stored.forget_failed()
        kept: dict[str, Any] = {"answers": stored, "reward": settings.reward, "limits": settings.budget}
        questions = FileQuestions(rows, arms=arms, learns_failures=False, **kept)
        run = QuestionRun(
            questions=questions.all,
            arms=arms,
            cost=settings.reward.cost,
            stop=Stop(budget=options.golden_dollars),
            paid_before=max(state.dollars, questions.paid),
            progress=no_progress,
            warn=log.warning,
            on_paid=lambda dollars: state.store(dollars=dollars),
        )
        run.finish(concurrency=1)
    facts = {**run.facts(), "failed": sum(run.failures.values())}
    if run.failures and run.ended is None and state.now < period * options.golden_s + tried_for_s:
        state.store(dollars=run.spent, next_at=state.now + tried_for_s / TRIES)
        log.warning("arms failed at golden questions; these are asked again", extra={"action": "golden", **facts})
        return
    file = folder / f"{period}.outcomes.jsonl"
    write_records(file, questions.records)
    if questions.records:
        enter_rows(outcomes.read_log(file, skip_bad=False), ledger=ledger, settings=settings, encoder=outcomes.encoder)
    state.store(dollars=run.spent, next_at=math.inf)
    for old in sorted(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)[: -2 * _RUNS_WITH_FILES]:
        old.unlink()
    log.info("golden questions were asked", extra={"action": "golden", **facts})
