"""Endpoints of model vendors that clients may call and that are not served here, with what is served instead."""

import re
from typing import Final

from ragbandit.router.api.doors import DOORS

_CHAT: Final = "POST /v1/chat/completions"
_ITS_SERVER: Final = "call a server that has it under its own base URL"
#: pattern of a path after the base URL -> remedy; the first match counts. Those of doors come first
_INSTEAD: Final = {
    **{pattern: remedy for door in [*DOORS.values()][::-1] for pattern, remedy in door.instead.items()},
    r"(?:batch(es)?|chat/completions/batch)": f"send each request by {_CHAT}",
    r"chat/completions/[^/]+": "GET /v1/decisions/{id} reads an answer; its id follows `chatcmpl-`",
    r"rerank|score|classify": f"the setting retriever.rerank serves arms that search; else {_ITS_SERVER}",
    r"audio": f"send speech as an `input_audio` part of {_CHAT}; to write it down or to speak, {_ITS_SERVER}",
    r"images|videos": f"send pictures as `image_url` parts of {_CHAT}; to make some, {_ITS_SERVER}",
    r"files|uploads|vector_stores": f"send a file as a `file` part of {_CHAT}; "
    "`ragbandit index build --corpus CORPUS.jsonl` reads documents",
    r"realtime": f"{_CHAT} with `stream`",
    r"generate|tags|show|ps|pull|embed|models/[^/]+:\w+": "choose OpenAI's interface in the client",
    r"engines/[^/]+/completions": _CHAT,
    r"moderations|fine[_-]tun\w+|evals|graders|containers|skills|organizations?|ocr|(de)?tokenize": _ITS_SERVER,
}
_REMEDIES: Final = tuple(_INSTEAD.values())
_PATHS: Final = re.compile(
    r"(?:/v\d\w*|/api|/openai|/anthropic|/deployments/[^/]+)*/(?:"
    + "|".join(f"(?P<_{index}>{path})" for index, path in enumerate(_INSTEAD))
    + r")(?:/.*)?",
    re.DOTALL,
)


def instead_of(path: str) -> str | None:
    """What to use instead of an endpoint of a vendor that is not served; None for all other paths."""
    match = _PATHS.fullmatch(path)
    if match is None:
        return None
    return next(remedy for index, remedy in enumerate(_REMEDIES) if match[f"_{index}"] is not None)
