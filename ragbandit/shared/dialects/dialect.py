"""What a dialect is: an object that `Addition.dialects` offers, or the dialect of chat completions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ragbandit.shared.model_servers.token_usage import TOKEN_LIMITS


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How fields of this dialect become a chat completion, which is what most servers take, and what is lost then."""

    #: fields -> (chat completion, types of parts that a chat completion cannot have). A field
    #: `reasoning_effort`, which an arm may add to the fields of any dialect, stays
    as_chat: Callable[..., tuple[dict[str, Any], set[str]]]
    #: fields -> names of the parameters that a chat completion cannot have
    unread: Callable[[Mapping[str, Any]], list[str]]
    #: whether `as_chat` also takes the `Encoding` of the fields, which knows what their door has converted
    takes_encoding: bool = False
    #: parameters that contain the conversation itself: no setting leaves them out, and no reply calls them ignored
    conversation: frozenset[str] = frozenset({"messages", "system"})
    #: where the limit of an answer's tokens may be; "a.b" is field b of the object a. An arm's limit goes to the first
    token_limits: tuple[str, ...] = TOKEN_LIMITS
    #: name of the generators that send this dialect, and of what a request needs if no other server can read it; None
    #: if every server can
    need: str | None = None
    #: parameters that can cause this need; messages can cause it, too
    need_parameters: tuple[str, ...] = ()
    #: parts of a request in which the caller names the keys, as the schemas of tools
    keys_of_caller: frozenset[str] = frozenset()
    #: beginning of the ids of replies in this dialect, before the id of the decision
    reply_prefix: str = ""
