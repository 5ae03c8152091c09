"""From an arm's run to an Outcome."""

import asyncio
import logging
import re
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from types import MappingProxyType
from typing import get_args

import pytest

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.redaction import ERROR_LENGTH
from ragbandit.shared.types import (
    MAX_ERROR,
    MAX_TEXT,
    Budget,
    CallFailed,
    Cost,
    DecisionId,
    Query,
    Retrieved,
    Round,
    count_steps,
)
from ragbandit.strategies import failures
from ragbandit.strategies.base import Need, Passage, Prompt
from ragbandit.strategies.failures import OutOfBudget
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import made_by, run_strategy
from ragbandit.strategies.prompting.prompts import load_templates
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.reranking import MemoryRetriever
from ragbandit.strategies.run import Answer
from tests.support.arms.arm_runs import ARMS_HERE

PROMPT = Prompt(instructions="", body="b")


class Arm:
    """Two rounds, one search and one call, then whatever the test wants."""

    name = "arm"
    needs = frozenset()
    params = MappingProxyType({})

    def __init__(self, end):
        self._end = end

    async def answer(self, question, *, run):
        run.begin_round(cap=2)
        await run.search(question, k=1)
        run.begin_round(cap=2)
        await run.complete(Prompt(instructions="", body="two words"), purpose="p", max_tokens=3)
        run.draft = "draft"
        return await self._end()


async def outcome_of(arm, *, retriever=None, generator=None, query=None, stop=None, **budget):
    return await run_strategy(
        arm,
        query=query or Query(id=DecisionId("d7"), text="q"),
        budget=Budget(**budget),
        retriever=retriever or MemoryRetriever([]),
        generator=generator or ScriptedGenerator({"": "one"}),
        stop=stop,
    )


def ended(arm, **parts):
    """The outcome of an arm, waited for."""
    return asyncio.run(outcome_of(arm, **parts))


def run(end, **budget):
    return ended(Arm(end), **budget)


async def hang(*_run):
    await asyncio.sleep(60)


def raising(error):
    async def end():
        raise error

    return end


async def good():
    return Answer(text="yes", stop_reason="rule")


def test_a_normal_end_is_answered():
    """The Outcome carries the arm's answer and rule, the decision's id and the true account."""
    before = time.time()
    outcome = run(good)
    assert (outcome.decision_id, outcome.status, outcome.answer) == ("d7", "answered", "yes")
    assert (outcome.stop_reason, outcome.error, outcome.run_by) == ("rule", None, "worker")
    assert outcome.steps == count_steps(outcome.trace) == 2
    assert (outcome.cost.llm_calls, outcome.cost.retriever_calls) == (1, 1)
    assert (outcome.cost.prompt_tokens, outcome.cost.completion_tokens) == (2, 1)
    assert outcome.cost.seconds_total > 0
    assert before <= outcome.made_at <= time.time()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ArmFailed("no luck", field="question", remedy="try again"), "question: no luck (try again)"),
        (ValueError("bad"), "ValueError: bad"),
        (TimeoutError("socket"), "TimeoutError: socket"),
        (KeyError("k"), "KeyError: 'k'"),
    ],
)
def test_any_exception_is_a_failed_outcome_with_its_cost(error, message):
    """Whatever the arm raises becomes status failed with its message, no answer, and the cost and steps so far."""
    outcome = run(raising(error), seconds=60)
    assert (outcome.status, outcome.answer, outcome.stop_reason, outcome.error) == ("failed", None, "error", message)
    assert (outcome.cost.llm_calls, outcome.steps) == (1, 2)


def test_the_traceback_of_a_repeated_exception_is_logged_once(caplog, monkeypatch):
    """A repeated exception of an arm is counted, at powers of two; another arm or exception has its own traceback."""
    monkeypatch.setattr(failures, "_raised", Counter())
    for _ in range(9):
        run(raising(ZeroDivisionError("bug")))
    run(raising(LookupError("another bug")))
    assert [record.times for record in caplog.records] == [1, 2, 4, 8, 1]
    assert [bool(record.exc_text) for record in caplog.records] == [True, False, False, False, True]
    assert "raised the same ZeroDivisionError 8 times" in caplog.text
    monkeypatch.setattr(failures, "MOST_EXCEPTIONS", 2)
    run(raising(OSError("a third one")))
    assert len(failures._raised) == 1


