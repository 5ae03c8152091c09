"""HTTP clients of a running service: `Client`, and `AsyncClient` for asyncio. They need httpx and nothing heavy.

    with Client("http://127.0.0.1:8100") as client:
        reply = client.route("Who wrote Dracula?")
        client.outcome(reply["decision_id"], answer="Bram Stoker", steps=1)
        client.feedback(reply["decision_id"], rating=True)

The types of the replies are in `ragbandit.client.replies`, which the service uses too; so httpx is loaded with the
first client that is named.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragbandit.client.arms import ArmRun, is_degraded
    from ragbandit.client.async_client import AsyncClient
    from ragbandit.client.client import Client
    from ragbandit.client.transport import StreamEvent

#: httpx's own command line
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
    """Httpx without its own command line, which would load click, rich and pygments: half of its time."""
    if "httpx" in sys.modules:
        return
    sys.modules[_HTTPX_COMMAND] = None  # type: ignore[assignment] # Python's way to say that it cannot be imported
    try:
        import_module("httpx")
    finally:
        del sys.modules[_HTTPX_COMMAND]
