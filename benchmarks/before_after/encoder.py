"""The encoder: what a question costs on a processor, alone and in batches, and its parts.

Processor time of the whole process with one thread of torch, which a busy machine moves little. On a machine with a
card `python -m benchmarks.gpu` measures that.
"""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# As the command of the measured revision has it; before numpy is loaded.
if "OPENBLAS_NUM_THREADS" in Path("workers/cli.py").read_text(encoding="utf-8"):
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from ragbandit.router.encoders.distilbert import DistilBertEncoder
from ragbandit.router.encoders.lexical import lexical_counts

HANDBOOK = Path(__file__).parents[2] / "examples" / "handbook" / "questions.jsonl"


def measure() -> dict[str, float]:
    """Milliseconds of CPU per batch, microseconds per question of the parts."""
    known = [json.loads(line)["question"] for line in HANDBOOK.read_text(encoding="utf-8").splitlines()]
    texts = (known * 512)[:512]
    encoder = DistilBertEncoder(device="cpu", threads=1)
    found = {}
    for count, times in ((1, 60), (32, 6), (512, 1)):
        batch = texts[:count]
        found[f"encode {count}, {encoder.precision} [ms of CPU]"] = 1e3 * _cpu(partial(encoder.encode, batch), times)
    for count in (1, 32, 512):
        batch = texts[:count]
        cost = _cpu(partial(lexical_counts, batch), 2048 // count)
        found[f"lexical counts, {count} at once [us of CPU per question]"] = 1e6 * cost / count
    for count in (32, 512):
        batch = texts[:count]
        states = encoder._states(batch)  # noqa: SLF001 - both revisions have it
        cost = _cpu(partial(_features, encoder, states, texts=batch), 1024 // count)
        found[f"states to features, {count} at once [us of CPU per question]"] = 1e6 * cost / count
    return found


def _features(encoder: Any, states: Any, *, texts: list[str]) -> object:
    """Lexical counts, readings, kernel and sketch, in either revision."""
    import torch

    torch.set_num_threads(1)
    projection = encoder._projection  # noqa: SLF001
    if not hasattr(projection, "from_product"):
        return projection.apply(states, texts=texts, dimension=encoder.dimension)
    matrix, offset = encoder._forward._held  # noqa: SLF001
    rows = torch.addmm(offset, torch.from_numpy(states), matrix).numpy()
    return projection.from_product(rows, counts=lexical_counts(texts), dimension=encoder.dimension)


def _cpu(work: Callable[[], object], times: int) -> float:
    """Seconds of CPU of one call: the least of three rounds."""
    work()
    rounds = []
    for _ in range(3):
        began = time.process_time()
        for _ in range(times):
            work()
        rounds.append((time.process_time() - began) / times)
    return min(rounds)
