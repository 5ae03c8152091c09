"""Run: one question's retriever, generator, cost, trace and budget, for an arm to work with."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.types import (
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
from ragbandit.strategies.base import (
    PACKED_TOKENS,
    CallBroke,
    Completion,
    Generator,
    Hit,
    Need,
    OutOfBudget,
    Passage,
    Prompt,
    Request,
    Retriever,
    Sampling,
    error_text,
    in_words,
    seconds_until,
)

#: text of a model -> answer. The answer of a text's beginning must be a beginning of the whole text's answer
Settle = Callable[[str], str]

#: longest note, in characters
MAX_NOTE: Final = 120


class AnswerReader(Protocol):
    """Receives an answer while it is written. Called from the event loop that the arm runs in; never raises."""

    @property
    def reading(self) -> bool:
        """True if there is a reader now."""

    async def text(self, piece: str) -> None:
        """Take the next piece of the answer."""

    async def delta(self, delta: Mapping[str, Json]) -> None:
        """Take the next fields of a model's message besides its text: see `shared.model_replies`."""

    def note(self, text: str) -> None:
        """Take a note on what the arm is doing, in a few words for a user."""


class AnswerStream:
    """Passes text and notes of one run to its reader. Without a reader it does nothing."""

    def __init__(self, reader: AnswerReader | None = None) -> None:
        self._reader = reader
        self._last_note = ""
        #: all text that the reader has received
        self.given = ""

    @property
    def wanted(self) -> bool:
        """True if there is a reader now."""
        return self._reader is not None and self._reader.reading

    def note(self, text: str) -> None:
        """Give the reader a note on what the arm is doing, unless it repeats the last one."""
        line = " ".join(text.split())
        line = line if len(line) <= MAX_NOTE else f"{line[: MAX_NOTE - 3]}..."
        if self._reader is not None and self._reader.reading and line != self._last_note:
            self._last_note = line
            self._reader.note(line)

    def sink(self, settle: Settle) -> Callable[[str], Awaitable[None]] | None:
        """The sink of a call that writes the answer; None if there is no reader. Text is only ever continued."""
        reader = self._reader
        if reader is None or not self.wanted:
            return None
        written = ""

        async def take(piece: str) -> None:
            nonlocal written
            written += piece
            answer = settle(written)
            if len(answer) > len(self.given) and answer.startswith(self.given):
                new, self.given = answer[len(self.given) :], answer
                await reader.text(new)

        return take

    def delta_sink(self) -> Callable[[Mapping[str, Json]], Awaitable[None]] | None:
        """The sink of a chat's fields besides its text, None if there is no reader."""
        return self._reader.delta if self._reader is not None and self.wanted else None


def provider_of(generator: Generator) -> str:
    """Who runs the model, for OpenTelemetry: the generator's `provider`, or "ragbandit" for this process."""
    return str(getattr(generator, "provider", "ragbandit"))


#: callbacks of a running call: record the hits of a search, or the text of a model
NoteHits = Callable[[Sequence[Hit]], None]
NoteCompletion = Callable[[Completion], None]


class Spans:
    """Receives every call of a run, for tracing. An exception that leaves a call's block is its failure.

    This base class does nothing.
    """

    def searching(self, query: str, *, k: int, retriever: Retriever) -> AbstractContextManager[NoteHits]:
        """A search begins."""
        del query, k, retriever
        return nullcontext(lambda _hits: None)

    def generating(
        self, request: Request, *, purpose: str, generator: Generator
    ) -> AbstractContextManager[NoteCompletion]:
        """A call of the model begins."""
        del request, purpose, generator
        return nullcontext(lambda _done: None)


NO_SPANS: Final = Spans()


