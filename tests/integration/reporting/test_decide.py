"""`report --decide`: both ways answer stored questions again, and one judge scores their answers."""

import json
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sqlalchemy import func, select

from ragbandit import Router
from ragbandit.router.config.rules import Rule
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.reporting.compared_questions import NO_TEXT, NOT_STORED, read_compared_questions
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.router.serving.checks.questions import cap_budget
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.router.storage.access.shared_secrets import draw_number
from ragbandit.router.storage.access.spending import Spender, read_spending
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.label_queue import LabelItem, expire_items, label_verdict, waiting_items
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import paired_answers
from ragbandit.shared.errors import ConfigError, Conflict, InvalidInput, NotFound
from ragbandit.shared.types import Budget, Query, SafeStart, Sent
from ragbandit.workers.judge.rubric import CRITERIA
from ragbandit.workers.pairs.bought_verdict import BoughtVerdict
from ragbandit.workers.pairs.setup import prepare_verdict
from ragbandit.workers.setup.chosen_arms import parse_arms
from ragbandit.workers.setup.loading import ArmLoader
from tests.conftest import on_sqlite
from tests.support import command
from tests.support.examples import made_decision

ACTOR = "cli:ann@host"
SECRET = bytes.fromhex("5eed" * 16)
DOLLARS = {"small": 0.001, "large": 0.01}
CODE = """
def right(answer, question, sources):
    assert "small" not in answer + question and "large" not in answer + question
    return None if "refused" in question else answer == "yes"

def broken(answer, question, sources):
    raise ValueError("no network")
"""


class Arms:
    """`small` is right on easy questions only, `large` always, at ten times the dollars."""

    def __init__(self):
        self.asked, self.fails = [], False
        self.pipelines = {"small": self.small, "large": self.large}

    def small(self, question):
        self.asked.append(("small", question))
        return ("yes" if question.startswith("easy") else "no"), {"dollars": DOLLARS["small"]}

    def large(self, question):
        self.asked.append(("large", question))
        if self.fails:
            raise ConnectionError("no server")
        return "yes", {"dollars": DOLLARS["large"]}


@pytest.fixture
def arms():
    return Arms()


@pytest.fixture
def world(make_world, database_url, tmp_path, monkeypatch):
    """Forty routed questions over two arms of the caller; nothing is rated."""
    (tmp_path / "own_judge.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = make_world(
        database_url=database_url,
        arms={name: {"run_by": "caller"} for name in ("small", "large")},
        policy={"name": "uniform"},
        reward={"weight": 10.0, "cost": {"dollars": 1.0}},
    )
    for number in range(40):
        kind = "easy" if number % 2 else "hard"
        routed = made.route(f"{kind} {number}", key=f"q-{number}")
        made.outcome(routed, answer="old", cost={"dollars": DOLLARS[routed.arm]})
    return made


def scope(world) -> ReportScope:
    return ReportScope(label="main", since=world.now - 10.0, until=world.now + 10.0, reward=world.settings.reward)


def prepared(world, arms=None, *, settings=None, **terms) -> BoughtVerdict:
    """A bought verdict over the questions of `scope`. terms: other fields of the scope, `against` and `judge`"""
    asked = {name: terms.pop(name) for name in ("against", "judge") if name in terms}
    settings, pipelines = settings or world.settings, None if arms is None else arms.pipelines
    period = replace(
        scope(world),
        **{"reward": settings.reward, "rules": settings.rule_book, "configured": frozenset(settings.arms)} | terms,
    )
    asked = {"against": "large", "judge": "own_judge:right", "actor": ACTOR} | asked
    return prepare_verdict(world.ledger, period, settings=settings, pipelines=pipelines, **asked)


def run(world, arms, *, budget: float, **more) -> SimpleNamespace:
    """Plan and run a verdict. `before` has the numbers of the plan."""
    verdict, warnings = prepared(world, arms, **more), []
    each = verdict.dollars_each()
    payable, verdict_plan = verdict.payable(budget=budget, dollars_each=each), verdict.plan(budget=budget)
    before = SimpleNamespace(answered=verdict.answered, room=verdict.room, payable=payable, each=each)
    ended = verdict.run(budget=budget, progress=lambda *_: None, warn=warnings.append)
    done = SimpleNamespace(asked=verdict.asked_now, dollars=verdict.spent, ended=ended)
    return SimpleNamespace(
        plan=verdict_plan,
        before=before,
        done=done,
        obstacles=verdict.compared.obstacles,
        result=verdict.result(),
        warnings=warnings,
    )


