"""The contracts of answering: what an arm is given, what it must return, what it may ask of others.

An arm is a small loop over a `Run`. The Run carries the retriever and the generator, counts what every call
costs, writes the trace and holds the budget, so that no arm can forget to. An arm keeps nothing between
questions: everything it knows lives in local variables of `answer`.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from router.errors import ArmFailed, InvalidInput, RagBanditError
from router.types import (
    ArmName,
    Branch,
    Budget,
    CallFailed,
    Cost,
    Generated,
    Json,
    Query,
    Retrieved,
    Round,
    TraceEvent,
)

__all__ = [
    "Answer",
    "CallBroke",
    "Completion",
    "Generator",
    "Hit",
    "Need",
    "OutOfBudget",
    "Passage",
    "Prompt",
    "PromptTooLong",
    "QuestionTooLong",
    "Request",
    "Retriever",
    "Run",
    "Sampling",
    "Strategy",
    "error_text",
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
class Sampling:
    """How to draw tokens instead of taking the likeliest. Raises InvalidInput for a number out of its range."""

    temperature: float  #: above 0, finite
    seed: int  #: the same seed, request and generator give the same text, as far as the generator can
    top_p: float = 1.0  #: least set of likeliest tokens whose probability reaches this, above 0; 1.0 is all
    top_k: int = 0  #: that many likeliest tokens; 0 is all

    def __post_init__(self) -> None:
        fit = {"temperature": 0 < self.temperature < math.inf, "top_p": 0 < self.top_p <= 1, "top_k": self.top_k >= 0}
        if wrong := [name for name, right in fit.items() if not right]:
            raise InvalidInput(f"{getattr(self, wrong[0])!r} is out of range", field=f"sampling.{wrong[0]}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One call to a model. A generator passes over what it does not know: later fields break no implementer."""

    prompt: Prompt
    #: tokens of the answer at most
    max_tokens: int
    #: the text ends before the first of these
    stop: tuple[str, ...] = ()
    #: a time.monotonic() value after which the text so far is returned with finish="deadline"
    deadline: float | None = None
    #: what is asked beyond the text, of the generator's capabilities; it comes back in `Completion.details`
    want: frozenset[Need] = frozenset()
    #: None: greedy
    sampling: Sampling | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What a model answered; `text` holds neither the prompt nor the stop string."""

    text: str
    #: read by the model: 0 if the deadline passed before it began
    prompt_tokens: int
    completion_tokens: int
    #: "stop": the model or a stop string ended it; "length": max_tokens; "deadline": time ran out
    finish: Literal["stop", "length", "deadline"]
    #: what `Request.want` asked for, by need; see strategies.details
    details: Mapping[str, object] = field(default_factory=dict, hash=False)
    #: price of this call, 0.0 where the model has none
    dollars: float = 0.0
    #: of an answer out of a cache: what the call that made it took; None: this call made it
    seconds: float | None = None


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


class CallBroke(ArmFailed):
    """A call to a model failed after it had cost something: `spent` has its tokens and dollars."""

    def __init__(self, message: str, *, spent: Cost, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.spent = spent


class PromptTooLong(ArmFailed):
    """A prompt does not fit the model, not even without passages."""


class QuestionTooLong(PromptTooLong):
    """It would fit without its question: the arm works, the caller asked too much."""


@runtime_checkable
class Retriever(Protocol):
    """Finds passages by text. All calls come from one event loop."""

    #: tells two corpora apart: it is kept with every outcome
    name: str

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k best passages, best first; an empty or unknown-word query gives ().

        Raises ArmFailed if the index cannot be read.
        """
        ...

    async def close(self) -> None:
        """Give back connections and threads, when no call is under way. A second time does nothing."""
        ...


