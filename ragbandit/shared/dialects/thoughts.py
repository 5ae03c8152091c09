"""Removes the thoughts of earlier turns from chat completions and Anthropic's Messages, if a server refuses them."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ragbandit.shared.dialects.chat.message_parts import reasoning_in
from ragbandit.shared.model_servers.error_replies import failure_of_error, server_message
from ragbandit.shared.reading.fields import object_in

#: types of blocks with thoughts
THINKING: Final = ("thinking", "redacted_thinking")
#: words in the message of a server that refuses the thoughts of another model
_REFUSAL: Final = re.compile("thinking|thought|signature|reasoning|encrypted|effort", re.IGNORECASE)


def blocks_of(content: Any) -> list[dict[str, Any]]:
    """The blocks of a message's content. A text is one block; an empty content has none."""
    blocks = content if isinstance(content, list) else [content]
    return [
        block if isinstance(block, dict) else {"type": "text", "text": block}
        for block in blocks
        if block not in (None, "")
    ]


def is_thought(block: Any) -> bool:
    """Whether a block has thoughts."""
    return isinstance(block, dict) and block.get("type") in THINKING


def without_thoughts(
    body: Mapping[str, Any], *, keeps: Callable[[Mapping[str, Any]], bool] | None = None
) -> dict[str, Any]:
    """The request without thoughts in its messages. keeps: function that returns whether a block of thoughts stays."""

    def bare(part: Any) -> Any:
        if not isinstance(part, dict) or is_thought(part):
            return part
        reasoning = reasoning_in(part)
        kept = {name: value for name, value in part.items() if name not in reasoning}
        for name in ("content", "tool_calls"):
            if isinstance(kept.get(name), list):
                kept[name] = [bare(one) for one in kept[name] if not is_thought(one) or (keeps and keeps(one))]
        return kept

    messages = [bare(message) if message.get("role") == "assistant" else message for message in body["messages"]]
    return {**body, "messages": [message for message in messages if message.get("content") != []]}


def without_refused_thoughts(body: Mapping[str, Any], *, error: Exception) -> dict[str, Any] | None:
    """The request to send after the server refused thoughts, without thoughts in its messages. Parameters for thoughts
    are removed too if the messages had no thoughts, or if the last message has results of tools. None if the error does
    not refuse thoughts, or if nothing can be removed.
    """
    message = server_message(getattr(error, "body", None))
    if failure_of_error(error).status not in (400, 422) or not _REFUSAL.search(message):
        return None
    bare, last = without_thoughts(body), body["messages"][-1]
    kinds = {str(block.get("type")) for block in blocks_of(last.get("content"))} | {str(last.get("role"))}
    has_results = not kinds.isdisjoint({"tool", "tool_result"})
    if has_results or bare["messages"] == body["messages"]:
        reasoning = reasoning_in(bare)
        bare = {name: value for name, value in bare.items() if name not in reasoning}
        config = {name: value for name, value in object_in(bare, "output_config").items() if name != "effort"}
        bare |= {"output_config": config} if "output_config" in bare else {}
    return None if bare == body else bare
