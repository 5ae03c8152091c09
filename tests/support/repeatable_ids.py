"""Ids of decisions that are the same in every run, so that a test draws the same arms in every run.

A draw is a function of the store's secret, which tests fix, and of the decision's id. With random ids a test that
expects too much of a draw fails once in a hundred runs, when nobody looks for it. TEST_SEED=random, or any other word,
draws differently: a test that then fails expects too much.
"""

import itertools
import os
import random
import types
import uuid

from ragbandit.router.serving.checks import questions

#: the time in the first id of a test, in milliseconds
_BEGIN_MS = 1_700_000_000_000

_ids = types.SimpleNamespace(random=random.Random(), ms=itertools.count(_BEGIN_MS))


def _uuid7() -> uuid.UUID:
    """A UUIDv7 whose time is one millisecond after that of the last one, and whose random bits are repeatable."""
    bits = _ids.random.getrandbits(74)
    return uuid.UUID(int=next(_ids.ms) << 80 | 7 << 76 | bits >> 62 << 64 | 2 << 62 | bits & (1 << 62) - 1)


def repeat_ids(name: str) -> None:
    """From now on the ids of decisions in this process follow from this name, such as a test's."""
    seed = os.environ.get("TEST_SEED", "")
    _ids.random = random.Random(None if seed == "random" else f"{seed} {name}")
    _ids.ms = itertools.count(_BEGIN_MS)
    questions.uuid_utils = types.SimpleNamespace(uuid7=_uuid7)
