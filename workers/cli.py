"""Command line: the root of `ragbandit`, with the router's verbs and those that need arms."""

import asyncio
import contextlib
import os
from typing import Annotated

import typer
from rich.console import Console

import ragbandit
from ragbandit.router.cli.console import CommandLine, ConfigOption, HostOption, PortOption, failing_well, listen_on
from ragbandit.router.cli.logs import add_log_verbs
from ragbandit.router.cli.replay import add_replay_verb
from ragbandit.router.cli.service import add_verbs
from ragbandit.router.cli.simulate import add_offline_verbs
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import ConfigError
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.serving.bootstrap import open_database
from ragbandit.workers.evaluation.command import add_evaluate_verb
from ragbandit.workers.evaluation.ragquesteval import judge_templates
from ragbandit.workers.index import index
from ragbandit.workers.log_setup import set_up_log
from ragbandit.workers.process import QUEUES, run_worker
from ragbandit.workers.wiring.arms import check_arms
from ragbandit.workers.wiring.generators import check_generator
from ragbandit.workers.wiring.retrievers import make_retriever

__all__ = ["app", "main"]

console = Console(emoji=False)


def _check_more(settings: Settings) -> None:
    """Refuse a generator that no worker could make, and prompts that no judge of `evaluate` could use.

    Raises ConfigError.
    """
    check_generator(settings, fetch=False)
    judge_templates(settings.judge.templates)


app = CommandLine(
    name="ragbandit",
    help="Per question, the cheapest retrieval strategy that gets it right, learned online.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(index, name="index")
add_verbs(app, check=check_arms, check_more=_check_more)
add_offline_verbs(app)
add_log_verbs(app)
add_replay_verb(app)
add_evaluate_verb(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"ragbandit {ragbandit.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # the callback of the option reads it: click checks for a missing verb before this function
        bool, typer.Option("--version", callback=_print_version, help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Per question, the cheapest retrieval strategy that gets it right, learned online."""


@app.command()
def up(config: ConfigOption = None, host: HostOption = None, port: PortOption = None) -> None:
    """Run everything on this machine: Redis, service, workers, learner. Ctrl-C stops all."""
    from ragbandit.workers.supervisor import Supervisor

    with failing_well():
        listen_on(host=host, port=port)
        loaded = configuration.load(config)
        settings = loaded.settings
        check_arms(settings)
        check_policy(settings)
        if settings.worker_arms and settings.workers.answer:
            # What would end every worker is said here, not in their logs.
            asyncio.run(make_retriever(settings).close())
            check_generator(settings, fetch=True)
        open_database(settings).close()
        supervisor = Supervisor(loaded)
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


def main() -> None:
    """The entry point of `ragbandit`."""
    # Before torch is loaded: threads that wait for work spin for long by default, which starves the other processes of
    # a small machine; not at all costs two milliseconds per question. A short spin gives the best of both.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    set_up_log()
    app()


if __name__ == "__main__":
    main()
