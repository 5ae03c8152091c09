"""The verbs of `ragbandit index`: build, info and search, for every retriever."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from router import config as configuration
from router.cli import ConfigOption, JsonOption, failing_well, print_json
from router.settings import Settings
from workers.retrieval import index_folder, kind_of, make_retriever, search_once, with_choice

__all__ = ["index"]

console = Console(emoji=False)
index = typer.Typer(help="Build, inspect and search passage indexes.", no_args_is_help=True)

IndexOption = Annotated[str | None, typer.Option("--index", help="name or folder; default: the configured one")]
RetrieverOption = Annotated[
    str | None, typer.Option("--retriever", help="bm25, dense, elasticsearch, hybrid; default: the configured one")
]


@index.command()
def build(
    *,
    corpus: Annotated[Path, typer.Option(help="JSONL or Parquet with id, title and text, or a folder of documents")],
    retriever: RetrieverOption = None,
    index_name: IndexOption = None,
    popularity: Annotated[bool, typer.Option(help="count who is mentioned how often, for policy popularity")] = True,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build an index from a corpus. One of vectors or in Elasticsearch that was cut off goes on where it ended."""
    from strategies.popularity import write_popularity
    from strategies.retrievers.corpus import count_rows, read_corpus

    with failing_well():
        settings = _settings(config, retriever=retriever, index_name=index_name)
        kind = kind_of(settings)
        with _progress() as progress:
            bar = progress.add_task("indexing", total=count_rows(corpus))

            def show(done: int) -> None:
                progress.update(bar, completed=done)

            facts = kind.build(settings, lambda: read_corpus(corpus), show)
            if popularity and "bm25" in _parts(settings):  # the policy looks for its table in that folder
                progress.update(bar, description="counting mentions")
                folder = index_folder(settings)
                facts = {**facts, "popularity": str(write_popularity(lambda: read_corpus(corpus), folder))}
        _show(facts, as_json=as_json)


@index.command()
def info(
    *,
    retriever: RetrieverOption = None,
    index_name: IndexOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What an index holds."""
    with failing_well():
        settings = _settings(config, retriever=retriever, index_name=index_name)
        _show(kind_of(settings).info(settings), as_json=as_json)


@index.command()
def search(
    query: str,
    *,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="that many passages at most")] = 5,
    retriever: RetrieverOption = None,
    index_name: IndexOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """The best passages for a query."""
    with failing_well():
        settings = _settings(config, retriever=retriever, index_name=index_name)
        hits = search_once(make_retriever(settings), query=query, k=k)
        if as_json:
            print_json([{"id": h.passage.id, "title": h.passage.title, "score": h.score} for h in hits])
            return
        for hit in hits:
            console.print(f"{hit.score:8.3f}  {escape(hit.passage.id)}  {escape(hit.passage.title)}", soft_wrap=True)


def _settings(config: str | None, *, retriever: str | None, index_name: str | None) -> Settings:
    return with_choice(configuration.load(config).settings, retriever=retriever, index=index_name)


def _parts(settings: Settings) -> tuple[str, ...]:
    chosen = settings.retriever
    return (chosen.first, chosen.second) if chosen.name == "hybrid" else (chosen.name,)


class _Rate(ProgressColumn):
    """Passages a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _show(facts: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        console.print(escape(f"{key}: {value}"), soft_wrap=True)
