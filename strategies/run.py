import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from ragbandit.shared.dialects.registry import token_limits, with_token_limit
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.efforts import Effort
from ragbandit.shared.model_servers.token_usage import OUTPUT_LIMIT
from ragbandit.shared.types import (
    ArmName,
    Branch,
    Budget,
    CallFailed,
    Conversation,
    Cost,
    Generated,
    Json,
    Query,
    Retrieved,
    Round,
    TraceEvent,
)
from ragbandit.strategies.answer_stream import AnswerStream, Settle, TextSink, progress_note
from ragbandit.strategies.base import (
    PACKED_TOKENS,
    Account,
    Completion,
    Generator,
    Hit,
    Need,
    Passage,
    Prompt,
    Request,
    Retriever,
    Sampling,
    book_costs_with,
    seconds_until,
)
from ragbandit.strategies.failures import OutOfBudget, error_text


def provider_of(generator: Generator) -> str:
    return str(getattr(generator, "provider", "ragbandit"))


NoteHits = Callable[[Sequence[Hit]], None]  #: function that records the hits of a traced search
NoteCompletion = Callable[[Completion], None]


class Spans:
    """Traces the calls of a run. Each method returns a context manager for the call. This base class does nothing."""

    def searching(self, query: str, *, k: int, retriever: Retriever) -> AbstractContextManager[NoteHits]:
        del query, k, retriever
        return nullcontext(lambda _hits: None)

    def generating(
        self, request: Request, *, purpose: str, generator: Generator
    ) -> AbstractContextManager[NoteCompletion]:
        del request, purpose, generator
        return nullcontext(lambda _completion: None)


NO_SPANS: Final = Spans()


