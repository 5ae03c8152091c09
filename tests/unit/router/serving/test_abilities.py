"""Needs of requests: what the arms lack, and the error if no arm can answer."""

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.abilities import no_arm_error, passing_arms, unmet_needs
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Conversation, Query, Sent

ARMS = {
    "small": {"class": "model"},
    "model": {"generator": "large"},
    "read": {"class": "no_retrieval"},
    "local": {"class": "model", "generator": "own"},
    "outside": {"class": "model", "run_by": "caller"},
}
SETTINGS = Settings(
    arms=ARMS,
    generator={"name": "openai", "context_tokens": 300, "openai": {"logprobs": True}},
    generators={"large": {"name": "openai", "supports": ["images", "tools"]}, "own": {"name": "scripted"}},
)
PASSING = passing_arms(SETTINGS.worker_arms, generators=SETTINGS.named_generators)


def query(*needs, optional=(), **more):
    sent = Sent(needs=needs, optional_needs=tuple(optional), **more)
    return Query(text="?", sent=sent, conversation=Conversation(fields={"messages": [], "logprobs": True}))


def test_what_arms_can_do():
    """Models behind an OpenAI-compatible server pass chats on, and take what their generators say."""
    assert {
        "small": ({"chat", "tools", "json", "logprobs"}, 300),
        "model": ({"chat", "images", "tools"}, None),
    } == PASSING


@pytest.mark.parametrize(
    ("asked", "lacking"),
    [
        (query(), {}),
        (query("images"), {"small": ["images"], "read": ["images"]}),
        (query("json", "logprobs"), {"model": ["json", "logprobs"], "read": ["json", "logprobs"]}),
        (query("chat"), {"read": ["chat"]}),
        (query(tokens=301), {"small": ["context"]}),
        (query(tokens=10**9), {"small": ["context"]}),
        (query("tools", tokens=301), {"small": ["context"], "read": ["tools"]}),
        (query(optional=["tools"]), {"read": ["tools"]}),
        (query("json", optional=["tools"]), {"model": ["json"], "read": ["json", "tools"]}),
    ],
)
def test_what_arms_lack(asked, lacking):
    """An arm lacks what it does not take, and context if that is known; what is optional counts if an arm can do it."""
    assert unmet_needs(asked, arms=["small", "model", "read"], passing=PASSING) == lacking


def test_what_is_optional_is_passed_over_where_no_arm_can():
    """Tools that may be called leave arms of text as they were; tools that must be called leave none."""
    assert unmet_needs(query(optional=["tools"]), arms=["read"], passing=PASSING) == {}
    asked = query("logprobs")
    error = no_arm_error(asked, lacking=unmet_needs(asked, arms=["model", "read"], passing=PASSING), passing=PASSING)
    assert (error.field, error.status) == ("logprobs", 422)
    assert "it needs logprobs (model: chat, images, tools; read: text)" in error.message


EFFORTS = passing_arms(
    {name: {"class": "model", "effort": name} for name in ("low", "medium", "high")} | {"small": {"class": "model"}},
    generators=SETTINGS.named_generators,
)


@pytest.mark.parametrize(
    ("bounds", "chat", "lacking"),
    [
        ({}, {}, ""),
        ({"effort_min": None, "effort_max": None}, {"reasoning_effort": None, "reasoning": None}, ""),
        ({"effort_max": "medium"}, {}, "high"),
        ({"effort_min": "medium"}, {}, "low"),
        ({"effort_min": "xhigh"}, {}, "low medium high"),
        ({"effort_min": "none", "effort_max": "none"}, {}, "low medium high"),
        ({}, {"reasoning_effort": "medium"}, "low high"),
        ({}, {"reasoning": {"effort": "high"}}, "low medium"),
        ({"effort_max": "medium"}, {"reasoning_effort": "high"}, "low medium high"),
        ({}, {"reasoning_effort": "turbo", "reasoning": 17}, "low medium high"),
    ],
)
def test_an_effort_outside_the_bounds_is_lacking(bounds, chat, lacking):
    """`effort_min`, `effort_max` and the effort of the chat itself bound the arms that have an effort."""
    asked = Query(text="?", sent=Sent(**bounds), conversation=Conversation(fields={"messages": [], **chat}))
    assert unmet_needs(asked, arms=EFFORTS, passing=EFFORTS) == {arm: ["effort"] for arm in lacking.split()}


@pytest.mark.parametrize(
    ("bounds", "chat", "field"),
    [
        ({"effort_max": "none"}, {}, "effort_max"),
        ({}, {"reasoning_effort": "max"}, "reasoning_effort"),
        ({"effort_min": "hi"}, {}, "effort_min"),
        ({"effort_min": ["low"]}, {}, "effort_min"),
    ],
)
def test_bounds_that_no_arm_meets_are_refused(bounds, chat, field):
    """The error names the field of the bound, also if the bound is not an effort."""
    asked = Query(text="?", sent=Sent(**bounds), conversation=Conversation(fields={"messages": [], **chat}))
    with pytest.raises(InvalidInput) as raised:
        raise no_arm_error(asked, lacking=unmet_needs(asked, arms=["low", "high"], passing=EFFORTS), passing=EFFORTS)
    assert raised.value.field == field
