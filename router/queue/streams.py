"""Streams: pieces of answers, sent through Redis from workers to readers while the arm still runs.

The id of an entry is <attempt>-<number>. `attempt` counts the runs of a decision, since a second run begins if a worker
dies. `number` counts the entries of a run without gaps, so a reader notices a missed entry. Writing never delays a run
or makes it fail. If Redis is not reachable, the stream ends, and readers get the answer from the stored outcome.
"""

from typing import Final

from ragbandit.shared.types import DeltaPiece, StatusNote, TextPiece

#: prefix of the notification that a caller reads the answer; the decision's id follows
STREAM_NEWS: Final = "stream"
#: maximum number of entries that a stream keeps
MAX_ENTRIES: Final = 256
#: seconds after which the keys of `wanted_key` and `attempt_key` expire
WANTED_S: Final = 3600

#: fields of an entry: piece of text; note; piece of a message as JSON; id of the decision that answers after a failover
TEXT: Final = b"t"
NOTE: Final = b"n"
DELTA: Final = b"d"
LINK: Final = b"l"


def stream_key(decision_id: str) -> str:
    return f"ragbandit:stream:{decision_id}"


def wanted_key(decision_id: str) -> str:
    """Redis key that exists if a caller wants to read the answer's stream."""
    return f"ragbandit:stream-wanted:{decision_id}"


def attempt_key(decision_id: str) -> str:
    """Redis key of the number of runs that have written to the answer's stream."""
    return f"ragbandit:stream-attempt:{decision_id}"


StreamEvent = TextPiece | DeltaPiece | StatusNote
