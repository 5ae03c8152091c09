"""The text of an answer that was sent, and what later attempts may be."""

import pytest

from ragbandit.shared.texts.growing_text import AnswerText, GrowingText


def answer_of(*pieces):
    answer = AnswerText()
    assert [answer.take(piece) for piece in pieces] == list(pieces)
    return answer


@pytest.mark.parametrize(
    ("pieces", "new"),
    [
        (["The fer", "ry", " leaves"], ["", "", " leaves"]),
        (["The ferry leaves", "."], [" leaves", "."]),
        (["The", " f", "erry leaves"], ["", "", " leaves"]),
        (["A boat"], [None]),
        (["The f", "ox"], ["", None]),
        ([""], [""]),
    ],
)
def test_a_later_attempt_continues_the_text(pieces, new):
    """A later attempt adds only what it has beyond the text; other words are reported."""
    answer = answer_of("The ", "ferry")
    answer.restart()
    assert [answer.take(piece) for piece in pieces] == new
    assert str(answer) == "The ferry" + "".join(filter(None, new))


def test_the_whole_text_continues_what_was_sent():
    """A longer text adds its end, in the middle of a later attempt too; a shorter or another text adds nothing."""
    answer = answer_of("The ferry")
    assert answer.continue_to("The") is None
    assert answer.continue_to("A boat leaves") is None
    answer.restart()
    answer.take("The")
    assert answer.continue_to("The ferry leaves") == " leaves"
    assert answer.continue_to("The ferry leaves") == ""
    assert answer.take(".") == "."
    assert (str(answer), answer.size) == ("The ferry leaves.", 17)


@pytest.mark.parametrize(
    ("size", "tail"), [(0, ""), (1, "y"), (3, "rry"), (5, "ferry"), (6, " ferry"), (99, "The ferry")]
)
def test_the_end_of_a_text_is_read_without_its_beginning(size, tail):
    """The last characters come from the last pieces, which stay apart."""
    text = GrowingText("The ")
    for piece in ("fe", "", "rr", "y"):
        text.add(piece)
    assert text.tail(size) == tail
    assert str(text) == "The ferry"


def test_a_text_that_grows_by_whole_texts_is_not_joined_again():
    """An answer whose reader gets each longer text keeps it as it came."""
    answer, whole = AnswerText(), ""
    for number in range(50):
        before, whole = whole, f"{whole} {number}"
        assert answer.continue_to(whole) == whole[len(before) :]
    assert str(answer) is whole
