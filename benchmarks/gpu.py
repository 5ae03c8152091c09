"""The encoder on a graphics card: questions per second by batch, and how long one question takes.

`python -m benchmarks.gpu` takes about two minutes, the loading of the weights included. Without a card it says so and
measures the processor with fewer questions. The questions are the handbook's and those of the reference file, 6 to 40
tokens long.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Sequence

# As the command has them; before numpy and torch are loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from rich.console import Console
from rich.table import Table

from benchmarks.encoder import QUESTIONS
from benchmarks.figures import machine, percentiles
from ragbandit.router.encoders.distilbert import DistilBertEncoder
from ragbandit.router.encoders.lexical import lexical_counts
from ragbandit.router.encoders.projection import references
from ragbandit.router.encoders.tokens import TokenBatch, token_batches

SIZES = (1, 8, 32, 64, 128, 256, 512, 2048)
ALONE = 1000


def main(argv: Sequence[str] | None = None) -> None:
    """Print three tables: batches, one question, and where the time of a batch of 512 goes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size of batch")
    given = parser.parse_args(argv)
    texts = [*QUESTIONS, *references().questions] * 3
    console = Console(width=110)
    encoder = DistilBertEncoder()
    console.print(f"{encoder.source}, {encoder.precision} on {encoder.device}")
    if encoder.device == "cpu":
        console.print("no graphics card here: these are the processor's figures, a tenth of the time each")
        given.seconds /= 10
    encoder.encode(texts[:512])
    console.print(_batches(encoder, texts, seconds=given.seconds))
    console.print(_alone(encoder, texts, count=ALONE if encoder.device != "cpu" else 50))
    console.print(_parts(encoder, texts[:512]))
    console.print(machine())


def _batches(encoder: DistilBertEncoder, texts: list[str], *, seconds: float) -> Table:
    table = Table("questions at once", "callers", "questions/s", title="encode()")
    for size in SIZES:
        for callers in (1, 2, 4):
            table.add_row(
                f"{size:,}",
                str(callers),
                f"{_rate(encoder, texts, size=size, callers=callers, seconds=seconds / 3):,.0f}",
            )
    return table


def _rate(encoder: DistilBertEncoder, texts: list[str], *, size: int, callers: int, seconds: float) -> float:
    """Questions per second of callers that each give one batch after another."""
    done = [0] * callers
    until = time.perf_counter() + seconds

    def ask(caller: int) -> None:
        at = caller * 37
        while time.perf_counter() < until:
            at = (at + size) % (len(texts) - size)
            encoder.encode(texts[at : at + size])
            done[caller] += size

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(callers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


def _alone(encoder: DistilBertEncoder, texts: list[str], *, count: int) -> Table:
    times = []
    for place in range(count):
        began = time.perf_counter()
        encoder.encode([texts[place % len(texts)]])
        times.append(1000 * (time.perf_counter() - began))
    middle, far = percentiles(times)
    table = Table("p50", "p99", "longest", title=f"one question, {count} times, nothing else running")
    table.add_row(*(f"{value:.2f} ms" for value in (middle, far, max(times))))
    return table


def _parts(encoder: DistilBertEncoder, texts: list[str]) -> Table:
    """Each part of encode() by itself, on this thread or on the encoder's, microseconds per question."""
    # The parts are the encoder's own: what is measured is what runs.
    rows = encoder._tokenizer.batch(texts)  # noqa: SLF001
    batches = [batch for _, batch in token_batches(rows, most_questions=512, most_tokens=32_768)]
    forward, projection = encoder._forward, encoder._projection  # noqa: SLF001
    counts = lexical_counts(texts)
    product = encoder._thread.submit(forward.product, batches[0]).result()  # noqa: SLF001

    def computed(one: TokenBatch) -> object:
        return encoder._thread.submit(forward.product, one).result()  # noqa: SLF001

    parts: dict[str, Callable[[], object]] = {
        "tokenise": lambda: encoder._tokenizer.batch(texts),  # noqa: SLF001
        "order and pad": lambda: list(token_batches(rows, most_questions=512, most_tokens=32_768)),
        "copy, forward, pool, project": lambda: [computed(one) for one in batches],
        "lexical counts": lambda: lexical_counts(texts),
        "kernel": lambda: projection.from_product(product, counts=counts[: len(product)], dimension=encoder.dimension),
        "all of encode()": lambda: encoder.encode(texts),
    }
    table = Table("part", "us per question", title=f"{len(texts)} questions at once")
    for name, work in parts.items():
        work()
        times = []
        for _ in range(20 if encoder.device != "cpu" else 1):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        table.add_row(name, f"{1e6 * sorted(times)[len(times) // 2] / len(texts):.2f}")
    return table


if __name__ == "__main__":
    main()
