"""Rows of logs for tests: any that a ledger may hold, and the least that people write."""

import json
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.batches import BatchSpec, decode_batch, drawn_flags, offered_arms, select_rows
from ragbandit.router.offline.logs.columns import PARTS, keys_of_bytes
from ragbandit.router.offline.logs.jsonl import KEYS, record_of
from ragbandit.router.offline.logs.parquet import ParquetSource, rows_batch
from ragbandit.router.policies.draw import seed_of
from ragbandit.shared.types import Budget, Decision, Query, Reward

#: what databases take: no NUL, no half characters
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=12)
NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1e-17, 5e-324, -0.0, 0.1 + 0.2])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
TIMES = st.floats(-1e9, 4e9)
#: the smallest valid row, as written by hand
LEAST = {"id": "q1", "arms": ["fast", "deep"], "pmf": [0.8, 0.2], "arm": "deep", "reward": 0.7}


@st.composite
def rewards(draw):
    quality, cost = draw(st.floats(-2, 2) | st.just(1e-17)), draw(st.floats(0, 50))
    weight, minimum, maximum = draw(st.floats(0, 1)), draw(st.floats(-2, 0)), draw(st.floats(0.5, 2))
    return Reward(
        value=min(max(quality - weight * cost, minimum), maximum),
        quality=quality,
        cost=cost,
        weight=weight,
        minimum=minimum,
        maximum=maximum,
        terms=draw(st.dictionaries(TEXTS, st.floats(0, 9), max_size=2)),
        preset=draw(TEXTS),
        source=draw(st.sampled_from(["explicit", "default"])),
    )


@st.composite
def decisions(draw, *, key, width):
    arms = tuple(draw(st.lists(NAMES, min_size=2, max_size=4, unique=True)))
    shares = draw(st.lists(st.integers(1, 10**6), min_size=len(arms), max_size=len(arms)))
    pmf = tuple(share / sum(shares) for share in shares)
    drawn = draw(st.integers(0, len(arms) - 1))
    features = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=width, max_size=width)
    numbers = draw(st.none() | features)
    return Decision(
        id=key,
        query=Query(
            id=key,
            text=draw(TEXTS),
            context=draw(OBJECTS),
            arms=draw(st.none() | st.just(arms[::-1])),
            budget=draw(st.builds(Budget, rounds=st.none() | st.integers(1, 9), seconds=st.none() | st.floats(0.1, 9))),
            tenant=draw(TEXTS),
            cost_weight=draw(st.none() | st.sampled_from(["economy", 0.0, 0.2])),
            aim=draw(st.sampled_from([{}, {"quality": 0.9}])),
        ),
        arm=arms[drawn],
        arms=arms,
        pmf=pmf,
        propensity=pmf[drawn],
        scores=draw(st.none() | st.tuples(*(NUMBERS for _ in arms))),
        policy=draw(TEXTS),
        version=draw(TEXTS),
        encoder_hash=draw(TEXTS),
        seed=seed_of(key),
        floor=draw(st.floats(0, 0.1)),
        explored=draw(st.booleans()),
        fault=draw(st.none() | TEXTS),
        facts=draw(OBJECTS),
        run_by=draw(st.sampled_from(["worker", "caller"])),
        features=None if numbers is None else np.array(numbers, dtype=np.float32),
        made_at=draw(TIMES),
        cost_weight=draw(st.none() | st.floats(0, 1e6)),
    )


@st.composite
def logs(draw, *, most=4):
    """One to four rows of one file."""
    keys = draw(st.lists(NAMES, min_size=1, max_size=most, unique=True))
    width = draw(st.integers(1, 3))
    unknown = TEXTS.filter(lambda key: key not in KEYS)
    numbers = st.lists(st.floats(0, 1), min_size=1, max_size=3)
    return [
        Logged(
            decision=draw(decisions(key=key, width=width)),
            reward=draw(rewards()),
            seq=draw(st.integers(1, 2**62)),
            feedback_ids=tuple(draw(st.lists(TEXTS, max_size=2))),
            feedback_at=draw(st.none() | TIMES),
            learned_at=draw(st.none() | TIMES),
            extra=draw(st.dictionaries(unknown, JSON.filter(lambda value: value is not None) | numbers, max_size=2)),
        )
        for key in keys
    ]


def same(one, other):
    """Two rows hold the same, features to the bit."""
    first, second = record_of(one), record_of(other)
    features = [record.pop("features") for record in (first, second)]
    if (features[0] is None) != (features[1] is None):
        return False
    return first == second and (features[0] is None or features[0].tobytes() == features[1].tobytes())


def plain_rows(count, *, arms=("fast", "deep", "slow"), width=4, seed=0):
    """Rows as a small router logs them: one offer, real features, rewards between -1 and 1."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        pmf = random.dirichlet(np.ones(len(arms)))
        key, drawn = f"plain-{seed}-{number:08d}", int(random.choice(len(arms), p=pmf))
        decision = Decision(
            id=key,
            query=Query(id=key, text=f"question {number}?", context={"device": ("mobile", "desk")[number % 2]}),
            arm=arms[drawn],
            arms=tuple(arms),
            pmf=tuple(pmf.tolist()),
            propensity=float(pmf[drawn]),
            scores=None,
            policy="main",
            version="main-0-none",
            encoder_hash="e" * 64,
            seed=seed_of(key),
            floor=0.0,
            explored=bool(pmf[drawn] < pmf.max()),
            fault=None,
            facts={},
            run_by="caller",
            features=random.normal(size=width).astype(np.float32),
            made_at=1.7e9 + number,
        )
        quality, cost = float(random.random()), float(random.integers(0, 4))
        reward = Reward(
            value=quality - 0.05 * cost,
            quality=quality,
            cost=cost,
            weight=0.05,
            minimum=-1.0,
            maximum=1.0,
            terms={"steps": 1.0},
            preset="f1",
            source="explicit",
        )
        rows.append(Logged(decision=decision, reward=reward, seq=number + 1, learned_at=1.7e9 + number + 1))
    return rows


def with_extra(rows, name, values):
    return [replace(row, extra={**row.extra, name: value}) for row, value in zip(rows, values, strict=True)]


def write_parquet(path, rows):
    """Write rows with the keys of their `extra` as columns, as other tools write candidates."""
    table = pa.Table.from_batches([rows_batch(rows, KEYS, parts=[*PARTS])])
    for name in rows[0].extra:
        table = table.append_column(name, pa.array([row.extra[name] for row in rows]))
    pq.write_table(table, path)


def write_json(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_log(path, *, fields=(), own=(), batch_rows=1 << 16, defaults=None):
    """The arrays of a Parquet file, a batch at a time; rows may offer different arms."""
    source = ParquetSource(path=path, defaults=defaults or RewardSettings())
    with patch("ragbandit.router.offline.logs.parquet.BATCH", batch_rows):
        spec = BatchSpec(
            arms=offered_arms(source, every=True), mixed_arms=True, fields=fields, pmfs={name: name for name in own}
        )
        for batch in source.batches(spec.columns):
            yield decode_batch(select_rows(batch, drawn_flags(batch)), spec=spec, place=source.place)


def keys_of(texts):
    """The keys of these texts, shape (n,)."""
    rows = [text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return keys_of_bytes(np.frombuffer(b"".join(rows), dtype=np.uint8), lengths=lengths)
