"""Labels, yes and no, and lists, out of whatever a model wrote."""

import pytest
from hypothesis import example, given, strategies as st

from ragbandit.additions.research_arms.replies import parse_items, parse_label, parse_numbered_labels, parse_yes_no

LABELS = ("useful", "useless")
#: texts that look like what the parsers look for
NOISE = st.text() | st.text(alphabet="{}[]\"'\\,:;.0123 \n-*/trueflsyno")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("**Useful.**", "useful"),
        ("USELESS, since it is not useful", "useless"),
        ("not useful", None),
        ("It isn\u2019t very useful. So: useless", "useless"),
        ("knot useful", "useful"),
        ("useful or useless?", None),
        ("useful/useless: useless", "useless"),
        ("useful, useless", "useful"),
        ("usefulness, unuseful", None),
        ("", None),
    ],
)
def test_the_first_label_that_is_meant_counts(text, label):
    """Case and dress are passed over; denied labels, offered choices and parts of words are not given."""
    assert parse_label(text, labels=LABELS) == label


def test_the_longer_of_overlapping_labels_is_meant():
    """A label of two words wins over the one that it contains, with any white space between its words."""
    labels = ("supported", "partly supported", "not supported")
    assert parse_label("It is Partly\n supported.", labels=labels) == "partly supported"
    assert parse_label("not supported", labels=labels) == "not supported"
    assert parse_label("supported", labels=labels) == "supported"
    assert parse_label("supported", labels=()) is None
    assert parse_label("supported", labels=("", " ")) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Yes.", True),
        (" true}", True),
        ("No, yes would be wrong", False),
        ("The answer is FALSE", False),
        ("yes or no", None),
        ("not true", None),
        ("None of them", None),
        ("", None),
    ],
)
def test_yes_and_no_in_words(text, said):
    """Yes and true mean True, no and false False; what says neither, or both, gives None."""
    assert parse_yes_no(text) is said


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("1. useful\n2. useless, old\n3) Useful", {1: "useful", 2: "useless", 3: "useful"}),
        ("Passage 1: useful, relevant\nPassage [2]: useless", {1: "useful", 2: "useless"}),
        ("1: useful, 2: useless; 3 - useful", {1: "useful", 2: "useless", 3: "useful"}),
        ('{"1": "useful", "2": "useless"}', {1: "useful", 2: "useless"}),
        ("- [1] Jaws: useful\n- **2** useless", {1: "useful", 2: "useless"}),
        ("Passage 1 is useful. Passage 2 is useless.", {1: "useful", 2: "useless"}),
        ("1. It has 3 cats, 2 dogs: useful", {1: "useful"}),
        ("2. See vol. 3) which is useful", {2: "useful"}),
        ("1. useful\n1. useless\n0. useful\n4. useful", {1: "useful"}),
        ("1975 was useful\n3.5 million useful", {}),
        ("useful", {}),
        ("", {}),
    ],
)
def test_numbered_labels(text, labels):
    """Every usual way to number a line is read; numbers of prose, out of range or given twice are not."""
    assert parse_numbered_labels(text, labels=LABELS, count=3) == labels


@given(
    st.lists(st.sampled_from(LABELS), max_size=30), st.sampled_from(["{}. {}", "[{}] {}", "Passage {}: {}", "{}) {}"])
)
def test_a_numbered_list_comes_back_whole(labels, form):
    """A list of one label a line gives every label under its number."""
    text = "\n".join(form.format(number, label) for number, label in enumerate(labels, start=1))
    assert parse_numbered_labels(text, labels=LABELS, count=len(labels)) == dict(enumerate(labels, start=1))


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("1. Who made Jaws?\n2) Where is he from?\n3. More?", ("Who made Jaws?", "Where is he from?")),
        ("- Who?\n\n* who?\n\u2022 Where?", ("Who?", "Where?")),
        ("Question 1: Who?\n**Question 2:** Where?", ("Who?", "Where?")),
        ("1975 films\n19:30 trains", ("1975 films", "19:30 trains")),
        ("Sure, two questions:\n1. Who?\n2. Where?", ("Who?", "Where?")),
        ('"quoted"\n1.5 metres', ("quoted", "1.5 metres")),
        (" \n-\n1.\n2.", ()),
    ],
)
def test_items_lose_their_bullets(text, items):
    """The first items of a list come without bullets and numbers, each once; numbers that belong to them stay."""
    assert parse_items(text, most=2) == items


@given(NOISE)
@example("\x00{'\\")
@example("yes\u0130 ye\u017f u\u017feful")
def test_any_text_is_taken(text):
    """No text makes a parser raise, and what it gives is of the kind it promises."""
    assert parse_label(text, labels=LABELS) in (None, *LABELS)
    assert parse_yes_no(text) in (None, True, False)
    assert set(parse_numbered_labels(text, labels=LABELS, count=2)) <= {1, 2}
    items = parse_items(text, most=3)
    assert all(item and item in text for item in items)
    assert len({item.casefold() for item in items}) == len(items) <= 3
