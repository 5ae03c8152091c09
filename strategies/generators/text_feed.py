"""Parts that generators share: the text feed to a reader, the turns of a chat, the details of tokens."""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import ArmFailed, RagBanditError
from ragbandit.shared.types import Message
from ragbandit.strategies.base import Prompt, Request


class TextFeed:
    """Gives a growing text to the sink of its request; all pieces together are the whole text.

    An end that may begin a stop string, or is half a character (U+FFFD, half of a surrogate pair), waits for the next
    piece. The text of a second attempt continues the text of the first one.
    """

    def __init__(self, request: Request) -> None:
        self._sink = request.sink
        self._stops = tuple(filter(None, request.stop))
        self._began = time.monotonic()
        #: seconds until the first piece of a growing text; None before it
        self.first_s: float | None = None
        #: text that the sink was called with, whether or not it returned
        self.given = ""

    @property
    def wanted(self) -> bool:
        """True if there is a reader."""
        return self._sink is not None

    async def grow(self, text: str) -> None:
        """Give the new and settled part of `text`, the whole text so far. Raises as `end`."""
        await self._give(_settled(text, stops=self._stops), is_whole=False)
        if self.given and self.first_s is None:
            self.first_s = time.monotonic() - self._began

    async def end(self, text: str) -> None:
        """Give the rest of the whole text.

        Raises ArmFailed if a second attempt wrote another text, or if the sink fails; a RagBanditError passes.
        """
        await self._give(text, is_whole=True)

    async def _give(self, text: str, *, is_whole: bool) -> None:
        before = self.given
        is_shorter = before.startswith(text) and not is_whole  # a second attempt, shorter than the first so far
        if self._sink is None or text == before or is_shorter:
            return
        if not text.startswith(before):
            raise ArmFailed(
                "the answer broke off after a part of it was streamed, and the second attempt has other words",
                remedy="ask again; streamed text cannot be taken back",
            )
        self.given = text
        try:
            await self._sink(text[len(before) :])
        except RagBanditError:
            raise
        except Exception as error:
            raise ArmFailed(f"the reader of the streamed text failed: {type(error).__name__}: {error}") from error


def _settled(text: str, *, stops: tuple[str, ...]) -> str:
    """The beginning of the text that no further text can change."""
    end = first_stop(text, stops)
    if end is not None:
        return text[:end]
    text = text.rstrip("\ufffd")
    if text and "\ud800" <= text[-1] <= "\udbff":
        text = text[:-1]
    unsettled = max((_overlap(text, stop) for stop in stops), default=0)
    return text[: len(text) - unsettled]


def first_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Position of the first stop string in the text, or None."""
    return min((at for at in map(text.find, filter(None, stops)) if at >= 0), default=None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that begins the stop string without being all of it."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


#: tokens that a chat template puts around one turn, at most
TURN_TOKENS = 8
_NAMES = {"user": "User", "assistant": "Assistant"}


def chat_turns(prompt: Prompt) -> list[tuple[str, str]]:
    """Turns of a chat as (role, text): system, then user and assistant alternately; the last turn is the body.

    Many chat templates refuse any other order. So system messages of the conversation precede the instructions,
    adjacent messages of one role are joined, and assistant messages before the first user message are left out. Texts
    may be "".
    """
    turns: list[tuple[str, str]] = []
    for message in prompt.history:
        if message.role == "system" or not message.text.strip():
            continue
        if turns and turns[-1][0] == message.role:
            turns[-1] = (message.role, f"{turns[-1][1]}\n\n{message.text}")
        elif turns or message.role == "user":
            turns.append((message.role, message.text))
    body = prompt.body
    if turns and turns[-1][0] == "user":
        body = f"{turns.pop()[1]}\n\n{body}"
    return [("system", _instructions(prompt)), *turns, ("user", body)]


def plain_parts(prompt: Prompt) -> tuple[str, ...]:
    """The parts of one text, for models without a chat template: instructions, earlier messages, body, prefix."""
    if not prompt.history:
        return prompt.instructions, prompt.body, prompt.prefix
    return _instructions(prompt), transcript(prompt.history), prompt.body, prompt.prefix


def transcript(messages: tuple[Message, ...]) -> str:
    """The messages of user and assistant, one "Role: text" per line; "" without messages."""
    spoken = [message for message in messages if message.role in _NAMES and message.text.strip()]
    turns = [f"{_NAMES[message.role]}: {message.text}" for message in spoken]
    return "\n".join(["The conversation so far:", *turns]) if turns else ""


def _instructions(prompt: Prompt) -> str:
    system = [message.text for message in prompt.history if message.role == "system"]
    return "\n\n".join(text for text in (*system, prompt.instructions) if text.strip())


#: shape (layers + 1, d), float32
HiddenStates = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A written token."""

    text: str
    #: natural logarithm of its probability, <= 0
    logprob: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Attention of the last layer during writing."""

    #: shape (heads, written, read + written), float32; every row of the last axis sums to 1
    weights: npt.NDArray[np.float32]
    #: texts of the tokens of the last axis: tokens of the prompt, then written tokens
    keys: tuple[str, ...]
