"""The command `ragbandit` and the table of its verbs."""

import contextlib
import ctypes
import gc
import os
from collections.abc import Mapping
from typing import Annotated, Final

import typer
from rich.console import Console

from ragbandit.router.cli.lazy_verbs import LazyGroup, VerbGroup, Verbs
from ragbandit.router.telemetry.logs import set_up_log
from ragbandit.shared.additions import add_fault, offered_places_except
from ragbandit.shared.processes.hung_threads import leave_hung_threads
from ragbandit.shared.processes.this_process import cores
from ragbandit.shared.version import __version__

_ROUTER: Final = "ragbandit.router.verbs"
_WORKERS: Final = "ragbandit.workers.verbs"
#: up to this number of cores, a thread of torch that waits must not spin
_FEW_CORES: Final = 2
#: verbs of `ragbandit policy` whose functions have the same names
_POLICY: Final = ("add", "shadow", "promote", "rollback", "retire", "kill", "resume", "restart", "relearn")

#: heading in the help -> its verbs, in the order shown; the verbs of additions follow
_OURS: Final[Mapping[str, Verbs]] = {
    "Start here": {
        "demo": "ragbandit.examples.handbook.demo:demo",
        "up": f"{_WORKERS}.service:up",
        "validate": f"{_WORKERS}.validate:validate",
        "index": VerbGroup(
            "Build, describe and search passage indexes.",
            {verb: f"{_WORKERS}.index:{verb}" for verb in ("build", "search")},
        ),
    },
    "Run": {
        "serve": f"{_WORKERS}.service:serve",
        "worker": f"{_WORKERS}.service:worker",
        "migrate": f"{_ROUTER}.data:migrate",
        "route": f"{_ROUTER}.calls:route",
        "answer": f"{_ROUTER}.calls:answer",
    },
    "Look": {
        "status": f"{_ROUTER}.status:status",
        "report": f"{_WORKERS}.report:report",
        **{verb: f"{_ROUTER}.inspection:{verb}" for verb in ("explain", "verify")},
    },
    "Judge and change": {
        "feedback": VerbGroup(
            "Judge decisions, import and exclude feedback.",
            {
                "send": f"{_ROUTER}.calls:feedback",
                **{verb: f"{_ROUTER}.feedback:{verb}" for verb in ("quarantined", "exclude")},
            },
        ),
        "policy": VerbGroup(
            "Train policies; roll versions of them out by evidence, back, or stop them.",
            {
                "train": f"{_ROUTER}.training:train_verb",
                "show": f"{_ROUTER}.policy:show_versions",
                **{verb: f"{_ROUTER}.policy:{verb}" for verb in _POLICY},
            },
        ),
        "replay": f"{_ROUTER}.replay:replay_verb",
    },
    "Data and access": {
        "data": VerbGroup(
            "Export, import, erase, back up and reprice what is stored; read questions in other tools' logs.",
            {
                "export": f"{_ROUTER}.data:export",
                "import": f"{_ROUTER}.data:import_",
                "erase": f"{_ROUTER}.data:erase",
                "backup": f"{_ROUTER}.data:backup",
                **{verb: f"{_WORKERS}.reprice:{verb}" for verb in ("reprice", "credit")},
            },
        ),
        "keys": VerbGroup(
            "Make, list, replace and revoke the service's API keys.",
            {
                **{verb: f"{_ROUTER}.access:{verb}_key" for verb in ("create", "revoke")},
                "list": f"{_ROUTER}.access:list_keys",
            },
        ),
        "audit": f"{_ROUTER}.access:audit",
    },
}


def _with_additions(panels: Mapping[str, Verbs]) -> Mapping[str, Verbs]:
    """The verbs, including verbs of additions: "index counts" joins the group `index`, "Run: mcp" the heading "Run"."""
    whole = {heading: dict(verbs) for heading, verbs in panels.items()}
    ours = {verb: known for verbs in panels.values() for verb, known in verbs.items()}
    groups = {name: known.verbs for name, known in ours.items() if isinstance(known, VerbGroup)}
    nested_verbs = (f"{group} {verb}" for group, verbs in groups.items() for verb in verbs)
    for name, place in offered_places_except({*ours, *nested_verbs}, hook="verbs").items():
        heading, _, verb = name.rpartition(": ")
        group, _, nested = verb.partition(" ")
        fitting = [verbs for shown, verbs in whole.items() if (group in verbs if nested else shown == heading)]
        if not fitting:
            add_fault(place, f"its verb {name!r} has no group or heading in the help")
            continue
        (verbs,) = fitting
        known = verbs.get(group)
        if isinstance(known, VerbGroup):
            verbs[group] = known._replace(verbs={**known.verbs, nested: place})
        else:
            verbs[verb] = place
    return whole


PANELS: Final[Mapping[str, Verbs]] = _with_additions(_OURS)
VERBS: Final[Verbs] = {name: verb for verbs in PANELS.values() for name, verb in verbs.items()}


class _Root(LazyGroup):
    verbs = VERBS
    panels = PANELS


app = typer.Typer(
    cls=_Root, name="ragbandit", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
)


def _print_version(requested: bool) -> None:
    if requested:
        Console(emoji=False).print(f"ragbandit {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # a callback prints the version, because click demands a verb before it runs `_root`
        bool, typer.Option("--version", callback=_print_version, help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Per question, the cheapest retrieval strategy that gets it right, learned online."""


def spin_count(*, cores: int) -> str:
    """How often torch's idle threads look for work before they sleep, as GOMP_SPINCOUNT.

    By default they spin for long, which starves other processes on a small machine. With more than two cores, a short
    spin costs little and saves the time of waking them up. With two, a thread that spins holds the core of the event
    loop or of a neighbour: sleeping at once costs less processor time, and one question is faster.
    """
    return "0" if cores <= _FEW_CORES else "1000"


def main() -> None:
    # torch and numpy read the two variables below when they are imported, which happens later. Threads of numpy spin
    # for 20 ms after each matrix product, which does not pay for the small matrices of a router, so numpy gets one
    # thread (docs/machines.md).
    os.environ.setdefault("GOMP_SPINCOUNT", spin_count(cores=cores()))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "MALLOC_ARENA_MAX" not in os.environ:
        # Let all threads share two heaps. By default glibc gives each thread a heap, and rarely returns its memory.
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(-8, 2)  # M_ARENA_MAX
    # Imports create hundreds of thousands of permanent objects. With Python's default threshold of 700 the garbage
    # collector scans them again and again, which takes a fifth of the start-up time.
    gc.set_threshold(50_000)
    set_up_log()
    try:
        app()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        leave_hung_threads(status=status)
        raise
