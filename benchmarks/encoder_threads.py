"""What a question costs the encoder by its number of torch threads and by GOMP_SPINCOUNT.

    python -m benchmarks.encoder_threads              # the table of docs/machines.md
    python -m benchmarks.encoder_threads --busy 2     # beside two processes that always compute

Each setting is a process of its own, and all take turns. "processor" is the processor time of all threads of the
process, "wall" the time of the call; both are medians in milliseconds of one encode() of all questions together. The
ratio is that of the same round, between its quartiles, to the last setting (most threads, longest spin). A question's
tokens include the two that mark its ends; questions that wait together are encoded in one call, so 16 of them stand for
16 callers.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from benchmarks.figures import machine

HEAD: Final = (
    "| tokens | questions | threads | spin | processor ms | ratio | wall ms | ratio |\n"
    "|---|---|---|---|---|---|---|---|"
)
#: encodes of a setting in a round
_BLOCK: Final = 2
_SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A started encoder, and what was measured in each round of the present cell."""

    threads: int
    spins: int
    pipe: Connection
    processor: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def measure(self, *, tokens: int, questions: int) -> None:
        """One round: medians of milliseconds, of processor time and of wall time."""
        self.pipe.send((tokens, questions))
        processor, wall = self.pipe.recv()
        self.processor.append(processor)
        self.wall.append(wall)


def numbers(text: str) -> list[int]:
    """The whole numbers between commas."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encoder_threads",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="numbers of torch threads")
    parser.add_argument("--spins", type=numbers, default=[0, 1000], help="values of GOMP_SPINCOUNT")
    parser.add_argument("--tokens", type=numbers, default=[8, 40, 128], help="lengths of a question")
    parser.add_argument("--questions", type=numbers, default=[1, 16], help="how many questions wait together")
    parser.add_argument("--precision", default="auto", help="encoder.precision")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--busy", type=int, default=0, help="processes that always compute meanwhile")
    asked = parser.parse_args()
    chosen = [(threads, spins) for threads in asked.threads for spins in (asked.spins if threads > 1 else [0])]
    print(HEAD)
    with ExitStack() as stack:
        started = [stack.enter_context(_started(*one, precision=asked.precision)) for one in chosen]
        for _ in range(asked.busy):
            stack.enter_context(_process(_compute))
        for tokens in asked.tokens:
            for questions in asked.questions:
                print("\n".join(_rows(started, tokens=tokens, questions=questions, rounds=asked.rounds)), flush=True)
        print(f"\n{machine()}")


def _rows(settings: Sequence[Setting], *, tokens: int, questions: int, rounds: int) -> Iterator[str]:
    for setting in settings:
        setting.processor.clear()
        setting.wall.clear()
    for number in range(rounds):
        for setting in settings if number % 2 == 0 else reversed(settings):
            setting.measure(tokens=tokens, questions=questions)
    base = settings[-1]
    for setting in settings:
        spins = setting.spins if setting.threads > 1 else ""
        cells = [tokens, questions, setting.threads, spins]
        for ours, theirs in ((setting.processor, base.processor), (setting.wall, base.wall)):
            cells += [f"{statistics.median(ours):.1f}", _ratio(ours, theirs)]
        yield f"| {' | '.join(map(str, cells))} |"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    low, middle, high = np.percentile(np.array(ours) / np.array(theirs), [25, 50, 75])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


@contextmanager
def _started(threads: int, spins: int, *, precision: str) -> Iterator[Setting]:
    """An encoder in a process of its own that has loaded its model."""
    os.environ |= {"GOMP_SPINCOUNT": str(spins), "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    here, there = _SPAWN.Pipe()
    with _process(_serve, there, threads, precision):
        here.recv()
        yield Setting(threads=threads, spins=spins, pipe=here)


@contextmanager
def _process(target: object, *given: object) -> Iterator[None]:
    process = _SPAWN.Process(target=target, args=given, daemon=True)  # type: ignore[arg-type]
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _serve(pipe: Connection, threads: int, precision: Any) -> None:
    """Encode what the pipe asks for, and answer with the median times."""
    from ragbandit.router.encoders.distilbert import DistilBertEncoder  # torch reads the environment when it is loaded

    encoder = DistilBertEncoder(device="cpu", threads=threads, precision=precision)
    pipe.send("loaded")
    while True:
        tokens, questions = pipe.recv()
        texts = ["word " * (tokens - 2)] * questions
        encoder.encode(texts)
        processor, wall = list[float](), list[float]()
        for _ in range(_BLOCK):
            used, began = time.process_time(), time.perf_counter()
            encoder.encode(texts)
            wall.append((time.perf_counter() - began) * 1000)
            processor.append((time.process_time() - used) * 1000)
        pipe.send((statistics.median(processor), statistics.median(wall)))


def _compute() -> None:
    while True:
        sum(range(10_000))


if __name__ == "__main__":
    main()
