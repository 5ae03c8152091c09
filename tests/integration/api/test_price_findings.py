"""Findings about arms without a price, while dollars are charged or limited."""

import time
from dataclasses import replace
from types import MappingProxyType

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.findings import findings_of_store, month_report
from ragbandit.router.operation.price_findings import findings_of_prices
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.setup.estimates import expected_dollars, unpriced_arms
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.shared.model_servers.token_usage import USUAL_CALL, Tokens
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import Conversation, Query
from tests.support.examples import made_decision

PRICED = {"input": 1.0, "output": 2.0}
CHARGED = {"reward": {"cost": {"dollars": 1.0}, "weight": 5.0}}
CASCADE = {"class": "cascade", "empty": True, "first": "a", "then": {"class": "model", "generator": "large"}}


def server(prices=None):
    made = {"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    return made if prices is None else made | {"token_prices": prices}


def made(**given):
    arms = {"a": {"class": "model"}, "b": {"class": "model", "generator": "large"}}
    tree = {"arms": arms, "generator": server(PRICED), "generators": {"large": server()}}
    return Settings.model_validate(tree | given)


def lines(settings, **more):
    return [finding.line for finding in findings_of_prices(settings, **more)]


@pytest.mark.parametrize(
    "dollars",
    [
        CHARGED,
        {"reward": {"cost": {"seconds_total": 1.0}}, "tenants": {"acme": {"dollars_per_day": 3.0}}},
        {"reward": {"cost": {"seconds_total": 1.0}}, "budget": {"dollars": 0.1}},
        {"reward": {"cost": {"seconds_total": 1.0}}, "conversation": {"session_limit": {"dollars": 1.0}}},
    ],
    ids=["reward", "tenant", "answer", "session"],
)
def test_an_arm_without_a_price_is_named_where_dollars_count(dollars):
    """The finding names the generator and its arms, and the arms that have a price."""
    (line,) = lines(made(**dollars))
    assert line.startswith("generators.large: the calls of b have no price: rewards and limits count")
    assert "set generators.large.token_prices" in line


@pytest.mark.parametrize(
    "given",
    [
        {"reward": {"cost": {"dollars": 1.0}, "weight": 0.0}},
        {"reward": {"cost": {"seconds_total": 1.0}}},
        CHARGED | {"generators": {"large": server({"input": 0.0, "output": 0.0})}},
        CHARGED | {"generators": {"large": {"name": "scripted"}}},
        CHARGED | {"arms": {"a": {"class": "model"}, "b": {"run_by": "caller"}}},
        CHARGED | {"arms": {"a": {"class": "model"}, "b": {"class": "http", "url": "http://127.0.0.1:9"}}},
    ],
    ids=["weight 0", "no dollars", "a price of 0", "in this process", "caller", "http"],
)
def test_what_needs_no_price(given):
    """Nothing is found if dollars do not count, and for arms that cost nothing or report their own dollars."""
    assert lines(made(**given)) == []


@pytest.mark.parametrize(("prices", "found"), [(None, 2), (PRICED, 0)])
def test_a_judge_and_a_rewriter_without_a_price_are_named_where_budgets_pay(prices, found):
    """A tenant's budget pays their calls, and counts nothing for calls without a price."""
    given = {"judge": {"generator": server(prices)}, "conversation": {"rewrite": {"generator": server(prices)}}}
    settings = made(**given, generators={"large": server(PRICED)}, tenants={"acme": {"dollars_per_day": 3.0}})
    assert sum("its calls have no price" in line for line in lines(settings)) == found


@pytest.mark.parametrize(("by", "found"), [("auto", 1), ("off", 0)])
def test_a_default_generator_that_only_rewrites_is_named(by, found):
    """Without a generator of its own, a rewrite asks the default one, which may be the generator of no arm."""
    arms, rewrite = {"a": {"class": "model", "generator": "large"}}, {"rewrite": {"by": by}}
    given = {"arms": arms, "generator": server(), "generators": {"large": server(PRICED)}, "conversation": rewrite}
    named = lines(made(**given, tenants={"acme": {"dollars_per_day": 3.0}}))
    assert [line.startswith("generator: its calls have no price") for line in named] == [True] * found


def test_a_limit_of_dollars_over_models_in_our_process_caps_nothing():
    """A limit of dollars for each answer is named if no arm can have a cost in dollars."""
    arms, scripted = {"single_step": {}, "no_retrieval": {}}, {"name": "scripted"}
    given = {"arms": arms, "generator": scripted, "generators": {}, "budget": {"dollars": 0.1}}
    (line,) = (line for line in lines(made(**given)) if line.startswith("budget.dollars"))
    assert "it caps nothing" in line
    for more in ({"generator": server()}, {"generator": scripted | {"token_prices": PRICED}}):
        assert not any(line.startswith("budget.dollars") for line in lines(made(**given | more)))
    assert lines(made(**given | {"arms": arms | {"own": {"class": "http", "url": "http://127.0.0.1:9"}}})) == []


def test_without_any_price_dollars_decide_nothing():
    """If no arm has a price, one finding names them all."""
    (line,) = lines(
        made(**CHARGED, generator=server(), generators={}, arms={"a": {"class": "model"}, "single_step": {}})
    )
    assert "the calls of a, single_step have no price: dollars decide nothing" in line


def test_a_cascade_asks_the_generators_of_its_parts():
    """A cascade has no price if a part has none, and the default generator is none of its own."""
    arms = {"a": {"class": "model", "generator": "small"}, "both": CASCADE}
    given = made(arms=arms, generators={"small": server(PRICED), "large": server()}, generator=server())
    assert unpriced_arms(given.worker_arms, generators=given.named_generators) == {"generators.large": ["both"]}
    (line,) = lines(given.model_copy(update={"reward": made(**CHARGED).reward}))
    assert line.startswith("generators.large: the calls of both have no price: rewards and limits count")


def test_a_cascade_is_expected_to_cost_as_much_as_its_most_expensive_part(make_world):
    """Until it has answered, limits and estimates of a cascade know the lists of its parts, not the default one."""
    arms = {"a": {"class": "model"}, "both": CASCADE}
    given = made(arms=arms, generator=server(PRICED), generators={"large": server({"input": 10.0, "output": 20.0})})
    expected = expected_dollars(given.worker_arms, generators=given.named_generators)
    assert expected.of("both", tenant="") == pytest.approx(10.0 * expected.of("a", tenant=""))
    decision = made_decision(arm="both", query=Query(text="Who?"), run_by="worker")
    assert expected.estimate(decision) > 10.0 * expected.estimate(replace(decision, arm="a")) > 0.0
    world = make_world(arms={"both": {"class": "no_retrieval"}})
    answered(world, "both", count=1, cost={"dollars": 0.5, "llm_calls": 2}, model="another")
    with world.database.read() as connection:
        expected.refresh(connection)
    assert expected.of("both", tenant="") == 0.5


def test_a_cascade_with_calls_without_a_price_stays_named(make_world):
    """Dollars of the part with a price do not end the finding, and count together with the assumed ones."""
    world = make_world(arms={name: {"class": "no_retrieval"} for name in ("a", "both")})
    settings = made(arms={"a": {"class": "model"}, "both": CASCADE}, **CHARGED)
    answered(world, "both", count=1, cost={"dollars": 0.01, "llm_calls": 1})
    assert lines(settings, database=world.database) == []
    answered(world, "both", count=1, cost={"dollars": 0.01, "llm_calls": 2}, assumed=0.02)
    (line,) = lines(settings, database=world.database)
    assert "the calls of both have no price" in line
    expected = expected_dollars(settings.worker_arms, generators=settings.named_generators)
    with world.database.read() as connection:
        expected.refresh(connection)
    assert expected.of("both", tenant="") == pytest.approx(0.02)


def test_a_budget_of_a_key_makes_calls_without_a_price_a_finding(make_world):
    """If nothing but a key has a budget in dollars, `status` names the arms that it does not count."""
    world, settings = make_world(), made(reward={"cost": {"seconds_total": 1.0}})
    assert lines(settings, database=world.database) == []
    scopes = {"dollars_per_day": 2.0}
    KeyStore(world.database).create(name="k", role="app", now=world.now, actor="cli:test", scopes=scopes)
    (line,) = lines(settings, database=world.database)
    assert line.startswith("generators.large: the calls of b have no price")


def test_a_cascade_deep_inside_another_is_read():
    """The parts of a part are read however few arms are configured, and an arm inside itself ends the reading."""
    inner = CASCADE | {"first": {"class": "model", "generator": "small"}}
    arms = {"deep": inner | {"then": inner | {"then": inner | {"then": "deep"}}}}
    arms["deep"]["then"]["then"]["first"] = {"class": "model", "generator": "large"}
    given = made(arms=arms, generators={"small": server(PRICED), "large": server()}, generator=server(PRICED))
    assert unpriced_arms(given.worker_arms, generators=given.named_generators) == {"generators.large": ["deep"]}


def test_a_server_that_tells_its_price_has_one(make_world):
    """Once an answer of the arm had dollars, `status` no longer names it."""
    world, settings = make_world(arms={name: {"class": "no_retrieval"} for name in "ab"}), made(**CHARGED)
    assert len(lines(settings, database=world.database)) == 1
    decision = world.router.submit(Query(text="q", arms=("b",)), run_by="worker").result(30)
    world.outcome(decision, cost={"dollars": 0.02}, by_worker=True)
    assert lines(settings, database=world.database) == []


@pytest.mark.parametrize(
    ("arms", "found"),
    [
        ({"a": {"class": "model"}, "model": {}}, 1),
        ({"a": {"class": "model"}}, 0),
        ({"a": {"class": "model"}, "both": CASCADE}, 1),
        ({"a": {"class": "model"}, "both": CASCADE | {"then": {"class": "single_step"}}}, 0),
    ],
)
def test_a_reward_of_steps_over_arms_that_take_none(arms, found):
    """Arms of the class model take no step, so the default reward makes them cost the same."""
    assert len([line for line in lines(made(arms=arms)) if line.startswith("reward.cost: only steps")]) == found


def test_a_reward_of_steps_over_arms_that_take_steps():
    """An arm that searches takes steps, so its cost differs from that of the others."""
    assert lines(made(arms={"a": {"class": "model"}, "single_step": {}})) == []


def answered(world, arm, *, count, cost, price=MappingProxyType({}), assumed=0.0, model="m"):
    """Answers of an arm that our workers ran, each with this cost, which was priced so."""
    for _ in range(count):
        decision = world.router.submit(Query(text="q", arms=(arm,)), run_by="worker").result(30)
        outcome = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="Paris", cost=cost)
        given = replace(outcome.cost, price=dict(price), assumed_dollars=assumed)
        world.store.add_outcome(replace(outcome, run_by="worker", made_by={"generator": model}, cost=given))


