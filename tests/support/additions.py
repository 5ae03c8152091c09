"""What core tests leave out in a tree without an addition (`make without`)."""

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

from ragbandit.shared.additions import additions, loaded, surfaces
from ragbandit.shared.dialects.registry import DIALECTS

#: class of the generator "anthropic"; None in a tree without it
ANTHROPIC: Any = getattr(loaded("generators").get("anthropic"), "generator", None)

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
}


#: words in the code or the params of a core test -> the addition that it needs
NEEDED = {
    "name: elasticsearch": "elasticsearch",
    "name: hybrid": "hybrid",
    "rerank:": "reranking",
    "/v1/messages": "anthropic",
    "/v1/responses": "responses",
    ".responses.create": "responses",
}


def task_units() -> dict[str, str]:
    """`conversation.units` in which each interface of coding agents that this tree has decides for whole tasks."""
    return {name: "task" for name, path in surfaces().items() if path}


def is_served(path: str) -> bool:
    """Whether this tree has the addition that serves a path, if one does."""
    return not any(path.startswith(words) and name not in additions() for words, name in NEEDED.items())


def door_module(name: str) -> ModuleType | None:
    """The module with the endpoints of an addition; None in a tree without it."""
    door = loaded("doors").get(name)
    return None if door is None else sys.modules[door.endpoints[0].routes[0].endpoint.__module__]


def skip_missing(items: list[pytest.Item]) -> None:
    """Skips core tests that use what an addition serves in a tree without it."""
    missing = {words: name for words, name in NEEDED.items() if name not in additions()}
    for item in items if missing else ():
        code = inspect.getsource(getattr(item, "function", skip_missing)).partition("def ")[2]
        said = f"{code} {getattr(getattr(item, 'callspec', None), 'params', '')}"
        for words, name in missing.items():
            if isinstance(item, pytest.Function) and words in said:
                item.add_marker(needs(name))


def needs(*names: str) -> pytest.MarkDecorator:
    """Skips a test, or a case of it, in a tree without these additions."""
    missing = sorted({*names} - additions().keys())
    return pytest.mark.skipif(bool(missing), reason=f"this tree has no addition {', '.join(missing)}")


def only_with(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """These values, as settings of an addition; {} in a tree without it."""
    return values if name in additions() else {}


def is_offered(command: str) -> bool:
    """Whether this tree has the addition that a documented command needs, if it needs one."""
    return all(name in additions() or not command.startswith(words) for words, name in COMMANDS.items())
