"""A model's server that breaks off after a number of bytes, and replies to cut."""

import asyncio
import json
import threading
from typing import Self

#: the answer: quotes and a letter of two bytes, so that cuts fall within escapes and within a character
TEXT = 'Zoë: "no".'
PIECES = (TEXT[:2], TEXT[2:])


def written(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def events(*values):
    return "".join(f"data: {written(value)}\n\n" for value in values).encode()


def choice(**parts):
    return {"choices": [{"index": 0, **parts}]}


USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
CHAT = events(
    *(choice(delta={"content": piece}) for piece in PIECES),
    choice(delta={}, finish_reason="stop"),
    {"choices": [], "usage": USAGE},
    "[DONE]",
)
CALLS = events(
    choice(delta={"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}]}),
    choice(delta={"tool_calls": [{"index": 0, "function": {"arguments": ': "b"}'}}]}),
    choice(delta={}, finish_reason="tool_calls"),
    "[DONE]",
)
DOCUMENT = written({"choices": [{"message": {"content": TEXT}, "finish_reason": "stop"}], "usage": USAGE}).encode()
MESSAGES = events(
    {"type": "message_start", "message": {"usage": {"input_tokens": 9}}},
    *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}} for piece in PIECES),
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
)
MESSAGE = written(
    {"type": "message", "content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn"}
    | {"usage": {"input_tokens": 9, "output_tokens": 5}}
).encode()


class CutServer:
    """Replies to the n-th request with the first n bytes of a body, and closes the connection.

    is_counted: whether the reply has a Content-Length, so that the client can notice the cut
    """

    def __init__(self, body: bytes, *, is_counted: bool) -> None:
        self.body, self.is_counted, self.cut = body, is_counted, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        counted = b"content-length: %d\r\n" % len(self.body) if self.is_counted else b""
        kind = b"application/json" if self.body.startswith(b"{") else b"text/event-stream"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\n" + counted + b"connection: close\r\n\r\n")
        writer.write(self.body[: self.cut])
        writer.close()

    async def _listen(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        listening = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        await self._ended.wait()
        listening.close()

    def __enter__(self) -> Self:
        """Listen at `url`, in a thread."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()))
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)
