"""Ends a process whose event loop is blocked by an arm, since nothing on it can be cancelled."""

import logging
import os
from collections.abc import Iterable

from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context

log = logging.getLogger("ragbandit.worker")


class BlockedLoop(Chore):
    title = "watch the event loop"
    every_s = 1.0
    of_learner = False

    @classmethod
    def of(cls, context: Context) -> "Iterable[BlockedLoop]":
        return [] if context.watch is None else [cls(context)]

    def do(self) -> None:
        """Exit if the loop is blocked. A supervisor starts a new process."""
        context, watch = self.context, self.context.watch
        if watch is None or context.ending.is_set() or watch.answers() or context.ending.is_set():
            return
        arms = ",".join(dict.fromkeys(context.active_runs.arms()))
        extra = {"action": "blocked", "arms": arms, "at": watch.position()}
        log.critical(
            "an arm blocks the event loop, so this process ends; make the arm await what it waits for", extra=extra
        )
        context.store.database.close()
        logging.shutdown()
        os._exit(1)  # sys.exit would wait for threads that wait for the blocked loop
