"""HTTP clients of a running service: `Client`, and `AsyncClient` for asyncio. They need no large package except httpx.

    with Client("http://127.0.0.1:8100") as client:
        reply = client.route("Who wrote Dracula?")
        client.outcome(reply["decision_id"], answer="Bram Stoker", steps=1)
        client.feedback(reply["decision_id"], rating=True)

The service uses the types of the replies in `ragbandit.client.replies` too, and does not need httpx for that. So httpx
is imported at the first access to a client class.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragbandit.client.arms import ArmRun, is_degraded
    from ragbandit.client.async_client import AsyncClient
    from ragbandit.client.client import Client
    from ragbandit.client.transport import StreamEvent

#: module with the command line of httpx
_HTTPX_COMMAND = "httpx._main"

__all__ = ["ArmRun", "AsyncClient", "Client", "StreamEvent", "is_degraded"]

_MODULES = {
    "ArmRun": "arms",
    "AsyncClient": "async_client",
    "Client": "client",
    "StreamEvent": "transport",
    "is_degraded": "arms",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        _load_httpx()
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _load_httpx() -> None:
    """Import httpx without its command line, whose packages (click, rich, pygments) take half of the import time."""
    if "httpx" in sys.modules:
        return
    sys.modules[_HTTPX_COMMAND] = None  # type: ignore[assignment] # None makes the import of this module fail
    try:
        import_module("httpx")
    finally:
        del sys.modules[_HTTPX_COMMAND]
