"""A wrong price is taken back: sums of spending, what is learned afterwards, and a ledger that is learned again."""

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial

import pytest

from ragbandit.router.config.sections import TokenPrices
from ragbandit.router.learning.exclusions import learn_new_ledger
from ragbandit.router.learning.repricing import reprice
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.router.storage.access.corrections import Correction, corrections_of
from ragbandit.router.storage.access.reservations import no_reservation, settle
from ragbandit.router.storage.access.spending import KEPT_DAYS, OTHER, UNIT, Spender, forget_spending, read_spending
from ragbandit.router.storage.rows.conversion import from_json
from ragbandit.router.storage.sql.tables import counters
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Cost, Query
from ragbandit.workers.setup.generators import prices_by_arm
from tests.support.audits import assert_compared, verified
from tests.support.command import run

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
DAY_S = 86_400.0
TENANT = Spender("tenant", "default")
REWARD = {"cost": {"dollars": 1.0}, "weight": 1.0}
COST = {"dollars": 1.0, "llm_calls": 1, "prompt_tokens": 1000, "completion_tokens": 100, "cached_tokens": 200}


def answer(world, decision, *, dollars=1.0, model="m", arm="single_step", generator=None):
    made = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="Paris", steps=1.0, cost=COST)
    params = {} if generator is None else {"generator": generator}
    made_by = {"arm": arm, "generator": model, "params": params}
    cost = replace(made.cost, dollars=dollars)
    return world.store.add_outcome(replace(made, run_by="worker", made_by=made_by, cost=cost))


def fill(world, *, dollars, count=12):
    """Answered and rated decisions; an answer of the first arm costs `dollars`, of others 0.001."""
    decisions = [world.route(f"question {number}?", ours=True, key=f"decision-{number}") for number in range(count)]
    dear = decisions[0].arm
    for decision in decisions:
        world.now += 1
        answer(world, decision, dollars=dollars if decision.arm == dear else 0.001)
        world.feedback(decision, rating=True)
    return dear, [decision for decision in decisions if decision.arm == dear]


def corrected(world, correction, **more):
    def learn(label):
        return learn_new_ledger(
            world.ledger,
            label=label,
            make_learner=partial(make_learner, world.settings),
            now=world.now,
            progress=lambda _closed: None,
        )

    given = {"learn": learn, "dry_run": False, "reason": "a test", "actor": "me"}
    return reprice(world.ledger, correction, now=world.now, **given | more)


def sums(world, *, now=None):
    with world.database.read() as connection:
        found = read_spending(connection, [TENANT], now=now or world.now)[TENANT]
        unexplained = counters.c.label == TENANT.label, counters.c.name.endswith(OTHER)
        changed = connection.execute(counters.select().where(*unexplained)).all()
    return found.day, found.month, sum(row.value for row in changed) * UNIT


def test_it_is_as_if_the_price_had_been_right(make_world, tmp_path, other_processor):
    """After a correction the new ledger has the policy of a store with the right price; the old one is untouched.
    Another processor verifies the new ledger.
    """
    world = make_world(reward=REWARD, now=NOON)
    dear, wrong = fill(world, dollars=1.0)
    assert world.learn() == 12
    before = world.sha256(world.replayed())
    assert corrected(world, Correction(arm=dear, factor=0.001), dry_run=True)["outcomes"] == len(wrong)
    assert sums(world)[2] == 0.0
    done = corrected(world, Correction(arm=dear, factor=0.001))
    assert (done["outcomes"], done["learned"], done["label"]) == (len(wrong), len(wrong), "main_q1")
    assert (done["dollars_before"], done["dollars_after"]) == pytest.approx((len(wrong), len(wrong) / 1000))
    assert world.sha256(world.replayed()) == before
    clean = make_world(data_dir=str(tmp_path / "clean"), policy={"label": "main_q1"}, reward=REWARD, now=NOON)
    fill(clean, dollars=0.001)
    clean.learn()
    assert done["snapshot"] == clean.ledger.latest_snapshots(limit=1)[0].version  # it has the sha256
    again = world.settings.model_copy(update={"policy": clean.settings.policy})
    assert_compared(other_processor.call(verified, again))
    assert sums(world) == pytest.approx((0.012, 0.012, -0.999 * len(wrong)))
    (entry,) = (one for one in entries(world.database) if one.action == "price.correct")
    assert (entry.target, entry.actor, entry.facts["new_label"]) == (f"arm:{dear}", "me", "main_q1")
    assert {world.store.record(one.id).outcome.cost.dollars for one in wrong} == {1.0}
    assert world.router.verify(deep=True).ok


