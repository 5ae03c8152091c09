"""Links: a decision is found by the ids that other systems have for it, and no id outlives an erasure."""

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from ragbandit.router.erasure import Selection, erase
from ragbandit.router.storage.decisions.links import decisions_named, linked_decisions, named_ids, trace_links
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.sql.tables import decision_links, decisions
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Query

UUID = "0190d6a2-5b1c-7c3e-9f00-0123456789ab"


def linked(make_decision, key, *, at=1.0, tenant="default", **links):
    decision = make_decision(key, made_at=at)
    return replace(decision, query=replace(decision.query, request={"links": links}, tenant=tenant))


def found(database, kind, *values):
    with database.read() as connection:
        some = linked_decisions(connection, kind, values)
    return {value: [one.decision_id for one in those] for value, those in some.items()}


def rows(database):
    with database.read() as connection:
        return connection.execute(select(func.count()).select_from(decision_links)).scalar_one()


def test_a_decision_is_found_by_every_id_it_was_linked_to(database, make_decision):
    """Links of a group are there when its decisions are, by kind and value; decisions without any write none."""
    store = DecisionStore(database, label="main")
    store.add_decisions([linked(make_decision, "a", trace="t1", span="s1"), make_decision("b")])
    assert rows(database) == 2
    assert found(database, "trace", "t1", "t2") == {"t1": ["a"]}
    assert found(database, "span", "t1") == {}
    store.add_decisions([linked(make_decision, "a", trace="t2", span="s2")])
    assert found(database, "trace", "t1", "t2") == {"t1": ["a"]}, "a repetition links nothing"


def test_a_value_of_many_decisions_gives_the_two_newest(database, make_decision):
    """However many decisions a value stands for, a look-up is bounded, and tells their tenants."""
    store = DecisionStore(database, label="main")
    # ids in the other order than times
    group = [linked(make_decision, f"d{9 - n}", at=float(n), trace="t", tenant=f"u{n}") for n in range(9)]
    store.add_decisions([*group, linked(make_decision, "other", trace="o")])
    with database.read() as connection:
        some = linked_decisions(connection, "trace", ["t", "o"])
    assert [(one.decision_id, one.tenant, one.made_at) for one in some["t"]] == [("d1", "u8", 8.0), ("d2", "u7", 7.0)]
    assert [one.decision_id for one in some["o"]] == ["other"]
    assert found(database, "trace", *(f"x{n}" for n in range(1200)), "o") == {"o": ["other"]}


def test_an_id_of_ours_names_its_decision_in_every_form(database, make_decision):
    """The id itself, with the prefix of a completion, and the 32 digits of a UUID name the same decision."""
    DecisionStore(database, label="main").add_decisions([make_decision(UUID), make_decision("ticket-1")])
    forms = [UUID, f"chatcmpl-{UUID}", UUID.replace("-", ""), UUID.replace("-", "").upper()]
    with database.read() as connection:
        named = decisions_named(connection, [*forms, "chatcmpl-ticket-1", "nobody"])
    assert {value: one.decision_id for value, one in named.items()} == dict.fromkeys(forms, UUID) | {
        "chatcmpl-ticket-1": "ticket-1"
    }
    assert named_ids("ticket-1") == ("ticket-1",)


def test_links_go_with_the_texts_that_are_erased(make_world, database_url):
    """An erased decision is found by no id of another system any more."""
    world = make_world(database_url=database_url)

    def made(value):
        query = Query(text="who?", request={"links": {"trace": value}})
        decision = world.router.submit(query).result(30)
        world.feedback(decision, reward=0.5)
        return decision

    old = made("old")
    made("last")
    world.learn()
    new = made("new")
    for decision in (old, new):
        erase(world.database, Selection(decision=decision.id), features=False, now=9.0)
    assert found(world.database, "trace", "old", "new", "last").keys() == {"last"}
    with world.database.read() as connection:
        texts = connection.execute(select(decisions.c.request).where(decisions.c.id == new.id)).scalars().all()
    assert texts == [None]


@pytest.mark.parametrize(
    "links",
    [
        {f"k{n}": "v" for n in range(9)},
        {"Trace": "v"},
        {"trace": ""},
        {"trace": "a b"},
        {"trace": "é"},
        {"trace": "x" * 129},
        {"trace": 7},
        "trace",
    ],
)
def test_links_are_few_and_short(router, links):
    """More than 8 links, and kinds and values that no index should hold, are refused by name."""
    with pytest.raises(InvalidInput, match="link"):
        router.route(Query(text="who?", request={"links": links}))


def test_traceparent_names_trace_and_span():
    """A valid W3C header gives both ids; what the standard calls invalid gives none."""
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    assert trace_links(f"00-{trace}-{span}-01") == {"trace": trace, "span": span}
    assert trace_links(f"cc-{trace}-{span}-01-what-comes-later") == {"trace": trace, "span": span}
    for wrong in (None, "", "00", f"ff-{trace}-{span}-01", f"00-{'0' * 32}-{span}-01", f"00-{trace}-{'0' * 16}-01"):
        assert trace_links(wrong) == {}, wrong