def booked(world) -> float:
    spender = Spender("key", ACTOR)
    with world.database.read() as connection:
        return read_spending(connection, [spender], now=time.time())[spender].month


@on_sqlite
def test_presses_extend_one_random_order_within_their_budgets(world, arms):
    """A press asks in the order of the store's secret as far as its budget goes, and books what it cost to who pressed;
    the next one asks only what is new; the report shows the difference, and the ledger learns nothing.
    """
    counters = world.counters()
    first = run(world, arms, budget=0.1)
    routed = {f"q-{number}": world.router.decision(f"q-{number}").decision for number in range(40)}
    differing = sorted(
        (key for key, one in routed.items() if one.arm == "small"),
        key=lambda key: draw_number("decide", key, secret=SECRET),
    )
    asked = [routed[key].query.text for key in differing[: first.done.asked]]
    assert Counter(arms.asked) == Counter((arm, text) for text in asked for arm in ("small", "large"))
    assert first.before.payable == first.done.asked == 9
    assert 0.0 < first.done.dollars <= 0.1
    assert booked(world) == pytest.approx(first.done.dollars)
    second = run(world, arms, budget=10.0)
    assert second.before.answered == first.done.asked
    assert len(arms.asked) == len(set(arms.asked)) == 2 * second.result.asked
    assert booked(world) == pytest.approx(first.done.dollars + second.done.dollars)
    texts = [routed[key].query.text for key in differing]
    value = {text: 1.0 * text.startswith("easy") - 10.0 * 0.001 for text in texts}
    truth = sum(value[text] - 0.9 for text in texts) / 40
    reward = second.result.comparison.reward
    assert reward.low - 1e-9 <= truth <= reward.high + 1e-9
    made = report(world.database, scope(world), policy=world.settings.policy, against="large")
    assert made.asked == second.result
    assert f"Both asked again on {second.result.asked} of the {len(differing)} questions" in made.sentence
    assert report(world.database, scope(world), policy=world.settings.policy, against="small").asked is None
    assert (world.counters(), world.router.verify(deep=True).ok) == (counters, True)
    assert [one.facts["asked"] for one in entries(world.database) if one.action == "report.decide"] == [
        first.done.asked,
        second.done.asked,
    ]


def with_rules(world, *rules, **more):
    """The world's settings with rules that came after its questions."""
    return world.settings.model_copy(update={"rules": [Rule.model_validate(rule) for rule in rules], **more})


@on_sqlite
def test_stored_questions_obey_the_rules_of_now(world, arms):
    """No question goes to an arm that a rule has forbidden since, on either side; report and run count them alike."""
    for number in range(6):
        query = Query(text=f"easy bank {number}", id=f"bank-{number}", tenant="bank")
        world.outcome(made_small(world, query.id, query))
    later = with_rules(
        world, {"when": {"tenant": "bank"}, "arms": ["small"]}, {"when": {"key": "0" * 10}, "arms": ["small"]}
    )
    decision = prepared(world, arms, settings=later)
    decision.run(budget=10.0, progress=lambda *_: None, warn=lambda _: None)
    assert arms.asked
    assert not [text for _, text in arms.asked if "bank" in text]
    result = decision.result()
    assert result.not_askable == {"the rules do not let large answer it now": 6}
    ruled = replace(scope(world), rules=later.rule_book)
    assert report(world.database, ruled, policy=later.policy, against="large").asked == result


def test_the_judge_reads_what_the_rules_of_now_let_it_read(world, arms):
    """A model scores no stored question under a rule that does not name the judge; people and checks may."""
    rules = [{"when": {"tenant": "default"}, "arms": ["small", "large"]}]
    judge = world.settings.judge.model_copy(
        update={"generator": GeneratorSettings(name="scripted", context_tokens=4000)}
    )
    for models, obstacles in ((None, {"the rules do not let the judge read it"}), (["judge"], set())):
        later = with_rules(world, {**rules[0], "models": models}, judge=judge)
        if obstacles:
            with pytest.raises(InvalidInput, match="the rules do not let the judge read it"):
                prepared(world, arms, settings=later, judge="judge")
        for scorer in ("labels", "own_judge:right", *(() if obstacles else ("judge",))):
            decision = prepared(world, arms, settings=later, judge=scorer)
            assert decision.compared.obstacles == {}, scorer
            decision.close()


