"""The contract that every arm must pass, ours or yours.

A check takes `make_strategy`, a function that makes a fresh arm, and raises AssertionError if the arm breaks the
contract. Run all of `ARM_CHECKS` over an arm made with settings that are not its defaults.
"""

import asyncio
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np

from router.errors import ArmFailed
from router.types import Budget, CallFailed, Cost, DecisionId, Generated, Outcome, Query, Retrieved, Round
from strategies.base import Completion, Need, Passage, Prompt, Request, Strategy
from strategies.details import Attention, Token
from strategies.runner import run_strategy
from strategies.scripted import MemoryRetriever, Scripted, ScriptedGenerator

__all__ = ["ARM_CHECKS"]

MakeStrategy = Callable[[], Strategy]

QUESTION = "Where was the director of Jaws born?"
PASSAGES = [
    Passage(id="jaws", title="Jaws", text="Jaws is a 1975 film whose director was Steven Spielberg."),
    Passage(id="steven", title="Steven Spielberg", text="Spielberg, the director, was born in Cincinnati."),
    Passage(id="ohio", title="Cincinnati", text="Cincinnati is a city in Ohio where many were born."),
    Passage(id="sharks", title="Sharks", text="Sharks have jaws, and each shark was born in the sea."),
]


def echo(prompt: Prompt) -> str:
    """An answer that depends on the whole prompt, so that mixed-up state shows."""
    return f"It is {sum(f'{prompt.instructions}{prompt.body}{prompt.prefix}'.encode())} in the book."


def telling_echo(prompt: Prompt) -> Scripted:
    """The echo, with plausible details for every need: some tokens are sure, some are not."""
    text = echo(prompt)
    pieces = tuple(re.findall(r"\s*\S+", text))
    keys = tuple(re.findall(r"\s*\S+", f"{prompt.instructions}\n{prompt.body}\n{prompt.prefix}")) + pieces
    logprobs = [math.log((0.95, 0.5, 0.1)[place % 3]) for place in range(len(pieces))]
    weights = np.random.default_rng(len(text)).random((2, len(pieces), len(keys)), dtype=np.float32)
    groups = [
        ["[Retrieval]", "[No Retrieval]"],
        ["[Relevant]", "[Irrelevant]"],
        ["[Fully supported]", "[Partially supported]", "[No support / Contradictory]"],
        [f"[Utility:{level}]" for level in range(1, 6)],
    ]
    trained = {name: -1.0 - place for group in groups for place, name in enumerate(group)}
    return Scripted(
        text=text,
        details={
            "logprobs": tuple(Token(text=piece, logprob=p) for piece, p in zip(pieces, logprobs, strict=True)),
            "entropy": tuple(-p for p in logprobs),
            "attention": Attention(weights=weights / weights.sum(axis=-1, keepdims=True), keys=keys),
            "hidden_states": np.full((5, 8), len(text), dtype=np.float32) + np.arange(8, dtype=np.float32),
            "trained_tokens": (trained,) * len(pieces),
        },
    )


class HangingGenerator(ScriptedGenerator):
    """Never answers and heeds no deadline."""

    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(3600)
        raise AssertionError("never reached")


def generator(**settings) -> ScriptedGenerator:
    return ScriptedGenerator(telling_echo, capabilities=get_args(Need), **settings)


def run(strategy: Strategy, *, question: str = QUESTION, budget: Budget | None = None, **parts) -> Outcome:
    return asyncio.run(outcome_of(strategy, question=question, budget=budget, **parts))


async def outcome_of(strategy, *, question=QUESTION, budget=None, retriever=None, generator_=None) -> Outcome:
    return await run_strategy(
        strategy,
        query=Query(id=DecisionId("d1"), text=question),
        budget=budget or Budget(),
        retriever=retriever or MemoryRetriever(PASSAGES),
        generator=generator_ or generator(),
    )


def timeless(outcome: Outcome) -> Outcome:
    """The outcome without anything that a clock decides."""
    cost = replace(outcome.cost, seconds_retrieve=0.0, seconds_generate=0.0, seconds_total=0.0)
    trace = tuple(
        replace(e, seconds=0.0) if isinstance(e, Retrieved | Generated | CallFailed) else e for e in outcome.trace
    )
    return replace(outcome, cost=cost, trace=trace, made_at=0.0)


