"""Rules of the operator: which questions may get which arms, and which settings are refused."""

import httpx
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.findings import findings_of_settings
from ragbandit.router.serving.failover import replacement_arms
from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.shared.errors import Forbidden, InvalidInput
from ragbandit.shared.types import NO_CONVERSATION, AppliedRules, Query, Sent

ARMS = {"arms": {name: {} for name in ("no_retrieval", "single_step", "multi_step")}}
REGION = {"region": {"type": "category", "values": ["eu", "us"]}}
RULES = [
    {"name": "eu", "when": {"context.region": "eu"}, "arms": ["single_step", "multi_step"]},
    {"when": {"agent": "subagent"}, "arms": ["no_retrieval", "single_step"]},
    {"when": {"tenant": ["bank", "broker"], "door": "openai"}, "arms": ["single_step"]},
]


def asked(world, **more):
    return world.router.route(Query(text="who wrote Dracula?", **more))


def test_rules_narrow_the_offer(make_world):
    """All rules whose conditions a question meets apply together; the row and `explain` name them."""
    world = make_world(rules=RULES, context=REGION)
    cases = [
        ({}, 3, None),
        ({"context": {"region": "us"}}, 3, None),
        ({"context": {"region": "eu"}}, 2, ("eu",)),
        ({"sent": Sent(agent="sub-7")}, 2, ("rule 2",)),
        ({"context": {"region": "eu"}, "sent": Sent(agent="sub-7")}, 1, ("eu", "rule 2")),
        ({"tenant": "bank"}, 3, None),
        ({"tenant": "broker", "sent": Sent(surface="openai")}, 1, ("rule 3",)),
    ]
    for query, offered, names in cases:
        decision = asked(world, **query)
        fact = AppliedRules.of(decision.facts)
        assert (len(decision.arms), fact and fact.names) == (offered, names), query
    reasons = " ".join(world.router.process.store.record(decision.id).decision.facts["rules"]["names"])
    assert reasons == "rule 3"
    assert world.router.verify(deep=True).ok


def test_no_request_and_no_failover_leaves_them(make_world):
    """A named arm outside the rules is refused, an arm for failover stays inside, and so do the turns of a task."""
    world = make_world(rules=RULES, context=REGION, conversation={"unit": "task"})
    with pytest.raises(Forbidden, match="the rules eu allow none of these arms: no_retrieval"):
        asked(world, context={"region": "eu"}, arms=("no_retrieval",), arm_by="caller")
    decision = asked(world, context={"region": "eu"}, session="s")
    later = asked(world, context={"region": "eu"}, session="s")
    for one in (decision, later):
        found = {"conversation": NO_CONVERSATION, "worker_arms": ARMS["arms"], "passing": {}, "attempts": 1}
        found["expected"] = ExpectedDollars()
        others = replacement_arms(one, **found, rules=world.settings.rule_book)
        assert set(others) == {"single_step", "multi_step"} - {one.arm}
    subagent = Sent(agent="sub-7")
    first = asked(world, session="t", arms=("multi_step",))
    assert (first.arm, asked(world, session="t").arm) == ("multi_step", "multi_step")
    moved = asked(world, session="t", context={"region": "eu"})
    assert moved.arm == "multi_step"
    assert asked(world, session="t", sent=subagent).arm != "multi_step"


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{"when": {"tenant": "a"}, "arms": ["unknown"]}], "names the arm 'unknown'"),
        ([{"when": {"context.age": 1}, "arms": ["single_step"]}], "not a key of `context`"),
        ([{"when": {"door": "chat"}, "arms": ["single_step"]}], "door: 'chat' is unknown"),
        ([{"when": {"planet": "x"}, "arms": ["single_step"]}], "'planet' is unknown"),
        ([{"name": "a", "when": {}, "arms": ["single_step"]}] * 2, "the same name"),
        (
            [
                {"name": "a", "when": {"tenant": ["x", "y"]}, "arms": ["single_step"]},
                {"name": "b", "when": {"agent": "main"}, "arms": ["multi_step"]},
            ],
            "a and b can apply to the same question",
        ),
        (
            [
                {"when": {"tenant": "x"}, "arms": ["single_step", "multi_step"]},
                {"when": {"agent": "main"}, "arms": ["multi_step", "no_retrieval"]},
                {"when": {"door": "route"}, "arms": ["single_step", "no_retrieval"]},
            ],
            "rule 1 and rule 2 and rule 3 can apply",
        ),
    ],
)
def test_wrong_rules_are_refused(settings, rules, words):
    """Unknown arms, keys and values, and rules that can leave a question without any arm, are named."""
    with pytest.raises(ValueError, match=words):
        settings(**ARMS, rules=rules)


