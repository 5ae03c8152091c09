"""Needs of requests: what the arms lack, and the error if no arm can answer."""

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.deciding.steps.needs import lacks_of, no_arm, passing_arms
from ragbandit.shared.types import Query

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
    generators={"large": {"name": "openai", "supports": ["images", "tools"]}, "own": {"name": "local"}},
)
PASSING = passing_arms(SETTINGS.worker_arms, generators=SETTINGS.named_generators)


def query(*needs, optional=(), **more):
    request = {"needs": list(needs), "optional_needs": list(optional)} | more
    return Query(text="?", request=request, chat={"messages": [], "logprobs": True})


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
    assert lacks_of(asked, arms=["small", "model", "read"], passing=PASSING) == lacking


def test_what_is_optional_is_passed_over_where_no_arm_can():
    """Tools that may be called leave arms of text as they were; tools that must be called leave none."""
    assert lacks_of(query(optional=["tools"]), arms=["read"], passing=PASSING) == {}
    asked = query("logprobs")
    error = no_arm(asked, lacking=lacks_of(asked, arms=["model", "read"], passing=PASSING), passing=PASSING)
    assert (error.field, error.status) == ("logprobs", 422)
    assert "it needs logprobs (model: chat, images, tools; read: text)" in error.message
