"""ragbandit/client/client.py, the client for threads, from the one for asyncio."""

import re
from pathlib import Path
from typing import Final

#: the client for threads
CLIENT: Final = Path(__file__).parents[2] / "ragbandit" / "client" / "client.py"
#: what the client for asyncio has -> what the one for threads has
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
    (r" Of a call that is cancelled nothing is reported, and nothing is learned\.", ""),
    (r" \(of this event loop\)", ""),
    (r"AsyncIterator", "Iterator"),
    (r", Awaitable\b", ""),
    (r"\bawait |\basync (?=def|for|with)", ""),
    (r"AsyncTransport", "SyncTransport"),
    (r"httpx\.AsyncBaseTransport", "httpx.BaseTransport"),
    (r"(?<!`)AsyncClient", "Client"),
    (r"\baiter_bytes", "iter_bytes"),
    (r"\baclose", "close"),
    (r"__a(enter|exit)__", r"__\1__"),
)


def client_module() -> str:
    """The whole module."""
    text = CLIENT.with_name("async_client.py").read_text(encoding="utf-8")
    for pattern, replacement in _CHANGES:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    return text


def write_client() -> None:
    """Write it beside the one for asyncio."""
    CLIENT.write_text(client_module(), encoding="utf-8")
