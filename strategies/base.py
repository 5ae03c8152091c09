"""The contracts of answering: what an arm is given, what it must return, what it may ask of others.

An arm is a small loop over a `strategies.run.Run`. The Run carries the retriever and the generator, counts what every
call costs, writes the trace and holds the budget, so that no arm can forget to. An arm keeps nothing between questions:
everything it knows lives in local variables of `answer`.
"""

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
from ragbandit.shared.redaction import without_secrets
from ragbandit.shared.types import Cost, Json, Message

Result = TypeVar("Result")

#: characters of a foreign error's text that are kept
ERROR_LENGTH: Final = 300

#: Capabilities that an arm may need of a generator. `completion`: text in, text out; `stop`: stopping at given strings;
#: `chat`: a chat completion as its caller sent it (`Request.chat`).
Need = Literal["completion", "stop", "chat", "logprobs", "entropy", "attention", "hidden_states", "trained_tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """One piece of the corpus."""

    id: str
    title: str
    text: str
    #: where it can be read, if the corpus says so
    url: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A passage found for a search, best first; scores compare within one search only."""

    passage: Passage
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The text sent to a model. Chat models get system, user and the start of their turn; others the three joined."""

    instructions: str
    body: str
    #: the first words of the model's own answer, for continuing a text
    prefix: str = ""
    #: what was said before, the oldest first; see ragbandit.strategies.generators.text_feed for how a model gets it
    history: tuple[Message, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Sampling of tokens, instead of taking the likeliest. Raises InvalidInput for a number out of its range."""

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
    #: takes the text of the completion piece by piece while it is written; together the pieces are its text, without
    #: any part of a stop string (see generators.text_feed). It is awaited, so that a slow reader slows the writer; a
    #: call of it that is cancelled has taken its piece. None: there is no reader. A generator that cannot write piece
    #: by piece need not call it
    sink: Callable[[str], Awaitable[None]] | None = field(default=None, compare=False, repr=False)
    #: messages and parameters of a chat completion, by OpenAI's names, which are sent in place of all above but the
    #: deadline; its reply comes back in `details` under "reply": {"message": what it has beside the content, by
    #: `shared.model_replies`, "finish_reason"}. None: the prompt is sent
    chat: Mapping[str, Json] | None = None
    #: another arm answers if this call fails: it is not tried again
    has_successor: bool = field(default=False, compare=False)
    #: of a chat: takes what a piece has beside its text, as `sink`
    delta_sink: Callable[[Mapping[str, Any]], Awaitable[None]] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The text of a model, with its cost; `text` holds neither the prompt nor the stop string."""

    text: str
    #: read by the model: 0 if the deadline passed before it began
    prompt_tokens: int
    completion_tokens: int
    #: "stop": the model or a stop string ended it; "length": max_tokens; "deadline": time ran out
    finish: Literal["stop", "length", "deadline"]
    #: what `Request.want` asked for, by need; see ragbandit.strategies.generators.text_feed
    details: Mapping[str, object] = field(default_factory=dict, hash=False)
    #: price of this call, 0.0 where the model has none
    dollars: float = 0.0
    #: of an answer out of a cache: what the call that made it took; None: this call made it
    seconds: float | None = None
    #: of an answer that came in pieces, until the first one; None: it came whole, or that is unknown
    first_s: float | None = field(default=None, compare=False)
    #: of prompt_tokens, those out of the provider's cache of prompts, and those written into it
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    #: of completion_tokens, those of a reasoning model's thoughts; None: unknown
    reasoning_tokens: int | None = None
    #: True if the server did not report the tokens
    estimated: bool = False


def seconds_until(deadline: float | None) -> float | None:
    """Seconds until a time.monotonic() value, at least 0.0; None where there is no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


async def at_once(calls: Sequence[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """The results of the calls, made at the same time, in their order. The first error ends the others."""

    async def result_of(call: Callable[[], Awaitable[Result]]) -> Result:
        return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(result_of(call)) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


class OutOfBudget(Exception):
    """A cap of the budget was reached in mid-run. `cap` names it; the runner makes an Outcome of it."""

    def __init__(self, cap: str) -> None:
        self.cap = cap
        super().__init__(f"the budget of {cap} ran out")


class CallBroke(ServerFailed):
    """A call to a model failed after it had cost something: `spent` has its tokens and dollars."""

    def __init__(self, message: str, *, spent: Cost, remedy: str | None = None, failure: Failure | None = None) -> None:
        super().__init__(message, remedy=remedy, failure=failure or Failure(kind="unreadable"))
        self.spent = spent


class PromptTooLong(ArmFailed):
    """A prompt does not fit the model, not even without passages."""


class QuestionTooLong(PromptTooLong):
    """It would fit without its question: the arm works, the caller asked too much."""


class RequestRefused(ServerFailed):
    """The server refuses a chat that was passed on as its caller sent it: another request would be answered."""


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
        """Give back connections and threads, if there are any, when no call is under way; a second time nothing."""
        return


#: tokens for which prompts are packed, and answers allowed, if a generator's context is not known
PACKED_TOKENS: Final = 8192


@runtime_checkable
class Generator(Protocol):
    """Writes text. All calls to `complete` come from one event loop."""

    #: tells two models apart: it is kept with every outcome
    name: str
    #: what this generator can do, on the class already: the needs of arms are checked before a model is loaded. An
    #: instance may say it otherwise
    capabilities: frozenset[Need]
    #: tokens of prompt and completion together that fit in one call; None: unknown, no call is refused for its length
    context_tokens: int | None

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


def error_text(error: BaseException) -> str:
    """The error in words, as traces, outcomes, the database and HTTP replies show it: without secrets.

    Of an error that is not ours, its type and the first ERROR_LENGTH characters of its text.
    """
    if isinstance(error, RagBanditError | OutOfBudget):
        return without_secrets(str(error))
    if isinstance(error, asyncio.CancelledError):
        return "cut off: the call did not return in time, or was cancelled"
    text = without_secrets(str(error))  # before the cut: half a secret may not look like one
    text = text if len(text) <= ERROR_LENGTH else f"{text[:ERROR_LENGTH]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


logger = logging.getLogger("ragbandit.arms")


def _redact_traceback(record: logging.LogRecord) -> bool:
    """The record's traceback as text without secrets; handlers get no exception object to print it from again."""
    if record.exc_info:
        record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        record.exc_info = None
    return True


logger.addFilter(_redact_traceback)

#: different exceptions that are counted
MOST_EXCEPTIONS = 1000
#: (whose, exception, its place) -> how often it was raised in this process
_raised: Counter[tuple[str, str, str]] = Counter()


def log_exception(error: BaseException, *, of: str, action: str, **facts: str) -> None:
    """Log an exception of a user's class: with its traceback the first time, then the count at every power of two.

    of: "the arm NAME".
    """
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
