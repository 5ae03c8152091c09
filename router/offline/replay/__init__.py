"""Replay: judges policies on logged traffic (off-policy evaluation).

    log = open_log("log.parquet")
    result = replay(log, candidates=["fixed:single_step", "uniform"])

`open_log` takes a file or the ledger of the configured store. `memory_log` takes rows. `estimate_candidates` takes
the parts of a log with the probabilities of each candidate. docs/replay.md explains how each number is computed.
"""

from ragbandit.router.offline.replay.candidates import MemoryLog, memory_log
from ragbandit.router.offline.replay.engine import estimate_candidates, replay
from ragbandit.router.offline.replay.opening import OpenLog, open_log
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan, ReplayResult, parse_candidates
from ragbandit.router.offline.replay.prepare import PreparedLog, prepare
from ragbandit.router.offline.replay.sums import LogPart, memory_part

__all__ = [
    "CandidateSpec",
    "LogPart",
    "MemoryLog",
    "OpenLog",
    "Plan",
    "PreparedLog",
    "ReplayResult",
    "estimate_candidates",
    "memory_log",
    "memory_part",
    "open_log",
    "parse_candidates",
    "prepare",
    "replay",
]
