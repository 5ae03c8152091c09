"""The local generator: questions a second with many callers at once, against one at a time.

The prompts are those that single_step and multi_step send for questions of the handbook; every run answers the same
ones. `python -m benchmarks.generator [--device cuda] [--callers 16 64] [--questions 256]`.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, print_figures
from ragbandit.router.encoders.weights import DEFAULT_GENERATOR, resolve
from ragbandit.shared.types import Budget, DecisionId, Query
from ragbandit.strategies.base import Request
from ragbandit.strategies.generators.local import LocalGenerator
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index
from ragbandit.strategies.retrievers.corpus import read_corpus
from ragbandit.strategies.runner import run_strategy

HANDBOOK = Path(__file__).parents[1] / "examples" / "handbook"
#: what every call of a recording is answered with: multi_step ends after one thought
SCRIPT = {"": "So the answer is: Ilse Varga."}
#: device -> (callers, questions)
SIZES = {"cpu": ([4, 8, 16], 16), "cuda": ([4, 16, 64], 128)}


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    asked = _asked(arguments)
    folder = resolve(DEFAULT_GENERATOR).folder
    callers, questions = asked.callers or SIZES[asked.device][0], asked.questions or SIZES[asked.device][1]
    calls = asyncio.run(recorded(questions))

    tokens = 0

    def run(at_once: int) -> float:
        nonlocal tokens
        generator = LocalGenerator(folder, device=asked.device, threads=asked.threads, max_batch=at_once)
        rate, tokens = asyncio.run(_rate(generator, calls, callers=at_once))
        return rate

    base = run(1)
    figures = [
        Figure(
            name=f"{each} callers",
            unit="questions/s",
            ours=run(each),
            baseline=base,
            against="one at a time",
            rising=True,
        )
        for each in callers
    ]
    count = sum(map(len, calls))
    written = f"{tokens / count:.1f} tokens written a call"
    print_figures(f"the local generator on {asked.device}: {questions} questions, {count} calls, {written}", figures)


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=list(SIZES), default="cpu")
    parser.add_argument("--callers", type=int, nargs="+", help="how many at once, each a line")
    parser.add_argument("--questions", type=int)
    parser.add_argument("--threads", type=int, help="of the processor; by default torch chooses")
    return parser.parse_args(arguments)


async def recorded(count: int) -> list[list[Request]]:
    """The calls of each of `count` questions, answered by single_step and multi_step in turns."""
    lines = (HANDBOOK / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["question"] for line in lines]
    arms = list(make_arms({"single_step": {}, "multi_step": {}}, capabilities=ScriptedGenerator.capabilities).values())
    found = []
    with tempfile.TemporaryDirectory() as folder:
        build_index(list(read_corpus(HANDBOOK / "corpus.jsonl")), f"{folder}/index")
        retriever = Bm25Retriever(f"{folder}/index")
        for number in range(count):
            recorder = ScriptedGenerator(SCRIPT)
            query = Query(id=DecisionId(f"q{number}"), text=texts[number % len(texts)])
            await run_strategy(arms[number % 2], query=query, budget=Budget(), retriever=retriever, generator=recorder)
            found.append(recorder.requests)
        await retriever.close()
    return found


async def _rate(generator: LocalGenerator, calls: list[list[Request]], *, callers: int) -> tuple[float, int]:
    """(questions a second, tokens written); a question's calls follow one another."""
    waiting = iter(calls)

    async def caller() -> int:
        tokens = 0
        for requests in waiting:
            for request in requests:
                tokens += (await generator.complete(request)).completion_tokens
        return tokens

    await generator.complete(Request(prompt=calls[0][0].prompt, max_tokens=1))  # kernels are loaded at the first call
    began = time.perf_counter()
    tokens = sum(await asyncio.gather(*(caller() for _ in range(callers))))
    spent = time.perf_counter() - began
    await generator.close()
    return len(calls) / spent, tokens


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
