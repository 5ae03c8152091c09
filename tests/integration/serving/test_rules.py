"""Rules of the operator: which questions may get which arms, and which settings are refused."""

import httpx
import pytest

from ragbandit.router.api.findings import of_settings
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.failover import other_arms
from ragbandit.shared.errors import Forbidden
from ragbandit.shared.types import NO_CONVERSATION, AppliedRules, Query

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
        ({"request": {"agent": "sub-7"}}, 2, ("rule 2",)),
        ({"context": {"region": "eu"}, "request": {"agent": "sub-7"}}, 1, ("eu", "rule 2")),
        ({"tenant": "bank"}, 3, None),
        ({"tenant": "broker", "request": {"surface": "openai"}}, 1, ("rule 3",)),
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
        asked(world, context={"region": "eu"}, arms=("no_retrieval",), forced=True)
    decision = asked(world, context={"region": "eu"}, session="s")
    later = asked(world, context={"region": "eu"}, session="s")
    for one in (decision, later):
        others = other_arms(one, conversation=NO_CONVERSATION, worker_arms=ARMS["arms"], passing={}, attempts=1)
        assert set(others) == {"single_step", "multi_step"} - {one.arm}
    subagent = {"agent": "sub-7"}
    first = asked(world, session="t", arms=("multi_step",))
    assert (first.arm, asked(world, session="t").arm) == ("multi_step", "multi_step")
    moved = asked(world, session="t", context={"region": "eu"}, request={})
    assert moved.arm == "multi_step"
    assert asked(world, session="t", request=subagent).arm != "multi_step"


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


def test_rules_that_exclude_each_other_are_fine(settings):
    """Two rules without a common arm, whose conditions no question meets together."""
    exclusive = [
        {"when": {"tenant": "x"}, "arms": ["single_step"]},
        {"when": {"tenant": ["y", "z"]}, "arms": ["multi_step"]},
    ]
    made = settings(**ARMS, rules=exclusive, policy={"incumbent": "single_step"})
    (finding,) = [finding for finding in of_settings(made) if "rule 2" in finding.line]
    assert "rule 2 does not allow single_step, the arm of policy.incumbent" in finding.line


def test_context_from_headers(serve):
    """A header sets a key at each interface; a caller cannot send it; a proxy's header counts only from the proxy."""
    keys = {
        "agent": {"type": "category", "values": ["main", "sub"], "header": "x-agent", "map": {"sub-7": "sub"}},
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
    service.app.state.gate.is_proxy = lambda _peer: True
    reply = httpx.post(f"{service.url}/v1/route", json=sent, headers=headers).json()
    assert service.router.decision(reply["decision_id"]).decision.query.context == {"agent": "sub", "region": "eu"}


def test_a_proxy_has_an_address():
    """`proxy: true` without `server.trusted_proxies` is refused."""
    with pytest.raises(ValueError, match=r"context\.region: proxy needs server\.trusted_proxies"):
        Settings.model_validate({"context": {"region": {"type": "number", "header": "X-Region", "proxy": True}}})
