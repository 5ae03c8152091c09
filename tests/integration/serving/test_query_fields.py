"""Fields of a question as keywords of the library's calls."""

import pytest

from ragbandit import Router
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Budget, Message, Query


@pytest.fixture(scope="module")
def router(module_settings):
    context = {"plan": {"type": "category", "values": ["free", "pro"]}}
    with Router.open(module_settings(context=context), jobs=MemoryJobs()) as opened:
        yield opened


FIELDS = {
    "id": "asked-1",
    "context": {"plan": "pro"},
    "arms": ["no_retrieval", "single_step"],
    "budget": {"seconds": 5.0},
    "tenant": "acme",
    "session": "chat-1",
    "unit": "turn",
    "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "text": "Hi"}],
    "cost_weight": 0.2,
    "aim": None,
}


def test_route_takes_every_field_of_a_question_as_a_keyword(router):
    """Keywords of `route` become the fields of the stored query."""
    stored = router.decision(router.route("Who signs the permit?", **FIELDS).id).decision
    asked = stored.query
    assert (stored.id, asked.text, asked.tenant, asked.session) == (
        "asked-1",
        "Who signs the permit?",
        "acme",
        "chat-1",
    )
    assert (dict(asked.context), asked.arms, asked.budget) == (
        {"plan": "pro"},
        ("no_retrieval", "single_step"),
        Budget(seconds=5.0),
    )
    assert asked.messages == (Message(role="user", text="Hello"), Message(role="assistant", text="Hi"))
    assert asked.cost_weight == 0.2


def test_submit_preview_and_the_turns_of_a_task_take_keywords(router):
    """`submit`, `preview` and a task's `route` read the same keywords as `route`."""
    submitted = router.submit("Who signs?", arms=["single_step"]).result(10)
    previewed = router.preview("Who signs?", arms=["single_step", "multi_step"], tenant="acme").result(10)
    assert submitted.arms == ("single_step",)
    assert (previewed.arms, previewed.query.tenant) == (("single_step", "multi_step"), "acme")
    with router.task(tenant="acme") as task:
        turn = task.route("Why does the build fail?", context={"plan": "free"})
    assert (turn.query.tenant, dict(turn.query.context)) == ("acme", {"plan": "free"})


def test_answer_takes_keywords(router):
    """`answer` checks its keywords as `route` does, before anything is decided."""
    with pytest.raises(InvalidInput) as caught:
        router.answer("Who signs?", arms=["typo"])
    assert caught.value.field == "arms"


@pytest.mark.parametrize("name", ["route", "submit", "preview", "answer"])
def test_a_query_together_with_keywords_is_refused(router, name):
    """A Query has all fields, so keywords together with it raise InvalidInput with the keyword's name."""
    with pytest.raises(InvalidInput) as caught:
        getattr(router, name)(Query(text="Who signs?"), tenant="acme")
    assert (caught.value.field, "dataclasses.replace" in caught.value.remedy) == ("tenant", True)


@pytest.mark.parametrize(
    ("given", "field", "remedy"),
    [
        ({"session_id": "chat-1"}, "session_id", "'session'"),
        ({"decision_id": "d-1"}, "decision_id", "'id'"),
        ({"tennant": "acme"}, "tennant", "tenant"),
        ({"budget": {"second": 5}}, "budget.second", "seconds"),
        ({"budget": 5}, "budget", ""),
        ({"messages": "Hello"}, "messages", ""),
        ({"messages": [{"role": "user"}]}, "messages", "role"),
        ({"messages": ["Hello"]}, "messages", "role"),
        ({"arms": "single_step"}, "arms", ""),
        ({"arms": [1]}, "arms", ""),
        ({"context": "pro"}, "context", ""),
    ],
)
def test_an_unusable_keyword_is_named(router, given, field, remedy):
    """An unknown keyword, or a value of a wrong type, raises InvalidInput with its name."""
    with pytest.raises(InvalidInput) as caught:
        router.route("Who signs?", **given)
    assert caught.value.field == field
    assert remedy in caught.value.remedy


def test_a_turn_has_the_session_of_its_task(router):
    """A turn of a task cannot name another session, tenant or unit."""
    with router.task() as task, pytest.raises(InvalidInput) as caught:
        task.route("Who signs?", session="chat-2")
    assert caught.value.field == "session"
