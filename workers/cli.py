"""The command's root: the router's verbs and those that need arms."""

import contextlib
import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from router import config as configuration
from router.bootstrap import check_policy, open_database
from router.cli import ConfigOption, JsonOption, add_verbs, failing_well, print_json
from router.cli_logs import add_log_verbs
from router.cli_offline import add_offline_verbs
from router.cli_replay import add_replay_verb
from router.errors import ConfigError
from workers.main import QUEUES, check_arms, index_folder, make_retriever, run_worker, set_up_log

__all__ = ["app", "main"]

console = Console(emoji=False)

app = typer.Typer(
    name="ragbandit",
    help="Per question, the cheapest retrieval strategy that gets it right, learned online.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
index = typer.Typer(help="Build and inspect passage indexes.", no_args_is_help=True)
app.add_typer(index, name="index")
add_verbs(app, check=check_arms)
add_offline_verbs(app)
add_log_verbs(app)
add_replay_verb(app)


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", help="print the version and end", is_eager=True)] = False,
) -> None:
    """Per question, the cheapest retrieval strategy that gets it right, learned online."""
    if version:
        console.print(f"ragbandit {importlib.metadata.version('ragbandit')}", highlight=False)
        raise typer.Exit


@app.command()
def up(config: ConfigOption = None) -> None:
    """Run everything on this machine: Redis, service, workers, learner. Ctrl-C stops all."""
    from workers.supervisor import Supervisor

    with failing_well():
        settings = configuration.load(config).settings
        check_arms(settings)
        check_policy(settings)
        if settings.worker_arms and settings.workers.answer:
            make_retriever(settings)  # a missing index is said here, not in a worker's log
        open_database(settings).close()
        supervisor = Supervisor(settings, config=config)
        try:
            supervisor.start()
            with console.status("starting: the first time weights are fetched and converted"):
                supervisor.wait_ready(timeout_s=600)
            console.print(f"RagBandit answers at {supervisor.url} (docs: {supervisor.url}/docs). Ctrl-C stops it.")
            supervisor.run()
        finally:
            with contextlib.suppress(KeyboardInterrupt):
                supervisor.stop()
    console.print("stopped")


@app.command()
def worker(
    config: ConfigOption = None,
    queue: Annotated[list[str] | None, typer.Option(help="answer or learn; repeat it; default both")] = None,
    burst: Annotated[bool, typer.Option(help="end when the queues are empty")] = False,
) -> None:
    """Take jobs: answer decisions, learn from feedback."""
    with failing_well():
        queues = queue or list(QUEUES)
        unknown = [name for name in queues if name not in QUEUES]
        if unknown:
            raise ConfigError(f"unknown queue {unknown[0]!r}", field="queue", remedy=f"use {' or '.join(QUEUES)}")
        run_worker(configuration.load(config).settings, queues=queues, burst=burst)


IndexOption = Annotated[str | None, typer.Option("--index", help="name or folder; default: the configured one")]


@index.command()
def build(
    corpus: Annotated[Path, typer.Option(help="JSONL with id, title and text")],
    index_name: IndexOption = None,
    popularity: Annotated[bool, typer.Option(help="count who is mentioned how often, for policy popularity")] = True,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build an index from a corpus."""
    from strategies.popularity import write_popularity
    from strategies.retrievers.bm25 import build_index, read_corpus

    with failing_well():
        folder = index_folder(configuration.load(config).settings, name=index_name)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("indexing", total=None)

            def show(done: int) -> None:
                progress.update(bar, completed=done)

            facts = build_index(read_corpus(corpus), folder, progress=show)
            if popularity:
                progress.update(bar, description="counting mentions")
                facts = {**facts, "popularity": str(write_popularity(lambda: read_corpus(corpus), folder))}
        _show_index(folder, facts=facts, as_json=as_json)


@index.command()
def info(index_name: IndexOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """What an index holds."""
    from strategies.retrievers.bm25 import read_meta

    with failing_well():
        folder = index_folder(configuration.load(config).settings, name=index_name)
        _show_index(folder, facts=read_meta(folder), as_json=as_json)


def _show_index(folder: Path, *, facts: Mapping[str, object], as_json: bool) -> None:
    shown = {"folder": str(folder), **facts}
    if as_json:
        print_json(shown)
        return
    for key, value in shown.items():
        console.print(escape(f"{key}: {value}"), soft_wrap=True)


@index.command()
def search(query: str, k: int = 5, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """The best passages for a query."""
    import asyncio

    with failing_well():
        retriever = make_retriever(configuration.load(config).settings)
        hits = asyncio.run(retriever.search(query, k=k))
        if as_json:
            print_json([{"id": h.passage.id, "title": h.passage.title, "score": h.score} for h in hits])
            return
        for hit in hits:
            console.print(f"{hit.score:8.3f}  {escape(hit.passage.id)}  {escape(hit.passage.title)}", soft_wrap=True)


def main() -> None:
    """The entry point of `ragbandit`."""
    # Before torch is loaded: threads that wait for work spin for long by default, which starves the other processes of
    # a small machine; not at all costs two milliseconds per question. A short spin gives the best of both.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    set_up_log()
    app()


if __name__ == "__main__":
    main()
