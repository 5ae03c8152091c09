"""Parts that generators share: the turns of a chat, and types of `Completion.details`.

Details: "logprobs" has a Token for each written token. "entropy" has the entropy in nats at each written token.
"trained_tokens" has a mapping from trained token to log-probability for each written token. "attention" is an
Attention. "hidden_states" has the states of the last token, a float32 array of shape (layers + 1, d).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragbandit.shared.types import Message
from ragbandit.strategies.base import Prompt

TURN_TOKENS = 8  #: maximum number of tokens that a chat template adds to a turn
_NAMES = {"user": "User", "assistant": "Assistant"}


def chat_turns(prompt: Prompt) -> list[tuple[str, str]]:
    """Turns of a chat as (role, text): system, then user and assistant alternately, at last the prompt's body.

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
    """A heading and the messages of user and assistant, as one "Role: text" per line; "" without messages."""
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