@on_sqlite
def test_what_cannot_be_asked_is_bounded(world, arms):
    """Erased texts, tools and arms that were not on offer are counted by reason, and widen the interval; a score that
    the judge refuses widens it, too.
    """
    for key, text, more in (
        ("tools", "easy a", {"sent": Sent(optional_needs=("tools",))}),
        ("image", "easy b", {"sent": Sent(needs=("images",))}),
        ("rules", "easy c", {"arms": ("small", "other")}),
        ("refused", "easy refused", {}),
    ):
        decision = made_small(world, key, Query(text=text, id=key, **more))
        world.outcome(decision)
    gone = next(f"q-{n}" for n in range(40) if world.router.decision(f"q-{n}").decision.arm == "small")
    before = run(world, arms, budget=10.0).result
    erase(world.database, Selection(decision=gone), features=False, actor=ACTOR, now=world.now)
    after = run(world, arms, budget=10.0).result
    assert before.not_askable == {NOT_STORED: 2, "large was not on offer: rules of the tenant or of the request": 1}
    assert after.not_askable == {**before.not_askable, NO_TEXT: 1}
    assert before.unjudged == 1
    assert after.asked == before.asked  # the erased question was asked before, and its difference stays known
    wide = before.comparison.reward.high - before.comparison.reward.low
    assert wide >= (3 * 1.0 + 1.0) / before.comparison.questions


def made_small(world, key: str, query: Query):
    """A decision over two arms that drew `small`."""
    return made_drawn(world, key, query, arm="small", arms=("small", "large") if query.arms is None else query.arms)


def made_drawn(world, key: str, query: Query, *, arm: str, arms: tuple[str, str]):
    """A decision that drew the first of two arms."""
    one = made_decision(key, arms=arms, pmf=(1.0, 0.0), arm=arm, propensity=1.0, made_at=world.now, floor=0.0)
    one = replace(one, query=query)
    world.store.add_decisions([one])
    return one


@on_sqlite
def test_a_run_judges_by_the_answers_that_the_report_counts(world, arms):
    """A run without a function that an earlier run had ends by the verdict that the report prints then: answers of the
    earlier arm count in both.
    """
    for number in range(6):
        query = Query(text=f"easy {number} more", id=f"more-{number}")
        world.outcome(made_drawn(world, query.id, query, arm="other", arms=("other", "large")))
    arms.pipelines["other"] = lambda question: ("yes", {"dollars": DOLLARS["small"]})
    assert run(world, arms, budget=0.1).done.asked == 9
    arms.pipelines.pop("other")
    later = run(world, arms, budget=10.0)
    made = report(world.database, scope(world), policy=world.settings.policy, against="large")
    assert later.result == made.asked
    assert later.obstacles == {"other cannot be run here": 6}


@on_sqlite
def test_a_run_does_not_know_a_verdict_that_the_report_does_not_know(world, arms):
    """While a safe start decides, that nearly all questions went to the same arm is no verdict: a run asks the others,
    and neither it nor the report calls both ways as good.
    """
    fact = SafeStart(arm="large", share=0.02, slack=0.0, reason=None, floor=0.02)
    facts = {SafeStart.key: fact.stored}
    for number in range(400):
        arm, pmf = ("small", (1.0, 0.0)) if number % 80 == 0 else ("large", (0.02, 0.98))
        one = made_decision(f"safe-{number}", arms=("small", "large"), pmf=pmf, arm=arm, floor=0.0)
        one = replace(one, query=Query(text=f"easy {number}", id=one.id), facts=facts, made_at=world.now + 20.0)
        world.store.add_decisions([replace(one, propensity=pmf[arm == "large"])])
        world.outcome(one, answer="old", cost={"dollars": DOLLARS[arm]})
    period = {"since": world.now + 15.0, "until": world.now + 25.0}
    done = run(world, arms, budget=10.0, **period)
    assert (done.done.asked, done.done.ended) == (5, "every question that can be asked was asked")
    made = report(world.database, replace(scope(world), **period), policy=world.settings.policy, against="large")
    assert made.asked == done.result
    assert (made.state is not None, made.total.verdict) == (True, "not known yet")
    assert made.asked.comparison.verdict == "not known yet"
    assert "something else than the policy decides" in made.asked.comparison.missing


