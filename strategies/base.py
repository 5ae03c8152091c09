"""The contracts of answering: what an arm is given, what it must return, what it may ask of others.

An arm is a small loop over a `Run`. The Run carries the retriever and the generator, counts what every call
costs, writes the trace and holds the budget, so that no arm can forget to. An arm keeps nothing between
questions: everything it knows lives in local variables of `answer`.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from router.errors import ArmFailed
from router.types import ArmName, Budget, Cost, Decided, Generated, Json, Retrieved, Round, TraceEvent

__all__ = [
    "Answer",
    "Completion",
    "Generator",
    "Hit",
    "Need",
    "OutOfBudget",
    "Passage",
    "Prompt",
    "Retriever",
    "Run",
    "Strategy",
]

#: What an arm may need of a generator. `completion` is text in, text out; `stop` is stopping at given strings.
Need = Literal["completion", "stop", "logprobs", "entropy", "attention", "hidden_states", "trained_tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """One piece of the corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A passage found for a search, best first; scores compare within one search only."""

    passage: Passage
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What a model is asked. Chat models get system, user and the start of their own turn; others the three joined."""

    instructions: str
    body: str
    #: the first words of the model's own answer, for continuing a text
    prefix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What a model answered; `text` holds neither the prompt nor the stop string."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    #: "stop": the model or a stop string ended it; "length": max_tokens; "deadline": time ran out
    finish: Literal["stop", "length", "deadline"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What an arm returns when it ends by itself."""

    text: str
    #: the rule that ended it, for example "answer_found" or "max_rounds"
    stop_reason: str


class OutOfBudget(Exception):
    """A cap of the budget was reached in mid-run. `cap` names it; the runner makes an Outcome of it."""

    def __init__(self, cap: str) -> None:
        self.cap = cap
        super().__init__(f"the budget of {cap} ran out")


@runtime_checkable
class Retriever(Protocol):
    """Finds passages by text."""

    name: str

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k best passages, best first; an empty or unknown-word query gives ().

        Raises ArmFailed if the index cannot be read.
        """
        ...


@runtime_checkable
class Generator(Protocol):
    """Writes text."""

    name: str
    #: what this generator can do; matched against the needs of arms when the service starts
    capabilities: frozenset[Need]
    #: tokens of prompt and completion together that fit in one call
    context_tokens: int

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt as the model will see it, chat template included."""
        ...

    async def complete(
        self, prompt: Prompt, *, max_tokens: int, stop: tuple[str, ...] = (), deadline: float | None = None
    ) -> Completion:
        """Greedy continuation of at most max_tokens tokens.

        deadline is a time.monotonic() value after which the text so far is returned with finish="deadline".
        Raises ArmFailed if the model cannot answer.
        """
        ...


class Strategy(Protocol):
    """One way of answering. Made once per process; `answer` is called for many questions at a time."""

    name: ArmName
    needs: frozenset[Need]
    #: the settings it was made with, after defaults
    params: Mapping[str, Json]

    async def answer(self, question: str, *, run: "Run") -> Answer:
        """Answer one question with what `run` offers.

        OutOfBudget and ArmFailed pass through: the runner turns them into Outcomes with the cost so far.
        """
        ...


@dataclass(kw_only=True, slots=True)
class Run:
    """One question's way through an arm: the only door to retriever and model, with the meter running."""

    retriever: Retriever
    generator: Generator
    budget: Budget
    started: float = field(default_factory=time.monotonic)
    trace: list[TraceEvent] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    #: best answer so far, used if the budget ends the arm
    draft: str | None = None

    @property
    def deadline(self) -> float | None:
        """time.monotonic() at which the seconds run out, or None."""
        return None if self.budget.seconds is None else self.started + self.budget.seconds

    def begin_round(self, *, cap: int) -> bool:
        """Begin a retrieve-and-generate round; False when `cap` or the budget's rounds are used up."""
        done = sum(isinstance(event, Round) for event in self.trace)
        limit = cap if self.budget.rounds is None else min(cap, self.budget.rounds)
        if done >= limit:
            return False
        self.trace.append(Round(number=done + 1))
        return True

    def decide(self, rule: str, value: object) -> None:
        """Write down a branch taken."""
        self.trace.append(Decided(rule=rule, value=str(value)))

    def passage_cap(self, cap: int) -> int:
        """The smaller of the arm's own cap and the budget's."""
        return cap if self.budget.passages is None else min(cap, self.budget.passages)

    def show(self, passages: int) -> None:
        """Record how many distinct passages the model has been shown so far."""
        if passages > self.cost.passages:
            self.cost += Cost(passages=passages - self.cost.passages)

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """Search and account for it. Raises OutOfBudget("seconds")."""
        self._check_time()
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._left()) as limit:
                hits = await self.retriever.search(query, k=k)
        except TimeoutError as error:
            if not limit.expired():
                raise  # The retriever's own: it failed, our seconds did not run out.
            raise OutOfBudget("seconds") from error
        finally:
            spent = time.monotonic() - began
            self.cost += Cost(retriever_calls=1, seconds_retrieve=spent)
        ids = tuple(hit.passage.id for hit in hits)
        self.trace.append(Retrieved(query=query, ids=ids, scores=tuple(h.score for h in hits), seconds=spent))
        return hits

    async def complete(self, prompt: Prompt, *, purpose: str, max_tokens: int, stop: tuple[str, ...] = ()) -> str:
        """Generate and account for it; max_tokens shrinks to what the budget leaves.

        Raises OutOfBudget("seconds") or OutOfBudget("tokens"); ArmFailed if the prompt does not fit the model.
        """
        self._check_time()
        size = self.generator.count_tokens(prompt)
        if size + max_tokens > self.generator.context_tokens:
            raise ArmFailed(
                f"the prompt for {purpose} has {size} tokens; with {max_tokens} to write it exceeds the model's "
                f"{self.generator.context_tokens}",
                remedy="lower the arm's passages or raise the generator's context_tokens",
            )
        if self.budget.tokens is not None:
            left = self.budget.tokens - self.cost.prompt_tokens - self.cost.completion_tokens - size
            if left < 1:
                raise OutOfBudget("tokens")
            max_tokens = min(max_tokens, left)
        began = time.monotonic()
        try:
            done = await self.generator.complete(prompt, max_tokens=max_tokens, stop=stop, deadline=self.deadline)
        except BaseException:
            # A call that broke was still paid for: its prompt was read.
            self.cost += Cost(llm_calls=1, prompt_tokens=size, seconds_generate=time.monotonic() - began)
            raise
        self._account(done, purpose=purpose, seconds=time.monotonic() - began)
        return done.text

    def _account(self, done: Completion, *, purpose: str, seconds: float) -> None:
        self.cost += Cost(
            llm_calls=1,
            prompt_tokens=done.prompt_tokens,
            completion_tokens=done.completion_tokens,
            seconds_generate=seconds,
        )
        self.trace.append(
            Generated(
                purpose=purpose,
                text=done.text,
                prompt_tokens=done.prompt_tokens,
                completion_tokens=done.completion_tokens,
                seconds=seconds,
            )
        )
        if done.finish == "deadline":
            raise OutOfBudget("seconds")

    def _left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise OutOfBudget("seconds")
