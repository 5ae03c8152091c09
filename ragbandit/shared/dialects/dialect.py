"""The type of a dialect. Additions offer dialects by the hook `dialects`; the core has only chat completions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ragbandit.shared.model_servers.token_usage import TOKEN_LIMITS


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """A dialect of conversations: how a request is converted to a chat completion, which most servers take, and what
    the conversion loses.
    """

    #: fields -> (chat completion, types of parts that a chat completion cannot have). The function keeps a field
    #: `reasoning_effort`, which an arm may add to the fields of any dialect
    as_chat: Callable[..., tuple[dict[str, Any], set[str]]]
    #: fields -> names of the parameters that a chat completion cannot have
    unread: Callable[[Mapping[str, Any]], list[str]]
    #: whether `as_chat` also takes the `Encoding` of the fields, which caches converted parts
    takes_encoding: bool = False
    #: parameters that contain the conversation itself: no setting leaves them out, and no reply lists them as ignored
    conversation: frozenset[str] = frozenset({"messages", "system"})
    #: fields that may contain the limit of an answer's tokens; "a.b" is field b of the object a. An arm's limit is
    #: written to the first
    token_limits: tuple[str, ...] = TOKEN_LIMITS
    #: `generator.name` of the generators that send this dialect. Requests that only their servers can read have a need
    #: of the same name (`Sent.needs`). None if every server can read all requests
    need: str | None = None
    #: parameters that can cause this need; messages can cause it, too
    need_parameters: tuple[str, ...] = ()
    #: parts of a request whose keys the caller chooses, such as the schemas of tools
    keys_of_caller: frozenset[str] = frozenset()
    #: beginning of the ids of replies in this dialect, before the id of the decision
    reply_prefix: str = ""
