"""A model server whose replies come in pieces at given times: chat completions and Messages, whole and streamed.

The last order in a request says how many pieces the answer has, how many milliseconds are between them, and whether a
call of a tool follows. Each piece has the time when it was sent, so that a client can measure its delay. The server
costs little: it looks for the order in the bytes and parses no JSON.
"""

import argparse
import asyncio
import json
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.chat_sizes.cells import Cell

#: arguments of a call in a reply
CALLED: Final = json.dumps({"path": "/srv/project/next.py"})
#: a piece of an answer: its number, and the microseconds of the monotonic clock when it was sent
PIECE: Final = re.compile(rb"(\d+)@(\d+) ")
_ORDER: Final = re.compile(rb"Answer in (\d+) pieces, ([\d.]+) ms apart(, and call)?")
_CALL_ID: Final = re.compile(rb"call_a[0-9a-f]{23}")
_LENGTH: Final = re.compile(rb"content-length: *(\d+)")
_STREAM: Final = re.compile(rb'"stream": ?true')
#: longest head and body, bytes
_LIMIT: Final = 1 << 23


def order(cell: Cell) -> str:
    """The sentence of a request that asks for the reply of this cell."""
    call = ", and call" if cell.last == "result" else ""
    return f"Answer in {cell.pieces} pieces, {cell.gap:g} ms apart{call}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a reply of this server contains, in any dialect: the text, and the id of a call or ""."""

    text: str
    call: str

    @classmethod
    def read(cls, reply: bytes, *, cell: Cell) -> "Answer":
        """The answer in the bytes of a reply. Raises ValueError if pieces are missing."""
        pieces = [found[0] for found in PIECE.finditer(reply)][: cell.pieces]  # Responses repeats the text
        call = _CALL_ID.search(reply)
        if len(pieces) < cell.pieces or (call is None) != (cell.last == "question"):
            raise ValueError(f"{cell}: {len(pieces)} of {cell.pieces} pieces came: {reply[:300]!r}")
        return cls(text=b"".join(pieces).decode(), call=call[0].decode() if call else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Order:
    pieces: int
    gap_s: float
    calls: bool

    @classmethod
    def read(cls, body: bytes) -> "_Order":
        found = _ORDER.search(body, max(body.rfind(b"Answer in "), 0))
        if found is None:
            return cls(pieces=20, gap_s=0.0, calls=False)
        return cls(pieces=int(found[1]), gap_s=float(found[2]) / 1000, calls=found[3] is not None)


def _piece(number: int) -> str:
    return f"{number}@{time.monotonic_ns() // 1000} "


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class _Chat:
    """The dialect of chat completions."""

    head: Final = {"id": "chatcmpl-1", "created": 1, "model": "scripted"}
    usage: Final = {"prompt_tokens": 20, "completion_tokens": 20, "total_tokens": 40}

    def whole(self, text: str, *, calls: bool) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [self._call()]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        return _json(self.head | {"object": "chat.completion", "choices": [choice], "usage": self.usage})

    def begin(self) -> bytes:
        return b""

    def piece(self, text: str) -> bytes:
        return self._event({"content": text})

    def end(self, *, calls: bool) -> bytes:
        call = self._event({"tool_calls": [{"index": 0, **self._call()}]}) if calls else b""
        usage = {"object": "chat.completion.chunk", "choices": [], "usage": self.usage}
        ends = self._event({}, finish="tool_calls" if calls else "stop")
        return call + ends + b"data: " + _json(self.head | usage) + b"\n\ndata: [DONE]\n\n"

    def _event(self, delta: dict[str, Any], *, finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return b"data: " + _json(self.head | {"object": "chat.completion.chunk", "choices": choices}) + b"\n\n"

    def _call(self) -> dict[str, Any]:
        return {"id": _call_id(), "type": "function", "function": {"name": "Read", "arguments": CALLED}}


class _Messages:
    """The dialect of Anthropic's Messages."""

    usage: Final = {"input_tokens": 20, "output_tokens": 20}
    head: Final = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "stop_sequence": None}

    def whole(self, text: str, *, calls: bool) -> bytes:
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if calls:
            content.append(self._call() | {"input": json.loads(CALLED)})
        stop = "tool_use" if calls else "end_turn"
        return _json(self.head | {"content": content, "stop_reason": stop, "usage": self.usage})

    def begin(self) -> bytes:
        message: dict[str, Any] = self.head | {"content": [], "stop_reason": None, "usage": self.usage}
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return self._event("message_start", {"message": message}) + self._event("content_block_start", block)

    def piece(self, text: str) -> bytes:
        return self._event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}})

    def end(self, *, calls: bool) -> bytes:
        found = self._event("content_block_stop", {"index": 0})
        if calls:
            written = {"type": "input_json_delta", "partial_json": CALLED}
            found += self._event("content_block_start", {"index": 1, "content_block": self._call()})
            found += self._event("content_block_delta", {"index": 1, "delta": written})
            found += self._event("content_block_stop", {"index": 1})
        stop = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        return (
            found + self._event("message_delta", {"delta": stop, "usage": self.usage}) + self._event("message_stop", {})
        )

    def _event(self, name: str, value: dict[str, Any]) -> bytes:
        return b"event: " + name.encode() + b"\ndata: " + _json({"type": name} | value) + b"\n\n"

    def _call(self) -> dict[str, Any]:
        return {"type": "tool_use", "id": _call_id(), "name": "Read", "input": {}}


def _call_id() -> str:
    return f"call_a{uuid.uuid4().hex[:23]}"


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    length = _LENGTH.search(head)
    if length is not None:
        return await reader.readexactly(int(length[1]))
    parts = []
    while b"transfer-encoding: chunked" in head:
        size = int((await reader.readline()).split(b";")[0], 16)
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
        if size == 0:
            break
    return b"".join(parts)


async def _send_whole(writer: asyncio.StreamWriter, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body)


async def _send_stream(writer: asyncio.StreamWriter, asked: _Order, *, dialect: _Chat | _Messages) -> None:
    def chunk(part: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(part), part) if part else b""

    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    begins, ends = head + chunk(dialect.begin()), chunk(dialect.end(calls=asked.calls)) + b"0\r\n\r\n"
    if not asked.gap_s:
        pieces: Iterator[bytes] = (chunk(dialect.piece(_piece(number))) for number in range(asked.pieces))
        writer.write(begins + b"".join(pieces) + ends)
        return
    began = time.monotonic()
    writer.write(begins)
    for number in range(asked.pieces):
        await asyncio.sleep(max(began + number * asked.gap_s - time.monotonic(), 0.0))
        writer.write(chunk(dialect.piece(_piece(number))))
    writer.write(ends)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reply to the requests of a connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body, path = await _body(reader, head), head.split(b" ", 2)[1]
            if b"models" in path:
                await _send_whole(writer, _json({"object": "list", "data": [{"id": "small"}, {"id": "large"}]}))
                continue
            asked, dialect = _Order.read(body), _Messages() if b"messages" in path else _Chat()
            if _STREAM.search(body):
                await _send_stream(writer, asked, dialect=dialect)
                continue
            await asyncio.sleep(asked.pieces * asked.gap_s)
            text = "".join(_piece(number) for number in range(asked.pieces))
            await _send_whole(writer, dialect.whole(text, calls=asked.calls))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _main(port: int) -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", port, limit=_LIMIT)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chat_sizes.model_server", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("port", type=int)
    asyncio.run(_main(parser.parse_args().port))