def differing(world, settings):
    reported = findings_of_store(world.database, settings=settings, now=time.time())
    return [one.line for one in reported if one.about.endswith("token_prices")]


def test_an_arm_without_a_price_is_reserved_at_the_highest_listed_price(make_world):
    """Until one of its answers had dollars, an answer that runs counts as much as one of the most expensive arm."""
    world = make_world(arms={name: {"class": "no_retrieval"} for name in "abc"})
    names = {"a": "default", "b": "large", "c": "cheap"}
    arms = {arm: {"class": "model", "generator": name} for arm, name in names.items()}
    generators = {"large": server(), "cheap": server({"input": 0.1, "output": 0.1})}
    given = made(arms=arms, generators=generators)
    expected = expected_dollars(given.worker_arms, generators=given.named_generators)
    estimate = expected.estimate
    decision = made_decision(arm="b", query=Query(text="Who?"), run_by="worker")
    assert estimate(decision) == estimate(replace(decision, arm="a")) > 5 * estimate(replace(decision, arm="c")) > 0.0
    answered(world, "b", count=1, cost={"dollars": 0.02})
    with world.database.read() as connection:
        expected.refresh(connection)
    assert estimate(decision) == 0.0  # the mean of its answers counts instead


def test_answers_without_a_price_do_not_make_an_arm_cheap(make_world):
    """If a server reports the price of some calls only, the expected dollars are the mean of these calls."""
    world = make_world(arms={name: {"class": "no_retrieval"} for name in "ab"})
    expected = expected_dollars(made().worker_arms, generators=made().named_generators)
    for arm in "ab":
        answered(world, arm, count=1, cost={"dollars": 0.02, "llm_calls": 1})
        answered(world, arm, count=3, cost={"llm_calls": 1}, assumed=0.5)
    with world.database.read() as connection:
        expected.refresh(connection)
    assert [expected.of(arm, tenant="") for arm in "ab"] == pytest.approx([0.02, 0.02])


