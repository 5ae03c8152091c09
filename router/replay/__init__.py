"""Judges policies on logged traffic: what each would have earned, how sure that is, and what the log cannot say.

    log = held(read_rows("log.jsonl"))
    found = replay(log, candidates=asked_candidates(["linucb", "fixed:single_step"]))

`replay` takes a log in memory; `judge` takes pieces of one that does not fit. How each number is made:
docs/replay.md.
"""

from router.replay.candidates import Asked, asked_candidates
from router.replay.judging import judge
from router.replay.plan import Plan
from router.replay.preparing import Prepared, prepared, replay
from router.replay.results import Replayed
from router.replay.source import Held, Piece, Pieces, held

__all__ = [
    "Asked",
    "Held",
    "Piece",
    "Pieces",
    "Plan",
    "Prepared",
    "Replayed",
    "asked_candidates",
    "held",
    "judge",
    "prepared",
    "replay",
]
