"""Child processes: how a process ends together with the one that started it."""

import ctypes
import os
import signal
import sys

__all__ = ["PARENT_VARIABLE", "die_with_parent", "end_with_parent"]


#: set by `ragbandit up` for its children; outside the prefix, since it is no setting
PARENT_VARIABLE = "_RAGBANDIT_PARENT"


def die_with_parent() -> None:
    """On Linux, have a child of `ragbandit up` end when the supervisor is gone, however it went."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or not sys.platform.startswith("linux"):
        return
    end_with_parent()
    if os.getppid() != int(parent):  # it died before we asked
        raise SystemExit(0)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent dies."""
    if sys.platform.startswith("linux"):
        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