def check_declares_itself(make_strategy: MakeStrategy) -> None:
    """Name, needs and params are there, params are plain JSON, and two made alike are alike."""
    one, other = make_strategy(), make_strategy()

    assert isinstance(one.name, str)
    assert one.name
    assert isinstance(one.needs, frozenset)
    assert one.needs <= set(get_args(Need))
    assert json.loads(json.dumps(dict(one.params))) == dict(one.params) == dict(other.params)


def check_needs_what_it_uses(make_strategy: MakeStrategy) -> None:
    """Whatever an arm asks of the generator beyond plain text, stop strings included, is among its needs."""
    strategy, asked = make_strategy(), generator()
    run(strategy, generator_=asked)

    used = {need for request in asked.requests for need in request.want}
    used |= {"stop" for request in asked.requests if request.stop}
    assert asked.requests
    assert used | {"completion"} <= strategy.needs


def check_says_what_it_is(make_strategy: MakeStrategy) -> None:
    """The outcome names the arm's class, its params, generator, retriever and the caps in force, as plain JSON."""
    strategy = make_strategy()
    made_by = run(strategy, budget=Budget(rounds=2, tokens=100_000)).made_by

    assert json.loads(json.dumps(made_by)) == made_by
    assert made_by["arm"] == f"{type(strategy).__module__}:{type(strategy).__qualname__}"
    assert made_by["params"] == dict(strategy.params)
    assert (made_by["generator"], made_by["retriever"]) == ("scripted", "memory")
    assert made_by["budget"] == {"rounds": 2, "tokens": 100_000}


def check_answers_with_a_true_account(make_strategy: MakeStrategy) -> None:
    """A plain question is answered; steps, calls, tokens and passages are those of the trace."""
    outcome = run(make_strategy())

    found = [event for event in outcome.trace if isinstance(event, Retrieved)]
    written = [event for event in outcome.trace if isinstance(event, Generated)]
    seen = {identity for event in found for identity in event.ids}
    assert outcome.status == "answered", outcome.error
    assert outcome.answer
    assert outcome.stop_reason
    assert outcome.error is None
    assert outcome.steps == sum(isinstance(event, Round) for event in outcome.trace)
    assert outcome.cost.retriever_calls == len(found)
    assert outcome.cost.llm_calls == len(written) > 0
    assert outcome.cost.prompt_tokens == sum(event.prompt_tokens for event in written)
    assert outcome.cost.completion_tokens == sum(event.completion_tokens for event in written)
    assert outcome.cost.passages <= len(seen)
    assert bool(outcome.cost.passages) == bool(seen), "passages that were found must be shown, and counted"
    called = [event.seconds for event in found + written]
    assert math.isclose(outcome.cost.seconds_retrieve + outcome.cost.seconds_generate, sum(called))
    assert outcome.cost.seconds_total >= max(called)
    # Calls made at the same time add up to more than the clock says; a cap on tokens makes them wait for each other.
    waiting = run(make_strategy(), budget=Budget(tokens=10**9)).cost
    assert waiting.seconds_total >= waiting.seconds_retrieve + waiting.seconds_generate


def check_keeps_nothing_between_questions(make_strategy: MakeStrategy) -> None:
    """Many questions at once, on one arm, give what each gives alone; the params do not change."""
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
    """No more rounds begin and no more distinct passages are shown than the budget allows."""
    for allowed in (0, 1, 2):
        outcome = run(make_strategy(), budget=Budget(rounds=allowed))
        assert outcome.steps <= allowed
        assert outcome.status in ("answered", "exhausted")
        outcome = run(make_strategy(), budget=Budget(passages=allowed))
        assert outcome.cost.passages <= allowed
        assert outcome.status in ("answered", "exhausted")