def test_an_arm_without_a_priced_answer_has_its_listed_price(make_world):
    """Answers from before a list was set do not make an arm look free."""
    world = make_world(arms={"a": {"class": "no_retrieval"}})
    settings = made(generator=server({"input": 10.0, "output": 20.0}), generators={}, arms={"a": {"class": "model"}})
    expected = expected_dollars(settings.worker_arms, generators=settings.named_generators)
    answered(world, "a", count=3, cost={"llm_calls": 1}, assumed=0.5)
    with world.database.read() as connection:
        expected.refresh(connection)
    assert expected.of("a", tenant="") == USUAL_CALL.dollars((10.0, 20.0))


def test_a_generator_of_null_is_the_default_one():
    """An arm with `generator: null` has the price of the default generator."""
    arms = {"a": {"class": "model", "generator": None}, "b": {"class": "model"}}
    settings = made(generator=server({"input": 10.0, "output": 20.0}), generators={}, arms=arms)
    expected = expected_dollars(settings.worker_arms, generators=settings.named_generators)
    assert expected.of("a", tenant="") == expected.of("b", tenant="") == USUAL_CALL.dollars((10.0, 20.0))


@pytest.mark.parametrize(
    ("asked", "always", "at", "times"),
    [
        ({}, {}, 0.0, 1.0),
        ({"service_tier": "Flex"}, {}, 0.0, 0.5),
        ({"service_tier": "flex"}, {"service_tier": "priority"}, 0.0, 2.0),
        ({}, {"service_tier": "priority"}, 0.0, 2.0),
        ({"service_tier": 7}, {}, 0.0, 1.0),
        ({}, {}, 20 * 3600.0, 0.25),
    ],
    ids=["base", "of the request", "the generator's own wins", "of the generator", "no name", "hours"],
)
def test_an_estimate_counts_at_the_row_that_the_request_would_meet(asked, always, at, times):
    """Estimates know the tier that the request or the generator asks for, and the time of the decision."""
    rows = [
        {"tier": name, "input": factor, "output": 2.0 * factor} for name, factor in (("flex", 0.5), ("priority", 2))
    ]
    rows.append({"hours": "18:00-24:00", "input": 0.25, "output": 0.5})
    generator = server({"input": 1.0, "output": 2.0, "rows": rows})
    generator["openai"]["fields"] = always
    given = made(generator=generator, generators={}, arms={"a": {"class": "model"}})
    expected = expected_dollars(given.worker_arms, generators=given.named_generators)
    chat = Conversation(fields={"messages": [{"role": "user", "content": "Who?"}], **asked})
    decision = made_decision(arm="a", query=Query(text="Who?", conversation=chat), run_by="worker", made_at=at)
    usual = Tokens(read=estimated_tokens("Who?") + 1, written=1000).dollars((1.0, 2.0))
    assert expected.estimate(decision) == pytest.approx(times * usual)


