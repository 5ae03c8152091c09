"""The refusals that a process remembers."""

from ragbandit.strategies.generators.refused_fields import MOST, MOST_OF_CALLER, REMEMBERED_S, RefusedFields

ONE, OTHER_KEY, OTHER_SERVER = (0, "k1"), (0, None), (1, "k1")


def test_a_refusal_counts_for_its_server_and_key_for_a_day():
    """Another key, no key and another server have no refusals, and a repeated refusal counts for a day more."""
    fields = RefusedFields()
    fields.note(ONE, [("seed",), ("tools", "strict")], now=5.0)
    assert fields.of(ONE, now=4.0 + REMEMBERED_S) == [("seed",), ("tools", "strict")]
    assert fields.of(OTHER_KEY, now=6.0) == fields.of(OTHER_SERVER, now=6.0) == []
    assert fields.of(ONE, now=5.0 + REMEMBERED_S) == []
    fields.note(ONE, [("seed",)], now=10.0)
    assert fields.of(ONE, now=9.0 + REMEMBERED_S) == [("seed",)]


def test_the_oldest_refusals_of_a_caller_leave_first():
    """A server and key have at most MOST_OF_CALLER fields; one that was refused again counts as new."""
    fields = RefusedFields()
    for number in range(MOST_OF_CALLER):
        fields.note(ONE, [(str(number),)], now=0.0)
    fields.note(ONE, [("0",), ("new",)], now=1.0)
    left = {place for (place,) in fields.of(ONE, now=1.0)}
    assert left == {*map(str, range(MOST_OF_CALLER)), "new"} - {"1"}


def test_the_oldest_refusals_of_all_leave_first():
    """Many keys hold at most MOST fields together, and nothing of a key without fields."""
    fields, callers = RefusedFields(), MOST // 10 + 5
    for number in range(callers):
        fields.note((0, str(number)), [(f"p{place}",) for place in range(10)], now=0.0)
    counts = [len(fields.of((0, str(number)), now=0.0)) for number in range(callers)]
    assert counts == [0] * 5 + [10] * (callers - 5)
    assert len(fields._ends) == callers - 5
    assert len(fields._order) == MOST
