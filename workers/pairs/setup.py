"""Prepares a bought verdict: for the command `report --decide`, and for requests over HTTP."""

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Final

from ragbandit.router.config.settings import BudgetSettings, Settings
from ragbandit.router.operation.budgets import check_budgets
from ragbandit.router.reporting.compared_questions import NOT_HERE, ComparedQuestions, read_compared_questions
from ragbandit.router.reporting.paired_comparison import Pairing, counted_questions, stored_answers
from ragbandit.router.reporting.reading import Report, ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.label_queue import LABEL_QUEUE, room_for_questions
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import body_hash
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease, lease_holder
from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.errors import InvalidInput, NotReady
from ragbandit.shared.types import ArmName, Budget
from ragbandit.workers.asking.scoring import Scorer, make_scorer
from ragbandit.workers.pairs.answers import BoughtAnswers
from ragbandit.workers.pairs.bought_verdict import BoughtVerdict
from ragbandit.workers.pairs.prices import expected_prices
from ragbandit.workers.setup.chosen_arms import parse_arms
from ragbandit.workers.setup.generators import worker_arms
from ragbandit.workers.setup.loading import ArmLoader, LoadedArm
from ragbandit.workers.setup.pipelines import Pipelines, load_pipelines

#: duration of the lease unless it is renewed, and time between renewals, seconds
_LEASE_S: Final = 60.0
_RENEW_S: Final = 15.0


@contextlib.contextmanager
def asking_lease(database: Database) -> Iterator[None]:
    """A block in which no other process asks, since two would pay for the same questions. Raises NotReady."""
    lease, holder = Lease(database=database, name="decide"), lease_holder("decide")
    if not lease.acquire(holder=holder, lease_s=_LEASE_S):
        remedy = "wait until that process has ended, then run this again"
        raise NotReady("another process asks questions of this store", field="decide", remedy=remedy)
    renew = partial(lease.acquire, holder=holder, lease_s=_LEASE_S)
    renewal = Routine("renew the lease of paired questions", renew, every_s=_RENEW_S, at_once=False).start()
    try:
        yield
    finally:
        renewal.close()
        lease.release(holder=holder)


def prepare_verdict(
    ledger: Ledger,
    scope: ReportScope,
    *,
    settings: Settings,
    against: str | None,
    judge: str | None,
    actor: str,
    charged: str = "",
    pipelines: Pipelines | None = None,
    result: Report | None = None,
) -> BoughtVerdict:
    """Read the questions of a period and load the arms that answer them. No arm is asked yet.

    against: arm to compare with; None for the default of `report`; ignored if `result` is given. judge: see
    `make_scorer`. charged: the API key whose budget pays; "" to book the dollars on `actor`, without a budget.
    pipelines: functions of the user's arms. result: report of the scope, if it is known. Raises InvalidInput, NotFound,
    ConfigError, StoreError
    """
    if result is None:
        result = report(ledger.database, scope, policy=settings.policy, against=against, now=time.time())
    arm, pipelines, database = _compared_arm(result), pipelines or {}, ledger.database
    scorer = make_scorer(settings.judge, reward=settings.reward, chosen=judge)
    secret = shared_secret(database, name=DRAWS, now=time.time())
    runnable = {*settings.worker_arms, *pipelines}
    _check_runnable(arm, runnable=runnable)
    by_model = scorer is not None and scorer.by_model
    questions = read_compared_questions(database, scope, against=arm, secret=secret, arms=runnable, by_model=by_model)
    _check_askable(questions)
    arms = _load_arms({arm, *(one.arm for one in questions.askable)}, settings=settings, pipelines=pipelines)
    pairing = _pairing(arms, scorer=scorer, limits=settings.budget).with_earlier_arms(database, label=ledger.label)
    counted = questions
    if not runnable.issuperset(pairing.versions):  # an earlier run had functions of arms that this one lacks
        counted = counted_questions(database, scope, pairing, against=arm, secret=secret)
    store = DecisionStore(database, label=ledger.label)
    answers = BoughtAnswers(
        questions,
        database=database,
        pairing=pairing,
        stored=stored_answers(database, questions),
        payer=charged or actor,
        check=partial(check_budgets, key=charged or None, database=database),
    )
    return BoughtVerdict(
        actor=actor,
        reward=settings.reward,
        limits=settings.budget,
        source_chars=settings.log.source_chars,
        ledger=ledger,
        store=store,
        compared=questions,
        counted=counted,
        arms=arms,
        answers=answers,
        prices=expected_prices(
            questions,
            answers,
            arms=arms.keys(),
            generators={arm: settings.named_generators[one.generator] for arm, one in worker_arms(settings).items()},
            judge=settings.judge.generator,
            scorer=scorer,
            store=store,
        ),
        secret=secret,
        scorer=scorer,
        most_new=_room(database, pairing=pairing),
        is_steady=result.state is None,
    )


def _pairing(arms: Mapping[ArmName, LoadedArm], *, scorer: Scorer | None, limits: BudgetSettings) -> Pairing:
    """The pairing of the answers that this run asks for."""
    versions = {name: _arm_version(arm, limits=limits) for name, arm in arms.items()}
    if scorer is None:
        return Pairing(judge=LABEL_QUEUE, rater=LABEL_QUEUE, versions=versions)
    return Pairing(judge=scorer.identity, rater=scorer.name, versions=versions, by_model=scorer.by_model)


def _room(database: Database, *, pairing: Pairing) -> int | None:
    """Number of questions that may be asked if people label the answers; None if a judge or a check scores them."""
    if not pairing.by_people:
        return None
    with database.read() as connection:
        return room_for_questions(connection, versions=pairing.versions)


def _compared_arm(result: Report) -> ArmName:
    if result.compared_arm is None:
        remedy = "name the arm to ask (--against), or give a longer period, or another tenant"
        raise InvalidInput("no question of the period compares two arms", field="since", remedy=remedy)
    return result.compared_arm


def _check_runnable(against: str, *, runnable: Collection[str]) -> None:
    if against in runnable:
        return
    remedy = "give its function with --module MODULE:NAME, or compare with another arm (--against)"
    raise InvalidInput(f"{against} cannot be run here", field="against", remedy=remedy)


def _check_askable(questions: ComparedQuestions) -> None:
    if questions.refusal is not None:
        remedy = "compare with another arm (--against), or give another period"
        if any(reason.endswith(NOT_HERE) for reason in questions.obstacles):
            remedy = "give the functions of your own arms with --module MODULE:NAME"
        raise InvalidInput(questions.refusal, field="against", remedy=remedy)


def _load_arms(names: Collection[str], *, settings: Settings, pipelines: Pipelines) -> dict[ArmName, LoadedArm]:
    functions = {name: function for name, function in pipelines.items() if name in names}
    of_workers = [name for name in sorted(names) if name not in functions]
    runnable = parse_arms(of_workers, settings=settings)[0] if of_workers else {}
    return ArmLoader(settings).load(runnable) | load_pipelines(functions, prices=settings.reward.cost)


def _arm_version(arm: LoadedArm, *, limits: BudgetSettings) -> str:
    """sha256 of the arm's definition and of the limits of its answers, 43 digits."""
    made_by = {name: value for name, value in arm.made_by(Budget()).items() if name != "budget"}
    return body_hash({"made_by": made_by, "version": arm.version, "limits": limits.model_dump(mode="json")})
