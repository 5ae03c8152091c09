"""Keys and limits of answers on their way."""

import hmac
from typing import Final

from ragbandit.shared.types import DecisionId

#: pieces that come within that long after one was written are written together, seconds
BATCH_S: Final = 0.015
#: entries of a stream, and characters of each: a stream has MAX_ENTRIES * MAX_PIECE characters at most
MAX_ENTRIES: Final = 256
MAX_PIECE: Final = 4096
#: a stream is kept that long after its last entry, seconds
KEEP_S: Final = 60
#: that somebody wants to read along is known that long, seconds
WANTED_S: Final = 3600

#: fields of an entry
TEXT: Final = b"t"
NOTE: Final = b"n"
#: of an entry: says that a process of this store wrote it there, `mark_of`
MARK: Final = b"m"
#: name of the secret in the database that marks are made with, and their length, bytes
STREAM_SECRET: Final = "streams"  # noqa: S105 - a name
_MARK_BYTES: Final = 16


def stream_key(decision_id: str) -> str:
    """The stream of a decision's answer."""
    return f"ragbandit:stream:{decision_id}"


def wanted_key(decision_id: str) -> str:
    """It is there if somebody wants to read along."""
    return f"ragbandit:stream-wanted:{decision_id}"


def attempt_key(decision_id: str) -> str:
    """How many runs have begun to write."""
    return f"ragbandit:stream-attempt:{decision_id}"


def mark_of(secret: bytes, decision_id: DecisionId, *, entry_id: str, kind: bytes, text: bytes) -> bytes:
    """The mark of an entry: nobody can make it, or move it to another place, without the secret. kind: TEXT or NOTE."""
    signed = b"\0".join((decision_id.encode(), entry_id.encode(), kind, text))
    return hmac.digest(secret, signed, "sha256")[:_MARK_BYTES]


def position(entry_id: bytes | str) -> tuple[int, int]:
    """(attempt, number) of an entry."""
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    attempt, _, number = text.partition("-")
    return int(attempt), int(number)
