"""What core tests leave out in a tree without an addition (`make without`)."""

from typing import Any

import pytest

from ragbandit.shared.additions import additions, loaded

#: class of the generator "anthropic"; None in a tree without it
ANTHROPIC: Any = getattr(loaded("generators").get("anthropic"), "generator", None)

#: beginning of commands on pages of the core -> the addition that they need
COMMANDS = {
    "advise": "advice",
    "data questions": "other_tools",
    "evaluate": "evaluation",
    "feedback import": "other_tools",
    "index counts": "popularity",
}


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
