"""From an arm's run to an Outcome."""

import asyncio
import logging
import re
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from typing import get_args

import pytest

from ragbandit.router.api.openai.replies import finish_reason_of
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.texts.redaction import ERROR_LENGTH
from ragbandit.shared.types import (
    MAX_ERROR,
    MAX_TEXT,
    Budget,
    CallFailed,
    Retrieved,
    Round,
    count_steps,
)
from ragbandit.strategies import failures
from ragbandit.strategies.base import Need
from ragbandit.strategies.failures import OutOfBudget
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import made_by
from ragbandit.strategies.prompting.prompts import load_templates
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.strategies.run import Answer
from tests.support.arms.arm_runs import ARMS_HERE
from tests.support.waiting import until
from tests.unit.strategies.ended_arms import PROMPT, Arm, Own, ended, outcome_of, run


async def hang(*_run):
    await asyncio.sleep(60)


def raising(error):
    async def end():
        raise error

    return end


def giving(answer):
    async def end():
        return answer

    return end


good = giving(Answer(text="yes", stop_reason="rule"))
SAID = "x" * 500 + " redis://"


@pytest.mark.parametrize(
    ("style", "text", "answer", "reason"),
    [
        ("long", "It was founded by a tribe of the north", "It was founded by a tribe", "length"),
        ("long", "It was founded by a tribe.", "It was founded by a tribe.", "answered"),
        ("reasoned", "So the answer is: Paris. And then more", "Paris", "answered"),
    ],
)
def test_the_stop_reason_of_an_answer_that_was_cut(style, text, answer, reason):
    """An answer that ends at its model's limit of tokens has the stop reason `length`, unless it was complete."""
    arm = make_arms({"no_retrieval": {"max_tokens": 6, "style": style}}, capabilities=frozenset(get_args(Need)))
    outcome = ended(arm["no_retrieval"], generator=ScriptedGenerator({"": text}))
    assert (outcome.status, outcome.answer, outcome.stop_reason) == ("answered", answer, reason)
    assert finish_reason_of(outcome) == ("length" if reason == "length" else "stop")


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
        # an arm may wrap what a driver said into an ArmFailed: it is redacted too, and not cut
        (ArmFailed(f"{SAID}:s3cr3t@cache:6379/0"), f"{SAID}cache:6379/0"),
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


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("just text", "returned 'just text'"),
        (
            Answer(text="x" * (MAX_TEXT + 1), stop_reason="rule"),
            "the answer of the arm arm has 100001 characters (answer with at most 100000)",
        ),
    ],
)
def test_what_is_no_answer_is_a_failure(answer, error):
    """Only an Answer is an answer, and only one of as many characters as callers may send."""
    outcome = run(giving(answer))
    assert (outcome.status, outcome.answer, outcome.stop_reason) == ("failed", None, "error")
    assert error in outcome.error
    assert run(giving(Answer(text="x" * MAX_TEXT, stop_reason="rule"))).status == "answered"


def test_an_arm_that_hangs_outside_any_call_is_cut_off():
    """Seconds are enforced over the whole arm; the draft is the answer."""
    began = time.monotonic()
    outcome = run(hang, seconds=0.3)
    assert (outcome.status, outcome.answer, outcome.stop_reason) == ("exhausted", "draft", "budget_seconds")
    assert time.monotonic() - began < 20


def test_the_outcome_says_what_made_it():
    """Class, params, generator, retriever and the caps in force tell two versions of an arm apart."""
    assert run(good, tokens=50, seconds=60.0).made_by == {
        "arm": f"{Arm.__module__}:Arm",
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


class Hanging(ScriptedGenerator):
    async def complete(self, request):
        await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("parts", "ended_by", "calls", "error"),
    [
        (MemoryRetriever([], fail_at=[1]), ("failed", "error"), (1, 0), "the retriever fails at search 1"),
        (Unreachable([]), ("failed", "error"), (1, 0), "TimeoutError: no server"),
        (MemoryRetriever([], seconds=30), ("exhausted", "budget_seconds"), (1, 0), "the budget of seconds ran out"),
        (Hanging([]), ("exhausted", "budget_seconds"), (1, 1), "cut off"),
    ],
)
def test_a_failed_call_is_in_the_trace(parts, ended_by, calls, error):
    """A search or a call that raises, or that the seconds cut off, is counted, a CallFailed, and the last one made."""
    kind, seconds = ("generator" if isinstance(parts, Hanging) else "retriever"), 0.1 if "budget" in ended_by[1] else 30
    outcome = ended(Arm(good), **{kind: parts}, seconds=seconds)
    assert (outcome.status, outcome.stop_reason) == ended_by
    assert (outcome.cost.retriever_calls, outcome.cost.llm_calls, outcome.cost.prompt_tokens) == (*calls, 0)
    assert [event for event in outcome.trace if isinstance(event, CallFailed)] == [outcome.trace[-1]]
    assert outcome.trace[-1].error.startswith(error)


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


