"""Answers again, in a process of its own, each decision whose run ended a service that runs arms itself.

The process is a child of the service: `python -m ragbandit.workers.processes.apart FD`. It reads the settings and the
folders of modules from the pipe FD, runs one decision at a time, and ends when none waits. If a run ends this process
too, its decision fails, and no other one.
"""

import json
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import FrameType

from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.setup.bootstrap import make_decision_store, make_jobs, open_database
from ragbandit.router.storage.jobs.answers import AnswerQueue
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.telemetry.logs import set_service_log
from ragbandit.shared.processes.child_process import ChildProcess, end_children
from ragbandit.shared.processes.this_process import end_with_parent
from ragbandit.shared.types import ArmName, Json, PolicyLabel
from ragbandit.workers.chores import start_chores
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.queued import answer
from ragbandit.workers.setup.generators import inline_arms

log = logging.getLogger("ragbandit.worker")


class AnswersApart:
    """Starts this process when a decision waits for it.

    settings: the settings of the service as JSON values. arms: the arms that the service runs itself.
    """

    def __init__(self, settings: Mapping[str, Json], *, arms: Sequence[ArmName], queue: AnswerQueue) -> None:
        self._settings, self._arms, self._queue = settings, arms, queue
        self._child: ChildProcess | None = None

    def start_if_due(self) -> None:
        """Start the process if it does not run and a decision waits. Raises StoreError."""
        if (self._child is not None and self._child.is_running()) or not self._queue.has_interrupted(within=self._arms):
            return
        ours, theirs = Pipe()
        with closing(ours), closing(theirs):
            file = theirs.fileno()
            command = [sys.executable, "-m", __name__, str(file)]
            self._child = ChildProcess("apart", command=command, pass_fds=[file])
            self._child.start()
            sent = {"settings": self._settings, "path": sys.path}
            ours.send_bytes(json.dumps(sent).encode())

    def end(self) -> None:
        """End the process, which gives its decision back."""
        if self._child is not None:
            end_children([self._child], drain_s=1.0, cut_off_s=1.0)


def main() -> None:
    """Answer the waiting decisions one by one."""
    end_with_parent()
    with closing(Connection(int(sys.argv[1]))) as pipe:
        sent = json.loads(pipe.recv_bytes())
    sys.path[:] = sent["path"]
    settings = Settings.model_validate(sent["settings"])
    set_service_log(settings.log.format)
    label = PolicyLabel(settings.policy.label)
    with closing(open_database(settings, make=False)) as database, closing(make_jobs(settings)) as jobs:
        store, ledger = make_decision_store(settings, database), Ledger(database, label=label)
        context = Context(settings=settings, store=store, ledger=ledger, jobs=jobs)
        context.arms = context.loader.load(inline_arms(settings))
        context.open_loop()
        _answer_all(context)


def _answer_all(context: Context) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        context.ending.set()
        if context.loop is not None:
            context.loop.interrupt()

    signal.signal(signal.SIGTERM, interrupt)
    routines = start_chores(context)
    try:
        while not context.ending.is_set():
            claimed = context.queue.claim(has_run=True, within=list(context.arms))
            run = None if claimed is None else context.active_runs.begin(claimed)
            if run is None:
                return
            log.info("a decision whose run ended a process runs again, alone", extra={"decision": run.decision_id})
            answer(context, run)
    finally:
        for routine in routines:
            routine.close()
        context.close()


if __name__ == "__main__":
    main()
