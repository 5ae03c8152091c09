"""Build hook: writes the client for threads before a wheel, an sdist or an editable install is made."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ClientHook(BuildHookInterface):  # type: ignore[type-arg, misc] # hatchling has no types here
    """ragbandit/client/client.py follows from async_client.py, and is not kept twice."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Write the module; `artifacts` in pyproject.toml takes it in, though git ignores it."""
        runpy.run_path(str(Path(self.root, "docs", "generate", "client.py")))["write_client"]()
