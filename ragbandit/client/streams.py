"""Streams: the server-sent events of an answer that is being written, read from the bytes of a reply."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ragbandit.client.exchange import ReceivedReply, refused
from ragbandit.shared.errors import NotReady, RagBanditError

#: longest event that is read, bytes
MAX_EVENT: Final = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEvent:
    """One event of an answer that is being written."""

    #: decision: the decision; status: what the arm does, in `text`; text: the next piece, in `text`; outcome: the last,
    #: what `answer` would have returned
    event: str
    data: Mapping[str, Any]


class EventReader:
    """Events out of the bytes of a stream, wherever they are cut."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._ended = False

    def read(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are whole with these bytes. Raises what an `error` event says."""
        self._rest += chunk
        *whole, rest = bytes(self._rest).replace(b"\r\n", b"\n").split(b"\n\n")
        self._rest = bytearray(rest)
        if len(rest) > MAX_EVENT:
            raise RagBanditError(f"/v1/answer sent an event of more than {MAX_EVENT} bytes")
        return [event for event in map(self._event, whole) if event is not None]

    def end(self) -> None:
        """The stream is over. Raises NotReady if it has broken off before its outcome."""
        if not self._ended:
            remedy = "the answer may still come: ask decision(id), or send the same id again"
            raise NotReady("the stream of the answer broke off", remedy=remedy)

    def _event(self, text: bytes) -> StreamEvent | None:
        fields: dict[bytes, bytes] = {}
        for line in text.split(b"\n"):
            key, _, value = line.partition(b":")
            fields[key] = value.removeprefix(b" ")
        if b"data" not in fields:  # a comment, which keeps the connection alive
            return None
        name = fields.get(b"event", b"message").decode("utf-8", "replace")
        try:
            data = json.loads(fields[b"data"])
        except ValueError as error:
            raise RagBanditError("/v1/answer sent an event that is no JSON") from error
        if name == "error":
            raise refused(ReceivedReply(status=500, headers={}, body=fields[b"data"]), path="/v1/answer")
        self._ended = self._ended or name == "outcome"
        return StreamEvent(event=name, data=data if isinstance(data, dict) else {})
