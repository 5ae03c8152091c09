"""Small logs whose truth is known, and their replay."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.estimation.bandit_log import BY_ID, Log
from ragbandit.router.offline.logs.jsonl import parse_rows
from ragbandit.router.offline.replay import OpenLog, Plan, memory_log, parse_candidates, replay
from tests.support.logs.log_rows import keys_of

ARMS = ("fast", "deep", "slow")


def rows_from(records):
    """Rows of records, by the reader that all formats have."""
    made = ((n + 1, partial(dict, {"id": f"row-{n:05}", **record})) for n, record in enumerate(records))
    return list(parse_rows(made, defaults=RewardSettings()))


#: (probability of fast, the arm drawn of fast and deep, reward)
HAND = [(0.8, "fast", 0.5), (0.8, "deep", 1.0), (0.5, "deep", -0.5), (0.25, "fast", 0.0), (0.5, "deep", 0.75)]


def hand_rows():
    """Five rows without times, features and versions."""
    return rows_from({"arms": ["fast", "deep"], "pmf": [p, 1 - p], "arm": a, "reward": r} for p, a, r in HAND)


def with_text(row, text):
    return replace(row, decision=replace(row.decision, query=replace(row.decision.query, text=text)))


def lived_rows(count, *, seed=0, pmf=(0.5, 0.3, 0.2), worth=(0.2, 0.5, 0.8), weight=0.05):
    """A log whose arms are right with these chances, whatever the question, and cost 0, 1 and 4."""
    return list(_lived_rows(count, seed=seed, pmf=tuple(pmf), worth=tuple(worth), weight=weight))


@cache
def _lived_rows(count, *, seed, pmf, worth, weight):
    """The same for the same arguments, made once: rows cannot be changed."""
    random = np.random.default_rng(seed)
    records = []
    for number in range(count):
        drawn = int(random.choice(len(pmf), p=pmf))
        reward = {"quality": float(random.random() < worth[drawn]), "cost": float((0, 1, 4)[drawn]), "weight": weight}
        records.append(
            {
                "id": f"lived-{seed}-{number:06}",
                "text": f"question {number % 7} of {number % 11}",
                "context": {"device": ("mobile", "desk")[number % 2], "number": number % 15},
                "arms": list(ARMS),
                "pmf": list(pmf),
                "arm": ARMS[drawn],
                "reward": reward,
                "made_at": 1.7e9 + number,
                "features": random.normal(size=4).tolist(),
                "version": f"main-{number // 100}-x",
            }
        )
    return rows_from(records)


def array_log(pmf, *, action, reward=None, **changes):
    """A log with these pmfs and draws."""
    rows = len(pmf)
    reward = np.zeros(rows) if reward is None else reward
    log = Log(
        arms=ARMS,
        keys=keys_of([str(n) for n in range(rows)]),
        questions=keys_of([str(n) for n in range(rows)]),
        recognised_by=np.full(rows, BY_ID),
        action=np.asarray(action, dtype=np.intp),
        pmf=pmf,
        offered=np.ones(pmf.shape, dtype=np.bool_),
        reward=reward,
        quality=reward + 1.0,
        cost=np.full(rows, 2.0),
        minimum=-1.0,
        maximum=1.0,
        raw=np.zeros(rows, dtype=np.bool_),
        defaulted=np.zeros(rows, dtype=np.bool_),
        made_at=np.zeros(rows),
    )
    return replace(log, **changes)


def judged(rows, *names, mixed_arms=False, settings=None, encoder=None, ledger=None, **plan):
    """The replay of these candidates."""
    log = rows if isinstance(rows, OpenLog) else memory_log(rows, mixed_arms=mixed_arms, ledger=ledger)
    log = log if settings is None else replace(log, settings=settings)
    return replay(log, candidates=parse_candidates(names), plan=Plan(**plan), encoder=encoder)


def close(one, other, *, within=1e-9):
    """Values and intervals are equal at any depth, up to rounding."""
    if isinstance(one, float):
        assert one == pytest.approx(other, abs=within, nan_ok=True)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            close(value, other[key], within=within)
    elif isinstance(one, tuple | list):
        for mine, theirs in zip(one, other, strict=True):
            close(mine, theirs, within=within)
    elif hasattr(one, "__slots__"):
        for name in type(one).__dataclass_fields__:
            close(getattr(one, name), getattr(other, name), within=within)
    else:
        assert one == other
