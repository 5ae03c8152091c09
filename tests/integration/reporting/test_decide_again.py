"""`report --decide` when runs fail, are repeated, or come at the same time."""

import contextlib
from dataclasses import replace
from threading import Barrier, BrokenBarrierError, Event, Lock, Thread, current_thread
from types import SimpleNamespace

import pytest

from ragbandit.router.reporting import verdict_requests
from ragbandit.router.reporting.next_steps import options_of, rating_advice, verdict_step
from ragbandit.router.reporting.report import report
from ragbandit.router.reporting.verdict_requests import VerdictRequest, make_request, newest_request
from ragbandit.router.storage import label_queue
from ragbandit.router.storage.begun_pairs import begun_pairs, store_begun
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import Cost, Query
from ragbandit.strategies.base import Passage
from ragbandit.workers.asking.scoring import Score
from ragbandit.workers.chores import bought_verdicts
from ragbandit.workers.pairs import setup
from ragbandit.workers.running.context import Context
from tests.conftest import on_sqlite
from tests.integration.reporting import test_decide as decide
from tests.integration.reporting.test_decide import ACTOR, booked, made_small, prepared, run, scope, waiting
from tests.support import command
from tests.support.large_store import grow, steps_counted

arms, world = decide.arms, decide.world
REQUEST = VerdictRequest(since=1.0, until=2.0, budget=1.0, actor="ui:ann", charged="ann")


def state(world) -> VerdictRequest:
    with world.database.read() as connection:
        return newest_request(connection, label="main")


