"""The local generator: questions a second of 8 callers at once, in float32, and a checksum of all that it wrote.

The questions are those of `python -m benchmarks.generator`. Where the checksum is the same, so are the texts.
"""

import asyncio
import time
from zlib import crc32

from benchmarks.generator import recorded
from ragbandit.router.encoders.weights import DEFAULT_GENERATOR, resolve
from ragbandit.strategies.base import Request
from ragbandit.strategies.generators.local import LocalGenerator

CALLERS, QUESTIONS = 8, 24


def measure() -> dict[str, float]:
    """Answers a second, seconds of CPU per answer, and the texts' checksum."""
    calls = asyncio.run(recorded(QUESTIONS))
    generator = LocalGenerator(resolve(DEFAULT_GENERATOR).folder, device="cpu", precision="float32", max_batch=CALLERS)
    return asyncio.run(_measured(generator, calls))


async def _measured(generator: LocalGenerator, calls: list[list[Request]]) -> dict[str, float]:
    waiting, texts = iter(enumerate(calls)), list[tuple[int, int, str]]()

    async def caller() -> None:
        for number, requests in waiting:
            for place, request in enumerate(requests):
                texts.append((number, place, (await generator.complete(request)).text))

    await generator.complete(Request(prompt=calls[0][0].prompt, max_tokens=1))  # kernels are loaded at the first call
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    spent, computed = time.perf_counter() - began, time.process_time() - cpu
    await generator.close()
    return {
        f"{CALLERS} callers [/s]": len(calls) / spent,
        f"{CALLERS} callers [s of CPU per question]": computed / len(calls),
        "checksum of the texts [number]": float(crc32(repr(sorted(texts)).encode()) % 1_000_000),
    }
