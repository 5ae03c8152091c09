"""The arm that is a model: without a chat it asks the question as it stands; ends are told apart."""

import asyncio
from dataclasses import replace

import pytest

from ragbandit.shared.types import Branch, Budget, Conversation, DecisionId, Query
from ragbandit.strategies.arms.basic import Model
from ragbandit.strategies.base import Completion
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.testing.arms import run
from ragbandit.testing.doubles import LateGenerator


class Passing(ScriptedGenerator):
    """A generator that takes chats, and replies with this reason and these calls."""

    capabilities = frozenset({"completion", "stop", "chat"})

    def __init__(self, text, *, reason, calls=()):
        super().__init__({"": text})
        self._reply = {"message": {"tool_calls": list(calls)} if calls else {}, "finish_reason": reason}

    async def complete(self, request):
        done: Completion = await super().complete(request)
        return replace(done, details={"reply": self._reply})


def asked(generator, chat, *, arm=None):
    """One run of the arm with a chat."""
    query = Query(id=DecisionId("d1"), text="Where?", conversation=Conversation(fields=chat or {}))
    parts = {"retriever": MemoryRetriever([]), "generator": generator}
    return asyncio.run(run_strategy(arm or Model(), query=query, budget=Budget(tokens=500), **parts))


def test_a_question_without_a_chat_is_asked_as_it_stands():
    """No words of ours are put around it; the configured words of the system stand before it."""
    model = ScriptedGenerator({"": "In Ohio.\n\nIt is large."})
    outcome = run(Model(instructions="Be brief."), generator_=model)
    assert outcome.answer == "In Ohio.\n\nIt is large."
    assert outcome.stop_reason == "answered"
    assert (model.prompts[0].instructions, model.prompts[0].body) == (
        "Be brief.",
        "Where was the director of Jaws born?",
    )
    assert model.requests[0].max_tokens == 1024
    assert run(Model(), generator_=ScriptedGenerator({"": ""})).stop_reason == "empty_answer"
    late = run(Model(), budget=Budget(seconds=60), generator_=LateGenerator("In Ohio, by", calls=1))
    assert (late.stop_reason, late.answer) == ("budget_seconds", "In Ohio, by")


@pytest.mark.parametrize(
    ("text", "reason", "stop_reason"),
    [
        ("Ohio", "stop", "answered"),
        ("", "stop", "empty_answer"),
        ("Oh", "length", "length"),
        ("", "tool_calls", "tool_calls"),
    ],
)
def test_the_reason_of_the_server(text, reason, stop_reason):
    """The stop reason is the server's, where its answer did not end as usual; the trace counts calls of tools."""
    calls = [{"id": "c1"}, {"id": "c2"}] if reason == "tool_calls" else []
    generator = Passing(text, reason=reason, calls=calls)
    outcome = asked(generator, {"messages": [{"role": "user", "content": "Where?"}], "seed": 3})
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("answered", stop_reason, text)
    assert outcome.reply["finish_reason"] == reason
    assert [event.value for event in outcome.trace if isinstance(event, Branch)] == (["2"] if calls else [])
    sent = generator.requests[0]
    assert sent.conversation.fields == {
        "messages": [{"role": "user", "content": "Where?"}],
        "seed": 3,
        "max_tokens": 500,
    }
    assert sent.max_tokens == 500


@pytest.mark.parametrize(
    ("chat", "sent"),
    [
        ({}, {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]}),
        ({"messages": [], "reasoning_effort": None}, {"messages": [], "reasoning_effort": None}),
    ],
)
def test_the_effort_of_an_arm_is_sent(chat, sent):
    """A chat without an effort, and a question without a chat, are sent with the arm's effort."""
    generator = Passing("Ohio", reason="stop")
    outcome = asked(generator, chat, arm=Model(instructions="Be brief.", effort="low"))
    assert outcome.answer == "Ohio"
    body = {name: value for name, value in generator.requests[0].conversation.fields.items() if name != "max_tokens"}
    assert (body, generator.requests[0].effort) == (sent, "low")


def test_an_arm_without_an_effort_is_recorded_as_before():
    """The params of the arm, which define its version, contain an effort only if it is set."""
    assert dict(Model().params) == {"max_tokens": None, "instructions": ""}
    own = {"messages": [], "reasoning": {"effort": "high"}}
    generator = Passing("Ohio", reason="stop")
    asked(generator, own, arm=Model(effort="high"))
    assert generator.requests[0].conversation.fields["reasoning"] == {"effort": "high"}