def test_a_stopped_arm_is_cancelled_with_what_it_cost():
    """`stop` cuts a call off: failed as cancelled, the calls made are in the cost and the one cut off in the trace."""
    stop, generator = Future(), ScriptedGenerator({"": "one"}, seconds=30.0)
    another = threading.Thread(target=lambda: until(lambda: generator.requests) and stop.set_result(None))
    another.start()
    outcome = ended(Arm(good), generator=generator, stop=stop)
    another.join(20)
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "cancelled", None)
    assert outcome.error == "cancelled by the caller"
    assert [type(event) for event in outcome.trace] == [Round, Retrieved, Round, CallFailed]
    assert (outcome.cost.retriever_calls, outcome.cost.llm_calls) == (1, 1)
    assert 0 < outcome.cost.seconds_generate <= outcome.cost.seconds_total < 30


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


@pytest.mark.parametrize("stop", [None, "given"])
def test_an_arm_that_raises_cancelled_error_has_failed(stop):
    """If nobody cancels the run, the arm's CancelledError is its failure, which counts against it."""
    outcome = ended(Arm(raising(asyncio.CancelledError())), stop=stop and Future())
    assert (outcome.status, outcome.stop_reason) == ("failed", "error")
    assert "the arm arm raised CancelledError" in outcome.error
    assert outcome.cost.llm_calls == 1


class Strange(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), Strange(), BaseExceptionGroup("g", [Strange()])]
)
def test_no_exception_of_an_arm_ends_the_loop_of_others(error):
    """Whatever an arm raises on the loop of a worker is its failure, and other runs on the loop go on."""
    outcomes = []

    async def both():
        other = asyncio.create_task(outcome_of(Arm(good)))
        outcomes.append(await outcome_of(Arm(raising(error))))
        outcomes.append(await other)

    thread = threading.Thread(target=asyncio.run, args=(both(),))
    thread.start()
    thread.join(20)
    assert [each.status for each in outcomes] == ["failed", "answered"]
    assert type(error).__name__ in outcomes[0].error


def test_a_signal_interrupts_a_run_in_the_main_thread():
    """A KeyboardInterrupt in the main thread is Ctrl-C, and passes through a run."""
    with pytest.raises(KeyboardInterrupt):
        ended(Arm(raising(KeyboardInterrupt())))


# ------------------------------------------------------------------------------------------ late, and too long


def blocking(seconds):
    async def block():
        time.sleep(seconds)  # it does not await: nobody can cut it off
        return Answer(text="late", stop_reason="rule")

    return block


@pytest.mark.parametrize(
    ("blocked_s", "budget", "grace_s", "ended_by"),
    [
        (0.6, {"seconds": 0.2}, 0.25, ("exhausted", "budget_seconds", "late")),
        (0.25, {"seconds": 0.2}, 20.0, ("answered", "rule", "late")),  # an arm has a grace for its end, as its calls
        (0.05, {}, 0.25, ("answered", "rule", "late")),
    ],
)
def test_an_arm_that_blocked_past_its_seconds_is_exhausted(monkeypatch, caplog, blocked_s, budget, grace_s, ended_by):
    """What it brings is kept as the answer of an arm that its seconds ended, and the log names the arm."""
    monkeypatch.setattr("ragbandit.strategies.outcome.GRACE_SECONDS", grace_s)
    outcome = run(blocking(blocked_s), **budget)
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ended_by
    lines = [(line.levelname, line.action, line.arm, line.late_s >= 0.25) for line in caplog.records]
    assert lines == [("WARNING", "arm_late", "arm", True)] * (outcome.status == "exhausted")
    assert ("must not block" in caplog.text) == (outcome.status == "exhausted")


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