def test_the_days_of_the_outcomes_change(make_world, database_url):
    """Sums change on the days of the outcomes, within since and until; a day that is forgotten stays so."""
    world = make_world(database_url=database_url, reward=REWARD, now=NOON)
    days = []
    for _ in range(3):
        decision = world.route(ours=True)
        answer(world, decision)
        days.append(world.now)
        world.now += DAY_S
    corrected(world, Correction(generator="m", since=days[1], until=days[2], factor=3.0))
    assert [sums(world, now=day)[0] for day in days] == pytest.approx([1.0, 3.0, 1.0])
    assert sums(world)[1:] == pytest.approx((5.0, 2.0))
    world.now = days[1] + (KEPT_DAYS + 1) * DAY_S
    with world.database.write() as connection:
        forget_spending(connection, now=world.now)
    corrected(world, Correction(generator="m", factor=0.0))
    assert sums(world, now=days[1]) == pytest.approx((0.0, 0.0, -1.0))
    assert sums(world, now=days[2])[0] == 0.0


def test_tokens_are_priced(make_world):
    """Tokens get the price of their arm and model, cached ones too; a second correction finds nothing to do."""
    world = make_world(reward=REWARD, now=NOON)
    decisions = [world.route(ours=True) for _ in range(2)]
    for decision, model in zip(decisions, ("m", "another"), strict=True):
        answer(world, decision, model=model)
    rule = Correction(prices={decision.arm: {"m": [1000.0, 2000.0, 100.0]} for decision in decisions})
    done = corrected(world, rule)
    assert (done["outcomes"], done["unpriced"], done["label"]) == (1, 1, None)
    assert done["dollars_after"] == pytest.approx(0.8 + 0.2 + 0.02)
    with pytest.raises(InvalidInput, match="no outcome gets other dollars; 1 have no price"):
        corrected(world, rule)


def test_what_is_learned_later_has_the_right_dollars(make_world):
    """A decision that is learned after the correction has the right cost in the same ledger; corrections add up."""
    world = make_world(reward=REWARD, now=NOON)
    decision = world.route(ours=True)
    answer(world, decision, generator="small")
    corrected(world, Correction(generator="small", factor=0.5))
    corrected(world, Correction(decision=decision.id, factor=0.5))
    world.feedback(decision, rating=True)
    world.learn()
    (row,) = world.updates()
    assert (row["cost"], row["value"]) == (0.25, 0.75)
    with world.database.read() as connection:
        assert [rule.factor for rule in corrections_of(connection).rules] == [0.5, 0.5]


def test_the_command(make_world, tmp_path, monkeypatch):
    """The command needs a condition, prices one decision, and says which ledger has the right rewards."""
    world = make_world(reward=REWARD, now=NOON)
    _, wrong = fill(world, dollars=1.0)
    world.learn()
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"data_dir": str(world.settings.data_dir), "reward": REWARD}))
    monkeypatch.chdir(tmp_path)
    for options, words in (
        ((), "--arm, --generator or --decision"),
        (("--arm", "x", "--dollars", "1"), "--dollars needs --decision"),
        (("--arm", wrong[0].arm, "--factor", "1"), "no outcome gets other dollars"),
        (("--arm", "x", "--factor", "2"), "no outcome of the arm 'x'"),
    ):
        refused = run("data", "reprice", *options, "--config", str(config))
        assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr
    given = "--decision", f"chatcmpl-{wrong[0].id}", "--dollars", "0.25", "--config", str(config)
    kept = json.loads(run("data", "reprice", *given, "--no-relearn", "--json").stdout)
    assert (kept["outcomes"], kept["dollars_after"], kept["label"]) == (1, 0.25, None)
    done = run("data", "reprice", "--arm", wrong[0].arm, "--factor", "0.001", "--config", str(config))
    assert (done.exit_code, "policy.label to main_q1" in done.stderr) == (0, True), done.stderr


def test_unknown_names_are_refused(make_world):
    """A correction of an unknown decision, arm or generator is refused with the known names, also as a dry run."""
    world = make_world()
    dear, _ = fill(world, dollars=3.0)
    for names, field, remedy in (
        ({"generator": "other"}, "generator", "known: m"),
        ({"generator": "x", "arm": dear}, "generator", "known: m"),
        ({"arm": "nobody"}, "arm", dear),
        ({"decision": "nobody"}, "decision", "give the id"),
    ):
        for dry_run in (True, False):
            with pytest.raises(InvalidInput, match="no outcome of") as caught:
                corrected(world, Correction(**names, factor=0.5), dry_run=dry_run)
            assert caught.value.field == field
            assert remedy in caught.value.remedy


