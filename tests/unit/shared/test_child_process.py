"""Child processes: what a service loads at its start is no work for the garbage collector."""

import gc

from ragbandit.shared.child_process import keep_what_is_loaded


def test_what_is_loaded_is_not_collected():
    """Objects that are there are frozen; what comes later is collected as ever."""
    loaded = [[number] for number in range(20_000)]
    before = gc.get_freeze_count()
    keep_what_is_loaded()
    assert gc.get_freeze_count() >= before + len(loaded)
    assert len(gc.get_objects()) < len(loaded)