def test_a_foreign_exception_shows_no_secret_to_callers_or_the_log(caplog):
    """A connection string in an exception of the arm, its cause or a search reaches neither outcome, trace nor log."""

    class Down(MemoryRetriever):
        async def search(self, query, *, k):
            raise OSError("connect postgres://admin:s3cr3t@db/x?sslpassword=s3cr3t failed")

    async def look(run):
        run.begin_round(cap=1)
        try:
            await run.search("q", k=1)
        except OSError as error:
            raise ValueError("PWD=s3cr3t " + "x" * 1000) from error

    with caplog.at_level(logging.ERROR):
        outcome = ended(Own(look), retriever=Down(()))
    (failed,) = [event for event in outcome.trace if isinstance(event, CallFailed)]
    assert failed.error.startswith("OSError: connect postgres://db/x")
    assert outcome.error.startswith("ValueError: PWD=[redacted] xxx")
    assert len(outcome.error) < 330
    log = logging.Formatter().format(caplog.records[0])
    assert "test_outcome.py" in log
    assert "OSError: connect postgres://db/x" in log
    assert "s3cr3t" not in f"{failed.error} {outcome.error} {log}"
    assert caplog.records[0].exc_info is None


def test_our_own_errors_show_no_secret_either():
    """An arm may wrap what a driver said into an ArmFailed: it is redacted too, and not cut."""
    outcome = run(raising(ArmFailed("x" * 500 + " redis://:s3cr3t@cache:6379/0")))
    assert outcome.error == "x" * 500 + " redis://cache:6379/0"


def test_an_arm_that_returns_something_else_has_failed():
    """Only an Answer is an answer."""

    async def text():
        return "just text"

    assert "returned 'just text'" in run(text).error


def test_an_arm_that_hangs_outside_any_call_is_cut_off():
    """Seconds are enforced over the whole arm; the draft is the answer."""
    began = time.monotonic()
    outcome = run(hang, seconds=0.3)
    assert (outcome.status, outcome.answer, outcome.stop_reason) == ("exhausted", "draft", "budget_seconds")
    assert time.monotonic() - began < 2


class Own(Arm):
    """Whatever the test wants, with the run at hand."""

    async def answer(self, question, *, run):
        return await self._end(run)


def test_the_outcome_says_what_made_it():
    """Class, params, generator, retriever and the caps in force tell two versions of an arm apart."""
    assert run(good, tokens=50, seconds=60.0).made_by == {
        "arm": f"{__name__}:Arm",
        "params": {},
        "generator": "scripted",
        "retriever": "memory",
        "budget": {"tokens": 50, "seconds": 60.0},
    }
    parts = {"retriever": MemoryRetriever([]), "generator": ScriptedGenerator([])}
    named = made_by(Arm(good), budget=Budget(), named={"retriever": "wiki"}, **parts)
    assert (named["params"], named["retriever"]) == ({"retriever": "wiki"}, "memory")


@pytest.mark.parametrize("name", ARMS_HERE)
def test_what_made_an_outcome_includes_the_texts_of_every_template(name, monkeypatch):
    """An edit in any one of the templates that an arm loads makes it another version; the same texts do not."""

    def digest(edited=""):
        def load(wanted, **given):
            loaded.update(wanted)
            found = dict(load_templates(wanted, **given))
            return found | {each: replace(found[each], body="edited") for each in wanted if each == edited}

        monkeypatch.setattr("ragbandit.strategies.arm_parts.prompted.load_templates", load)
        (arm,) = make_arms({name: {}}, capabilities=frozenset(get_args(Need))).values()
        parts = {"retriever": MemoryRetriever([]), "generator": ScriptedGenerator([])}
        return made_by(arm, budget=Budget(), **parts)["templates"]

    loaded = set()
    first = digest()
    assert re.fullmatch("[0-9a-f]{12}", first)
    assert digest() == first
    assert len({first, *map(digest, sorted(loaded))}) == 1 + len(loaded) > 1