KEYS = {
    "region": {"type": "category", "values": ["eu", "us"], "header": "X-Region", "map": {"EUR": "eu"}},
    "place": {"type": "category", "hashed": 8, "header": "X-Place", "map": {"home": "office"}},
    "plan": {"type": "category", "values": ["free", "pro"]},
    "vip": {"type": "boolean"},
    "age": {"type": "number"},
    "tags": {"type": "words", "header": "X-Tags"},
    "labels": {"type": "words"},
    "who": {"type": "tenant"},
    "broken": {"type": "category", "values": ["eu"], "header": "X-Broken", "map": {"EUR": "europe"}},
}


@pytest.mark.parametrize(
    ("condition", "value", "words"),
    [
        ("context.who", "bank", "use the condition tenant"),
        ("context.vip", "true", "its value is true or false"),
        ("context.vip", 1.0, "its value is true or false"),
        ("context.plan", "Pro", "one of free, pro"),
        ("context.plan", ["free", "Pro"], "one of free, pro"),
        ("context.plan", True, "one of free, pro"),
        ("context.age", "12", "its value is a number"),
        ("context.age", True, "its value is a number"),
        ("context.age", 1e200, "numbers are at most 1e\\+100"),
        ("context.age", float("nan"), "context.age"),
        ("context.age", float("inf"), "context.age"),
        ("context.age", [], "the list is empty"),
        ("tenant", [], "the list is empty"),
        ("context.labels", 3.0, "a list of words"),
        ("context.labels", " ", "a character that is not a space"),
        ("context.tags", "a,b", "a comma between two words"),
        ("context.region", "EUR", "one of eu, us"),
        ("context.place", "home", "the map of the key makes 'office' of it"),
        ("context.place", " office ", "without spaces at its ends"),
        ("context.place", "a, b", "refused as two values"),
        ("context.broken", "eu", "'europe' is not in the values of the key"),
        ("tenant", "my bank", "no tenant is called 'my bank'"),
        ("tenant", 7.0, "no tenant is called 7.0"),
        ("tenant", None, "no tenant is called None"),
        ("key", "rb_short", "no key is called 'rb_short'"),
        ("agent", "sub", "agent: 'sub' is unknown"),
        ("door", True, "door: True is unknown"),
    ],
)
def test_a_condition_that_no_question_can_meet_is_refused(settings, condition, value, words):
    """A condition is checked against the type, the values and the header of its key, and named."""
    with pytest.raises(ValueError, match=words) as caught:
        settings(**ARMS, context=KEYS, rules=[{"name": "odd", "when": {condition: value}, "arms": ["single_step"]}])
    assert condition in str(caught.value)


def test_conditions_by_type(make_world):
    """Words match by membership, numbers by value, null without a value; a key's condition holds only for that key."""
    rules = [
        {"name": "labels", "when": {"context.labels": ["secret", "private"]}, "arms": ["single_step"]},
        {"name": "none", "when": {"context.labels": None, "tenant": "strict"}, "arms": ["multi_step", "single_step"]},
        {"name": "vip", "when": {"context.vip": True}, "arms": ["single_step"]},
        {"name": "age", "when": {"context.age": [12, 13]}, "arms": ["single_step"]},
        {"name": "plan", "when": {"context.plan": ["free", None], "tenant": "strict"}, "arms": ["single_step"]},
    ]
    world = make_world(rules=rules, context=KEYS)
    cases = [
        ({}, None),
        ({"labels": ["open", "secret"]}, ("labels",)),
        ({"labels": ("private",)}, ("labels",)),
        ({"labels": ["secretive"]}, None),
        ({"labels": []}, None),
        ({"vip": True}, ("vip",)),
        ({"vip": False, "age": 13}, ("age",)),
        ({"age": 12.0}, ("age",)),
        ({"plan": "free"}, None),
    ]
    for context, names in cases:
        fact = AppliedRules.of(asked(world, context=context).facts)
        assert (fact and fact.names) == names, context
    for context, names in (({}, ("none", "plan")), ({"labels": ["x"], "plan": "free"}, ("plan",))):
        assert AppliedRules.of(asked(world, tenant="strict", context=context).facts).names == names
    with pytest.raises(InvalidInput, match=r"'Pro'.*the rule 'plan' reads it.*one of free, pro"):
        asked(world, tenant="strict", context={"plan": "Pro"})
    asked(world, context={"plan": "Pro"})  # the rule's other condition decides


def test_a_rule_cannot_pass_by_words_that_come_together(settings):
    """Two rules on different words of one key can apply to one question, but not one on words and one on none."""
    rules = [
        {"when": {"context.labels": "a"}, "arms": ["single_step"]},
        {"when": {"context.labels": ["b", None]}, "arms": ["multi_step"]},
    ]
    with pytest.raises(ValueError, match="rule 1 and rule 2 can apply to the same question"):
        settings(**ARMS, context=KEYS, rules=rules)
    rules[1]["when"]["context.labels"] = None
    settings(**ARMS, context=KEYS, rules=rules)