@runtime_checkable
class Generator(Protocol):
    """Writes text. All calls to `complete` come from one event loop."""

    #: tells two models apart: it is kept with every outcome
    name: str
    #: what this generator can do, on the class already: the needs of arms are checked before a model is loaded. An
    #: instance may say it otherwise
    capabilities: frozenset[Need]
    #: tokens of prompt and completion together that fit in one call
    context_tokens: int

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt as the model will see it, chat template included: exact or an upper bound.

        Without input or output: it is called on the event loop, several times for one prompt.
        """
        ...

    async def complete(self, request: Request) -> Completion:
        """The prompt's continuation, greedy unless the request says how to sample.

        Raises ArmFailed if the model cannot answer, CallBroke if that cost tokens. A deadline that passed is no
        failure, see `Request`.
        """
        ...

    async def close(self) -> None:
        """Give back connections and threads, when no call is under way. A second time does nothing."""
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
    """One question's way through an arm: the only door to retriever and model, with the meter running.

    Every call that began is in the cost, and has one event in the trace: Retrieved, Generated, or CallFailed.
    """

    #: the whole question, with id, context, tenant and the budget as it was asked for
    query: Query
    retriever: Retriever
    generator: Generator
    #: the caps in force
    budget: Budget
    started: float = field(default_factory=time.monotonic)
    trace: list[TraceEvent] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    #: best answer so far, used if the budget ends the arm
    draft: str | None = None
    #: what the last call had written when the deadline cut it short, else ""; an arm may make a draft of it
    partial: str = ""

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

    def note_branch(self, rule: str, value: object) -> None:
        """Write down a branch taken."""
        self.trace.append(Branch(rule=rule, value=str(value)))

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
        except BaseException as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            shown = OutOfBudget("seconds") if late else error
            self._account_failure(shown, purpose="search", began=began, cost=Cost(retriever_calls=1))
            if late:
                raise shown from error
            raise  # A TimeoutError of the retriever's own too: it failed, our seconds did not run out.
        spent = time.monotonic() - began
        self.cost += Cost(retriever_calls=1, seconds_retrieve=spent)
        ids = tuple(hit.passage.id for hit in hits)
        self.trace.append(Retrieved(query=query, ids=ids, scores=tuple(h.score for h in hits), seconds=spent))
        return hits

    async def complete(
        self,
        prompt: Prompt,
        *,
        purpose: str,
        max_tokens: int,
        stop: tuple[str, ...] = (),
        want: frozenset[Need] = frozenset(),
        sampling: Sampling | None = None,
    ) -> Completion:
        """Generate and account for it; max_tokens shrinks to what the budget leaves, and the trace says if that cut it.

        A text that the deadline cut short is accounted for, kept in `partial`, and ends in OutOfBudget("seconds").
        Raises OutOfBudget("seconds"), ("tokens") or ("dollars"); the last before a call once that much is spent.
        Raises ArmFailed if the prompt does not fit the model, or if the generator does not offer what is wanted.
        """
        self.partial = ""
        self._check_time()
        if self.budget.dollars is not None and self.cost.dollars >= self.budget.dollars:
            raise OutOfBudget("dollars")
        if missing := sorted(want - self.generator.capabilities):
            raise ArmFailed(
                f"the call for {purpose} wants {', '.join(missing)}, which {self.generator.name} does not offer",
                remedy="declare it in the arm's needs, so that this is found at the start",
            )
        request = Request(
            prompt=prompt,
            max_tokens=self._tokens_for(prompt, purpose=purpose, max_tokens=max_tokens),
            stop=stop,
            deadline=self.deadline,
            want=want,
            sampling=sampling,
        )
        began = time.monotonic()
        try:
            done = await self.generator.complete(request)
        except BaseException as error:
            # A call that broke counts as a call and its seconds; with tokens where the generator knows of any.
            spent_on = error.spent if isinstance(error, CallBroke) else Cost()
            self._account_failure(error, purpose=purpose, began=began, cost=Cost(llm_calls=1) + spent_on)
            raise
        spent = time.monotonic() - began
        if done.seconds is not None:
            # The clock goes on as if the call had been made: a cache must not make an arm look faster than it is.
            self.started -= done.seconds - spent
            self.note_branch("response_cached", purpose)
        self._account(done, purpose=purpose, seconds=spent if done.seconds is None else done.seconds)
        if done.finish == "length" and request.max_tokens < max_tokens:
            self.note_branch("cut_by_budget_tokens", purpose)
        if done.finish == "deadline":
            self.partial = done.text
            raise OutOfBudget("seconds")
        if done.seconds is not None:
            self._check_time()
        return done

    def _tokens_for(self, prompt: Prompt, *, purpose: str, max_tokens: int) -> int:
        """How many tokens may be written: max_tokens, or what the budget leaves."""
        size = self.generator.count_tokens(prompt)
        if size + max_tokens > self.generator.context_tokens:
            raise ArmFailed(
                f"the prompt for {purpose} has {size} tokens; with {max_tokens} to write it exceeds the model's "
                f"{self.generator.context_tokens}",
                remedy="lower the arm's passages or raise the generator's context_tokens",
            )
        if self.budget.tokens is None:
            return max_tokens
        left = self.budget.tokens - self.cost.prompt_tokens - self.cost.completion_tokens - size
        if left < 1:
            raise OutOfBudget("tokens")
        return min(max_tokens, left)

    def _account(self, done: Completion, *, purpose: str, seconds: float) -> None:
        self.cost += Cost(
            llm_calls=1,
            prompt_tokens=done.prompt_tokens,
            completion_tokens=done.completion_tokens,
            seconds_generate=seconds,
            dollars=done.dollars,
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

    def _account_failure(self, error: BaseException, *, purpose: str, began: float, cost: Cost) -> None:
        """`cost` is the one call; its seconds go where they belong."""
        spent = time.monotonic() - began
        self.cost += cost + (Cost(seconds_generate=spent) if cost.llm_calls else Cost(seconds_retrieve=spent))
        self.trace.append(CallFailed(purpose=purpose, error=error_text(error), seconds=spent))

    def _left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise OutOfBudget("seconds")


def error_text(error: BaseException) -> str:
    """The error in words, as traces and outcomes show it."""
    if isinstance(error, RagBanditError | OutOfBudget):
        return str(error)
    if isinstance(error, asyncio.CancelledError):
        return "cut off: the call did not return in time, or was cancelled"
    return f"{type(error).__name__}: {error}"
