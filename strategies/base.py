"""The types with which arms work: passages, prompts, requests, completions, retrievers and generators."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.efforts import Effort
from ragbandit.shared.types import Conversation, Cost, Message

Result = TypeVar("Result")


#: capabilities that an arm may require of its generator. `completion`: text in, text out; `stop`: stop strings;
#: `chat`: conversations of clients that are passed on (`Request.conversation`)
Need = Literal["completion", "stop", "chat", "logprobs", "entropy", "attention", "hidden_states", "trained_tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    id: str
    title: str
    text: str
    url: str | None = None  #: address of the source; None if the corpus has no addresses


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A passage that a search found. Scores are comparable only within one search."""

    passage: Passage
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt for a model. Chat models receive the parts as turns, other models as one text."""

    instructions: str
    body: str
    prefix: str = ""  #: beginning of the answer, which the model continues
    history: tuple[Message, ...] = ()  #: earlier messages of the conversation, the oldest first


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Random sampling of tokens instead of greedy decoding. Raises InvalidInput if a number is out of its range."""

    temperature: float  #: a finite number above 0
    seed: int  #: the same seed, request and generator give the same text, if the generator supports seeds
    top_p: float = 1.0  #: sample from the fewest most probable tokens whose total probability is at least this
    top_k: int = 0  #: number of most probable tokens to sample from; 0 for all

    def __post_init__(self) -> None:
        valid = {"temperature": 0 < self.temperature < math.inf, "top_p": 0 < self.top_p <= 1, "top_k": self.top_k >= 0}
        for name, is_valid in valid.items():
            if not is_valid:
                raise InvalidInput(f"{getattr(self, name)!r} is out of range", field=f"sampling.{name}")


@dataclass(kw_only=True, slots=True)
class Account:
    """A cost to which amounts are added, for example the cost of a run, or of a call's failed attempts."""

    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A call to a model. Generators ignore fields that they do not support, so that new fields can be added."""

    prompt: Prompt
    max_tokens: int
    stop: tuple[str, ...] = ()  #: the text ends before the first of these strings
    #: time.monotonic() value at which the text so far is returned, with finish="deadline"
    deadline: float | None = None
    #: capabilities, for example "logprobs", whose results `Completion.details` must have
    want: frozenset[Need] = frozenset()
    sampling: Sampling | None = None  #: how tokens are drawn; None for greedy decoding
    #: receives the whole text so far each time it has grown, perhaps without its end; a second attempt may begin with a
    #: shorter text. None if the text is not streamed. The generator awaits each call, so a slow sink slows it down. A
    #: text counts as delivered even if its call is cancelled. Generators may ignore the sink
    sink: Callable[[str], Awaitable[None]] | None = field(default=None, compare=False, repr=False)
    #: a client's conversation, which is sent in place of `prompt`; None to send `prompt`. The deadline and `sink` still
    #: apply; `prompt`, `max_tokens` and `stop` serve only for estimates and limits. `Completion.details["reply"]` then
    #: has "message" (its fields except the content) and "finish_reason", in the form of chat completions.
    #: `ragbandit.shared.dialects.registry.as_chat` converts a conversation in any dialect to a chat completion
    conversation: Conversation | None = None
    #: whether the caller chose the name of the limit in `conversation`; else the generator may rename its max_tokens
    is_limit_named: bool = True
    #: the arm's own reasoning effort, used if `conversation` asks for none, or if its effort is not passed on
    effort: Effort | None = None
    #: id of the API key that sent `conversation`; None for none
    api_key: str | None = field(default=None, compare=False)
    #: True if another arm answers after a failure of this call. A failed call is then not repeated
    has_successor: bool = field(default=False, compare=False)
    #: receives the fields of each streamed piece of a chat except the text, for example tool calls
    delta_sink: Callable[[Mapping[str, Any]], Awaitable[None]] | None = field(default=None, compare=False, repr=False)
    #: cost of the attempts that gave no completion: they failed, were repeated, or were cancelled after the model was
    #: asked. The generator adds these costs. The cost of a completion is in the completion
    lost: Account = field(default_factory=Account, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The text of a model, with its cost; `text` contains neither the prompt nor the stop string."""

    text: str
    prompt_tokens: int  #: tokens of the prompt; 0 if the deadline passed before the model began to read
    completion_tokens: int
    #: reason of the text's end. "stop": the model or a stop string; "length": max_tokens; "deadline": the deadline
    finish: Literal["stop", "length", "deadline"]
    #: capability in `Request.want` -> its result, see ragbandit.strategies.generators.parts
    details: Mapping[str, object] = field(default_factory=dict, hash=False)
    dollars: float = 0.0  #: price of this call; 0.0 if it has none
    assumed_dollars: float = 0.0  #: price that is assumed for a call without one, see `Generator.assumed_prices`
    price: Mapping[str, Any] = field(default_factory=dict, hash=False)  #: how it was priced, see `Cost.price`
    #: seconds until the first piece of a streamed answer; None if unknown, or if the answer was not streamed
    first_s: float | None = field(default=None, compare=False)
    cached_tokens: int = 0  #: prompt tokens that the provider read from its prompt cache
    cache_write_tokens: int = 0  #: prompt tokens that the provider wrote to its prompt cache
    reasoning_tokens: int | None = None  #: completion tokens used for thinking; None if unknown
    estimated: bool = False  #: whether the token counts are estimates, because the server did not report them


