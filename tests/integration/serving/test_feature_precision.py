"""Features in half precision through the whole service: which ledger has them, and what is stored."""

import json

import numpy as np
import pytest
from sqlalchemy import select

from ragbandit import Router
from ragbandit.router.encoders.base import HashingEncoder, half_hash, rounded
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.storage.sql.tables import decisions

FULL = HashingEncoder(dimension=24)
HALF = half_hash(FULL.hash)
TEXTS = [f"Which red boat of {n} reached the northern harbour first?" for n in range(12)]


@pytest.fixture
def opened(tmp_path):
    """Opens routers on one store, with these encoder settings and this label."""

    def call(label="main", **encoder):
        from ragbandit.router.config.loading import load

        tree = {
            "data_dir": str(tmp_path / "data"),
            "arms": {name: {"run_by": "caller"} for name in ("cheap", "dear")},
            "policy": {"name": "linucb", "label": label},
            "encoder": {"model": "hashing", "dimension": 24} | encoder,
        }
        (tmp_path / "config.yaml").write_text(json.dumps(tree))
        return Router.open(load(tmp_path / "config.yaml").settings, jobs=MemoryJobs())

    return call


def decide(router, texts):
    """Decisions with reward, learned."""
    made = [router.route(text) for text in texts]
    for decision in made:
        router.outcome(decision.id, answer="a", steps=1)
        router.feedback(decision.id, rating=len(decision.query.text) % 2 == 0)
    router.learn()
    return made


def stored(router):
    """(encoder hash, bytes of the features) of every decision."""
    with router.database.read() as connection:
        rows = connection.execute(select(decisions.c.encoder_hash, decisions.c.features).order_by(decisions.c.made_at))
        return [tuple(row) for row in rows]


def test_a_new_ledger_decides_with_what_it_stores_in_half_the_bytes(opened):
    """In an empty store features are float16: two bytes a number, and the same numbers decide and are learned."""
    with opened() as router:
        made = decide(router, TEXTS)
        assert router.encoder.hash == HALF
        assert [(kept, len(raw)) for kept, raw in stored(router)] == [(HALF, 2 * 24 + 1)] * 12
        for decision in made:
            assert np.array_equal(decision.features, rounded(FULL.encode([decision.query.text]))[0])
            assert np.array_equal(router.decision(decision.id).decision.features, decision.features)
        assert router.verify(deep=True).ok


def test_a_ledger_of_float32_goes_on_as_it_is(opened):
    """A ledger that was learned from float32 features is followed, and a new label of its store inherits them."""
    with opened(features="float32") as router:
        decide(router, TEXTS)
        assert router.encoder.hash == FULL.hash
    with opened() as router:
        made = decide(router, ["one more question"])
        assert np.array_equal(made[0].features, FULL.encode(["one more question"])[0])
        assert router.status().counters.learned == 13
        assert router.verify(deep=True).ok
        assert [kept for kept, _ in stored(router)] == [FULL.hash] * 13
    with opened(label="other") as router:
        router.learn()
        assert router.encoder.hash == FULL.hash
        assert router.status().counters.learned == 13
