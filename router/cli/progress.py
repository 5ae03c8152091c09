"""Progress bars of long commands."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ragbandit.router.offline.simulation.process_pool import Progress as Report

__all__ = ["bars"]


@contextlib.contextmanager
def bars(console: Console) -> Iterator[Report]:
    """Progress bars, one for each kind of work, with rate and time left; gone at the end; none in a pipe."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for ended in set(tasks) - {"runs"}:  # it may have stopped before its last step
                    progress.remove_task(tasks.pop(ended))
                tasks[what] = progress.add_task(what, rate="")
            speed = progress.tasks[progress.task_ids.index(tasks[what])].speed
            progress.update(tasks[what], completed=done, total=total, rate=f"{speed:.1f}/s" if speed else "")
            if done == total:
                progress.remove_task(tasks.pop(what))

        yield report
