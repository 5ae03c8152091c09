"""Build hook: writes ragbandit/client/client.py, the client for threads, from the one for asyncio.

It runs before a wheel, a source distribution or an editable install is made; `make docs` and the tests run it too.
"""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: the client for threads
CLIENT: Final = Path(__file__).parent / "ragbandit" / "client" / "client.py"
#: pattern in the client for asyncio -> replacement in the client for threads
_CHANGES: Final = (
    (
        r"Client for asyncio: every call is awaited\.",
        "Client for threads: every call waits for its reply.\n\nWritten by hatch_build.py from async_client.py.\n",
    ),
    (
        r"Client of one service for asyncio\. It may be used .*?\n\n",
        "Client of one service. Safe to use from several threads; `AsyncClient` has the same calls for asyncio.\n\n",
    ),
    (r"        A function that is not .*?\n\n", ""),
    (r" \| Awaitable\[_Value\]", ""),
    (r"Awaitable\[(\w+(?:\[\w+\])?)\]", r"\1"),
    (r" A cancelled call reports no outcome\.", ""),
    (r" \(of this event loop\)", ""),
    (r"AsyncIterator", "Iterator"),
    (r", Awaitable\b", ""),
    (r"\bawait |\basync (?=def|for|with)", ""),
    (r"AsyncTransport", "SyncTransport"),
    (r"httpx\.AsyncBaseTransport", "httpx.BaseTransport"),
    (r"(?<!`)AsyncClient", "Client"),
    (r"AsyncTask", "Task"),
    (r"\baiter_bytes", "iter_bytes"),
    (r"\baclose", "close"),
    (r"__a(enter|exit)__", r"__\1__"),
)


def client_module() -> str:
    """Source text of the client for threads."""
    text = CLIENT.with_name("async_client.py").read_text(encoding="utf-8")
    for pattern, replacement in _CHANGES:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    return text


def write_client() -> None:
    """Write the module if its text has changed."""
    text = client_module()
    if not CLIENT.exists() or CLIENT.read_text(encoding="utf-8") != text:
        CLIENT.write_text(text, encoding="utf-8")


class ClientHook(BuildHookInterface):  # type: ignore[type-arg, misc] # hatchling has no types here
    """Writes the client for threads. Git ignores the file; `artifacts` in pyproject.toml adds it to the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Write the module."""
        write_client()