@pytest.mark.parametrize(("dollars", "found"), [(0.0012, 1), (0.00105, 0), (0.0008, 1)])
def test_a_booked_price_that_differs_from_the_list(make_world, dollars, found):
    """More than a tenth above or below the list is a finding, from ten answers on."""
    world = make_world(arms={"a": {"class": "no_retrieval"}})
    settings = made(arms={"a": {"class": "model"}})
    cost = {"dollars": dollars, "prompt_tokens": 800, "completion_tokens": 100}
    answered(world, "a", count=9, cost=cost)
    assert differing(world, settings) == []
    answered(world, "a", count=1, cost=cost)
    told = differing(world, settings)
    assert len(told) == found
    assert all("the newest 10 answers of a cost $0.0" in line and "$0.01 by the list" in line for line in told)


def test_a_told_price_that_differs_counts_for_arms_that_search_too(make_world):
    """Dollars of an arm that searches may contain its search, so its answers count if the price is the server's."""
    world = make_world(arms={"single_step": {}})
    settings = made(arms={"single_step": {}})
    tokens = {"prompt_tokens": 800, "completion_tokens": 100, "llm_calls": 2}
    answered(world, "single_step", count=10, cost=tokens | {"dollars": 0.003})
    assert differing(world, settings) == []
    answered(world, "single_step", count=10, cost=tokens | {"dollars": 0.003}, price={"by": "told"})
    assert len(differing(world, settings)) == 1


def test_a_cascade_is_compared_with_no_list(make_world):
    """A cascade asks two models with different lists, so neither list says what its answers cost."""
    world = make_world(arms={"both": {"class": "no_retrieval"}})
    settings = made(arms={"a": {"class": "model"}, "both": CASCADE})
    tokens = {"prompt_tokens": 800, "completion_tokens": 100, "llm_calls": 2}
    answered(world, "both", count=10, cost=tokens | {"dollars": 0.003}, price={"by": "told"})
    assert differing(world, settings) == []


def test_an_implausible_told_price_is_named(make_world):
    """`status`, `validate` and `report` name the arm whose server reported a price that does not count."""
    world = make_world(arms={"a": {"class": "no_retrieval"}})
    answered(world, "a", count=2, cost={"dollars": 0.001}, price={"refused": "5"})
    answered(world, "a", count=1, cost={"dollars": 0.001}, price={"refused": "nan"})
    found = findings_of_store(world.database, settings=world.settings, now=time.time())
    assert ["$nan" in one.line for one in found if one.about == "arms.a"] == [True]
    shown = month_report(world.database, settings=world.settings, now=world.now + 1.0)
    assert any("implausible price, which does not count, for 3 answers of a" in note for note in shown.notes)
