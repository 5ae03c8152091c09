"""Turns: a prompt as a chat with what was said before, or as one text; for every generator alike.

A prompt without a conversation is what it always was: instructions, body, prefix.
"""

from ragbandit.shared.types import Message
from ragbandit.strategies.base import Prompt

#: tokens that a chat template puts around one turn, at most
TURN_TOKENS = 8
_NAMES = {"user": "User", "assistant": "Assistant"}


def chat_turns(prompt: Prompt) -> list[tuple[str, str]]:
    """(role, text) of the turns of a chat: one of the system, then user and assistant in turn; the last is the body.

    Many chat templates refuse any other order. So what the conversation has of a system's words stands before the
    instructions, neighbours of one role are one turn, and words of the assistant before any of the user are left out.
    Texts may be empty: the first and the last turn are always there.
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
    """The parts of one text, for models without a chat template: instructions, what was said, body, prefix."""
    if not prompt.history:
        return prompt.instructions, prompt.body, prompt.prefix
    return _instructions(prompt), transcript(prompt.history), prompt.body, prompt.prefix


def transcript(messages: tuple[Message, ...]) -> str:
    """What user and assistant said, a paragraph each with its name in front; "" if nothing."""
    turns = [f"{_NAMES[each.role]}: {each.text}" for each in messages if each.role in _NAMES and each.text.strip()]
    return "\n".join(["The conversation so far:", *turns]) if turns else ""


def _instructions(prompt: Prompt) -> str:
    system = [message.text for message in prompt.history if message.role == "system"]
    return (
        "\n\n".join(text for text in (*system, prompt.instructions) if text.strip()) if system else prompt.instructions
    )
