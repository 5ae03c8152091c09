"""The sha256 chain over a ledger's updates, on SQLite and PostgreSQL."""

import pytest
from sqlalchemy import delete, update

from ragbandit.router.storage.ledgers.chain import Chain
from ragbandit.router.storage.sql.tables import chains, updates


def learned(make_world, database_url, *, decisions: int = 5):
    """A world with that many updates, and its chain."""
    world = make_world(database_url=database_url)
    for number in range(decisions):
        decision = world.route()
        world.outcome(decision)
        world.feedback(decision, rating=number / decisions)
        if number % 2:
            world.learn()
    world.learn()
    return world, Chain(world.router.database, label=world.router.ledger.label)


def test_the_append_moves_the_end(make_world, database_url):
    """The end of the chain is that of the rows as they are read again, in one go or in two."""
    _, chain = learned(make_world, database_url)
    seq, last = chain.end()
    assert seq == 5
    assert last == chain.at(5)
    assert last == chain.at(5, start=(2, chain.at(2)))


@pytest.mark.parametrize("changed", [{"cost": 1.0 + 2**-50}, {"sample_weight": 0.5}], ids=["cost", "sample weight"])
def test_a_changed_row_shows(make_world, database_url, changed):
    """One number of one old update changed: every link from there on is another one."""
    world, chain = learned(make_world, database_url)
    before = [chain.at(seq) for seq in range(6)]
    with world.router.database.write() as connection:
        connection.execute(update(updates).where(updates.c.seq == 3).values(changed))
    after = [chain.at(seq) for seq in range(6)]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, True, True, False, False, False]


def test_a_chain_that_fell_behind_is_extended(make_world, database_url):
    """Rows that were written without the chain (a store of an older release, an import) are read into it later."""
    world, chain = learned(make_world, database_url)
    whole = chain.end()
    for end in (None, (2, chain.at(2))):
        with world.router.database.write() as connection:
            connection.execute(delete(chains))
            if end is not None:
                row = {"policy": chain.label, "last_seq": end[0], "sha256": end[1]}
                connection.execute(chains.insert().values(row))
        decision = world.route()
        world.outcome(decision)
        world.feedback(decision, rating=1.0)
        chain.extend()
        assert chain.end() == whole
        world.learn()
        assert chain.end() == (whole[0] + 1, chain.at(whole[0] + 1))
        whole = chain.end()
