"""Search on the shipped QA corpus where it lies beside the checkout, else on the handbook: bm25, dense, Elasticsearch.

Baseline of bm25: counting the question's words in every passage, without an index. Dense: where DENSE_MODEL
names a folder or its hub name can be resolved; over the first passages only, for a CPU encodes some dozens a second:
DENSE_PASSAGES says how many, 0 is all. Where faiss is installed, also the graph against comparing every vector.
Elasticsearch: where ELASTICSEARCH_URL names a server; then also how far its ten best and those of bm25 agree.
"""

import asyncio
import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.figures import Figure, percentiles, print_figures, timed, times
from ragbandit.router.config.settings import RetrieverSettings
from ragbandit.router.encoders.weights import resolve
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Passage, Retriever
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index
from ragbandit.strategies.retrievers.corpus import read_corpus

SHARED = Path(__file__).parents[2] / "shared" / "data" / "qa"
#: passages that the dense benchmark encodes
DENSE = int(os.environ.get("DENSE_PASSAGES", "200")) or None
INDEX = "ragbandit-benchmark"
console = Console(width=130)
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
    _dense(passages[:DENSE], questions)
    _elasticsearch(passages, questions)


def _dense(passages: list[Passage], questions: list[str]) -> None:
    try:
        model = os.environ.get("DENSE_MODEL") or RetrieverSettings().model
        folder = resolve(model, setting="retriever.model").folder
    except ConfigError as error:
        console.print(f"no dense search: {escape(str(error))}")
        return
    from ragbandit.strategies.retrievers import dense
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder

    encoder = SentenceEncoder(folder)
    with tempfile.TemporaryDirectory() as folder_name:
        place = Path(folder_name) / "index"
        seconds = timed(lambda: dense.build_index(passages, place, encoder=encoder))
        retriever = dense.DenseRetriever(place, encoder=encoder)
        with asyncio.Runner() as runner:
            found = times(lambda n: runner.run(retriever.search(questions[n % len(questions)], k=5)), count=100)
            vectors = np.fromfile(place / "vectors.float16", dtype=np.float16).reshape(len(passages), encoder.width)
        alone = times(lambda n: encoder.encode([questions[n % len(questions)]]), count=100)
    ours, baseline = percentiles(found), percentiles(alone)
    print_figures(
        f"dense search, {len(passages):,} passages (encoded at {len(passages) / seconds:.0f} a second)",
        [
            Figure(name="search p50", unit="ms", ours=ours[0], baseline=baseline[0], against="encoding the question"),
            Figure(name="search p99", unit="ms", ours=ours[1], baseline=baseline[1], against="encoding the question"),
        ],
    )
    _faiss(vectors, encoder.encode(list(dict.fromkeys(questions))))


def _faiss(vectors: npt.NDArray[np.float16], asked: npt.NDArray[np.float32]) -> None:
    """The graph against comparing every vector: how many of the ten nearest it names, and how long that takes."""
    from ragbandit.strategies.retrievers.dense import GRAPH, NearGraph, faiss_module, write_graph

    try:
        faiss_module()
    except ConfigError as error:
        console.print(f"no faiss: {escape(str(error))}")
        return
    whole = vectors.astype(np.float32)  # (passages, width)
    with tempfile.TemporaryDirectory() as folder:
        seconds = timed(lambda: write_graph(vectors, Path(folder) / GRAPH))
        graph = NearGraph(Path(folder) / GRAPH, passages=len(vectors), width=vectors.shape[1])

        def by_graph(query: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
            places = graph.near(query, k=10)
            return places[np.argsort(-(whole[places] @ query))[:10]]

        def by_all(query: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
            return np.argpartition(-(whole @ query), 9)[:10]

        recall = float(np.mean([np.isin(by_all(query), by_graph(query)).mean() for query in asked]))
        ours = percentiles(times(lambda n: by_graph(asked[n % len(asked)]), count=300))
        baseline = percentiles(times(lambda n: by_all(asked[n % len(asked)]), count=300))
    print_figures(
        f"faiss over {len(vectors):,} passages, {len(asked)} questions (graph built in {seconds:.1f} s)",
        [
            Figure(
                name="recall of the 10 nearest",
                unit="%",
                ours=100 * recall,
                baseline=100.0,
                against="every vector",
                rising=True,
            ),
            Figure(name="nearest p50", unit="ms", ours=ours[0], baseline=baseline[0], against="every vector"),
            Figure(name="nearest p99", unit="ms", ours=ours[1], baseline=baseline[1], against="every vector"),
        ],
    )


def _elasticsearch(passages: list[Passage], questions: list[str]) -> None:
    url = os.environ.get("ELASTICSEARCH_URL")
    if not url:
        console.print("no Elasticsearch: set ELASTICSEARCH_URL to compare with one")
        return
    from ragbandit.strategies.retrievers import elasticsearch

    with elasticsearch.connect(url) as client, tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        seconds = timed(lambda: elasticsearch.build_index(passages, client=client, index=INDEX))
        build_index(passages, f"{folder}/index")
        theirs = elasticsearch.ElasticsearchRetriever(url, index=INDEX)
        ours = Bm25Retriever(f"{folder}/index")
        local = percentiles(times(lambda n: runner.run(ours.search(questions[n], k=5)), count=len(questions)))
        remote = percentiles(times(lambda n: runner.run(theirs.search(questions[n], k=5)), count=len(questions)))
        agreement = [
            (_overlap(question, pair=(ours, theirs), runner=runner), question) for question in dict.fromkeys(questions)
        ]
        runner.run(theirs.close())
        client.indices.delete(index=",".join(client.indices.get_alias(name=INDEX).body))
    print_figures(
        f"bm25 on disk and Elasticsearch, {len(passages):,} passages (loaded in {seconds:.1f} s)",
        [
            Figure(name="search p50", unit="ms", ours=local[0], baseline=remote[0], against="Elasticsearch"),
            Figure(name="search p99", unit="ms", ours=local[1], baseline=remote[1], against="Elasticsearch"),
        ],
    )
    _print_agreement(agreement)


def _overlap(question: str, *, pair: tuple[Retriever, Retriever], runner: asyncio.Runner) -> float:
    """Share of the second's ten best that the first has among its own; 1.0 where neither finds anything."""
    one, two = ({hit.passage.id for hit in runner.run(retriever.search(question, k=10))} for retriever in pair)
    return len(one & two) / max(len(one), len(two)) if one or two else 1.0


def _print_agreement(agreement: list[tuple[float, str]]) -> None:
    mean, same = sum(share for share, _ in agreement) / len(agreement), sum(share == 1 for share, _ in agreement)
    title = f"ten best shared: mean {mean:.3f}, all of them for {same} of {len(agreement)} questions; least for:"
    table = Table("shared", "question", title=title)
    for share, question in sorted(agreement)[:10]:
        table.add_row(f"{share:.1f}", escape(question))
    console.print(table)


def _scan(question: str, counted: list[Counter[str]], passages: list[Passage]) -> list[Passage]:
    words = question.lower().split()
    scores = [sum(count[word] for word in words) for count in counted]
    return [passages[i] for i in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:5]]


if __name__ == "__main__":
    main()
