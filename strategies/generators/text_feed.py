"""Parts that generators share: streaming a text to a reader, the turns of a chat, types of `Completion.details`.

Details: "logprobs" has a Token for each written token. "entropy" has the entropy in nats at each written token.
"trained_tokens" has a mapping from trained token to log-probability for each written token. "attention" is an
Attention. "hidden_states" has the states of the last token, a float32 array of shape (layers + 1, d).
"""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import ArmFailed, RagBanditError
from ragbandit.shared.types import Message
from ragbandit.strategies.base import Prompt, Request


class TextFeed:
    """Sends a growing text to the sink of its request, piece by piece.

    The end of the text is held back if it may be the beginning of a stop string, or is half a character (U+FFFD, half
    of a surrogate pair). The text of a second attempt must continue the text of the first attempt.
    """

    def __init__(self, request: Request) -> None:
        self._sink = request.sink
        self._stops = tuple(filter(None, request.stop))
        self._began = time.monotonic()
        self.first_s: float | None = None  #: seconds until the first piece was sent; None before that
        self.delivered = ""  #: text that was passed to the sink, even if the sink raised

    @property
    def has_reader(self) -> bool:
        return self._sink is not None

    async def grow(self, text: str) -> None:
        """Send the new part of the text. text: the whole text so far. Raises as `end`."""
        await self._send(_settled(text, stops=self._stops), is_whole=False)
        if self.delivered and self.first_s is None:
            self.first_s = time.monotonic() - self._began

    async def end(self, text: str) -> None:
        """Send the rest of the whole text.

        Raises ArmFailed if the sink fails, or if the text does not begin with the text sent before. A RagBanditError of
        the sink is passed on unchanged.
        """
        await self._send(text, is_whole=True)

    async def _send(self, text: str, *, is_whole: bool) -> None:
        before = self.delivered
        is_shorter = before.startswith(text) and not is_whole  # a second attempt that is still shorter than the first
        if self._sink is None or text == before or is_shorter:
            return
        if not text.startswith(before):
            message = "the answer broke off after a part of it was streamed, and the second attempt has other words"
            raise ArmFailed(message, remedy="ask again; streamed text cannot be taken back")
        self.delivered = text
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
    return text[: len(text) - max((_overlap(text, stop) for stop in stops), default=0)]


def first_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Position of the first stop string in the text; None if the text has no stop string."""
    return min((at for at in map(text.find, filter(None, stops)) if at >= 0), default=None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a proper beginning of the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


TURN_TOKENS = 8  #: maximum number of tokens that a chat template adds to a turn
_NAMES = {"user": "User", "assistant": "Assistant"}


def chat_turns(prompt: Prompt) -> list[tuple[str, str]]:
    """Turns of a chat as (role, text): system, then user and assistant in turns. The last turn is the prompt's body.

    Many chat templates refuse any other order. So system messages of the conversation are joined with the instructions,
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
    """The parts of the prompt for models without a chat template: instructions, earlier messages, body, prefix."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    text: str
    logprob: float  #: natural logarithm of the token's probability


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Attention of the last layer while the text was written."""

    #: shape (heads, written tokens, read + written tokens); the last axis sums to 1
    weights: npt.NDArray[np.float32]
    #: texts of the tokens along the last axis of `weights`: tokens of the prompt, then written tokens
    keys: tuple[str, ...]
