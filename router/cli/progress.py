"""Progress bars of long commands, on stderr."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ragbandit.router.offline.types import Progress

__all__ = ["bars"]


@contextlib.contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """Progress bars, one for each kind of work, with rate and time left; gone at the end; none in a pipe.

    A total of 0 is not known.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for ended in set(tasks) - {"runs"}:  # it may have stopped before its last step
                    progress.remove_task(tasks.pop(ended))
                tasks[what] = progress.add_task(what, total=None, rate="")
            speed = progress.tasks[progress.task_ids.index(tasks[what])].speed
            rate = f"{speed:,.0f}/s" if speed and speed >= 10 else f"{speed:.1f}/s" if speed else ""
            progress.update(tasks[what], completed=done, total=total or None, rate=rate)
            if done == total:
                progress.remove_task(tasks.pop(what))

        yield report