def test_dollars_without_an_outcome_are_taken_back(make_world, tmp_path, monkeypatch):
    """A credit changes the sums of a day, at most by what was spent, and is an entry of the audit log."""
    world = make_world(now=NOON)
    settle(world.database, no_reservation([TENANT], at=NOON), dollars=999.0)
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", str(world.settings.data_dir))
    monkeypatch.chdir(tmp_path)
    given = "data", "credit", "998.5", "--day", "2026-11-20"
    for options, words in (((), "--tenant, --key or both"), (("--tenant", "other"), "has spent 0 dollars")):
        refused = run(*given, *options)
        assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr
    done = json.loads(run(*given, "--tenant", "default", "--json").stdout)
    assert done["tenant_day"] == pytest.approx(0.5)
    assert sums(world) == pytest.approx((0.5, 0.5, 0.5))
    (entry,) = (one for one in entries(world.database) if one.action == "spending.credit")
    assert (entry.target, entry.facts["dollars"]) == ("tenant:default", 998.5)


def test_which_arms_have_a_price_of_tokens(settings):
    """Configured prices hold for arms that call one generator, not for arms that report their own dollars."""
    model = {"class": "model", "generator": "small"}
    server = {"name": "openai", "model": "s", "openai": {"base_url": "http://127.0.0.1:1/v1"}}
    made = settings(
        arms={
            "chat": model,
            "no_retrieval": {},
            "own": {"class": "http", "url": "http://127.0.0.1:1/"},
        },
        generators={"small": {**server, "token_prices": {"input": 1.0, "output": 2.0}}},
    )
    prices = prices_by_arm(made)
    assert prices.keys() == {"chat", "no_retrieval"}
    assert [list(price) for price in prices["chat"].values()] == [[1.0, 2.0]]


def test_an_answer_of_several_calls_is_repriced_by_their_mean_prompt():
    """No call passed the limit of long prompts, though all their tokens together do."""
    prices = TokenPrices.model_validate(
        {"input": 1.0, "output": 2.0, "rows": [{"above": 1000, "input": 9.0, "output": 9.0}]}
    )
    rule = Correction(prices={"a": {"m": prices.in_order}})
    calls = {"prompt_tokens": 3000, "completion_tokens": 100}
    assert rule.dollars_of(Cost(**calls, llm_calls=3), arm="a", model="m", ended_at=0.0) == pytest.approx(3200 / 1e6)
    assert rule.dollars_of(Cost(**calls, llm_calls=1), arm="a", model="m", ended_at=0.0) == pytest.approx(
        3100 * 9 / 1e6
    )


@pytest.mark.parametrize(
    ("price", "hour", "dollars"),
    [
        ({}, 12, 3100),
        ({"tier": "flex", "by": "told"}, 12, 310),
        ({"tier": "priority"}, 12, 3100),
        ({}, 20, 31),
        ({"model": "n"}, 12, 31000),
        ({"model": "left"}, 12, 3100),
    ],
    ids=["base", "tier", "another tier", "hours", "another model", "a model without a list"],
)
def test_an_answer_is_repriced_by_its_tier_its_time_and_its_model(price, hour, dollars):
    """Conditions hold at reprice as they held at the call, and rules that are stored and read again price the same."""
    rows = [{"tier": "flex", "input": 0.1, "output": 0.1}, {"hours": "18:00-06:00", "input": 0.01, "output": 0.01}]
    lists = {"m": TokenPrices.model_validate({"input": 1.0, "output": 1.0, "rows": rows}).in_order, "n": (10.0, 10.0)}
    rule = from_json(Correction, json.loads(json.dumps(asdict(Correction(prices={"a": lists})))))
    cost = Cost(prompt_tokens=3000, completion_tokens=100, llm_calls=1, price=price)
    assert rule.dollars_of(cost, arm="a", model="m", ended_at=hour * 3600.0) == pytest.approx(dollars / 1e6)


def test_a_tier_is_stored_with_the_cost_and_counts_at_reprice(make_world):
    """An outcome keeps the tier of its call; `data reprice` and the report use its row, and the store verifies."""
    world = make_world(now=NOON)
    decision = world.router.submit(Query(text="q?"), run_by="worker").result(30)
    made = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="Paris")
    cost = Cost(prompt_tokens=1000, llm_calls=1, dollars=0.5, price={"tier": "flex", "by": "told"})
    world.store.add_outcome(replace(made, run_by="worker", made_by={"arm": "x", "generator": "m"}, cost=cost))
    assert world.store.record(decision.id).outcome.cost == cost
    rows = [1.0, 1.0, {"tier": "flex", "input": 0.5, "output": 0.5}]
    given = {"learn": None, "dry_run": False, "reason": "a test", "actor": "me", "now": world.now}
    done = reprice(world.ledger, Correction(arm=decision.arm, prices={decision.arm: {"m": rows}}), **given)
    assert (done["outcomes"], done["dollars_after"]) == (1, 0.0005)
    assert world.router.verify(deep=True).ok
