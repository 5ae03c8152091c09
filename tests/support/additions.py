"""What core tests leave out in a tree without an addition (`make without`)."""

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest

from ragbandit.shared.additions import additions, load_offered, surfaces
from ragbandit.shared.dialects.registry import DIALECTS

#: class of the generator "anthropic"; None in a tree without it
ANTHROPIC: Any = getattr(load_offered("generators").get("anthropic"), "generator", None)

_DIALECT = DIALECTS.get("messages")
#: module with the requests of Anthropic's Messages; None in a tree without it
MESSAGE_REQUESTS: Any = None if _DIALECT is None else sys.modules[_DIALECT.as_chat.__module__]

#: beginning of commands on pages of the core -> the addition that they need
COMMANDS = {
    "advise": "advice",
    "data questions": "other_tools",
    "evaluate": "evaluation",
    "feedback import": "other_tools",
    "index build --retriever elasticsearch": "elasticsearch",
    "index counts": "popularity",
    "init": "init",
    "route": "dashboard",
    "skeleton": "skeleton",
}


#: beginning of a path, or words of a setting -> the addition that serves or has it
_NEEDED = {
    "name: elasticsearch": "elasticsearch",
    "name: hybrid": "hybrid",
    "rerank:": "reranking",
    "/v1/messages": "anthropic",
    "/v1/responses": "responses",
}


def task_units() -> dict[str, str]:
    """`conversation.units` in which each interface of coding agents that this tree has decides for whole tasks."""
    return {name: "task" for name, path in surfaces().items() if path}


def is_served(path: str) -> bool:
    """Whether this tree has the addition that serves a path, if one does."""
    return not any(path.startswith(words) and name not in additions() for words, name in _NEEDED.items())


def door_module(name: str) -> ModuleType | None:
    """The module with the endpoints of an addition; None in a tree without it."""
    door = load_offered("doors").get(name)
    return None if door is None else sys.modules[door.endpoints[0].routes[0].endpoint.__module__]


def needs(*names: str) -> pytest.MarkDecorator:
    """Skips a test, or a case of it, in a tree without these additions."""
    missing = sorted({*names} - additions().keys())
    return pytest.mark.skipif(bool(missing), reason=f"this tree has no addition {', '.join(missing)}")


def marked(cases: Iterable[Any]) -> list[Any]:
    """The cases of a test, paths or parts of pages; one that names what an addition serves or has is marked by `needs`.

    A tuple is the values of several arguments.
    """
    several = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [
        pytest.param(*values, marks=needs(*(name for words, name in _NEEDED.items() if words in str(values))))
        for values in several
    ]


def only_with(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """These values, as settings of an addition; {} in a tree without it."""
    return values if name in additions() else {}


def is_offered(command: str) -> bool:
    """Whether this tree has the addition that a documented command needs, if it needs one."""
    return all(name in additions() or not command.startswith(words) for words, name in COMMANDS.items())
