"""Processes: what a service loads at its start is no work for the garbage collector."""

import gc

from ragbandit.router.jobs.processes import keep_what_is_loaded


def test_what_is_loaded_is_not_collected():
    """Objects that are there are frozen; what comes later is collected as ever."""
    before = gc.get_freeze_count()
    try:
        keep_what_is_loaded()
        assert gc.get_freeze_count() > before + 10_000
        assert len(gc.get_objects()) < 10_000
    finally:
        gc.unfreeze()