def seconds_until(deadline: float | None) -> float | None:
    """Seconds until a time.monotonic() value, at least 0.0; None without a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


async def run_concurrently(calls: Sequence[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """Run the calls concurrently. Returns their results in order. The first error cancels the others and is raised."""

    async def result_of(call: Callable[[], Awaitable[Result]]) -> Result:
        return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(result_of(call)) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


#: function that adds the cost of a search to a run: (cost, rule and value of the Branch in the trace)
Book = Callable[[Cost, str, str], None]
_book: ContextVar[Book] = ContextVar("book", default=lambda _cost, _rule, _value: None)


@contextmanager
def book_costs_with(book: Book) -> Iterator[None]:
    """During the block, and in tasks that begin in it, `book_cost` calls this function."""
    token = _book.set(book)
    try:
        yield
    finally:
        _book.reset(token)


def book_cost(cost: Cost, *, rule: str, value: str) -> None:
    """Add a cost to the run that searches, and a Branch to its trace. Does nothing outside a run.

    Retrievers call this function for everything that they spend, also if the search fails or is cancelled.
    """
    _book.get()(cost, rule, value)


@runtime_checkable
class Retriever(Protocol):
    """Finds passages by text. All calls come from one event loop. A search that has a price calls `book_cost`."""

    name: str  #: identifies the corpus in every outcome

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """Return at most k passages, best first; () if nothing matches. Raises ArmFailed if the index is unreadable."""

    async def close(self) -> None:
        """Release connections and threads; not called while a search runs. A second call does nothing."""
        return


PACKED_TOKENS: Final = 8192  #: context, in tokens, that is assumed if a generator's context is unknown


@runtime_checkable
class Generator(Protocol):
    """Writes text, as OpenAiGenerator, ChatGenerator (for arms `model`) and additions do. Used on one event loop."""

    name: str  #: identifies the model in every outcome
    #: what the generator offers to arms. The class has this attribute too, because the needs of arms are checked before
    #: a model is loaded; the value of an instance may differ
    capabilities: frozenset[Need]
    #: maximum number of tokens of prompt and completion. None if unknown: then no call is refused for its length
    context_tokens: int | None
    #: dollars per million tokens (see `Tokens.dollars`) that rewards and limits count for a call without a listed or
    #: reported price; () for none
    assumed_prices: Sequence[float] = ()

    def count_tokens(self, prompt: Prompt) -> int:
        """Number of the prompt's tokens with the chat template, or an upper bound. Called often, on the event loop."""

    async def complete(self, request: Request) -> Completion:
        """Continue the prompt. Raises ArmFailed if the model cannot answer. See `Request.lost`."""

    async def close(self) -> None:
        """Release connections and threads; not called while a call runs. A second call does nothing."""