def check_heeds_the_cap_on_tokens(make_strategy: MakeStrategy) -> None:
    """Prompt and completion tokens over all calls stay within the budget; too few end the arm as exhausted."""
    free = run(make_strategy())
    needed = free.cost.prompt_tokens + free.cost.completion_tokens

    for allowed in (1, needed // 2, needed - 1, needed):
        outcome = run(make_strategy(), budget=Budget(tokens=allowed))
        assert outcome.cost.prompt_tokens + outcome.cost.completion_tokens <= allowed
        assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_tokens") or outcome.status == "answered"
    assert run(make_strategy(), budget=Budget(tokens=1)).status == "exhausted"


def check_heeds_the_cap_on_seconds(make_strategy: MakeStrategy) -> None:
    """A slow model and one that hangs end the arm as exhausted soon after its seconds are over, cost included."""
    for slow in (generator(seconds=5.0), HangingGenerator(echo, capabilities=get_args(Need))):
        began = time.monotonic()
        outcome = run(make_strategy(), budget=Budget(seconds=0.05), generator_=slow)
        assert time.monotonic() - began < 2.0
        assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_seconds")
        assert outcome.cost.llm_calls == 1
        assert outcome.cost.seconds_total >= 0.05


def check_heeds_the_cap_on_dollars(make_strategy: MakeStrategy) -> None:
    """No call begins once the dollars are spent; the outcome carries what was spent."""
    free = run(make_strategy())
    for calls in range(1, free.cost.llm_calls + 1):
        outcome = run(make_strategy(), budget=Budget(dollars=0.5 * calls), generator_=generator(dollars=0.5))
        assert (outcome.cost.llm_calls, outcome.cost.dollars) == (calls, 0.5 * calls)
        ended = ("answered", free.stop_reason) if calls == free.cost.llm_calls else ("exhausted", "budget_dollars")
        assert (outcome.status, outcome.stop_reason) == ended


def check_a_failing_part_is_an_outcome(make_strategy: MakeStrategy) -> None:
    """When the model or the retriever fails, at whatever call, the outcome is failed, with the cost so far.

    The failed call counts, without tokens, and ends the trace. Calls made at the same time as it count, too,
    whether they were finished or cut off.
    """
    free = run(make_strategy())
    for call in range(1, free.cost.llm_calls + 1):
        asked = generator(fail_at=[call])
        outcome = run(make_strategy(), generator_=asked)
        assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "error", None)
        assert f"fails at call {call}" in (outcome.error or "")
        written = [event for event in outcome.trace if isinstance(event, Generated)]
        broken = [event for event in outcome.trace if isinstance(event, CallFailed)]
        assert outcome.cost.prompt_tokens == sum(event.prompt_tokens for event in written)
        assert len(asked.requests) == outcome.cost.llm_calls == len(written) + len(broken) >= call
        assert broken[0].error == outcome.error
        assert all("cut off" in event.error for event in broken[1:])
        if outcome.cost.llm_calls == call:
            assert isinstance(outcome.trace[-1], CallFailed)
    for search in range(1, free.cost.retriever_calls + 1):
        outcome = run(make_strategy(), retriever=MemoryRetriever(PASSAGES, fail_at=[search]))
        assert (outcome.status, outcome.cost.retriever_calls) == ("failed", search)
        assert outcome.trace[-1] == replace(outcome.trace[-1], purpose="search", error=outcome.error)


def check_lets_cancellation_through(make_strategy: MakeStrategy) -> None:
    """An arm whose task is cancelled ends with CancelledError, not with an outcome."""

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
    """Empty, one-word, braced, foreign and very long questions, and an empty corpus, all give outcomes."""
    for question in ("", "What is", "{question} {passages} %s {}", "北京在哪里", "👍", "a\n\n[body]\nb"):
        assert run(make_strategy(), question=question).status == "answered"
    assert run(make_strategy(), retriever=MemoryRetriever([])).status == "answered"
    outcome = run(make_strategy(), question="long " * 20_000)
    assert outcome.status == "failed"
    assert "question" in (outcome.error or "")


def check_account_starts_at_zero(make_strategy: MakeStrategy) -> None:
    """An arm that fails before it did anything has cost nothing but time."""

    class NoTokenizer(ScriptedGenerator):
        def count_tokens(self, prompt: Prompt) -> int:
            raise ArmFailed("the tokenizer is gone")

    broken = NoTokenizer(echo, capabilities=get_args(Need))
    outcome = run(make_strategy(), retriever=MemoryRetriever([], fail_at=[1]), generator_=broken)

    assert outcome.status == "failed"
    assert replace(outcome.cost, seconds_total=0.0, seconds_retrieve=0.0, retriever_calls=0) == Cost()


ARM_CHECKS: tuple[Callable[[MakeStrategy], None], ...] = (
    check_declares_itself,
    check_needs_what_it_uses,
    check_says_what_it_is,
    check_answers_with_a_true_account,
    check_keeps_nothing_between_questions,
    check_heeds_caps_on_rounds_and_passages,
    check_heeds_the_cap_on_tokens,
    check_heeds_the_cap_on_seconds,
    check_heeds_the_cap_on_dollars,
    check_a_failing_part_is_an_outcome,
    check_lets_cancellation_through,
    check_takes_any_question,
    check_account_starts_at_zero,
)
