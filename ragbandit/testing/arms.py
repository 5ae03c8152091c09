"""Checks of the contract of arms. They need no model, no index and no test framework.

A check takes a function that makes a fresh arm, and raises AssertionError if the arm breaks the contract. Run all
ARM_CHECKS on an arm with params that are not the defaults.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from ragbandit.shared.texts.redaction import without_credentials
from ragbandit.shared.types import Budget, CallFailed, DecisionId, Generated, Outcome, Query, Retrieved, Round
from ragbandit.strategies.answer_stream import MAX_NOTE, AnswerReader
from ragbandit.strategies.base import Generator, Need, Passage, Prompt, Retriever
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.registry import registered_name
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.strategies.run import Strategy
from ragbandit.testing.doubles import HangingGenerator, LateGenerator, RecordingReader, with_details

MakeStrategy = Callable[[], Strategy]

QUESTION = "Where was the director of Jaws born?"
PASSAGES = [
    Passage(id="jaws", title="Jaws", text="Jaws is a 1975 film whose director was Steven Spielberg."),
    Passage(id="steven", title="Steven Spielberg", text="Spielberg, the director, was born in Cincinnati."),
    Passage(id="ohio", title="Cincinnati", text="Cincinnati is a city in Ohio where many were born."),
    Passage(id="sharks", title="Sharks", text="Sharks have jaws, and each shark was born in the sea."),
]


def echo(prompt: Prompt) -> str:
    """An answer that depends on the whole prompt, so that a wrong prompt changes it."""
    return f"It is {sum(f'{prompt.instructions}{prompt.body}{prompt.prefix}'.encode())} in the book."


def generator(*, text: str | None = None, **settings: Any) -> ScriptedGenerator:
    """A scripted model with all capabilities. It answers with `text`, by default the `echo` of the prompt."""

    def reply(prompt: Prompt) -> Scripted:
        return with_details(prompt, text=echo(prompt) if text is None else text)

    return ScriptedGenerator(reply, capabilities=get_args(Need), **settings)


def run(strategy: Strategy, **parts: Any) -> Outcome:
    """`outcome_of` for callers without an event loop."""
    return asyncio.run(outcome_of(strategy, **parts))


async def outcome_of(
    strategy: Strategy,
    *,
    question: str = QUESTION,
    budget: Budget | None = None,
    retriever: Retriever | None = None,
    generator_: Generator | None = None,
    reader: AnswerReader | None = None,
) -> Outcome:
    """Run an arm once. By default the model and the retriever are test doubles."""
    return await run_strategy(
        strategy,
        query=Query(id=DecisionId("d1"), text=question),
        budget=budget or Budget(),
        retriever=retriever or MemoryRetriever(PASSAGES),
        generator=generator_ or generator(),
        reader=reader,
    )


def timeless(outcome: Outcome) -> Outcome:
    """Set all times in an outcome to 0, so that outcomes can be compared."""
    cost = replace(outcome.cost, seconds_retrieve=0.0, seconds_generate=0.0, seconds_total=0.0)
    trace = tuple(
        replace(event, seconds=0.0) if isinstance(event, Retrieved | Generated | CallFailed) else event
        for event in outcome.trace
    )
    return replace(outcome, cost=cost, trace=trace, made_at=0.0)


def check_needs_what_it_uses(make_strategy: MakeStrategy) -> None:
    """`needs` has everything that the arm requests from the generator. Params are JSON, and equal in equal arms."""
    strategy, model = make_strategy(), generator()
    assert json.loads(json.dumps(dict(strategy.params))) == dict(strategy.params) == dict(make_strategy().params)
    run(strategy, generator_=model)

    used = {need for request in model.requests for need in request.want}
    used |= {"stop" for request in model.requests if request.stop}
    assert model.requests
    assert used | {"completion"} <= strategy.needs


def check_says_what_it_is(make_strategy: MakeStrategy) -> None:
    """`made_by` is JSON with the arm's name, params, generator, retriever and budget."""
    strategy = make_strategy()
    made_by = run(strategy, budget=Budget(rounds=2, tokens=100_000)).made_by

    assert json.loads(json.dumps(made_by)) == made_by
    assert made_by["arm"] == registered_name(type(strategy))
    assert made_by["params"] == without_credentials(dict(strategy.params))
    assert (made_by["generator"], made_by["retriever"]) == ("scripted", "memory")
    assert made_by["budget"] == {"rounds": 2, "tokens": 100_000}


