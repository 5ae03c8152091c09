"""Arms give their answer out while it is written, where no later word can change it."""

import asyncio
import logging

import pytest

from ragbandit.shared.types import ArmName, Budget, DecisionId, Query
from ragbandit.strategies.answer_stream import MAX_NOTE, AnswerStream, progress_note
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.strategies.run import Answer
from ragbandit.testing.arms import PASSAGES, RecordingReader, generator, run
from tests.support.arms.arm_runs import CHAT, made

PARAGRAPHS = "  Spielberg made Jaws.\n\nThe answer is not one word.\nHe came from Cincinnati, in Ohio. "
#: whose last call is the answer whatever that says, with a model that writes paragraphs and no verdicts
STREAMING = sorted(set(CHAT) - {"self_rag"})


@pytest.mark.parametrize("name", STREAMING)
def test_a_long_answer_is_given_out_word_by_word(name):
    """With the preset "chat" the pieces are the stripped answer, many of them, and notes come before."""
    listener = RecordingReader()
    outcome = run(made(name, preset="chat"), reader=listener, generator_=generator(text=PARAGRAPHS))
    assert outcome.answer == PARAGRAPHS.strip() == "".join(listener.pieces)
    assert len(listener.pieces) > 10
    assert listener.notes[-1] == "writing the answer"
    assert (name == "no_retrieval") == (not any(note.startswith("searching: ") for note in listener.notes))


@pytest.mark.parametrize("name", STREAMING)
def test_a_short_answer_is_given_when_it_is_there(name):
    """A line that may still announce "the answer is" is not streamed before its end."""
    listener = RecordingReader()
    outcome = run(made(name), reader=listener, generator_=generator(text="Ohio. No, the answer is Utah."))
    assert listener.pieces == []
    assert outcome.answer


def test_notes_are_plain_lines():
    """A note has one line of at most MAX_NOTE characters, and is not repeated; every purpose has words."""
    listener = RecordingReader()
    stream = AnswerStream(listener)
    stream.note("searching:  a\nb")
    stream.note("searching: a b")
    stream.note("x" * 500)
    assert listener.notes[0] == "searching: a b"
    assert len(listener.notes) == 2
    assert len(listener.notes[1]) == MAX_NOTE
    assert progress_note("grade_supported") == "checking the draft"
    assert progress_note("one of your own") == "thinking"


def test_nobody_reading_costs_nothing():
    """Without a reader the generator has no sink, and no note is sent."""
    listener, asked = RecordingReader(), generator(text=PARAGRAPHS)
    listener.reading = False
    run(made("single_step", preset="chat"), reader=listener, generator_=asked)
    assert (listener.pieces, listener.notes) == ([], [])
    assert [request.sink for request in asked.requests] == [None]


class Own:
    """An arm of a user's: `answer_` is its method."""

    name = ArmName("own")
    needs = frozenset({"completion"})
    params = {}  # noqa: RUF012

    def __init__(self, answer_):
        self.answer_ = answer_

    async def answer(self, question, *, run):
        prompt = Prompt(instructions="", body=question)
        return await self.answer_(run, prompt)


def own_outcome(answer_, *, budget=None, generator_=None):
    listener = RecordingReader()
    outcome = asyncio.run(
        run_strategy(
            Own(answer_),
            query=Query(id=DecisionId("d1"), text="Where?"),
            budget=budget or Budget(),
            retriever=MemoryRetriever(PASSAGES),
            generator=generator_ or ScriptedGenerator(lambda _: "one two three"),
            reader=listener,
        )
    )
    return outcome, listener


def test_an_arm_that_contradicts_what_it_gave_out_is_named(caplog):
    """The outcome keeps the answer that the arm returned, and the log says which arm gave out something else."""

    async def answer(run, prompt):
        await run.complete(prompt, purpose="read", max_tokens=9, final=str.strip)
        return Answer(text="something else", stop_reason="answered")

    with caplog.at_level(logging.ERROR, logger="ragbandit.arms"):
        outcome, listener = own_outcome(answer)
    assert outcome.answer == "something else"
    assert "".join(listener.pieces) == "one two three"
    assert [record.arm for record in caplog.records if getattr(record, "action", "") == "answer_changed"] == ["own"]


def test_two_final_calls_give_out_one_text():
    """A second call for the answer goes on where the first one was, and is not given out where it says otherwise."""
    said = iter(["one two", "one two three", "four"])

    async def answer(run, prompt):
        for _ in range(3):
            done = await run.complete(prompt, purpose="read", max_tokens=9, final=str.strip)
        return Answer(text=done.text, stop_reason="answered")

    _, listener = own_outcome(answer, generator_=ScriptedGenerator(lambda _: next(said)))
    assert "".join(listener.pieces) == "one two three"


def test_what_was_given_is_the_answer_where_an_arm_is_cut_off():
    """A model that hangs in mid-answer, deaf to its deadline, leaves what the reader has as the answer."""

    class Deaf(ScriptedGenerator):
        async def complete(self, request: Request):
            await request.sink("one two ")
            await asyncio.sleep(3600)

    async def answer(run, prompt):
        run.draft = "a draft of before"
        done = await run.complete(prompt, purpose="read", max_tokens=9, final=str.strip)
        return Answer(text=done.text, stop_reason="answered")

    outcome, listener = own_outcome(answer, budget=Budget(seconds=1.0), generator_=Deaf([]))
    assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_seconds")
    assert outcome.answer == "one two" == "".join(listener.pieces)