@dataclass(kw_only=True, slots=True)
class Run:
    """The run of an arm on a question: its access to retriever and model, with cost, trace and budget.

    Every call is part of the cost, and has an event in the trace: Retrieved, Generated, or CallFailed. An arm may
    search only after `begin_round`, because the reward counts rounds as steps.
    """

    #: the question with id, context, tenant and the requested budget
    query: Query
    retriever: Retriever
    generator: Generator
    #: caps in force
    budget: Budget
    spans: Spans = NO_SPANS
    stream: AnswerStream = field(default_factory=AnswerStream)
    started: float = field(default_factory=time.monotonic)
    trace: list[TraceEvent] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    #: whether another arm answers if this one fails before its first text; calls are not repeated then
    has_successor: bool = False
    #: best answer so far, used if the budget ends the arm
    draft: str | None = None
    #: "reply" of the last chat, see `Request.chat`
    reply: Mapping[str, Json] = field(default_factory=dict)
    #: text of the last call if the deadline cut it short, else ""; may become the draft
    partial: str = ""
    #: passages shown to the model, in order, by id
    shown: dict[str, Passage] = field(default_factory=dict, init=False)
    #: id of a passage -> its score in the first search that returned it
    scores: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    #: reason why the last begin_round was refused; None if it was allowed
    _refused: Literal["cap", "budget"] | None = field(default=None, init=False, repr=False)

    @property
    def deadline(self) -> float | None:
        """The time.monotonic() value at which the budget's seconds run out; None without this cap."""
        return None if self.budget.seconds is None else self.started + self.budget.seconds

    @property
    def rounds_over(self) -> bool:
        """Whether the budget has refused a round; further calls of begin_round raise OutOfBudget."""
        return self._refused == "budget"

    @property
    def used(self) -> Mapping[str, Any]:
        """Cap -> amount used so far, for all caps except seconds."""
        tokens = self.cost.prompt_tokens + self.cost.completion_tokens
        rounds = sum(isinstance(event, Round) for event in self.trace)
        return {"passages": self.cost.passages, "tokens": tokens, "dollars": self.cost.dollars, "rounds": rounds}

    def begin_round(self, *, cap: int) -> bool:
        """Begin a round of retrieval and generation. False if the arm's `cap` or the budget's rounds are used up.

        Raises OutOfBudget("rounds") if the budget has refused a round before.
        """
        if self.may_begin_round(cap=cap):
            self.trace.append(Round(number=self.used["rounds"] + 1))
        return self._refused is None

    def may_begin_round(self, *, cap: int) -> bool:
        """The result that `begin_round` would have; for arms that first need a query for the round."""
        if self.rounds_over:
            raise OutOfBudget("rounds")
        done = self.used["rounds"]
        if self.budget.rounds is not None and done >= self.budget.rounds:
            self._refused = "budget"
        else:
            self._refused = "cap" if done >= cap else None
        return self._refused is None

    def note_branch(self, rule: str, value: object) -> None:
        """Record a branch in the trace."""
        self.trace.append(Branch(rule=rule, value=str(value)))

    def tell(self, text: str) -> None:
        """Send the reader a short note about the arm's current step."""
        self.stream.note(text)

    def passage_cap(self, cap: int) -> int:
        """The smaller of the arm's cap and the budget's cap."""
        return cap if self.budget.passages is None else min(cap, self.budget.passages)

    def show(self, passages: int) -> None:
        """Record the number of distinct passages shown so far. Raises OutOfBudget("passages"): see `passage_cap`."""
        if passages > self.cost.passages:
            self.tell(f"reading {passages} passage{'s' if passages > 1 else ''}")
            self.cost += Cost(passages=passages - self.cost.passages)
        if self.budget.passages is not None and passages > self.budget.passages:
            raise OutOfBudget("passages")

    def note_shown(self, passages: Iterable[Passage]) -> None:
        """Record the passages of a prompt: they become sources of the outcome, and are counted by `show`."""
        for passage in passages:
            self.shown.setdefault(passage.id, passage)
        self.show(len(self.shown))

    def add_cost(self, cost: Cost) -> None:
        """Add a cost from outside this run, for example of the arm's own model. seconds_total is measured anyway.

        Raises OutOfBudget, after counting, for the first cap that is exceeded.
        """
        self.cost += cost
        for cap, used in self.used.items():
            allowed = getattr(self.budget, cap)
            if allowed is not None and used > allowed:
                raise OutOfBudget(cap)

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """Search, and record cost and trace.

        Raises OutOfBudget("seconds"), OutOfBudget("rounds") after the budget has refused a round, and ArmFailed before
        the first round, or after the arm's cap has refused a round.
        """
        self._check_time()
        self._check_round()
        self.tell(f"searching: {query}")
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds_until(self.deadline)) as limit:
                with self.spans.searching(query, k=k, retriever=self.retriever) as note:
                    hits = await self.retriever.search(query, k=k)
                    note(hits)
        except BaseException as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            shown = OutOfBudget("seconds") if late else error
            self._account_failure(shown, purpose="search", began=began, cost=Cost(retriever_calls=1))
            if late:
                raise shown from error
            raise
        spent = time.monotonic() - began
        self.cost += Cost(retriever_calls=1, seconds_retrieve=spent)
        ids = tuple(hit.passage.id for hit in hits)
        for hit in hits:
            self.scores.setdefault(hit.passage.id, hit.score)
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
        final: Settle | None = None,
    ) -> Completion:
        """Call the model, and record cost and trace.

        max_tokens: most tokens; reduced to the remaining budget.
        final: for the call that writes the answer, the function from its text to the answer, see `Settle`. The reader
        gets the answer while the text grows; without `final`, at the end of the run.
        Raises OutOfBudget("seconds"), with the text so far in `partial`, ("tokens") or ("dollars"); ArmFailed if the
        prompt does not fit the model, or if the generator lacks a capability.
        """
        self._check_call()
        if missing := sorted(want - self.generator.capabilities):
            message = f"the call for {purpose} needs {', '.join(missing)}, which {self.generator.name} does not offer"
            raise ArmFailed(message, remedy="declare it in the arm's needs, so that this is found at the start")
        request = Request(
            prompt=prompt,
            max_tokens=self._tokens_for(prompt, purpose=purpose, max_tokens=max_tokens),
            stop=stop,
            deadline=self.deadline,
            want=want,
            sampling=sampling,
            sink=None if final is None else self.stream.sink(final),
            has_successor=self.has_successor,
        )
        return await self._called(request, purpose=purpose, max_tokens=max_tokens)

    async def chat(self, sent: Mapping[str, Json], *, prompt: Prompt, max_tokens: int | None) -> Completion:
        """Pass a chat completion on as its caller sent it, and record cost and trace. `reply` gets the reply's fields.

        prompt: the chat as text, for counts and traces. max_tokens: limit if the caller sets none; None for no limit.
        Raises as `complete`; the budget of tokens is checked only before the call.
        """
        self._check_call()
        named = next((sent[name] for name in ("max_completion_tokens", "max_tokens") if sent.get(name)), max_tokens)
        most = self._tokens_left(named if isinstance(named, int) else self.generator.context_tokens or PACKED_TOKENS)
        named = named if self.budget.tokens is None else most
        request = Request(
            prompt=prompt,
            max_tokens=most,
            deadline=self.deadline,
            sink=self.stream.sink(str),
            chat={**sent, "max_tokens": named} if named else sent,
            delta_sink=self.stream.delta_sink(),
            has_successor=self.has_successor,
        )
        done = await self._called(request, purpose="chat", max_tokens=most)
        reply: Any = done.details.get("reply", {})
        self.reply = reply
        if calls := reply.get("message", {}).get("tool_calls"):
            self.note_branch("tool_calls", str(len(calls)))
        return done

    async def _called(self, request: Request, *, purpose: str, max_tokens: int) -> Completion:
        """Complete a request, and record cost and trace. max_tokens: of the arm, before the budget reduced it."""
        self.tell(in_words(purpose))
        began = time.monotonic()
        try:
            with self.spans.generating(request, purpose=purpose, generator=self.generator) as note:
                done = await self.generator.complete(request)
                note(done)
        except BaseException as error:
            tokens = error.spent if isinstance(error, CallBroke) else Cost()
            self._account_failure(error, purpose=purpose, began=began, cost=Cost(llm_calls=1) + tokens)
            raise
        spent = time.monotonic() - began
        if done.seconds is not None:
            # The clock is set as if the call had been made: a cache must not make an arm look faster than it is.
            self.started -= done.seconds - spent
            self.note_branch("response_cached", purpose)
        self._account(done, purpose=purpose, seconds=spent if done.seconds is None else done.seconds)
        if done.estimated:
            self.note_branch("tokens_estimated", purpose)
        if done.finish == "length" and request.max_tokens < max_tokens:
            self.note_branch("cut_by_budget_tokens", purpose)
        if done.finish == "deadline":
            self.partial = done.text
            raise OutOfBudget("seconds")
        if done.seconds is not None:
            self._check_time()
        return done

    def _tokens_for(self, prompt: Prompt, *, purpose: str, max_tokens: int) -> int:
        """Number of tokens that may be written: max_tokens, or what the budget leaves."""
        size, context = self.generator.count_tokens(prompt), self.generator.context_tokens
        if context is not None and size + max_tokens > context:
            message = f"the prompt for {purpose} has {size} tokens; with {max_tokens} to write it exceeds {context}"
            remedy = "lower the arm's passages or raise the generator's context_tokens"
            raise ArmFailed(message, remedy=remedy)
        return self._tokens_left(max_tokens, prompt=size)

    def _tokens_left(self, most: int, *, prompt: int = 0) -> int:
        """`most`, or what the budget leaves after the tokens of the prompt."""
        if self.budget.tokens is None:
            return most
        left: int = self.budget.tokens - self.used["tokens"] - prompt
        if left < 1:
            raise OutOfBudget("tokens")
        return min(most, left)

    def _account(self, done: Completion, *, purpose: str, seconds: float) -> None:
        self.cost += Cost(
            llm_calls=1,
            prompt_tokens=done.prompt_tokens,
            completion_tokens=done.completion_tokens,
            cached_tokens=done.cached_tokens,
            cache_write_tokens=done.cache_write_tokens,
            reasoning_tokens=done.reasoning_tokens or 0,
            seconds_generate=seconds,
            dollars=done.dollars,
        )
        tokens = {"prompt_tokens": done.prompt_tokens, "completion_tokens": done.completion_tokens}
        self.trace.append(Generated(purpose=purpose, text=done.text, seconds=seconds, **tokens))

    def _account_failure(self, error: BaseException, *, purpose: str, began: float, cost: Cost) -> None:
        """Add a failed call to cost and trace. cost: the call without its seconds."""
        spent = time.monotonic() - began
        self.cost += cost + (Cost(seconds_generate=spent) if cost.llm_calls else Cost(seconds_retrieve=spent))
        self.trace.append(CallFailed(purpose=purpose, error=error_text(error), seconds=spent))

    def _check_call(self) -> None:
        """Raise OutOfBudget if no call of the model may begin."""
        self.partial = ""
        self._check_time()
        if self.budget.dollars is not None and self.cost.dollars >= self.budget.dollars:
            raise OutOfBudget("dollars")

    def _check_round(self) -> None:
        if self.rounds_over:
            raise OutOfBudget("rounds")
        if self._refused is not None:
            remedy = "search no more when run.begin_round returns False, or give it a higher cap"
            raise ArmFailed("the arm searches in a round that its own cap refused", remedy=remedy)
        if not self.used["rounds"]:
            raise ArmFailed("the arm searches outside any round", remedy="call run.begin_round first")

    def _check_time(self) -> None:
        if seconds_until(self.deadline) == 0.0:
            raise OutOfBudget("seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer of an arm that ended by itself."""

    text: str
    #: the rule that ended it, for example "answer_found" or "max_rounds"
    stop_reason: str


class Strategy(Protocol):
    """A way of answering. There is one instance per process; `answer` is called concurrently."""

    name: ArmName
    needs: frozenset[Need]
    #: params, including defaults
    params: Mapping[str, Json]

    async def answer(self, question: str, *, run: "Run") -> Answer:
        """Answer a question by calls of `run`. Let OutOfBudget and ArmFailed pass: they become outcomes."""