def check_answers_with_a_true_account(make_strategy: MakeStrategy) -> None:
    """A simple question is answered. Steps, calls, tokens and passages in the outcome agree with the trace."""
    outcome = run(make_strategy())

    searches = [event for event in outcome.trace if isinstance(event, Retrieved)]
    written = [event for event in outcome.trace if isinstance(event, Generated)]
    seen = {identity for event in searches for identity in event.ids}
    assert outcome.status == "answered", outcome.error
    assert outcome.answer
    assert outcome.stop_reason
    assert outcome.error is None
    assert outcome.steps == sum(isinstance(event, Round) for event in outcome.trace)
    assert outcome.cost.retriever_calls == len(searches)
    assert outcome.cost.llm_calls == len(written) > 0
    assert outcome.cost.prompt_tokens == sum(event.prompt_tokens for event in written)
    assert outcome.cost.completion_tokens == sum(event.completion_tokens for event in written)
    assert outcome.cost.passages <= len(seen)
    assert bool(outcome.cost.passages) == bool(seen), "retrieved passages must be shown to the model, and counted"
    called = [event.seconds for event in searches + written]
    assert math.isclose(outcome.cost.seconds_retrieve + outcome.cost.seconds_generate, sum(called))
    assert outcome.cost.seconds_total >= max(called)
    # Times of simultaneous calls may add up to more than the total. With a limit on tokens, no calls are simultaneous.
    waiting = run(make_strategy(), budget=Budget(tokens=10**9)).cost
    assert waiting.seconds_total >= waiting.seconds_retrieve + waiting.seconds_generate


def check_keeps_nothing_between_questions(make_strategy: MakeStrategy) -> None:
    """An arm that answers several questions at once has the same outcomes as separate arms. Its params stay equal."""
    questions = [QUESTION, "Who was Steven?", "Which sea has sharks?", "Is Ohio a city?"]
    shared = make_strategy()
    before = dict(shared.params)

    async def together() -> list[Outcome]:
        slow = generator(seconds=0.001)
        return await asyncio.gather(*(outcome_of(shared, question=q, generator_=slow) for q in questions))

    alone = [timeless(run(make_strategy(), question=question)) for question in questions]
    assert [timeless(outcome) for outcome in asyncio.run(together())] == alone
    assert dict(shared.params) == before


def check_heeds_caps_on_rounds_and_passages(make_strategy: MakeStrategy) -> None:
    """Rounds, and distinct passages in prompts, stay within the budget."""
    for allowed in (0, 1, 2):
        outcome = run(make_strategy(), budget=Budget(rounds=allowed))
        assert outcome.steps <= allowed
        assert outcome.status in ("answered", "exhausted")
        outcome = run(make_strategy(), budget=Budget(passages=allowed))
        assert outcome.cost.passages <= allowed
        assert outcome.status in ("answered", "exhausted")


def check_heeds_the_cap_on_tokens(make_strategy: MakeStrategy) -> None:
    """Prompt and completion tokens of all calls stay within the budget. With too few, the outcome is exhausted."""
    free = run(make_strategy())
    needed = free.cost.prompt_tokens + free.cost.completion_tokens

    for allowed in (1, needed // 2, needed - 1, needed):
        outcome = run(make_strategy(), budget=Budget(tokens=allowed))
        assert outcome.cost.prompt_tokens + outcome.cost.completion_tokens <= allowed
        assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_tokens") or outcome.status == "answered"
    assert run(make_strategy(), budget=Budget(tokens=1)).status == "exhausted"


def check_heeds_the_cap_on_seconds(make_strategy: MakeStrategy) -> None:
    """With a slow or hanging model the arm is exhausted soon after its time limit. The outcome has the cost."""
    for slow in (generator(seconds=5.0), HangingGenerator(echo, capabilities=get_args(Need))):
        began = time.monotonic()
        outcome = run(make_strategy(), budget=Budget(seconds=0.05), generator_=slow)
        assert time.monotonic() - began < 2.0
        assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_seconds")
        assert outcome.cost.llm_calls == 1
        assert outcome.cost.seconds_total >= 0.05


def check_keeps_what_it_knows_at_the_deadline(make_strategy: MakeStrategy) -> None:
    """If the deadline passes during the last call, the answer is the latest draft, or the model's last text."""
    text = "So the answer is: Ohio."
    calls = run(make_strategy(), generator_=LateGenerator(text)).cost.llm_calls
    outcome = run(make_strategy(), budget=Budget(seconds=60), generator_=LateGenerator(text, calls=calls))
    assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_seconds")
    assert "Ohio" in (outcome.answer or "")


def check_heeds_the_cap_on_dollars(make_strategy: MakeStrategy) -> None:
    """No call starts after the dollars are spent. The outcome has the dollars spent."""
    free = run(make_strategy())
    for calls in range(1, free.cost.llm_calls + 1):
        outcome = run(make_strategy(), budget=Budget(dollars=0.5 * calls), generator_=generator(dollars=0.5))
        assert (outcome.cost.llm_calls, outcome.cost.dollars) == (calls, 0.5 * calls)
        is_enough = calls == free.cost.llm_calls
        expected = ("answered", free.stop_reason) if is_enough else ("exhausted", "budget_dollars")
        assert (outcome.status, outcome.stop_reason) == expected


def check_a_failing_part_is_an_outcome(make_strategy: MakeStrategy) -> None:
    """If a call of the model or the retriever fails, the outcome is failed. It has the cost and the trace so far.

    The failed call is counted without tokens. Simultaneous calls are counted too, even if they were cut off.
    """
    free = run(make_strategy())
    for call in range(1, free.cost.llm_calls + 1):
        model = generator(fail_at=[call])
        outcome = run(make_strategy(), generator_=model)
        assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "error", None)
        assert f"fails at call {call}" in (outcome.error or "")
        written = [event for event in outcome.trace if isinstance(event, Generated)]
        broken = [event for event in outcome.trace if isinstance(event, CallFailed)]
        assert outcome.cost.prompt_tokens == sum(event.prompt_tokens for event in written)
        assert len(model.requests) == outcome.cost.llm_calls == len(written) + len(broken) >= call
        assert broken[0].error == outcome.error
        assert all("cut off" in event.error for event in broken[1:])
        if outcome.cost.llm_calls == call:
            assert isinstance(outcome.trace[-1], CallFailed)
    for search in range(1, free.cost.retriever_calls + 1):
        outcome = run(make_strategy(), retriever=MemoryRetriever(PASSAGES, fail_at=[search]))
        assert (outcome.status, outcome.cost.retriever_calls) == ("failed", search)
        last = outcome.trace[-1]
        assert isinstance(last, CallFailed)
        assert (last.purpose, last.error) == ("search", outcome.error)


