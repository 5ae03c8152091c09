"""The list of doors: all interfaces over HTTP, of the core and of additions. It also lists endpoints of vendors that no
door serves, with what clients use instead.
"""

import re
from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

from ragbandit.router.api.door import Door
from ragbandit.router.api.endpoints import (
    decisions,
    feedback,
    labels,
    operations,
    policies,
    records,
    sessions,
    verdicts,
)
from ragbandit.router.api.openai import endpoints as openai
from ragbandit.router.api.openai.errors import openai_error, speaks_openai
from ragbandit.shared.additions import with_additions

_CORE_DOORS: Final[Mapping[str, Door]] = {
    "decisions": Door(
        place=10,
        endpoints=(decisions.endpoints, records.endpoints),
        description="Choose an arm for a question, or have the question answered.",
    ),
    "openai": Door(
        place=20,
        endpoints=(openai.endpoints,),
        description="For clients of OpenAI's interface.",
        speaks=speaks_openai,
        error=openai_error,
        base="/v1",
    ),
    "feedback": Door(
        place=60,
        endpoints=(feedback.endpoints, labels.endpoints, sessions.endpoints),
        description="Judge decisions; the policy learns from the judgements.",
    ),
    "policies": Door(
        place=70,
        endpoints=(policies.endpoints,),
        description="Roll out versions of the policy by evidence, roll them back, or stop them.",
    ),
    "operations": Door(
        place=80,
        endpoints=(operations.endpoints, verdicts.endpoints),
        description="Probes, status and metrics for operators.",
    ),
}
_BY_NAME: Final[Mapping[str, Door]] = with_additions(_CORE_DOORS, hook="doors")
#: name -> door, in the order of /docs
DOORS: Final[dict[str, Door]] = {
    name: _BY_NAME[name] for name in sorted(_BY_NAME, key=lambda name: _BY_NAME[name].place)
}


def door_of(scope: Scope) -> Door | None:
    """The door whose shapes the caller of a request expects; None for RagBandit's own."""
    for door in reversed(DOORS.values()):
        if door.error is not None and door.speaks(scope):
            return door
    return None


_CHATS: Final = "POST /v1/chat/completions"
_OTHER_SERVER: Final = "call a server that has it under its own base URL"
#: pattern of a path after the base URL -> remedy; the first match counts. The patterns of doors come first
_INSTEAD: Final = {
    **{pattern: remedy for door in [*DOORS.values()][::-1] for pattern, remedy in door.instead.items()},
    r"(?:batch(es)?|chat/completions/batch)": f"send each request by {_CHATS}",
    r"chat/completions/[^/]+": "GET /v1/decisions/{id} reads an answer; its id follows `chatcmpl-`",
    r"rerank|score|classify": f"the setting retriever.rerank serves arms that search; else {_OTHER_SERVER}",
    r"audio": f"send speech as an `input_audio` part of {_CHATS}; to write it down or to speak, {_OTHER_SERVER}",
    r"images|videos": f"send pictures as `image_url` parts of {_CHATS}; to make some, {_OTHER_SERVER}",
    r"files|uploads|vector_stores": f"send a file as a `file` part of {_CHATS}; "
    "`ragbandit index build --corpus CORPUS.jsonl` reads documents",
    r"realtime": f"{_CHATS} with `stream`",
    r"generate|tags|show|ps|pull|embed|models/[^/]+:\w+": "choose OpenAI's interface in the client",
    r"engines/[^/]+/completions": _CHATS,
    r"moderations|fine[_-]tun\w+|evals|graders|containers|skills|organizations?|ocr|(de)?tokenize": _OTHER_SERVER,
}
_REMEDIES: Final = tuple(_INSTEAD.values())
_PATHS: Final = re.compile(
    r"(?:/v\d\w*|/api|/openai|/anthropic|/deployments/[^/]+)*/(?:"
    + "|".join(f"(?P<_{index}>{path})" for index, path in enumerate(_INSTEAD))
    + r")(?:/.*)?",
    re.DOTALL,
)


def instead_of(path: str) -> str | None:
    """What to use instead of a vendor's endpoint that RagBandit lacks; None for all other paths."""
    match = _PATHS.fullmatch(path)
    if match is None:
        return None
    return next(remedy for index, remedy in enumerate(_REMEDIES) if match[f"_{index}"] is not None)
