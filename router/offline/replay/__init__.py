"""Judges policies on logged traffic: what each would have earned, how sure that is, and what the log cannot say.

    log = held(read_rows("log.jsonl"))
    found = replay(log, candidates=asked_candidates(["linucb", "fixed:single_step"]))

`replay` takes a log in memory; `judge` takes pieces of one that does not fit. How each number is made:
docs/replay.md.
"""

from ragbandit.router.offline.replay.candidates import Asked, asked_candidates
from ragbandit.router.offline.replay.judge import judge
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.offline.replay.prepare import Prepared, prepared, replay
from ragbandit.router.offline.replay.results import Replayed
from ragbandit.router.offline.replay.sources import Held, Piece, Pieces, held

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
