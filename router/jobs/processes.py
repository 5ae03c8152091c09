"""Processes: how a child ends together with the one that started it, and how a service spares its garbage collector."""

import ctypes
import gc
import os
import signal
import sys

__all__ = ["PARENT_VARIABLE", "die_with_parent", "end_with_parent", "keep_what_is_loaded"]


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


def keep_what_is_loaded() -> None:
    """Have the garbage collector leave alone what is there now: packages, models, the application.

    Nothing of it is ever garbage, and with a model loaded a full collection holds up every request for 80 ms.
    """
    gc.collect()
    gc.freeze()
