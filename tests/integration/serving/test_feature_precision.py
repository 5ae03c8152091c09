"""Features in half precision through the whole service."""

import numpy as np
from sqlalchemy import select

from ragbandit.router.encoders.half_precision import half_precision_hash, round_features
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.storage.sql.tables import decisions


def test_a_ledger_decides_with_what_it_stores_in_half_the_bytes(make_world):
    """Features are stored as float16, two bytes a number, and the same numbers decide and are learned."""
    world, full = make_world(policy={"name": "linucb"}), HashingEncoder(dimension=8)
    asked = world.judged(12)
    world.learn()
    assert world.router.encoder.hash == half_precision_hash(full.hash)
    with world.database.read() as connection:
        assert {len(raw) for raw in connection.execute(select(decisions.c.features)).scalars()} == {2 * 8 + 1}
    for decision in asked:
        assert np.array_equal(decision.features, round_features(full.encode([decision.query.text]))[0])
        assert np.array_equal(world.router.decision(decision.id).decision.features, decision.features)
    assert world.router.verify(deep=True).ok
