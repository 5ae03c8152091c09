"""HTTP clients of a running service: `Client`, and `AsyncClient` for asyncio.

    with Client("http://127.0.0.1:8100") as client:
        reply = client.route("Who wrote Dracula?")
        client.outcome(reply["decision_id"], answer="Bram Stoker", steps=1)
        client.feedback(reply["decision_id"], rating=True)

httpx is imported at the first use of a client class: the service imports only the types in `ragbandit.client.replies`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragbandit.client.arms import ArmRun, is_degraded
    from ragbandit.client.async_client import AsyncClient
    from ragbandit.client.client import Client
    from ragbandit.client.transport import StreamEvent

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
        if "httpx" not in sys.modules:
            _import_httpx()
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _import_httpx() -> None:
    """Import httpx without its command line, whose packages (click, rich, pygments) take half of the import time."""
    command = "httpx._main"
    sys.modules[command] = None  # type: ignore[assignment] # None makes the import of this module fail
    try:
        import_module("httpx")
    finally:
        del sys.modules[command]
