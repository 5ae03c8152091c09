import asyncio
import logging
import math
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

from ragbandit.shared.errors import ArmFailed, InvalidInput, RagBanditError
from ragbandit.shared.failures import Failure, ServerFailed
from ragbandit.shared.redaction import error_in_short, without_secrets
from ragbandit.shared.types import Cost, Json, Message

Result = TypeVar("Result")


#: capabilities that an arm may require of its generator. `completion`: text in, text out; `stop`: stop strings;
#: `chat`: chat completions that are forwarded unchanged (`Request.chat`)
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

    temperature: float  #: above 0, finite
    seed: int  #: the same seed, request and generator give the same text, if the generator supports seeds
    top_p: float = 1.0  #: sample from the fewest most probable tokens whose total probability is at least this
    top_k: int = 0  #: number of most probable tokens to sample from; 0 for all

    def __post_init__(self) -> None:
        valid = {"temperature": 0 < self.temperature < math.inf, "top_p": 0 < self.top_p <= 1, "top_k": self.top_k >= 0}
        for name, is_valid in valid.items():
            if not is_valid:
                raise InvalidInput(f"{getattr(self, name)!r} is out of range", field=f"sampling.{name}")


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
    sampling: Sampling | None = None  #: None for greedy decoding
    #: receives each new piece of the text, without parts of a stop string; None if the text is not streamed. The
    #: generator awaits each call, so a slow sink slows down the generator. A piece counts as delivered even if its call
    #: is cancelled. Generators may ignore the sink
    sink: Callable[[str], Awaitable[None]] | None = field(default=None, compare=False, repr=False)
    #: body of a chat completion in OpenAI's format, which is sent in place of `prompt`; None to send `prompt`. The
    #: deadline and `sink` still apply; `prompt`, `max_tokens` and `stop` serve only for estimates and limits.
    #: `Completion.details["reply"]` then has "message" (its fields except the content) and "finish_reason"
    chat: Mapping[str, Json] | None = None
    #: whether the caller chose the name of the limit in `chat`; otherwise the generator may rename its max_tokens
    is_limit_named: bool = True
    #: True if another arm answers after a failure of this call. A failed call is then not repeated
    has_successor: bool = field(default=False, compare=False)
    #: receives the fields of each streamed piece of a chat except its text, for example tool calls
    delta_sink: Callable[[Mapping[str, Any]], Awaitable[None]] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The text of a model, with its cost; `text` contains neither the prompt nor the stop string."""

    text: str
    prompt_tokens: int  #: 0 if the deadline passed before the model began to read
    completion_tokens: int
    #: what ended the text. "stop": the model or a stop string; "length": max_tokens; "deadline": the deadline
    finish: Literal["stop", "length", "deadline"]
    #: capability in `Request.want` -> its result, see ragbandit.strategies.generators.text_feed
    details: Mapping[str, object] = field(default_factory=dict, hash=False)
    dollars: float = 0.0  #: price of this call; 0.0 for a model without prices
    #: duration of the original call in seconds if the answer comes from a cache, else None
    seconds: float | None = None
    #: seconds until the first piece of a streamed answer; None if unknown, or if the answer was not streamed
    first_s: float | None = field(default=None, compare=False)
    cached_tokens: int = 0  #: prompt tokens that the provider read from its prompt cache
    cache_write_tokens: int = 0  #: prompt tokens that the provider wrote to its prompt cache
    reasoning_tokens: int | None = None  #: completion tokens used for thinking; None if unknown
    estimated: bool = False  #: whether the token counts are estimates, because the server did not report them


def seconds_until(deadline: float | None) -> float | None:
    """Seconds until a time.monotonic() value, at least 0.0; None without a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