@on_sqlite
def test_failures_end_a_run_and_are_no_answers(world, arms):
    """An arm that fails three times in a row, and a check that fails, end the run; the next run asks again."""
    arms.fails = True
    failed = run(world, arms, budget=10.0)
    assert "large failed 3 times in a row" in failed.done.ended
    assert (failed.done.asked, failed.result.asked) == (0, 0)
    arms.fails = False
    judged = run(world, arms, budget=10.0, judge="own_judge:broken")
    assert "the judge fails: ValueError: no network" in judged.done.ended
    assert judged.result.asked == 0
    assert run(world, arms, budget=10.0).result.asked > 3


def test_a_stored_answer_counts_only_as_its_arm_is_now(make_world, tmp_path):
    """An arm of workers is not asked again where its stored answer has the present definition; a changed one is."""
    scores = json.dumps({name: {"reason": "so", "score": 0.75} for name in CRITERIA})
    given = {
        "generator": {"name": "scripted", "script": {"": "Paris"}},
        "judge": {"generator": {"name": "scripted", "script": {"": scores}}},
        "arms": {"no_retrieval": {}, "direct": {"class": "no_retrieval"}},
        "policy": {"name": "uniform"},
    }
    world = make_world(**given)
    loaded = ArmLoader(world.settings).load(parse_arms([*given["arms"]], settings=world.settings)[0])
    limits = cap_budget(Budget(), limits=world.settings.budget)
    for number in range(12):
        decision = world.route(f"who {number}?", key=f"q-{number}", ours=True)
        made = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="Paris", steps=1.0)
        made = replace(made, run_by="worker", made_by=loaded[decision.arm].made_by(limits))
        world.store.add_outcome(made)

    def pressed(settings):
        decision = prepared(world, settings=settings, judge=None, against="direct")
        decision.run(budget=1.0, progress=lambda *_: None, warn=lambda _: None)
        return decision.result()

    assert pressed(world.settings).comparison.quality.estimate == 0.0
    stored = select(paired_answers.c.is_stored, func.count()).group_by(paired_answers.c.is_stored)
    with world.database.read() as connection:
        counts = dict(connection.execute(stored).all())
    assert counts[True] == counts[False] > 0
    changed = world.settings.model_copy(
        update={"arms": {"no_retrieval": {"max_tokens": 9}, "direct": given["arms"]["direct"]}}
    )
    pressed(changed)
    with world.database.read() as connection:
        assert dict(connection.execute(stored).all()) == {True: counts[True], False: 2 * counts[False]}


@on_sqlite
def test_what_a_run_needs_is_named(world, arms):
    """Without a judge, with an unknown one, and without functions of the arms, the error names the remedy."""
    with pytest.raises(ConfigError) as caught:
        prepared(world, arms, judge=None)
    assert "--judge labels or MODULE:NAME" in caught.value.remedy
    with pytest.raises(InvalidInput, match="'nobody' is no judge"):
        prepared(world, arms, judge="nobody")
    with pytest.raises(InvalidInput, match="large cannot be run here") as refused:
        prepared(world, SimpleNamespace(pipelines={}))
    assert "--module" in refused.value.remedy
    nobody = read_compared_questions(world.database, scope(world), against="large", secret=None, arms=["large"])
    assert set(nobody.obstacles) == {"small cannot be run here"}


