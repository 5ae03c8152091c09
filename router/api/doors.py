"""The list of doors: all interfaces over HTTP, of the core and of additions."""

from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

from ragbandit.router.api.door import Door
from ragbandit.router.api.endpoints import decisions, feedback, labels, operations, policies, sessions, verdicts
from ragbandit.router.api.openai import endpoints as openai
from ragbandit.router.api.openai.errors import openai_error, speaks_openai
from ragbandit.shared.additions import with_additions

_OURS: Final[Mapping[str, Door]] = {
    "decisions": Door(
        place=10,
        endpoints=(decisions.endpoints,),
        description="Choose an arm for a question, or have the question answered.",
    ),
    "openai": Door(
        place=20,
        endpoints=(openai.endpoints,),
        description="For clients of OpenAI's interface: models, chat completions and responses.",
        speaks=speaks_openai,
        error=openai_error,
        base="/v1",
    ),
    "feedback": Door(
        place=60,
        endpoints=(feedback.endpoints, labels.endpoints, sessions.endpoints),
        description="Judge decisions; the policy learns from it.",
    ),
    "policies": Door(
        place=70,
        endpoints=(policies.endpoints,),
        description="Roll versions of the policy out by evidence, back, or stop them.",
    ),
    "operations": Door(
        place=80,
        endpoints=(operations.endpoints, verdicts.endpoints),
        description="Probes, status and metrics for operators.",
    ),
}
_BY_NAME: Final[Mapping[str, Door]] = with_additions(_OURS, hook="doors")
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
