"""What arms, prompts and generators make of the conversation that a question stands in."""

import asyncio
import dataclasses

import pytest
from hypothesis import given, strategies as st

from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.types import Budget, DecisionId, Message, Query, Retrieved
from ragbandit.strategies.base import Passage, Prompt, Request
from ragbandit.strategies.generators.openai_generator import count_prompt_tokens, prompt_body
from ragbandit.strategies.generators.parts import chat_turns, plain_parts
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.prompting.prompts import fit_template, parsed_template
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.testing.arms import PASSAGES, QUESTION, generator
from tests.support.arms.arm_runs import ARMS_HERE, made

HISTORY = (
    Message(role="system", text="You speak like a librarian."),
    Message(role="user", text="Tell me of the zebrafish."),
    Message(role="assistant", text="It is a small quagga."),
)
PLAIN = Prompt(instructions="Be short.", body="Where is the ferry?", prefix="It is")
TALK = dataclasses.replace(PLAIN, history=HISTORY)
TEMPLATE = parsed_template(
    "[instructions]\nBe short.\n[demonstration]\ndemo\n[body]\n{demonstrations}{passages}Q {question}", name="mine"
)
messages = st.lists(st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), text=st.text(max_size=9)))


def asked(name, *, history):
    """The outcome of an arm for a question with this history, and the generator that was asked."""
    model, query = generator(), Query(id=DecisionId("d1"), text=QUESTION, messages=history)
    parts = {"retriever": MemoryRetriever(PASSAGES), "generator": model}
    return asyncio.run(run_strategy(made(name), query=query, budget=Budget(), **parts)), model


# An http arm has no prompt of ours; self_rag_trained has the form that its weights were trained on, and no other.
@pytest.mark.parametrize("name", sorted({*ARMS_HERE, "model"} - {"self_rag_trained"}))
def test_every_arm_shows_the_conversation_where_it_answers(name):
    """The prompt of the final answer contains earlier messages; searches do not."""
    outcome, model = asked(name, history=HISTORY)
    shown = [prompt.history for prompt in model.prompts]
    searched = " ".join(event.query for event in outcome.trace if isinstance(event, Retrieved))
    assert outcome.status == "answered", outcome.error
    assert HISTORY in shown
    assert set(shown) <= {HISTORY, ()}
    assert all(word not in searched for word in ("librarian", "zebrafish", "quagga"))


def fitted(*, context, history=HISTORY):
    passages = [Passage(id=f"p{n}", title=f"T{n}", text="one two three four") for n in range(2)]
    model = ScriptedGenerator([], context_tokens=context)
    fields = {"question": "why so"}
    return fit_template(TEMPLATE, fields=fields, generator=model, max_tokens=5, passages=passages, history=history)


def test_the_oldest_turns_make_room_before_any_passage_does():
    """Under a shrinking context demonstrations go first, then turns from the oldest, then system, then passages."""
    dropped = [f"message {n} of 3 of the conversation dropped" for n in (1, 2, 3)]
    losses = ["demonstration 1 of 1 dropped", *dropped, "passage p1 dropped", "passage p0 dropped"]
    found = [list(fitted(context=context).losses) for context in range(60, 9, -1)]
    assert found[0] == []
    assert found[-1] == losses
    assert all(each == losses[: len(each)] for each in found)
    assert fitted(context=30).prompt.history[0] == HISTORY[0]


def test_a_chat_gets_real_turns():
    """Messages of a chat: the caller's system words and our instructions in one, the turns, the body as the last."""
    fields = prompt_body(Request(prompt=TALK, max_tokens=8), options=OpenAiOptions(prefix="assistant"))
    assert fields["messages"] == [
        {"role": "system", "content": "You speak like a librarian.\n\nBe short."},
        {"role": "user", "content": "Tell me of the zebrafish."},
        {"role": "assistant", "content": "It is a small quagga."},
        {"role": "user", "content": "Where is the ferry?"},
        {"role": "assistant", "content": "It is"},
    ]


def test_a_completion_gets_a_transcript():
    """A model without a chat template gets one text, the conversation as a transcript in front of the body."""
    assert "\n\n".join(plain_parts(TALK)) == (
        "You speak like a librarian.\n\nBe short.\n\nThe conversation so far:\nUser: Tell me of the zebrafish.\n"
        "Assistant: It is a small quagga.\n\nWhere is the ferry?\n\nIt is"
    )


@given(history=messages)
def test_turns_always_alternate(history):
    """Whatever was said: one system turn, then user and assistant by turns, the body last; no user word is lost."""
    prompt = dataclasses.replace(PLAIN, history=tuple(history))
    roles = [role for role, _ in chat_turns(prompt)]
    assert roles == ["system", *["user", "assistant"] * ((len(roles) - 2) // 2), "user"]
    told = "\n\n".join(text for _, text in chat_turns(prompt))
    assert all(each.text in told for each in history if each.role != "assistant" and each.text.strip())
    assert told.endswith(PLAIN.body)


@given(history=messages)
def test_the_openai_count_bounds_what_is_sent(history):
    """Bytes of all that is sent, with what a template puts around every turn, are within the count."""
    prompt = dataclasses.replace(PLAIN, history=tuple(history))
    counted = count_prompt_tokens(prompt, options=OpenAiOptions(template_tokens=0))
    sent = [text for _, text in chat_turns(prompt)]
    assert counted >= sum(len(text.encode("utf-8", "replace")) for text in sent if text)
    assert counted == count_prompt_tokens(PLAIN, options=OpenAiOptions(template_tokens=0)) or history
