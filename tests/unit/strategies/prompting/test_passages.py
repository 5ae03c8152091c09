"""Queries, sentences, answers and the passage pool."""

import pytest
from hypothesis import given, strategies as st

from ragbandit.strategies.base import Hit, Passage
from ragbandit.strategies.prompting.passages import (
    PassagePool,
    clean_query,
    extract_answer,
    first_sentence,
    has_answer,
    last_query,
)


def hit(identity, *, title=None, text=None, score=1.0):
    words = f"text of {identity} " + identity * 5
    return Hit(passage=Passage(id=identity, title=title or f"title {identity * 4}", text=text or words), score=score)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("Who is the mayor of Paris?", "the mayor of Paris?"),
        ("HOW does it work", "it work"),
        ("Who's there, and who? Is", "Who's there, and who?"),
        ("What is", ""),
        ("  the\twhich\n river  ", "the river"),
    ],
)
def test_question_words_go_as_whole_tokens_only(text, cleaned):
    """Question words are dropped as whole tokens in any case; with punctuation attached they stay."""
    assert clean_query(text) == cleaned


@given(st.text())
def test_cleaning_twice_changes_nothing(text):
    """clean_query is idempotent for every text."""
    assert clean_query(clean_query(text)) == clean_query(text)


@pytest.mark.parametrize(
    ("sentences", "query"),
    [
        ([], "q"),
        (["A is B.", "C is D."], "C is D."),
        (["A is B.", "So the answer is D."], "A is B."),
        (["Sofia is in Bulgaria."], "Sofia is in Bulgaria."),
        (["A is B.", "  Therefore, C.", "hence D", "That is, E", "Thus F", ""], "A is B."),
        (["A is B.", "He was 1,990 - 1950 = 40 years old."], "A is B."),
        (["A is B.", "It cost 2.5 + 3 = 5.5."], "A is B."),
        (["So it goes."], "q"),
    ],
)
def test_the_next_query_is_the_last_sentence_that_states_something(sentences, query):
    """Reasoning sentences, arithmetic and empty sentences are passed over; without any other the question is asked."""
    assert last_query("q", sentences=sentences) == query


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Mr. Smith lives here. He is old.", "Mr. Smith lives here."),
        ("She moved to the U.S. in 1990. Then she died.", "She moved to the U.S. in 1990."),
        ("She moved to the U.S. The move was hard.", "She moved to the U.S."),
        ("It joined the U.S. Army. Good.", "It joined the U.S. Army."),
        ("It costs 3.5 million. That is much.", "It costs 3.5 million."),
        ("J. R. R. Tolkien wrote it. Yes.", "J. R. R. Tolkien wrote it."),
        ("George W. Bush won. Gore lost.", "George W. Bush won."),
        ("That was World War I. The next was worse.", "That was World War I."),
        ("1. The film is old. 2. It is long.", "1. The film is old."),
        ("He runs Acme Inc. in Ohio. Fine.", "He runs Acme Inc. in Ohio."),
        ("Born Jan. 5 at No. 7, St. James St. in London. Died.", "Born Jan. 5 at No. 7, St. James St. in London."),
        ("Yahoo! was founded in 1994. It grew.", "Yahoo! was founded in 1994."),
        ('He said "Stop." Then he left.', 'He said "Stop."'),
        ("Who? Me.", "Who?"),
        ("Well... it depends. Yes.", "Well... it depends."),
        ("First line\nSecond line.", "First line"),
        ("  \n Leading space. Next.", "Leading space."),
        ("北京是首都。它很大。", "北京是首都。"),
        ("no mark at all", "no mark at all"),
        ("Brown v. Board was decided. Next.", "Brown v. Board was decided."),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_the_first_sentence_ends_where_a_reader_would_end_it(text, sentence):
    """Titles, initials, acronyms, numbers and list numbers do not end a sentence; line breaks do."""
    assert first_sentence(text) == sentence


@given(st.text(alphabet=st.sampled_from("ab AB.!?\n 1\"'。U S"), max_size=60))
def test_the_first_sentence_is_a_prefix(text):
    """The first sentence is a prefix of the text without its leading space, and holds no line break."""
    sentence = first_sentence(text)
    assert text.lstrip().startswith(sentence)
    assert "\n" not in sentence
    assert bool(sentence) == bool(text.strip())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So the answer is: A. The answer is: B.", "B"),
        ("Answer is: x", "x"),
        ("Some thought.\nSo the answer is: Paris.", "Paris"),
        ("The answer is: Paris.\nThe capital is big.", "Paris"),
        ("The answer is:\nParis.", "Paris"),
        ("The answer is Paris. So the answer is", "Paris"),
        ("So the answer is:", ""),
        ("The answer is: Dr. Alan Smith. He was a physician.", "Dr. Alan Smith"),
        ("The ANSWER IS : 42", "42"),
        ("Answer: Rome.", "Rome"),
        ("  Paris.  ", "Paris"),
        ("Paris..", "Paris.."),
        ("the answer is Washington, D.C.", "Washington, D.C."),
        ("Martin Luther King Jr.", "Martin Luther King Jr."),
        ('"Jaws".', "Jaws"),
        ("“Jaws.”", "Jaws"),
        ("**Paris**", "Paris"),
        ('"A" and "B"', '"A" and "B"'),
        ("the panther answer isolated", "the panther answer isolated"),
        ("", ""),
        (".", ""),
    ],
)
def test_the_last_announced_answer_is_taken_and_tidied(text, answer):
    """The last "answer is" with something behind it wins; quotes and one full stop go, abbreviations keep theirs."""
    assert extract_answer(text) == answer


@given(st.text())
def test_extraction_accepts_any_text(text):
    """The extracted answer has no white space around it, whatever the model wrote."""
    assert extract_answer(text) == extract_answer(text).strip()


def test_an_answer_is_announced_by_its_phrase():
    """has_answer looks for "answer is" as words in any case."""
    assert has_answer("So the Answer  is: 4")
    assert not has_answer("The answering issue")


def test_near_duplicates_are_alike_in_title_and_text():
    """A passage is a near duplicate only if both its title and its text resemble a held one."""
    text = "The Vistula is the longest river in Poland and flows to the Baltic Sea."
    pool = PassagePool(cap=9)
    sifted = pool.add(
        [
            hit("a", title="Vistula", text=text),
            hit("b", title="Vistula", text=text + "."),
            hit("c", title="Longest rivers", text=text),
            hit("d", title="Vistula", text="A town in Serbia with nine hundred people."),
            hit("a", title="other", text="other"),
        ]
    )
    assert sifted.added == ("a", "c", "d")
    assert sifted.skipped == (("b", "near duplicate of a"), ("a", "held already"))


def test_very_long_passages_are_skipped():
    """A passage of more than 600 words is skipped with its length as the reason."""
    sifted = PassagePool(cap=3).add([hit("a", text="w " * 601), hit("b", text="w " * 600)])
    assert sifted.skipped == (("a", "601 words, more than 600"),)
    assert sifted.added == ("b",)
