"""Progress of a verb: bars at a terminal, else lines."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress as Bars, TaskID, TextColumn, TimeRemainingColumn

from ragbandit.shared.texts.formats import one_line

if TYPE_CHECKING:
    from ragbandit.router.offline.estimation import Progress

#: time between two lines of progress if there is no terminal, seconds
LINE_S = 6.0


@contextlib.contextmanager
def show_progress(console: Console) -> "Iterator[Progress]":
    """Show bars, or without a terminal a line every LINE_S seconds. Yields a function of (kind, done, total).

    kind: name of the step with its unit, for example "questions encoded". total: 0 if it is unknown.
    """
    between = ("working", 0, 0)  # a step has ended, and the next one has not reported yet
    with (_bars_on if console.is_terminal else _lines_to)(console) as report:
        report(*between)
        yield lambda kind, done, total: report(*(between if done >= total > 0 else (kind, done, total)))


@contextlib.contextmanager
def _bars_on(console: Console) -> "Iterator[Progress]":
    name, counts = TextColumn("{task.description}"), TextColumn("{task.fields[counts]}")
    with Bars(name, BarColumn(), counts, TimeRemainingColumn(), console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def report(kind: str, done: int, total: int) -> None:
            if kind not in tasks:
                # A new step has begun, even if the former one has not reported its end.
                for former in set(tasks) - {"runs"}:
                    progress.remove_task(tasks.pop(former))
                tasks[kind] = progress.add_task(kind, total=None, counts="")
            progress.update(tasks[kind], completed=done, total=total or None, counts=_counts(done, total))

        yield report


@contextlib.contextmanager
def _lines_to(console: Console) -> "Iterator[Progress]":
    """Print the newest step from a thread, because a step may take long before it reports again."""
    file, began, newest, ended = console.file, time.monotonic(), "", threading.Event()

    def report(kind: str, done: int, total: int) -> None:
        nonlocal newest
        newest = one_line(f"{kind}: {_counts(done, total)}" if done or total else kind)

    def print_lines() -> None:
        while not ended.wait(LINE_S):
            print(f"{newest} ({time.monotonic() - began:.0f} s)", file=file, flush=True)

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()


def _counts(done: int, total: int) -> str:
    return f"{done:,} of {total:,}" if total else f"{done:,}" if done else ""