async def at_once(calls: Sequence[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """Run the calls concurrently. Returns their results in order. The first error cancels the others and is raised."""

    async def result_of(call: Callable[[], Awaitable[Result]]) -> Result:
        return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(result_of(call)) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


class OutOfBudget(Exception):
    """The run reached a cap of its budget. The runner turns this error into an outcome."""

    def __init__(self, cap: str) -> None:
        self.cap = cap
        super().__init__(f"the budget of {cap} ran out")


class CallBroke(ServerFailed):
    """A failed call to a model had a cost: `spent` has the call's tokens and dollars."""

    def __init__(self, message: str, *, spent: Cost, remedy: str | None = None, failure: Failure | None = None) -> None:
        super().__init__(message, remedy=remedy, failure=failure or Failure(kind="unreadable"))
        self.spent = spent


class PromptTooLong(ArmFailed):
    """The prompt does not fit the model, not even without passages."""


class QuestionTooLong(PromptTooLong):
    """The prompt would fit without the question: the question is too long, not the arm's prompt."""


class RequestRefused(ServerFailed):
    """The server refused a chat that was forwarded unchanged. Other requests may succeed."""


@runtime_checkable
class Retriever(Protocol):
    """Finds passages by text. All calls come from one event loop."""

    name: str  #: identifies the corpus in every outcome

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """Return at most k passages, best first; () if nothing matches. Raises ArmFailed if the index is unreadable."""

    async def close(self) -> None:
        """Release connections and threads; not called while a search runs. A second call does nothing."""
        return


PACKED_TOKENS: Final = 8192  #: context, in tokens, that is assumed if a generator's context is unknown


@runtime_checkable
class Generator(Protocol):
    """Writes text. All calls to `complete` come from one event loop."""

    name: str  #: identifies the model in every outcome
    #: what the generator offers to arms. The class has this attribute too, because the needs of arms are checked before
    #: a model is loaded; the value of an instance may differ
    capabilities: frozenset[Need]
    #: maximum number of tokens of prompt and completion. None if unknown: then no call is refused for its length
    context_tokens: int | None

    def count_tokens(self, prompt: Prompt) -> int:
        """Number of the prompt's tokens with the chat template, or an upper bound. Called often, on the event loop."""

    async def complete(self, request: Request) -> Completion:
        """Continue the prompt. Raises ArmFailed if the model cannot answer, CallBroke if a failed call cost tokens."""

    async def close(self) -> None:
        """Release connections and threads; not called while a call runs. A second call does nothing."""


#: note for the user -> purposes of the model calls during which this note is shown
_PROGRESS_NOTES: Final = {
    "writing a draft": "look_ahead write gate",
    "writing the answer": "conclude answer read chat",
    "writing the answer again": "read_again",
    "taking notes": "note_first note_extend chain_of_note self_refine",
    "checking the passages": "self_rerank grade_relevant",
    "checking the draft": "grade_supported grade_useful",
    "comparing the notes": "note_compare",
    "looking for what is missing": "ask",
    "rewording the search": "rewrite decompose disambiguate",
    "planning the next step": "decide",
}


def progress_note(purpose: str) -> str:
    return next((note for note, purposes in _PROGRESS_NOTES.items() if purpose in purposes.split()), "thinking")


def error_text(error: BaseException) -> str:
    if isinstance(error, RagBanditError | OutOfBudget):
        return without_secrets(str(error))
    if isinstance(error, asyncio.CancelledError):
        return "cut off: the call did not return in time, or was cancelled"
    return error_in_short(error)


logger = logging.getLogger("ragbandit.arms")


def _redact_traceback(record: logging.LogRecord) -> bool:
    """Replace the traceback with text without secrets, and remove the exception, which handlers would print."""
    if record.exc_info:
        record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        record.exc_info = None
    return True


logger.addFilter(_redact_traceback)

MOST_EXCEPTIONS = 1000
_raised: Counter[tuple[str, str, str]] = Counter()


def log_exception(error: BaseException, *, of: str, action: str, **facts: str) -> None:
    """Log an exception of the user's code `of`: its traceback once, then only the count at 2, 4, 8 ... times."""
    place = traceback.extract_tb(error.__traceback__, limit=-1)[-1]
    key = of, type(error).__qualname__, f"{place.filename}:{place.lineno}"
    if len(_raised) >= MOST_EXCEPTIONS:
        _raised.clear()
    _raised[key] += 1
    times = _raised[key]
    extra = {"action": action, "times": times, **facts}
    if times == 1:
        logger.error("%s raised an exception; its question fails", of, exc_info=error, extra=extra)
    elif times & (times - 1) == 0:
        logger.error("%s raised the same %s %d times", of, key[1], times, extra=extra)
