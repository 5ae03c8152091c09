"""Ends a process although some of its threads hang, for which Python would wait without a limit."""

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
#: source file of executors' threads. Python waits for these threads even if they are daemons; idle ones end at once
_EXECUTOR: Final = "concurrent/futures/thread.py"


def leave_hung_threads(*, status: int) -> None:
    """End the process if threads for which Python waits do not end within CLOSE_S seconds. Logs what these threads run,
    and which functions of arms still run.
    """
    give_up = time.monotonic() + CLOSE_S
    while (hung := _hung_threads()) and time.monotonic() < give_up:
        time.sleep(0.05)
    of_arms = [
        f"{each.name} at {line_of_thread(each.ident)}" for each in _other_threads() if each.name.startswith("arm ")
    ]
    if hung or of_arms:
        extra = {"action": "close", "threads": "; ".join([*hung, *of_arms][:10]), "count": len(hung) + len(of_arms)}
        log.warning("this process ends without waiting for functions that still run", extra=extra)
    if hung:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _hung_threads() -> list[str]:
    """Name and position in the code of each thread for which Python waits, without idle threads."""
    hung = []
    for thread in _other_threads():
        calls = _calls_of_thread(thread.ident)
        files = [call.filename for call in calls]
        is_idle = not files or files[-1].endswith(_EXECUTOR)
        if not is_idle and (not thread.daemon or any(file.endswith(_EXECUTOR) for file in files)):
            hung.append(f"{thread.name} at {_position_of(calls[-1])}")
    return hung


def _other_threads() -> list[threading.Thread]:
    ours = {threading.current_thread(), threading.main_thread()}
    return [thread for thread in threading.enumerate() if thread not in ours]


def _calls_of_thread(thread: int | None) -> list[traceback.FrameSummary]:
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 - the documented way to ask
    return [] if frame is None else [*traceback.extract_stack(frame)]


def _position_of(call: traceback.FrameSummary) -> str:
    return f"{call.filename}:{call.lineno} {call.name}"


def line_of_thread(thread: int | None) -> str | None:
    """The line of code that the thread with this ident runs, as "file:line function"; None if the thread has ended."""
    calls = _calls_of_thread(thread)
    return _position_of(calls[-1]) if calls else None