@dataclass(kw_only=True, slots=True)
class Run:
    """Lets an arm search and call the model for one question.

    Every call adds to the cost, and an event to the trace: Retrieved, Generated, or CallFailed. An arm may search only
    after `begin_round`, because the reward counts rounds as steps.
    """

    query: Query
    retriever: Retriever
    generator: Generator
    budget: Budget  #: caps in force, which may be lower than `query.budget`
    spans: Spans = NO_SPANS
    stream: AnswerStream = field(default_factory=AnswerStream)
    started: float = field(default_factory=time.monotonic)
    trace: list[TraceEvent] = field(default_factory=list)
    #: receives the cost of the run, so that the cost is known however the run ends
    account: Account = field(default_factory=Account)
    #: True if another arm answers when this arm fails before its first text. Failed calls are then not repeated
    has_successor: bool = False
    draft: str | None = None  #: best answer so far; it becomes the answer if the budget ends the arm
    reply: Mapping[str, Json] = field(default_factory=dict)  #: `Completion.details["reply"]` of the last chat
    cut_text: str = ""  #: text of the last call if it reached the limit of tokens, otherwise ""
    partial: str = ""  #: text of the last call if the deadline cut it short, otherwise ""
    #: id -> passage, for the passages shown to the model, in the order of their first use
    shown: dict[str, Passage] = field(default_factory=dict, init=False)
    #: id of a passage -> its score in the first search that returned it
    scores: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    #: what refused the last round: the arm's own "cap", or the run's "budget"; None if the last round was allowed
    _refused: Literal["cap", "budget"] | None = field(default=None, init=False, repr=False)

    @property
    def cost(self) -> Cost:
        """The cost so far, without `seconds_total`."""
        return self.account.cost

    @cost.setter
    def cost(self, cost: Cost) -> None:
        self.account.cost = cost

    @property
    def deadline(self) -> float | None:
        """The time.monotonic() value at which the budget's seconds run out; None without a cap on seconds."""
        return None if self.budget.seconds is None else self.started + self.budget.seconds

    @property
    def rounds_over(self) -> bool:
        """Whether the budget has refused a round. If so, further calls of begin_round raise OutOfBudget."""
        return self._refused == "budget"

    @property
    def used(self) -> Mapping[str, Any]:
        """Cap of the budget -> amount used so far, for all caps except seconds."""
        tokens = self.cost.prompt_tokens + self.cost.completion_tokens
        rounds = sum(isinstance(event, Round) for event in self.trace)
        return {
            "passages": self.cost.passages,
            "tokens": tokens,
            "dollars": self.cost.charged_dollars,
            "rounds": rounds,
        }

    def begin_round(self, *, cap: int) -> bool:
        """Begin a round of retrieval and generation. Returns False if `cap`, or the budget, allows no further round.

        cap: the arm's own limit on rounds. Raises OutOfBudget("rounds") if the budget has refused a round before.
        """
        if self.may_begin_round(cap=cap):
            self.trace.append(Round(number=self.used["rounds"] + 1))
        return self._refused is None

    def may_begin_round(self, *, cap: int) -> bool:
        """Whether `begin_round` would begin a round. Raises as `begin_round`. For arms that first ask for the query."""
        if self.rounds_over:
            raise OutOfBudget("rounds")
        done = self.used["rounds"]
        if self.budget.rounds is not None and done >= self.budget.rounds:
            self._refused = "budget"
        else:
            self._refused = "cap" if done >= cap else None
        return self._refused is None

    def note_branch(self, rule: str, value: object) -> None:
        """Record in the trace that the arm applied this rule. value: the result of the rule."""
        self.trace.append(Branch(rule=rule, value=str(value)))

    def tell(self, text: str) -> None:
        self.stream.note(text)

    def passage_cap(self, cap: int) -> int:
        return cap if self.budget.passages is None else min(cap, self.budget.passages)

    def show(self, passages: int) -> None:
        """Record the number of distinct passages shown so far. Raises OutOfBudget("passages") above the budget."""
        if passages > self.cost.passages:
            self.tell(f"reading {passages} passage{'s' if passages > 1 else ''}")
            self.cost += Cost(passages=passages - self.cost.passages)
        if self.budget.passages is not None and passages > self.budget.passages:
            raise OutOfBudget("passages")

    def note_shown(self, passages: Iterable[Passage]) -> None:
        """Record the passages of a prompt as sources of the outcome, and count them. Raises OutOfBudget("passages")."""
        for passage in passages:
            self.shown.setdefault(passage.id, passage)
        self.show(len(self.shown))

    def add_cost(self, cost: Cost) -> None:
        """Add a cost that this run cannot count, for example of the arm's own model; seconds_total is ignored.

        Raises OutOfBudget if a cap is exceeded. The cost is counted nevertheless.
        """
        self.cost += cost
        for cap, used in self.used.items():
            allowed = getattr(self.budget, cap)
            if allowed is not None and used > allowed:
                raise OutOfBudget(cap)

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """Search, and record cost and trace.

        Raises OutOfBudget for seconds, dollars, or rounds if the budget has refused a round, and ArmFailed if no round
        was begun, or if the arm's own cap has refused a round.
        """
        self._check_budget_left()
        if self.rounds_over:
            raise OutOfBudget("rounds")
        if self._refused is not None:
            remedy = "do not search after run.begin_round has returned False, or call run.begin_round with a higher cap"
            raise ArmFailed("the arm searches in a round that its own cap refused", remedy=remedy)
        if not self.used["rounds"]:
            raise ArmFailed("the arm searches outside any round", remedy="call run.begin_round first")
        self.tell(f"searching: {query}")
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds_until(self.deadline)) as limit:
                with (
                    self.spans.searching(query, k=k, retriever=self.retriever) as note,
                    book_costs_with(self._note_booked_cost),
                ):
                    hits = await self.retriever.search(query, k=k)
                    note(hits)
        except BaseException as error:
            is_late = isinstance(error, TimeoutError) and limit.expired()
            failure = OutOfBudget("seconds") if is_late else error
            self._account_failure(failure, purpose="search", started_at=began, cost=Cost(retriever_calls=1))
            if is_late:
                raise failure from error
            raise
        spent = time.monotonic() - began
        self.cost += Cost(retriever_calls=1, seconds_retrieve=spent)
        ids = tuple(hit.passage.id for hit in hits)
        for hit in hits:
            self.scores.setdefault(hit.passage.id, hit.score)
        self.trace.append(Retrieved(query=query, ids=ids, scores=tuple(hit.score for hit in hits), seconds=spent))
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

        purpose: name of the call in the trace. max_tokens: reduced to the remaining budget.
        final: for the call that writes the answer, the function that makes the answer from the call's text. The reader
        then receives the answer while it is written. Without `final` the reader gets the answer at the end of the run.
        Raises OutOfBudget for seconds (`partial` then has the text so far), tokens or dollars; ArmFailed if the prompt
        does not fit the model, or if the generator lacks a capability.
        """
        self._check_call()
        missing = sorted(want - self.generator.capabilities)
        if missing:
            message = f"the call for {purpose} needs {', '.join(missing)}, which {self.generator.name} does not offer"
            raise ArmFailed(message, remedy="add these needs to the arm's `needs`, which are checked at the start")
        sink = None if final is None else self.stream.sink(final, stop=stop)
        request = Request(
            prompt=prompt,
            max_tokens=self._tokens_for(prompt, purpose=purpose, max_tokens=max_tokens),
            stop=stop,
            deadline=self.deadline,
            want=want,
            sampling=sampling,
            sink=sink,
            has_successor=self.has_successor,
        )
        return await self._call_model(request, purpose=purpose, max_tokens=max_tokens, sink=sink)

    async def chat(
        self, conversation: Conversation, *, prompt: Prompt, max_tokens: int | None, effort: Effort | None = None
    ) -> Completion:
        """Pass a client's conversation on to the model, and record cost and trace. Sets `reply`.

        prompt: the conversation as text, for counts and traces. max_tokens: limit if the conversation has none; None
        for no limit. effort: reasoning effort if it asks for none. Raises as `complete`. The budget's cap on tokens is
        checked only before the call.
        """
        self._check_call()
        sent = token_limits(conversation)
        limit = min(sent.values(), default=max_tokens)
        longest = self._tokens_left(limit or self.generator.context_tokens or PACKED_TOKENS)
        names = sent.keys() - {OUTPUT_LIMIT}
        limit = limit if self.budget.tokens is None else longest
        if OUTPUT_LIMIT in conversation.fields:
            others = {name: value for name, value in conversation.fields.items() if name != OUTPUT_LIMIT}
            conversation = conversation.having(others)
        if limit is not None and (not names or self.budget.tokens is not None):
            conversation = with_token_limit(conversation, limit, at=names)
        sink = self.stream.sink(str)
        request = Request(
            prompt=prompt,
            max_tokens=longest,
            deadline=self.deadline,
            sink=sink,
            conversation=conversation,
            api_key=self.query.api_key,
            is_limit_named=bool(names),
            effort=effort,
            delta_sink=self.stream.delta_sink(),
            has_successor=self.has_successor,
        )
        done = await self._call_model(request, purpose="chat", max_tokens=longest, sink=sink)
        reply: Any = done.details.get("reply", {})
        self.reply = reply
        tool_calls = reply.get("message", {}).get("tool_calls")
        if tool_calls:
            self.note_branch("tool_calls", str(len(tool_calls)))
        return done

    async def _call_model(
        self, request: Request, *, purpose: str, max_tokens: int, sink: TextSink | None
    ) -> Completion:
        """Complete a request, and record cost and trace. max_tokens: the limit before the budget reduced it. sink:
        receives the end of the text.
        """
        self.tell(progress_note(purpose))
        began = time.monotonic()
        try:
            with self.spans.generating(request, purpose=purpose, generator=self.generator) as note:
                done = await self.generator.complete(request)
                note(done)
        except BaseException as error:
            self._account_failure(error, purpose=purpose, started_at=began, cost=Cost(llm_calls=1) + request.lost.cost)
            raise
        spent = time.monotonic() - began
        self.cost += request.lost.cost
        self.cut_text = done.text if done.finish == "length" else ""
        self._account(done, purpose=purpose, seconds=spent)
        if sink is not None:
            await sink.end(done.text)
        if done.estimated:
            self.note_branch("tokens_estimated", purpose)
        if done.finish == "length" and request.max_tokens < max_tokens:
            self.note_branch("cut_by_budget_tokens", purpose)
        if done.finish == "deadline":
            self.partial = done.text
            raise OutOfBudget("seconds")
        return done

    def _tokens_for(self, prompt: Prompt, *, purpose: str, max_tokens: int) -> int:
        size, context = self.generator.count_tokens(prompt), self.generator.context_tokens
        if context is not None and size + max_tokens > context:
            message = f"the prompt for {purpose} has {size} tokens; with {max_tokens} to write it exceeds {context}"
            raise ArmFailed(message, remedy="lower the arm's passages or raise the generator's context_tokens")
        return self._tokens_left(max_tokens, prompt=size)

    def _tokens_left(self, limit: int, *, prompt: int = 0) -> int:
        """`limit`, or the remaining tokens of the budget if there are fewer. prompt: number of the prompt's tokens."""
        if self.budget.tokens is None:
            return limit
        remaining: int = self.budget.tokens - self.used["tokens"] - prompt
        if remaining < 1:
            raise OutOfBudget("tokens")
        return min(limit, remaining)

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
            assumed_dollars=done.assumed_dollars,
            price=done.price,
        )
        tokens = {"prompt_tokens": done.prompt_tokens, "completion_tokens": done.completion_tokens}
        self.trace.append(Generated(purpose=purpose, text=done.text, seconds=seconds, **tokens))

    def _account_failure(self, error: BaseException, *, purpose: str, started_at: float, cost: Cost) -> None:
        """Add a failed call to cost and trace. cost: the call's cost without the seconds since `started_at`."""
        spent = time.monotonic() - started_at
        self.cost += cost + (Cost(seconds_generate=spent) if cost.llm_calls else Cost(seconds_retrieve=spent))
        self.trace.append(CallFailed(purpose=purpose, error=error_text(error), seconds=spent))

    def _note_booked_cost(self, cost: Cost, rule: str, value: str) -> None:
        self.cost += cost
        self.note_branch(rule, value)

    def _check_call(self) -> None:
        self.partial = ""
        self._check_budget_left()

    def _check_budget_left(self) -> None:
        if seconds_until(self.deadline) == 0.0:
            raise OutOfBudget("seconds")
        if self.budget.dollars is not None and self.cost.charged_dollars >= self.budget.dollars:
            raise OutOfBudget("dollars")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer of an arm that ended by itself, and not because of the budget or an error."""

    text: str
    stop_reason: str  #: the rule that ended the arm, for example "answer_found" or "max_rounds"


class Strategy(Protocol):
    """An arm: a way of answering questions. There is one instance per process; `answer` is called concurrently."""

    name: ArmName
    needs: frozenset[Need]
    params: Mapping[str, Json]  #: values of the arm's params, including defaults

    async def answer(self, question: str, *, run: "Run") -> Answer:
        """Answer a question by calls of `run`. Do not catch OutOfBudget and ArmFailed: they become outcomes."""