def test_the_command_says_it_before(tmp_path, monkeypatch, sqlite_template):
    """A report without a verdict names the command, which says how many questions, for how much and how sure; without
    --budget it asks nothing.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_judge.py").write_text(CODE)
    (tmp_path / "own_arms.py").write_text(
        "from tests.integration.reporting.test_decide import Arms\narms = Arms().pipelines\n"
    )
    (tmp_path / "config.yaml").write_text(
        "data_dir: data\nencoder: {model: hashing, dimension: 8}\npolicy: {name: uniform}\n"
        "arms: {small: {run_by: caller}, large: {run_by: caller}}\nreward: {weight: 10, cost: {dollars: 1}}\n"
    )
    with Router.open("config.yaml") as router:
        for number in range(30):
            key = router.route(f"easy {number}").id
            router.outcome(key, answer="yes", cost={"dollars": 0.001})
    options = ["--decide", "--against", "large", "--module", "own_arms:arms", "--judge", "own_judge:right"]
    printed = "decide now: `ragbandit report --since 7d --decide --module MODULE:NAME --judge labels`"
    assert printed in command.run("report", code=0).stdout
    assert "no answers were put on the page Labels" in command.run("report", "--rate", code=0).stderr
    said = command.run("report", *options, code=0).stderr
    assert "30 routed questions of the period" in said
    assert "nothing was asked" in said
    with closing(Database("sqlite:///data/ragbandit.db")) as database:
        lease = Lease(database=database, name="decide")
        assert lease.acquire(holder="elsewhere/decide", lease_s=30.0)
        assert "another process asks questions of this store" in command.run("report", *options, "--budget", "5").output
        lease.release(holder="elsewhere/decide")
    done = command.run("report", *options, "--budget", "5", "--json", code=0)
    reply = json.loads(done.stdout)
    assert (reply["asked"]["asked"], reply["asked"]["judge"]) == (reply["asked"]["differing"], "own_judge:right")
    assert "booked to cli:" in done.stderr
    assert command.run("report", "--budget", "5").exit_code == 2


def test_people_judge_blind(world, arms, monkeypatch):
    """Both answers to a question wait for labels one after the other, in a random order, without their arms. A run asks
    as many questions as may wait and no question twice; the report counts a question when both its answers are
    labelled, or waited too long.
    """
    monkeypatch.setattr("ragbandit.workers.pairs.bought_verdict.MOST_QUESTIONS", 8)
    monkeypatch.setattr("ragbandit.router.storage.label_queue.MOST_QUESTIONS", 8)
    first = run(world, arms, budget=10.0, judge="labels")
    assert (first.before.room, first.before.payable, first.done.asked, first.result.asked) == (8, 8, 8, 0)
    assert first.done.ended == "8 questions wait for labels: label them on the page Labels, then run this again"
    assert run(world, arms, budget=10.0, judge="labels").done.asked == 0
    items = waiting(world)
    assert len(items) == len(arms.asked) == 16
    assert [one.question for one in items[::2]] == [one.question for one in items[1::2]]
    assert not any("small" in one.id or "large" in one.id for one in items)
    hard = [one.answer for one in items if one.question.startswith("hard")]
    assert {*zip(hard[::2], hard[1::2], strict=True)} == {("yes", "no"), ("no", "yes")}
    made = report(world.database, scope(world), policy=world.settings.policy, against="large")
    assert made.sentence.endswith("Both were asked again: 16 labels missing (page Labels).")
    for one in items[:6]:
        assert not label(world, one.id, right=one.answer == "yes")
    assert label(world, items[0].id, right=items[0].answer == "yes")
    with pytest.raises(Conflict, match="other label"):
        label(world, items[0].id, right=items[0].answer != "yes")
    with pytest.raises(NotFound):
        label(world, f"{items[7].id[:-1]}{'0' if items[7].id[-1] != '0' else '1'}", right=True)
    assert waiting_items(world.database, tenant="shop", limit=100) == []
    made = report(world.database, scope(world), policy=world.settings.policy, against="large")
    assert (made.asked.asked, made.asked.waiting, made.asked.judge) == (3, 10, "label queue")
    assert made.asked.comparison.missing == "10 labels of answers that wait on the page Labels"
    now = time.time()
    assert expire_items(world.database, before=now - 60.0, now=now) == 0
    assert expire_items(world.database, before=now + 60.0, now=now) == 10
    with pytest.raises(Conflict, match="no label within 7 days"):
        label(world, items[7].id, right=True)
    made = report(world.database, scope(world), policy=world.settings.policy, against="large")
    assert (made.asked.asked, made.asked.waiting, made.asked.unjudged) == (8, 0, 5)
    assert run(world, arms, budget=10.0, judge="labels").done.asked == 8


def waiting(world) -> list[LabelItem]:
    return waiting_items(world.database, tenant=None, limit=100)


def label(world, item: str, *, right: bool, rater: str = "ann") -> bool:
    return label_verdict(world.database, item, right=right, rater=rater)
