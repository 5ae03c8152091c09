"""Configuration of the scheduler: how many sequences run at once on this device, and how much memory they may fill."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

__all__ = ["SchedulerConfig", "scheduler_config"]

#: part of the device's free memory that the cache may fill; growing it holds two copies for a moment
_MEMORY_SHARE: Final = 0.4


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Limits of the scheduler: sequences that run at once, and prompt tokens that are read in one step."""

    #: sequences under way
    max_sequences: int
    #: rows that must be free before prefill begins, unless no row is taken or a sequence has waited for long: a prefill
    #: of one prompt alone costs a pass of its own
    min_free_rows: int
    #: tokens of a prompt that are read between two decoding steps, and two checks of deadlines; fewer near a deadline
    prefill_chunk: int
    #: tokens of prompts that are read together at most; one prompt is always read
    prefill_tokens: int
    #: rows x tokens that fit in memory; None: unknown
    token_budget: int | None


def scheduler_config(device: str, *, max_sequences: int, bytes_per_token: int, reserved: int) -> SchedulerConfig:
    """The configuration for "cpu" or "cuda"; reserved: bytes of its memory that others will use.

    A processor computes as long for two prompts as for one after the other; a graphics card is launched once.
    """
    free = _free_memory() if device == "cpu" else torch.cuda.mem_get_info()[0]
    budget = None if free is None else max(0, int((free - reserved) * _MEMORY_SHARE)) // bytes_per_token
    batched = device != "cpu"
    return SchedulerConfig(
        max_sequences=max_sequences,
        min_free_rows=max(1, max_sequences // 8) if batched else 1,
        prefill_chunk=2048 if batched else 256,
        prefill_tokens=16384 if batched else 1,
        token_budget=budget,
    )


def _free_memory() -> int | None:
    """Bytes that Linux can give to new work, what files occupy included; None on another system."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
