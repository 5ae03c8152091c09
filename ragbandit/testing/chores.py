"""Check of the contract of chores. It needs no test framework, no model and no Redis.

    def test_mine():
        check_chore(Mine)

It raises AssertionError if the chores of a class break the contract.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.shared.types import Json
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context


def check_chore(kind: type[Chore], *, settings: Mapping[str, Json] | None = None) -> None:
    """Runs the chores of a class once, in a process that learns, with a store of its own.

    settings: keys of the configuration without which the class has no chore.
    """
    with learning_process(settings or {}) as context:
        chores, unused = [*kind.of(context)], [*kind.of(context)]
        assert chores, "`of` returns no chore: give the settings that it needs"
        assert len({chore.title for chore in chores}) == len(chores), "two chores have one title"
        for chore in chores:
            assert chore.title, "a chore has a title"
            assert chore.every_s, f"every_s is {chore.every_s!r}: seconds above 0"
            assert _is_wait(chore.every_s), f"every_s is {chore.every_s!r}, not seconds"
        for chore in chores:
            wait_s = chore.do()
            assert wait_s is None or _is_wait(wait_s), f"`do` returned {wait_s!r}, neither None nor seconds"
        for chore in [*chores, *unused]:  # a process may end before the first run
            chore.end()


@contextmanager
def learning_process(settings: Mapping[str, Json]) -> Iterator[Context]:
    """The context of a process that learns, with a store of SQLite in a folder that is deleted at the end."""
    usual: dict[str, Json] = {"arms": {"mine": {"run_by": "caller"}}, "encoder": {"model": "hashing"}}
    with tempfile.TemporaryDirectory() as folder:
        given = Settings.model_validate({**usual, **settings, "data_dir": folder})
        with Router.open(given, jobs=MemoryJobs()) as router:
            jobs = router.process.jobs
            learner = make_learner(given, router.ledger, jobs=jobs)
            context = Context(settings=given, store=router.store, ledger=router.ledger, jobs=jobs, learner=learner)
            try:
                yield context
            finally:
                context.close()


def _is_wait(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
