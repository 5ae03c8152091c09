"""bm25 search on the shipped QA corpus where it lies beside the checkout, else on the handbook.

Baseline: counting the question's words in every passage, without an index.
"""

import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.figures import Figure, percentiles, print_figures, timed, times
from strategies.base import Passage
from strategies.retrievers.bm25 import Bm25Retriever, build_index, read_corpus

SHARED = Path(__file__).parents[2] / "shared" / "data" / "qa"
HANDBOOK = Path(__file__).parents[1] / "examples" / "handbook"


def main() -> None:
    """Print the table."""
    corpus = (SHARED if SHARED.exists() else HANDBOOK) / "corpus.jsonl"
    lines = (corpus.parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["question"] for line in lines]
    passages = list(read_corpus(corpus))
    with tempfile.TemporaryDirectory() as folder:
        seconds = timed(lambda: build_index(passages, f"{folder}/index"))
        retriever = Bm25Retriever(f"{folder}/index")
        with asyncio.Runner() as runner:
            count = min(269, len(questions))
            found = times(lambda n: runner.run(retriever.search(questions[n], k=5)), count=count)
    counted = [Counter(f"{p.title} {p.text}".lower().split()) for p in passages]
    scan = times(lambda n: _scan(questions[n], counted, passages), count=20)
    ours, baseline = percentiles(found), percentiles(scan)
    print_figures(
        f"bm25 search, {len(passages):,} passages (index built in {seconds:.1f} s)",
        [
            Figure(name="search p50", unit="ms", ours=ours[0], baseline=baseline[0], against="a scan in Python"),
            Figure(name="search p99", unit="ms", ours=ours[1], baseline=baseline[1], against="a scan in Python"),
        ],
    )


def _scan(question: str, counted: list[Counter[str]], passages: list[Passage]) -> list[Passage]:
    words = question.lower().split()
    scores = [sum(count[word] for word in words) for count in counted]
    return [passages[i] for i in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:5]]


if __name__ == "__main__":
    main()
