"""Reads replies with status 404 or 410, or with a code about models: whether the server lacks the model, or an object
that the caller named.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from ragbandit.shared.model_servers.error_replies import server_message
from ragbandit.shared.model_servers.failures import Failure, GoneSign
from ragbandit.shared.model_servers.refusals import MODEL_CODES

ABSENT: Final = (404, 410)
#: words of a server that does not know the model. "No endpoints found that support ..." is about the request instead
_WORDS: Final = re.compile("model|deployment|no endpoints(?! found that)", re.IGNORECASE)
#: names of fields with an id, an address or a name of an object outside the request
_NAMES: Final = re.compile(
    r"(_i|I)ds?$|(^|_)ur[il]s?$|Ur[il]s?$|(^|_)models?$|^(container|skills|fallbacks|cached_?[cC]ontent|only|order)$"
)
#: objects by which a caller restricts the providers of a gateway; the gateway may then have no endpoint for its model
_ROUTING: Final = frozenset({"provider", "providerOptions", "provider_options"})
#: ids that no server looks up
_OWN_IDS: Final = frozenset({"tool_call_id", "tool_use_id", "call_id", "user_id", "session_id"})
#: fields that no server looks into: arguments of tools, their schemas, the caller's notes
_OPAQUE: Final = frozenset({"input", "properties", "metadata"})
#: an object with an `id` and none of these fields is a reference, for example to stored audio
_TYPED: Final = frozenset({"type", "function", "role", "messages"})


def has_absent_model_code(failure: Failure, *, body: object) -> bool:
    """Whether the code in the server's error means that the server lacks the model. body: parsed if it is JSON."""
    is_anthropic = failure.code == "not_found_error" and server_message(body).startswith("model:")
    return failure.code in MODEL_CODES or is_anthropic


def gone_sign(failure: Failure, *, body: object, model: str) -> GoneSign | None:
    """The sign, in a reply with a status of ABSENT or a code of MODEL_CODES, that the server no longer has the model;
    None if there is no sign.
    """
    if failure.status not in ABSENT and failure.code not in MODEL_CODES:
        return None
    if failure.status == 410 or has_absent_model_code(failure, body=body):
        return "named"
    words = f"{failure.code} {server_message(body)}"
    rest = re.sub(rf"(?<![\w-]){re.escape(model)}(?![\w-]|\.\w)", " ", words, count=1, flags=re.IGNORECASE)
    if rest != words and _WORDS.search(rest):
        return "named"
    return "words" if _WORDS.search(words) else None


def names_stored_object(request: Mapping[str, Any]) -> bool:
    """Whether a request names a file, a container, another stored object, an address, a further model or the providers
    that may answer.

    A server may lack the named object instead of the model, and its message may then repeat the caller's words.
    """
    left: list[Any] = [{name: value for name, value in request.items() if name != "model"}]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            if ("id" in value and not value.keys() & _TYPED) or any(map(_is_reference, value.items())):
                return True
            left += [part for name, part in value.items() if name not in _OPAQUE]
        elif isinstance(value, list):
            left += value
    return False


def _is_reference(field: tuple[Any, Any]) -> bool:
    name, value = field
    if name in _ROUTING:
        return isinstance(value, Mapping) and len(value) > 0
    if not _NAMES.search(name) or name in _OWN_IDS:
        return False
    texts = value if isinstance(value, list) else [value]
    return any(isinstance(text, str) and text and not text.startswith("data:") for text in texts)
