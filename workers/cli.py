"""Command line: the root of `ragbandit`. It knows every verb by its line of help and loads the modules of the one that
runs, so that help is there at once and no verb pays for another's imports.
"""

import os
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from typer.core import TyperCommand
from typer.main import get_group

import ragbandit
from ragbandit.router.cli.console import CommandLine, VerbGroup
from ragbandit.workers.log_setup import set_up_log
from ragbandit.workers.verbs import SECTIONS, all_verbs

__all__ = ["VERBS", "main"]

console = Console(emoji=False)

#: verb -> the section that it is loaded with, and its line in the help: the first paragraph of its own
VERBS: Final[dict[str, tuple[str, str]]] = {
    "serve": (
        "service",
        "Run the HTTP service alone (Redis, workers and the learner run elsewhere). SIGHUP reads the arms again.",
    ),
    "migrate": ("service", "Bring the database to this version's schema."),
    "validate": (
        "validate",
        "Check the configuration and the packages that it needs; print every setting with its value and its source.",
    ),
    "route": ("calls", "Draw an arm for a question; your own pipeline runs it."),
    "answer": ("calls", "Draw an arm for a question and have a worker run it; the answer is printed first."),
    "cancel": ("calls", "Tell the workers not to answer a decision, or to stop where they are."),
    "feedback": ("calls", "Judge a decision: a label, a rating, a reward or an event."),
    "status": (
        "facts",
        "Counts of decisions, learning lag, current snapshot, health of each arm; read from the database.",
    ),
    "verify": (
        "facts",
        "Draw decisions again and learn the ledger again; exit code 1 on any difference.",
    ),
    "explain": (
        "explain",
        "Why a decision was made and what came of it, from its question to its place in the ledger.",
    ),
    "top": ("top", "Reward, quality, cost, savings and traffic of each arm, lag, queues and workers; live."),
    "quarantine": (
        "sources",
        "Decisions that could not be learned, and why. With --source: learn a new ledger without its feedback.",
    ),
    "held": ("sources", "Feedback that is held back, since its source has more than its share; release it."),
    "recount": (
        "facts",
        "Count the tables and correct the counters of every ledger; writes wait meanwhile, a second per million rows.",
    ),
    "archive": (
        "archive",
        "Move old decisions, with all that is known about them, from the database into sealed Parquet files.",
    ),
    "retire": (
        "retire",
        "Let no decision wait for a ledger any more, and remove those that do; what it has learned stays readable.",
    ),
    "erase": (
        "erase",
        "Blank the texts of decisions, in the database and in the archive: questions, answers, traces, labels.",
    ),
    "doctor": ("doctor", "Check a running installation and say what to do; exit code 1 if there is a problem."),
    "backup": (
        "backup",
        "Copy database, snapshots, checkpoints, archive and indexes to a folder while everything runs.",
    ),
    "restore": (
        "backup",
        "Check a backup, put it into an empty place, migrate it and verify it; exit code 1 on any difference.",
    ),
    "keys": ("keys", "Make, list, rotate and revoke the service's API keys."),
    "policy": ("policy", "Roll versions of the policy out by evidence, back, or stop them."),
    "audit": ("audit", "Check and export the log of who did what."),
    "simulate": (
        "offline",
        "Learn from a full-information table as live traffic would, then judge on rows not learned.",
    ),
    "warm": (
        "offline",
        "Let the policy learn a table or a log before the first user; say what it does on questions held out.",
    ),
    "train": ("offline", "Train a policy on a full-information table, for the param `trained`."),
    "export": ("logs", "Write what a ledger learned as a log, in its order; the file is whole or not there."),
    "import": ("logs", "Add a log's rows to a ledger, in the file's order; rows that it has already add nothing."),
    "import-feedback": (
        "import-feedback",
        "Bring ratings and scores from Open WebUI, Langfuse, LangSmith or Phoenix, and say what became of them.",
    ),
    "replay": ("replay", "Estimate the reward of other policies on logged traffic, with intervals."),
    "evaluate": ("evaluate", "Run strategies on labelled questions: quality, steps, time, tokens and price of each."),
    "up": ("start", "Run everything on this machine: Redis, service, workers, learner. Ctrl-C stops all."),
    "worker": ("start", "Take jobs: answer decisions, judge answers, learn from feedback."),
    "index": ("index", "Build, inspect and search passage indexes."),
}


class _Verbs(VerbGroup):
    """The root: lists the verbs from the table, and loads the one that is named."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of click
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature of click
        if cmd_name in self.commands or cmd_name not in VERBS:
            return self.commands.get(cmd_name)
        return TyperCommand(cmd_name, help=VERBS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in VERBS:
            section = CommandLine()
            SECTIONS[VERBS[args[0]][0]](section)
            self.commands.update(get_group(section).commands)
        return super().resolve_command(ctx, args)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"ragbandit {ragbandit.__version__}", highlight=False)
        raise typer.Exit


def _root(
    version: Annotated[  # the callback of the option reads it: click checks for a missing verb before this function
        bool, typer.Option("--version", callback=_print_version, help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Per question, the cheapest retrieval strategy that gets it right, learned online."""


def _command(**options: Any) -> CommandLine:
    made = CommandLine(
        name="ragbandit", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, **options
    )
    made.callback()(_root)
    return made


def __getattr__(name: str) -> Any:
    """`app`: the command with all its verbs loaded, for tests and for those that read its options."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    whole = _command()
    all_verbs(whole)
    globals()["app"] = whole
    return whole


def main() -> None:
    """The entry point of `ragbandit`."""
    # Both are read when a library is loaded, which no verb has done yet. Before torch: threads that wait for work spin
    # for long by default, which starves the other processes of a small machine; not at all costs two milliseconds per
    # question. A short spin gives the best of both. Before numpy: its threads spin 20 ms after each product, however
    # small, and a router multiplies small matrices only (docs/machines.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    set_up_log()
    _command(cls=_Verbs)()


if __name__ == "__main__":
    main()