def check_lets_cancellation_through(make_strategy: MakeStrategy) -> None:
    """An arm whose task is cancelled raises CancelledError instead of returning an outcome."""

    async def cancelled() -> bool:
        hanging = HangingGenerator(echo, capabilities=get_args(Need))
        task = asyncio.create_task(outcome_of(make_strategy(), generator_=hanging))
        await asyncio.sleep(0.01)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    assert asyncio.run(cancelled())


def check_takes_any_question(make_strategy: MakeStrategy) -> None:
    """Questions that are empty, long, Chinese or contain braces are answered, also from an empty corpus.

    If a question does not fit into the model's context, the outcome is failed and its error names the question.
    """
    for question in ("", "{question} {passages} %s {}", "北京在哪里", "a\n\n[body]\nb"):
        assert run(make_strategy(), question=question).status == "answered"
    assert run(make_strategy(), retriever=MemoryRetriever([])).status == "answered"
    model = generator(context_tokens=100_000)
    assert run(make_strategy(), question="Who? " * 10_000, generator_=model).status == "answered"
    outcome = run(make_strategy(), question="long " * 20_000)
    assert outcome.status == "failed"
    assert "question" in (outcome.error or "")


def check_takes_any_answer(make_strategy: MakeStrategy) -> None:
    """An arm answers with at most 100 calls, even if the model always writes the same useless text."""
    texts = ["", "no stop, " * 200, '{"status": ', "Action 1: fly[moon]", "1. 2. 3.", "{question} [body] %s"]
    texts += ["🦈" * 300, "\x00\ufffd </s> <|im_end|>", "a." * 20_000]
    for text in texts:
        model = generator(text=text, context_tokens=100_000)
        began = time.thread_time()
        outcome = run(make_strategy(), generator_=model)
        assert time.thread_time() - began < 5.0
        assert outcome.status == "answered", (text[:40], outcome.error)
        assert outcome.stop_reason
        assert outcome.cost.llm_calls == len(model.requests) <= 100


def check_what_it_gives_out_is_its_answer(make_strategy: MakeStrategy) -> None:
    """Streamed text is the beginning of the answer. A note is one line. A reader does not change the outcome."""
    misleading = "Ohio\nThe answer is Texas. No, the answer is: Utah.\n"
    for text in (None, misleading, 'Answer: "Ohio" ', "1. yes\n2. [Relevant] Ohio\n"):
        for budget in (Budget(), Budget(tokens=400), Budget(seconds=0.02)):
            reader = RecordingReader()
            model = generator(text=text, word_seconds=0.004 if budget.seconds else 0.0)
            outcome = run(make_strategy(), budget=budget, reader=reader, generator_=model)
            streamed = "".join(reader.pieces)
            assert (outcome.answer or "").startswith(streamed), (text, streamed, outcome.answer)
            assert all(reader.pieces)
            assert all(note and "\n" not in note and len(note) <= MAX_NOTE for note in reader.notes)
            if not budget.seconds:
                without_reader = run(make_strategy(), budget=budget, generator_=generator(text=text))
                assert timeless(outcome) == timeless(without_reader)


ARM_CHECKS: tuple[Callable[[MakeStrategy], None], ...] = tuple(
    check for name, check in dict(globals()).items() if name.startswith("check_")
)
