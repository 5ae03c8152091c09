"""Command `ragbandit index`: builds, describes and searches the index of any retriever."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ragbandit.router.cli.console import errors, interruptible
from ragbandit.router.cli.options import ConfigOption, JsonOption
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.tables import show, show_list
from ragbandit.router.config import loading as configuration
from ragbandit.strategies.retrievers.corpus import log_left_out, read_corpus
from ragbandit.workers.setup.retrievers import Facts, RetrieverKind, retriever_kind, search_once, with_choice

IndexOption = Annotated[
    str | None, typer.Option("--index", help="name or folder (dense adds -dense); default: the configured index")
]
RetrieverOption = Annotated[
    str | None, typer.Option("--retriever", help="name in `retrievers`, or a kind: bm25, dense")
]


def build(
    *,
    corpus: Annotated[Path, typer.Option(help="JSONL, Parquet or TSV with id, title, text; or a folder of documents")],
    retriever: RetrieverOption = None,
    index_name: IndexOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build an index from a corpus. The old index is used until the new one is complete."""
    show(build_index(_kind(config, retriever=retriever, index_name=index_name), corpus=corpus), as_json=as_json)


def build_index(kind: RetrieverKind, *, corpus: Path) -> Facts:
    """Build the index of a retriever, with a progress bar. Returns its description."""
    left_out = set[str]()

    def leave_out(where: str, reason: str) -> None:
        if where not in left_out:  # a hybrid index reads the corpus twice
            left_out.add(where)
            log_left_out(where, reason)

    rows = partial(read_corpus, corpus, leave_out=leave_out)
    with interruptible("stopped; the same command starts from the beginning"), show_progress(errors) as progress:
        description = kind.build_index(rows, lambda done: progress("passages indexed", done, 0))
    return {**description, "left_out": len(left_out)} if left_out or corpus.is_dir() else description


def search(
    query: Annotated[str | None, typer.Argument(metavar="[QUERY]", help="default: only describe the index")] = None,
    *,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="maximum number of passages")] = 5,
    retriever: RetrieverOption = None,
    index_name: IndexOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the best passages for a query. If no query is given, print the description of the index."""
    kind = _kind(config, retriever=retriever, index_name=index_name)
    if query is None:
        show(kind.info(), as_json=as_json)
        return
    hits = search_once(kind.open(), query=query, k=k)
    rows = [{"id": h.passage.id, "title": h.passage.title, "score": h.score} for h in hits]
    show_list(rows, none="nothing was found", as_json=as_json)


def _kind(config: str | None, *, retriever: str | None, index_name: str | None) -> RetrieverKind:
    return retriever_kind(with_choice(configuration.load(config).settings, retriever=retriever, index=index_name))
