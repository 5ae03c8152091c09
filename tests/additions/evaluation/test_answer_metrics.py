"""Judging answers: the published rules by their own numbers, and what differs between families."""

import math
import sys

import pytest
from hypothesis import given, strategies as st

from ragbandit.additions.evaluation.answer_metrics import (
    FAMILIES,
    FamilyRules,
    metric_values,
    normalise,
    squad_words,
    text_after_answer_is,
)
from ragbandit.router.learning.reward import exact_match, f1
from ragbandit.shared.errors import ConfigError, InvalidInput

SHORT = sorted(name for name, rules in FAMILIES.items() if isinstance(rules, FamilyRules))


@pytest.mark.parametrize("measure", [f1, exact_match])
def test_texts_without_words_are_equal_in_squads_words(measure):
    """Two texts that are empty after normalising are equal, as in SQuAD 2.0."""
    assert measure("The", gold=["a"], words=squad_words) == 1.0


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The U.S.A.'s", "usas"),
        ("an A-Team", "ateam"),
        ("The", ""),
        ("1,450 miles", "1450 miles"),
        ("twenty-one", "twentyone"),
        ("“quoted”", "“quoted”"),
        ("Dracula\u2019s", "dracula\u2019s"),
        ("a b c", "b c"),
        ("  A  big\tthe\nhouse ", "big house"),
        ("", ""),
    ],
)
def test_normalises_like_squad(text, normal):
    """Lower case, then ASCII punctuation without a space left, then articles, then spaces; curly quotes stay."""
    assert normalise(text) == normal


