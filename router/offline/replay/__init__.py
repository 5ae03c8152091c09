"""Replay: judges policies on logged traffic (off-policy evaluation). docs/replay.md explains the numbers.

log = open_log("log.parquet")
result = replay(log, candidates=["fixed:single_step", "uniform"])
"""

from ragbandit.router.offline.replay.engine import estimate_candidates, replay
from ragbandit.router.offline.replay.opening import MemoryLog, OpenLog, memory_log, open_log
from ragbandit.router.offline.replay.parts import MemoryPart, without_certain_start
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan, ReplayResult, parse_candidates

__all__ = [
    "CandidateSpec",
    "MemoryLog",
    "MemoryPart",
    "OpenLog",
    "Plan",
    "ReplayResult",
    "estimate_candidates",
    "memory_log",
    "open_log",
    "parse_candidates",
    "replay",
    "without_certain_start",
]