class Unreachable(MemoryRetriever):
    async def search(self, query, *, k):
        raise TimeoutError("no server")


@pytest.mark.parametrize(
    ("retriever", "seconds", "ended_by", "error"),
    [
        (MemoryRetriever([], fail_at=[1]), 30, ("failed", "error"), "the retriever fails at search 1"),
        (Unreachable([]), 30, ("failed", "error"), "TimeoutError: no server"),
        (MemoryRetriever([], seconds=30), 0.02, ("exhausted", "budget_seconds"), "the budget of seconds ran out"),
    ],
)
def test_a_failed_search_is_in_the_trace(retriever, seconds, ended_by, error):
    """A search that raises, or that the seconds ended, is counted, a CallFailed, and the last call that is made."""
    outcome = ended(Arm(good), retriever=retriever, seconds=seconds)
    assert (outcome.status, outcome.stop_reason) == ended_by
    assert (outcome.cost.retriever_calls, outcome.cost.llm_calls) == (1, 0)
    assert [(type(event), event.purpose, event.error) for event in outcome.trace[1:]] == [(CallFailed, "search", error)]


def test_a_call_that_hangs_is_counted_and_in_the_trace():
    """A model that ignores the deadline is cut off: one call, no tokens, and a CallFailed with the reason."""

    class Hanging(ScriptedGenerator):
        async def complete(self, request):
            await asyncio.sleep(60)

    outcome = ended(Arm(good), generator=Hanging([]), seconds=0.3)
    assert (outcome.stop_reason, outcome.cost.llm_calls, outcome.cost.prompt_tokens) == ("budget_seconds", 1, 0)
    assert outcome.trace[-1].error.startswith("cut off")


def test_a_partial_text_does_not_outlive_the_next_call():
    """What the deadline cut short is in run.partial until the next call begins."""

    class Once(ScriptedGenerator):
        async def complete(self, request):
            done = await super().complete(request)
            return replace(done, finish="deadline") if len(self.requests) == 1 else done

    seen = []

    async def twice(run):
        with pytest.raises(OutOfBudget):
            await run.complete(PROMPT, purpose="p", max_tokens=3)
        seen.append(run.partial)
        await run.complete(PROMPT, purpose="p", max_tokens=3)
        seen.append(run.partial)
        return Answer(text="x", stop_reason="x")

    ended(Own(twice), generator=Once(["one", "two"]))
    assert seen == ["one", ""]


def test_wanting_what_the_generator_does_not_offer_fails_before_the_call():
    """A need that was not declared is found at the call, which is not made."""

    async def look(run):
        await run.complete(PROMPT, purpose="p", max_tokens=3, want=frozenset({"entropy"}))

    outcome = ended(Own(look))
    assert "needs entropy, which scripted does not offer" in outcome.error
    assert outcome.cost.llm_calls == 0


# ------------------------------------------------------------------------------------------ stopping


def stopping(arm, *, after_s=0.02, **parts):
    """The arm's outcome if another thread completes its `stop` so soon."""
    stop = Future()
    timer = threading.Timer(after_s, stop.set_result, args=(None,))
    timer.start()
    try:
        return ended(arm, generator=ScriptedGenerator({"": "one"}, **parts), stop=stop)
    finally:
        timer.join()


def test_a_stopped_arm_is_cancelled_with_what_it_cost():
    """`stop` cuts a call off: failed as cancelled, the calls made are in the cost and the one cut off in the trace."""
    outcome = stopping(Arm(good), seconds=30.0)
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "cancelled", None)
    assert outcome.error == "cancelled by the caller"
    assert [type(event) for event in outcome.trace] == [Round, Retrieved, Round, CallFailed]
    assert (outcome.cost.retriever_calls, outcome.cost.llm_calls) == (1, 1)
    assert 0 < outcome.cost.seconds_generate <= outcome.cost.seconds_total < 10