#: (prediction, gold, measure) of examples that distinguish the measures
FLAGS = [
    ("yes it is", ["yes"], "f1"),
    ("The", ["a"], "f1"),
    ("north dakota", ["no"], "accuracy"),
    ("the U.S. Army", ["US Army"], "accuracy"),
    ("NYC", ["New York", "NYC"], "exact_match"),
    ("So the answer is: Ohio.", ["Ohio"], "exact_match"),
    ("[Ohio, Iowa]", ["Ohio"], "exact_match"),
    ("schön", ["schÃ¶n"], "exact_match"),
]


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("2wiki", [0, 0, 1, 1, 1, 0, 0, 0]),
        ("adaptive_note", [0.5, 0, 1, 0, 1, 0, 0, 0]),
        ("hotpotqa", [0, 0, 1, 1, 0, 0, 0, 0]),
        ("musique", [0.5, 1, 1, 1, 1, 0, 0, 0]),
        ("nq", [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ("ours", [0.5, 0, 0, 1, 1, 0, 0, 0]),
        ("ours_ascii", [0.5, 1, 0, 1, 1, 0, 0, 0]),
        ("squad", [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ("triviaqa", [0.5, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_every_family_keeps_its_flags(family, values):
    """What each family of short answers gives where the families differ."""
    judgements = [metric_values(prediction, gold=gold, family=family)[measure] for prediction, gold, measure in FLAGS]
    assert judgements == pytest.approx(values)


@pytest.mark.parametrize(("family", "values"), [("asqa", [0, 1]), ("asqa_adaptive_note", [1, 0])])
def test_every_family_of_readings_keeps_its_flags(family, values):
    """ALCE judges the first line without citation marks, Adaptive-Note everything with them."""
    cases = [("It sank in\n1912", "1912"), ("nineteen [1] 12", "nineteen 12")]
    assert [metric_values(said, gold=[[gold]], family=family)["str_hit"] for said, gold in cases] == values


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So the answer is: A. The answer is: B.", "B"),
        ("Answer is: x", "Answer is: x"),
        ("First.\nSo the answer is: x", "First.\nSo the answer is: x"),
        ("So the answer is x.", "x"),
        ("So the answer is: B\nand more", "B"),
        ("Paris.", "Paris."),
    ],
)
def test_published_extraction_takes_the_last_marker_of_the_first_line(text, answer):
    """The last "answer is" wins, needs words before it, is hidden by a line break, and one full stop goes."""
    assert text_after_answer_is(text) == answer


@pytest.mark.parametrize("family", ["nq", "squad", "triviaqa"])
def test_one_hop_families_extract_and_take_the_first_item(family):
    """The single-hop sets judge what follows "answer is", and of what begins or ends like a list its first item."""
    for said in ("So the answer is: Ohio.", '["Ohio", "Iowa"]', "So the answer is: [Ohio, Iowa", "Ohio, Iowa]"):
        assert metric_values(said, gold=["Ohio"], family=family)["exact_match"] == 1.0
    for said in ('"Ohio, USA"', "Ohio, USA"):
        assert metric_values(said, gold=["Ohio"], family=family)["exact_match"] == 0.0


def test_one_hop_families_repair_broken_text(monkeypatch):
    """Mojibake and curly quotes are no difference there, elsewhere they are; a missing ftfy is named."""
    for prediction, gold in (("schÃ¶n", "schön"), ("schön", "schÃ¶n"), ("“Ohio”", "Ohio")):
        assert metric_values(prediction, gold=[gold], family="nq")["exact_match"] == 1.0
        assert metric_values(prediction, gold=[gold], family="musique")["exact_match"] == 0.0
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[families\]'"):
        metric_values("Ohio", gold=["Ohio"], family="nq")


def test_asqa_counts_the_readings_that_were_found():
    """str_em is the share of readings with a short answer in the first line, str_hit whether that is all."""
    gold = [["1912", "April 1912"], ["1913"]]
    judgements = metric_values("It sank in 1912 [1], \nnot in 1913.", gold=gold, family="asqa")
    both = metric_values("In 1912[2] or 1913 [3][4].", gold=gold, family="asqa")
    assert judgements == {"str_em": 0.5, "str_hit": 0.0}
    assert both == {"str_em": 1.0, "str_hit": 1.0}
    assert metric_values("It sank in 1912\nnot in 1913.", gold=gold, family="asqa_adaptive_note")["str_hit"] == 1.0


@pytest.mark.parametrize("prediction", [None, "", " \n"])
def test_no_answer_is_wrong_whatever_the_gold(prediction):
    """A missing or blank answer has 0 by every measure, also against a gold that normalises to nothing."""
    for family in SHORT:
        assert set(metric_values(prediction, gold=["The"], family=family).values()) == {0.0}, family


@pytest.mark.parametrize(
    ("family", "gold"),
    [
        ("ours", []),
        ("ours", "Ohio"),
        ("ours", ["Ohio", ""]),
        ("ours", ["\u200b"]),
        ("nq", [["Ohio"]]),
        ("asqa", ["Ohio"]),
        ("asqa", [[]]),
    ],
)
def test_gold_of_the_wrong_shape_is_refused(family, gold):
    """Gold is a list of texts, of asqa a list of lists; anything else is an error, not a 0."""
    with pytest.raises(InvalidInput, match="not gold answers"):
        metric_values("Ohio", gold=gold, family=family)


def test_unknown_family_names_the_known():
    """An unknown family is refused with the names."""
    with pytest.raises(InvalidInput, match=r"known: 2wiki, .*triviaqa"):
        metric_values("Ohio", gold=["Ohio"], family="trivia")


WORDS = st.lists(st.sampled_from(["no", "yes", "the", "ohio", "paris", "1912", "!"]), max_size=5).map(" ".join)
GOLD = st.lists(WORDS.filter(str.strip), min_size=1, max_size=3)


@given(prediction=WORDS, gold=GOLD, family=st.sampled_from(SHORT))
def test_measures_are_shares_and_an_exact_match_is_one_by_all(prediction, gold, family):
    """Every measure is in [0, 1]; where exact match is 1 and words are left, so are F1 and an accuracy of words."""
    judgements = metric_values(prediction, gold=gold, family=family)
    assert all(0.0 <= value <= 1.0 for value in judgements.values())
    if judgements["exact_match"] and normalise(prediction):
        assert judgements["f1"] == 1.0
        # The raw substring of Adaptive-Note does not see that "no the" and "no" are the same answer.
        assert FAMILIES[family].accuracy == "raw" or judgements["accuracy"] == 1.0


@given(prediction=WORDS, gold=GOLD, more=WORDS.filter(str.strip))
def test_another_alias_never_lowers_a_measure(prediction, gold, more):
    """The best gold counts."""
    before, after = (metric_values(prediction, gold=each, family="musique") for each in (gold, [*gold, more]))
    assert all(after[name] >= before[name] for name in before)


@pytest.mark.parametrize(
    ("prediction", "gold", "measures"),
    [
        ("船在北京。", ["船在北京"], (1.0, 1.0)),
        ("船在北京造", ["船在北京"], (8 / 9, (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4))),
        ("在北京", ["船在北京"], (6 / 7, 0.0)),  # no sequence of four characters
        ("北京", ["北京"], (1.0, 1.0)),
        ("东北京", ["北京", "东京"], (4 / 5, (2 / 3 * 1 / 2) ** (1 / 2))),
        ("京", ["北京"], (2 / 3, 0.0)),
        ("船 在 北 京 船 在 北", ["船在北京船在北京"], (14 / 15, math.exp(1 - 8 / 7))),
        ("", ["北京"], (0.0, 0.0)),
        (None, ["北京"], (0.0, 0.0)),
    ],
)
def test_crud_compares_characters(prediction, gold, measures):
    """F1 and BLEU of Chinese characters without punctuation and spaces, computed by hand; the best gold text counts."""
    found = metric_values(prediction, gold=gold, family="crud")
    assert (found["character_f1"], found["bleu"]) == pytest.approx(measures)