def test_a_key_that_callers_leave_out_is_named(settings):
    """A rule on a key without a proxy warns, unless a condition names null or a map sets the missing value."""
    guarded = KEYS["region"] | {"map": {"": "us"}}
    cases = [
        (KEYS["region"], "eu", True),
        (KEYS["region"], ["eu", None], False),
        (guarded, "eu", False),
        (KEYS["region"] | {"proxy": True}, "eu", False),
    ]
    server = {"trusted_proxies": ["10.0.0.0/8"]}
    for region, value, warns in cases:
        rules = [{"when": {"context.region": value}, "arms": ["single_step"]}]
        made = settings(**ARMS, context={"region": region}, rules=rules, server=server)
        lines = [finding.line for finding in findings_of_settings(made) if "reads context.region" in finding.line]
        assert len(lines) == warns, (region, value)
    rules = [{"name": "bank", "when": {"tenant": "bnak"}, "arms": ["single_step"]}]
    made = settings(**ARMS, rules=rules, tenants={"bank": {}})
    assert any("did you mean bank?" in finding.line for finding in findings_of_settings(made))


def test_a_rule_that_does_not_name_its_models_is_named(settings):
    """`validate` names auxiliary models that a rule does not mention."""
    chat = {"name": "openai", "model": "m", "context_tokens": 4000, "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    arms = {"a": {"class": "model"}, "b": {"class": "model"}}
    for models, warns in ((None, True), ([], False), (["judge"], False)):
        rules = [{"name": "bank", "when": {"tenant": "bank"}, "arms": ["a"], "models": models}]
        made = settings(arms=arms, rules=rules, judge={"generator": chat}, generator=chat)
        lines = [finding.line for finding in findings_of_settings(made)]
        assert any("whether judge, rewrite may read such questions" in line for line in lines) == warns


def test_a_library_call_has_its_proxied_value_in_the_context(make_world):
    """Router.route takes the value in the context, and refuses a question without it by name."""
    rules = [{"name": "residency", "when": {"context.region": "eu"}, "arms": ["single_step"]}]
    region = {"type": "category", "values": ["eu", "us"], "header": "X-Region", "proxy": True}
    world = make_world(rules=rules, context={"region": region}, server={"trusted_proxies": ["10.0.0.0/8"]})
    assert asked(world, context={"region": "eu"}).arms == ("single_step",)
    assert len(asked(world, context={"region": "us"}).arms) == 3
    for context in ({}, {"region": None}, {"region": "EU"}):
        with pytest.raises(InvalidInput, match="the rule 'residency' reads it") as caught:
            asked(world, context=context)
        assert (caught.value.status, caught.value.code) == (400, "UNDECIDED_RULE")


def test_rules_that_exclude_each_other_are_fine(settings):
    """Two rules without a common arm, whose conditions no question meets together."""
    exclusive = [
        {"when": {"tenant": "x"}, "arms": ["single_step"]},
        {"when": {"tenant": ["y", "z"]}, "arms": ["multi_step"]},
    ]
    made = settings(**ARMS, rules=exclusive, policy={"incumbent": "single_step"})
    (finding,) = [finding for finding in findings_of_settings(made) if "rule 2" in finding.line]
    assert "rule 2 does not allow single_step, the arm of policy.incumbent" in finding.line


def test_context_from_headers(serve):
    """A header sets a key at each interface; a caller cannot send it; a proxy's header counts only from the proxy."""
    keys = {
        "agent": {
            "type": "category",
            "values": ["main", "sub"],
            "header": "x-agent",
            "map": {"sub-7": "sub", "": "main"},
        },
        "region": {"type": "category", "values": ["eu"], "header": "x-region", "proxy": True},
    }
    service = serve(context=keys, server={"trusted_proxies": ["10.9.8.0/24"]})
    sent = {"question": "who?"}
    headers = {"x-agent": "sub-7", "x-region": "eu"}
    reply = httpx.post(f"{service.url}/v1/route", json=sent, headers=headers).json()
    stored = service.router.decision(reply["decision_id"]).decision.query.context
    assert stored == {"agent": "sub"}
    refused = httpx.post(f"{service.url}/v1/route", json={**sent, "context": {"agent": "main"}})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "context.agent")
    twice = httpx.post(f"{service.url}/v1/route", json=sent, headers=[("x-agent", "main"), ("x-agent", "sub")]).json()
    assert service.router.decision(twice["decision_id"]).decision.query.context == {}
    bare = httpx.post(f"{service.url}/v1/route", json=sent).json()
    assert service.router.decision(bare["decision_id"]).decision.query.context == {"agent": "main"}
    service.app.state.gate.is_proxy = lambda _peer: True
    reply = httpx.post(f"{service.url}/v1/route", json=sent, headers=headers).json()
    assert service.router.decision(reply["decision_id"]).decision.query.context == {"agent": "sub", "region": "eu"}


def test_a_proxy_has_an_address():
    """`proxy: true` without `server.trusted_proxies` is refused."""
    with pytest.raises(ValueError, match=r"context\.region: proxy needs server\.trusted_proxies"):
        Settings.model_validate({"context": {"region": {"type": "number", "header": "X-Region", "proxy": True}}})