def at_once(work, names) -> dict:
    """The results of `work(name)` in threads that begin together."""
    results = {}

    def collect(name):
        try:
            results[name] = work(name)
        except Conflict as error:
            results[name] = error

    threads = [Thread(target=collect, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def together(monkeypatch, module, name: str, *, before: bool) -> None:
    """Let two threads wait for each other before or after a function of a module, if they can."""
    gate, real = Barrier(2, timeout=1.0), getattr(module, name)

    def meet():
        with contextlib.suppress(BrokenBarrierError):
            gate.wait()

    def waits(*args, **more):
        if before:
            meet()
        result = real(*args, **more)
        if not before:
            meet()
        return result

    monkeypatch.setattr(module, name, waits)


def test_one_of_two_requests_at_once_is_refused(world, monkeypatch):
    """Two gateways that ask at the same moment: one request is open, and the other is refused, not forgotten."""
    together(monkeypatch, verdict_requests, "newest_request", before=False)
    results = at_once(
        lambda name: make_request(world.database, replace(REQUEST, actor=name), label="main"), ["ann", "bob"]
    )
    [refused] = [name for name, result in results.items() if isinstance(result, Conflict)]
    assert state(world).actor != refused


@on_sqlite
def test_the_same_label_at_once_is_a_duplicate(world, arms, monkeypatch):
    """Two people who give an answer the same label at the same moment: the second label is a duplicate."""
    run(world, arms, budget=10.0, judge="labels")
    item = waiting(world)[0].id
    together(monkeypatch, label_queue, "update", before=True)
    results = at_once(lambda name: decide.label(world, item, right=True, rater=name), ["ann", "bob"])
    assert sorted(results.values()) == [False, True]


@on_sqlite
def test_a_question_erased_after_the_plan_is_not_asked(world, arms):
    """A text that was read for the plan, and erased before it was asked, is sent to no arm."""
    decision = prepared(world, arms)
    decision.plan(budget=10.0)
    gone = decision.compared.askable[0].id
    text = world.router.decision(gone).decision.query.text
    erase(world.database, Selection(decision=gone), features=False, actor=ACTOR, now=world.now)
    decision.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
    assert arms.asked
    assert text not in {asked for _, asked in arms.asked}


@on_sqlite
def test_a_plan_after_a_run_prices_what_failed(world, arms):
    """After a run whose answers failed, its plan of the rest costs what the plan of the next process does."""
    arms.fails = True
    decision = prepared(world, arms)
    decision.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
    after, fresh = (one.dollars_each() for one in (decision, prepared(world, arms)))
    assert after == pytest.approx(fresh)


@on_sqlite
def test_dollars_of_all_runs_are_shown(world, arms):
    """Answers that were paid and not scored, since the judge failed, are in the dollars of the comparison."""
    decision = prepared(world, arms)
    decision.scorer.score = failing
    decision.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
    lost = booked(world)
    again = run(world, arms, budget=10.0)
    assert lost > 0.0
    assert again.result.asked == again.result.differing
    assert again.result.dollars == pytest.approx(booked(world))


async def failing(question, outcome, *, bill):
    return Score(None, "no network", may_pass=True)


@on_sqlite
def test_dollars_of_scores_are_stored_at_once(world, arms):
    """The stored dollars of a run include its scores at once, so after a kill only the rest of the budget is left."""
    decision, stored = prepared(world, arms), []

    async def score(question, outcome, *, bill):
        bill.cost += Cost(dollars=0.1)
        return Score(1.0)

    decision.scorer.score = score
    decision.run(budget=0.5, progress=lambda *_: None, warn=lambda _: None, on_paid=stored.append)
    assert decision.asked_now > 0
    assert stored[-1] == decision.spent


@on_sqlite
def test_a_failed_request_keeps_its_dollars_and_ends(world, monkeypatch):
    """An unexpected error ends a request with its dollars so far; one before the first question ends it, too."""

    def asks(*, on_paid, **_):
        on_paid(0.5)
        raise RuntimeError("boom")

    compared = SimpleNamespace(against="large")
    fake = SimpleNamespace(plan=lambda **_: ["plan"], compared=compared, run=asks, close=lambda: None, asked_now=0)
    for made, dollars in ((lambda *_, **__: fake, 0.5), (lambda *_, **__: asks(on_paid=lambda _: None), 0.0)):
        make_request(world.database, REQUEST, label="main")
        monkeypatch.setattr(setup, "prepare_verdict", made)
        context = Context(settings=world.settings, store=world.store, ledger=world.ledger, jobs=world.jobs)
        with pytest.raises(RuntimeError):
            bought_verdicts.carry_out_request(context)
        assert (state(world).state, state(world).dollars, state(world).ended) == ("ended", dollars, "failed: boom")


@on_sqlite
def test_a_run_on_other_questions_keeps_the_evidence(make_world, database_url, arms, tmp_path, monkeypatch):
    """A run for one tenant, whose questions went to other arms, takes no answer of the same judge from the report."""
    (tmp_path / "own_judge.py").write_text(decide.CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    world = make_world(
        database_url=database_url,
        arms={name: {"run_by": "caller"} for name in ("small", "mid", "large")},
        policy={"name": "uniform"},
        reward={"weight": 10.0, "cost": {"dollars": 1.0}},
    )
    for number in range(40):
        one = made_small(world, f"q-{number}", Query(text=f"hard {number}", id=f"q-{number}"))
        world.outcome(one, answer="old", cost={"dollars": 0.001})
    query = Query(text="easy", id="m-1", tenant="acme", arms=("mid", "large"))
    one = replace(made_small(world, "m-0", Query(text="easy", id="m-0")), id="m-1", query=query)
    one = replace(one, arm="mid", arms=("mid", "large"))
    world.store.add_decisions([one])
    world.outcome(one, answer="old", cost={"dollars": 0.001})
    pipelines = {**arms.pipelines, "mid": arms.small}

    def press(**terms):
        decision = prepared(world, SimpleNamespace(pipelines=pipelines), **terms)
        decision.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
        return report(world.database, scope(world), policy=world.settings.policy, against="large").asked

    before = press()
    after = press(tenant="acme")
    assert (before.comparison.verdict, after.comparison.verdict) == ("worse", "worse")
    assert after.asked == before.asked + 1


class Expensive(decide.Arms):
    """The same arms at `factor` times the dollars of the stored outcomes."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.delay, self.at_once, self._inside, self._lock = factor, None, 0, 0, Lock()

    def _at_its_price(self, answer):
        with self._lock:
            self._inside += 1
            self.at_once = max(self.at_once, self._inside)
        if self.delay is not None:
            self.delay.wait(0.05)
        with self._lock:
            self._inside -= 1
        text, cost = answer
        return text, {"dollars": cost["dollars"] * self.factor}

    def small(self, question):
        return self._at_its_price(super().small(question))

    def large(self, question):
        return self._at_its_price(super().large(question))


def at_most(decision, count):
    """Let each arm of the comparison answer so many questions at the same time."""
    arms = decision.arms
    decision.arms = {name: replace(arm, most_runs=count) for name, arm in arms.items()}
    return decision


@on_sqlite
@pytest.mark.parametrize("budget", [0.5, 3.0])
def test_a_budget_holds_within_one_question_whatever_answers_cost_now(world, budget):
    """If answers cost 100 times what the stored ones did, a run with 8 arms at once exceeds its budget by less
    than one question.
    """
    arms = Expensive(100)
    arms.delay = Event()
    decision = at_most(prepared(world, arms), 8)
    ended = decision.run(budget=budget, progress=lambda *_: None, warn=lambda _: None)
    question = 100 * (0.001 + 0.01)
    assert decision.spent < budget + question
    assert decision.spent == pytest.approx(booked(world)) == pytest.approx(question * decision.asked_now)
    assert "the next question may pass the budget" in ended or "is spent" in ended


@on_sqlite
def test_a_run_asks_questions_at_once_as_long_as_its_budget_is_far(world):
    """With many times the price of a question left, several are asked at once; the first one and the last ones are
    asked one by one.
    """
    arms = Expensive(1)
    arms.delay = Event()
    decision = at_most(prepared(world, arms), 8)
    decision.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
    assert arms.at_once > 1


@pytest.mark.parametrize("budget", ["inf", "1e400"])
def test_a_budget_without_end_is_refused(budget):
    """`--budget inf` would ask everything; the error says how to find out what that costs."""
    done = command.run("report", "--decide", "--budget", budget)
    assert done.exit_code == 2
    assert "leave --budget out" in done.stderr


@on_sqlite
def test_answers_whose_judge_failed_are_not_paid_again(world, arms):
    """The next run judges an answer that is stored and was not scored, with the passages of the first run, and pays
    only the judge.
    """
    seen = []

    async def failing(question, outcome, *, bill):
        seen.append(outcome)
        return Score(None, "no network", may_pass=True)

    async def scoring(question, outcome, *, bill):
        seen.append(outcome)
        return Score(1.0)

    first = prepared(world, arms)
    with_passages(first)
    first.scorer.score = failing
    assert "the judge fails" in first.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
    assert len(arms.asked) == 1
    again = prepared(world, arms)
    again.scorer.score = scoring
    again.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
    assert len(arms.asked) == len(set(arms.asked)) == 2 * again.result().asked
    assert (seen[1].answer, seen[1].sources) == (seen[0].answer, seen[0].sources)
    assert seen[0].sources
    assert again.result().dollars == pytest.approx(booked(world))
    assert begun_pairs(world.database, ids=[one.id for one in again.compared.askable]) == {}


def with_passages(decision):
    """Let the answers of a comparison have a passage."""
    for arm in decision.arms.values():
        output = arm.strategy._output

        async def shown(question, *, run, output=output):
            run.note_shown([Passage(id="p1", title="", text="Said.")])
            return await output(question, run=run)

        arm.strategy._output = shown


@on_sqlite
def test_passages_that_wait_for_the_judge_are_erased_with_their_question(world, arms):
    """Erasing a question removes what a run kept for the judge, and a later end of that run stores none."""
    decision = prepared(world, arms)
    with_passages(decision)
    decision.scorer.score = failing
    decision.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
    ids = [one.id for one in decision.compared.askable]
    ((key, pair),) = begun_pairs(world.database, ids=ids).items()
    assert [source.text for sources in pair.sources.values() for source in sources] == ["Said."]
    erase(world.database, Selection(decision=key), features=False, actor=ACTOR, now=world.now)
    assert begun_pairs(world.database, ids=ids) == {}
    with world.database.write() as connection:
        store_begun(connection, pair=pair)
    assert not any(one.sources for one in begun_pairs(world.database, ids=ids).values())


@on_sqlite
def test_an_answer_on_which_the_judge_always_fails_holds_up_no_others(world, arms):
    """After three failures of the judge an answer gets no score, its difference is bounded, and the run goes on."""
    first, runs = [], 0

    async def picky(question, outcome, *, bill):
        first.append(question)
        return Score(None, "HTTP 500", may_pass=True) if question == first[0] else Score(1.0)

    while runs < 10:
        decision = prepared(world, arms)
        decision.scorer.score = picky
        ended = decision.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
        runs += 1
        if "the judge fails" not in ended:
            break
    assert runs <= 5
    assert (decision.result().unjudged, decision.result().asked) == (1, decision.result().differing)
    assert len(arms.asked) == len(set(arms.asked))


def next_step(world, made, period):
    options, settings = options_of(made, now=made.until), world.settings
    ways = {"options": options, "worker_arms": settings.worker_arms, "judge": settings.judge}
    return verdict_step(world.database, made, period, **ways)


@on_sqlite
def test_commands_read_the_same_questions(world):
    """The commands that a report names have its tenant and its arm."""
    own = replace(scope(world), tenant="default", configured=frozenset(world.settings.arms))
    made = report(world.database, own, policy=world.settings.policy, against="small")
    made = replace(made, to_rate=5)
    given, options = options_of(made, now=made.until), "--since 1h --tenant default --against small"
    assert f"`ragbandit report {options} --rate`" in rating_advice(made, options=given)
    step = next_step(world, made, own)
    assert f"`ragbandit report {options} --decide --module MODULE:NAME --judge labels`" in step.text


@on_sqlite
def test_the_next_step_reads_no_more_in_a_larger_store(world):
    """To name the next command, a report looks at its newest questions; only if none can be asked again, at more."""

    def cost_of_step(*, first, last):
        grow(world.database, first=first, last=last, like=dict.fromkeys(("decisions", "outcomes"), "q-1"))
        period = replace(scope(world), since=0.0, configured=frozenset(world.settings.arms))
        made = report(world.database, period, policy=world.settings.policy, against="small")
        with steps_counted(world.database) as steps:
            step = next_step(world, made, period)
        return step.text, steps[current_thread().name]

    world.write(decisions.update().where(decisions.c.id == "q-1").values(arm="large", seed="0"))  # in every sample
    text, small = cost_of_step(first=1, last=1_000)
    assert "decide now" in text
    text, large = cost_of_step(first=1_001, last=6_000)
    assert "decide now" in text
    assert 0 < large < 1.1 * small
    newest = decisions.c.made_at > world.now - 2_000.0
    world.write(decisions.update().where(newest).values(arm="small"))
    text, _ = cost_of_step(first=6_001, last=6_001)
    assert "decide now" in text
    world.write(decisions.update().values(arm="small"))
    text, _ = cost_of_step(first=6_002, last=6_002)
    assert "every question of the period went to small" in text


@on_sqlite
def test_answers_of_a_changed_arm_wait_for_no_label(world, arms, monkeypatch):
    """After an arm has changed, its old answers wait no more; it is asked again, and the labels then count."""
    monkeypatch.setattr("ragbandit.router.storage.label_queue.MOST_QUESTIONS", 8)
    run(world, arms, budget=10.0, judge="labels")

    def large(question):
        return f"yes, {question}", {"dollars": 0.01}

    changed = SimpleNamespace(pipelines={**arms.pipelines, "large": large})
    assert run(world, changed, budget=10.0, judge="labels").done.asked == 8
    for item in waiting(world):
        decide.label(world, item.id, right=True)
    made = report(world.database, scope(world), policy=world.settings.policy, against="large")
    assert (made.asked.asked, made.asked.waiting) == (8, 0)
