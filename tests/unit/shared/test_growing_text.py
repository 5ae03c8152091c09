"""The text of an answer that was sent, and what later attempts may be."""

import pytest

from ragbandit.shared.texts.growing_text import AnswerText


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
