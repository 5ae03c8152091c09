"""Parts of additions that core tests use if they are installed: a tree may lack an addition (`make without`)."""

from typing import Any

from ragbandit.shared.additions import loaded

#: class of the generator "anthropic"; None in a tree without it
ANTHROPIC: Any = getattr(loaded("generators").get("anthropic"), "generator", None)