@pytest.mark.parametrize("asked", [False, True])
def test_a_cancellation_from_outside_passes_through(asked):
    """Whoever cancels the task of a run, as a worker does that ends, gets CancelledError, also after a `stop`."""

    async def cut_off():
        stop = Future()
        work = asyncio.create_task(outcome_of(Arm(hang), stop=stop))
        await asyncio.sleep(0.02)
        work.cancel()
        if asked:
            stop.set_result(None)
        await work

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cut_off())


# ------------------------------------------------------------------------------------------ rounds and passages

TITLES = ("one", "two", "three")


def caps_run(act, *, generator=None, **budget):
    """The outcome of an arm that does `act` and then answers, over three passages that "the" finds."""

    async def end(run):
        await act(run)
        return Answer(text="yes", stop_reason="rule")

    corpus = MemoryRetriever([Passage(id=each, title=each, text=f"the {each}") for each in TITLES])
    return ended(Own(end), retriever=corpus, generator=generator, **budget)


def test_an_arm_that_was_refused_a_round_may_read_and_answer():
    """After the first refusal the arm may still read the passages found, as often as it likes."""

    async def reading(run):
        said = [run.begin_round(cap=9), run.rounds_over, run.begin_round(cap=9), run.rounds_over]
        for _ in range(3):
            await run.complete(PROMPT, purpose="p", max_tokens=3)
        seen.append(said)

    seen = []
    outcome = caps_run(reading, rounds=1)
    assert seen == [[True, False, False, True]]
    assert (outcome.status, outcome.steps, outcome.cost.llm_calls) == ("answered", 1, 3)


@pytest.mark.parametrize(
    ("asked", "message"), [((), "outside any round (call run.begin_round first)"), ((1, 1), "its own cap refused")]
)
def test_a_search_without_a_round_is_a_failure(asked, message):
    """A search before the first round, or in one that the arm's own cap refused, would be one that no step pays for."""

    async def cheating(run):
        for cap in asked:
            run.begin_round(cap=cap)
        await run.search("the", k=1)

    outcome = caps_run(cheating)
    assert (outcome.status, outcome.cost.retriever_calls) == ("failed", 0)
    assert message in outcome.error


@pytest.mark.parametrize(("shown", "status", "reason"), [(2, "answered", "rule"), (3, "exhausted", "budget_passages")])
def test_an_arm_that_shows_too_much_is_ended_by_its_passages(shown, status, reason):
    """More passages than the budget allows are in the cost, as they were shown, and end the arm."""

    async def showing(run):
        run.show(1)
        run.show(shown)

    outcome = caps_run(showing, passages=2)
    assert (outcome.status, outcome.stop_reason, outcome.cost.passages) == (status, reason, shown)


# ------------------------------------------------------------------------------------------ late, and too long


def blocking(seconds):
    async def block():
        time.sleep(seconds)  # it does not await: nobody can cut it off
        return Answer(text="late", stop_reason="rule")

    return block


def test_an_arm_that_blocked_past_its_seconds_is_exhausted(caplog):
    """What it brings is kept as the answer of an arm that its seconds ended, and the log names the arm."""
    outcome = run(blocking(0.4), seconds=0.1)
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("exhausted", "budget_seconds", "late")
    (line,) = caplog.records
    assert (line.levelname, line.action, line.arm) == ("WARNING", "arm_late", "arm")
    assert line.late_s >= 0.25
    assert "must not block" in line.message


@pytest.mark.parametrize("budget", [{}, {"seconds": 0.2}])
def test_an_arm_that_is_a_little_late_is_answered(budget, caplog):
    """An arm has the same grace for its end as its calls; without seconds none is late."""
    outcome = run(blocking(0.25), **budget)
    assert (outcome.status, outcome.answer, caplog.records) == ("answered", "late", [])


@pytest.mark.parametrize(("characters", "status"), [(MAX_TEXT, "answered"), (MAX_TEXT + 1, "failed")])
def test_an_answer_that_is_too_long_is_a_failure(characters, status):
    """As many characters are kept as callers may send, and more are none of an answer."""

    async def much():
        return Answer(text="x" * characters, stop_reason="rule")

    outcome = run(much)
    assert outcome.status == status
    if status == "failed":
        assert (outcome.answer, outcome.stop_reason) == (None, "error")
        assert outcome.error == "the answer of the arm arm has 100001 characters (answer with at most 100000)"


