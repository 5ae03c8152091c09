"""The end of a process whose threads hang: Python would wait for them, without a limit."""

import logging
import os
import sys
import threading
import time
import traceback
from typing import Final

log = logging.getLogger("ragbandit.worker")

#: time for threads to end by themselves, seconds
CLOSE_S: Final = 5.0
#: file of the threads of executors. Python waits for them although they are daemons; those that run nothing end at once
_EXECUTOR: Final = "concurrent/futures/thread.py"


def leave_hung_threads(*, status: int) -> None:
    """If threads for which Python waits do not end within CLOSE_S, end the process without them. Logs what they run,
    and which functions of arms still run.
    """
    give_up = time.monotonic() + CLOSE_S
    while (hung := _hung()) and time.monotonic() < give_up:
        time.sleep(0.05)
    of_arms = [f"{each.name} at {line_of_thread(each.ident)}" for each in _others() if each.name.startswith("arm ")]
    if hung or of_arms:
        extra = {"action": "close", "threads": "; ".join([*hung, *of_arms][:10]), "count": len(hung) + len(of_arms)}
        log.warning("functions still run as this process ends, which does not wait for them", extra=extra)
    if hung:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _hung() -> list[str]:
    """Name and position of each thread for which Python waits and that runs something."""
    hung = []
    for thread in _others():
        calls = _calls(thread.ident)
        files = [call.filename for call in calls]
        is_idle = not files or files[-1].endswith(_EXECUTOR)
        if not is_idle and (not thread.daemon or any(file.endswith(_EXECUTOR) for file in files)):
            hung.append(f"{thread.name} at {_place(calls[-1])}")
    return hung


def _others() -> list[threading.Thread]:
    ours = {threading.current_thread(), threading.main_thread()}
    return [thread for thread in threading.enumerate() if thread not in ours]


def _calls(thread: int | None) -> list[traceback.FrameSummary]:
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 - the documented way to ask
    return [] if frame is None else [*traceback.extract_stack(frame)]


def _place(call: traceback.FrameSummary) -> str:
    return f"{call.filename}:{call.lineno} {call.name}"


def line_of_thread(thread: int | None) -> str | None:
    """The line of code that the thread with this ident runs, as "file:line function"; None if it has ended."""
    calls = _calls(thread)
    return _place(calls[-1]) if calls else None