def test_a_draft_that_is_too_long_and_an_endless_message_are_not_kept():
    """Neither what an exhausted arm leaves nor what a raised one says fills the store."""

    async def much(run):
        run.draft = "x" * (MAX_TEXT + 1)
        raise OutOfBudget("tokens")

    outcome = ended(Own(much))
    assert (outcome.status, outcome.answer) == ("failed", None)
    assert "100001 characters" in outcome.error
    assert 10_000 < len(run(raising(ArmFailed("x\n" * MAX_TEXT))).error) <= MAX_ERROR
    assert len(run(raising(ValueError("x" * 10 * MAX_TEXT))).error) == len("ValueError: ...") + ERROR_LENGTH


@pytest.mark.parametrize(("tokens", "cut"), [(4, ["p"]), (40, [])])
def test_an_answer_that_the_tokens_cut_says_so(tokens, cut):
    """A text that ends where the budget's tokens ended leaves a branch in the trace; one that had room leaves none."""

    async def written(run):
        await run.complete(PROMPT, purpose="p", max_tokens=30)
        return Answer(text="x", stop_reason="x")

    outcome = ended(Own(written), generator=ScriptedGenerator(["one two three four five six"]), tokens=tokens)
    assert [event.value for event in outcome.trace if getattr(event, "rule", "") == "cut_by_budget_tokens"] == cut


def test_an_arm_reports_the_cost_of_its_own_model():
    """What an arm spent outside the run is in the outcome's cost; beyond the budget it ends the arm."""

    async def own_model(run):
        run.draft = "draft"
        run.add_cost(Cost(llm_calls=1, prompt_tokens=30, completion_tokens=5, dollars=0.25))
        return Answer(text="answer", stop_reason="own")

    outcome = ended(Own(own_model))
    assert (outcome.status, outcome.cost.llm_calls, outcome.cost.dollars) == ("answered", 1, 0.25)
    assert (outcome.cost.prompt_tokens, outcome.cost.completion_tokens) == (30, 5)
    for cap, value in (("dollars", 0.2), ("tokens", 34)):
        outcome = ended(Own(own_model), **{cap: value})
        assert (outcome.status, outcome.stop_reason) == ("exhausted", f"budget_{cap}")
        assert (outcome.answer, outcome.cost.dollars) == ("draft", 0.25)
    assert ended(Own(own_model), dollars=0.25, tokens=35).status == "answered"


@pytest.mark.parametrize(
    ("sent", "tokens", "expected"),
    [
        ({"max_completion_tokens": 60}, None, {"max_completion_tokens": 60}),
        ({"max_tokens": 9, "max_completion_tokens": 60}, None, {"max_tokens": 9, "max_completion_tokens": 60}),
        ({"max_completion_tokens": 60}, 20, {"max_completion_tokens": 20}),
        ({"max_completion_tokens": 6}, 20, {"max_completion_tokens": 6}),
        ({"max_tokens": None}, None, {"max_tokens": 30}),
        ({"max_output_tokens": 60}, None, {"max_tokens": 60}),
        ({}, 20, {"max_tokens": 20}),
    ],
)
def test_the_limit_of_a_chat_keeps_its_name(sent, tokens, expected):
    """A lower limit of ours has the name that the caller chose; without one, the server's options choose the name."""
    generator, chats = ScriptedGenerator(["one two"]), []
    complete = generator.complete

    async def noted(request):
        chats.append(request.chat)
        assert request.is_limit_named == any(sent.get(name) for name in ("max_tokens", "max_completion_tokens"))
        return await complete(request)

    generator.complete = noted

    async def passed(run):
        await run.chat({"messages": [], **sent}, prompt=PROMPT, max_tokens=30)
        return Answer(text="x", stop_reason="x")

    assert ended(Own(passed), generator=generator, tokens=tokens).status == "answered"
    assert chats == [{"messages": [], **expected}]
