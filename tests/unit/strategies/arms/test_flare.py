"""flare: look ahead, search when unsure, with scripted log-probabilities."""

import math
import re

import pytest
from hypothesis import given, strategies as some

from ragbandit.strategies.arm_parts.lookahead import LatestPool, tokens_between
from ragbandit.strategies.arms.flare import Flare, masked_query
from ragbandit.strategies.base import Hit, Passage
from ragbandit.strategies.generators.scripted import Scripted, ScriptedGenerator
from ragbandit.strategies.generators.text_feed import Token
from tests.support.arms.arm_runs import branches, outcome_of, purposes, queries, run_of

SURE = "Spielberg made Jaws. "
ENDED = "So the answer is: Ohio."


def said(text, *, unlikely=(), p=0.1):
    """A text with certain tokens, except for the named words."""
    pieces = re.findall(r"\s*\S+", text)
    return Scripted(
        text=text,
        details={
            "logprobs": tuple(
                Token(text=piece, logprob=math.log(p if piece.strip() in unlikely else 0.9)) for piece in pieces
            )
        },
    )


def model(*answers, **settings):
    return ScriptedGenerator(answers, capabilities={"completion", "stop", "logprobs"}, **settings)


def arm(**params):
    return Flare(**{"theta": 0.8, "beta": 0.4, "sentences": 3, **params})


def test_a_sure_sentence_is_accepted_without_a_search():
    """A look-ahead whose tokens are all above theta costs one call and no search beyond the first."""
    outcome = outcome_of(arm(), model(said(f"{SURE}He"), said(ENDED)))
    assert purposes(outcome) == ["look_ahead", "look_ahead"]
    assert queries(outcome) == ["the maker of Jaws from?"]
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Ohio", "answer_found", 1)


def test_an_unsure_sentence_is_searched_for_without_its_unlikely_tokens():
    """One token at theta or below makes a query of the sentence without tokens at beta or below; it is rewritten."""
    ahead = said("Spielberg came from Toledo. He x", unlikely=["Toledo."])
    outcome = outcome_of(arm(), model(ahead, said("Spielberg came from Cincinnati. He"), said(ENDED)))
    assert queries(outcome)[1:] == ["Spielberg came from"]
    assert purposes(outcome) == ["look_ahead", "write", "look_ahead"]
    assert (outcome.answer, outcome.steps) == ("Ohio", 2)


@pytest.mark.parametrize(("p", "searches"), [(0.5, 2), (0.51, 1)])
def test_theta_is_a_threshold_with_its_value_inside(p, searches):
    """A token exactly as likely as theta makes the arm search, a likelier one does not."""
    ahead = said(f"{SURE}He", unlikely=["made"], p=p)
    outcome = outcome_of(arm(theta=0.5, sentences=1), model(*[ahead] * searches, "Ohio"))
    assert len(queries(outcome)) == searches


def test_only_the_first_sentence_is_looked_at():
    """An unlikely token of the second sentence is no reason to search."""
    outcome = outcome_of(arm(sentences=1), model(said(f"{SURE}He was odd.", unlikely=["odd."]), "Ohio"))
    assert len(queries(outcome)) == 1


def test_white_space_is_kept_in_the_query_and_no_reason_to_search():
    """A token of only white space separates words of a query, and its probability does not count."""
    spaced = (Token(text="In", logprob=0.0), Token(text=" ", logprob=-9.0), Token(text="1975.", logprob=0.0))
    ahead = Scripted(text="In 1975.", details={"logprobs": spaced})
    always = outcome_of(arm(theta=0.0, sentences=1), model(ahead, said("In 1975. x"), "Ohio"))
    assert queries(always)[1:] == ["In 1975."]
    assert len(queries(outcome_of(arm(sentences=1), model(ahead, "Ohio")))) == 1


def test_theta_of_zero_always_searches():
    """With theta 0 even a certain sentence is searched for, as in the authors' code."""
    outcome = outcome_of(arm(theta=0.0, sentences=1), model(said(f"{SURE}He"), said(f"{SURE}He"), "Ohio"))
    assert queries(outcome)[1:] == ["Spielberg made Jaws."]


def test_a_fully_masked_sentence_falls_back_to_the_question():
    """If every token is masked the question is searched again, and the trace records it."""
    ahead = said("Toledo. He", unlikely=["Toledo.", "He"])
    outcome = outcome_of(arm(sentences=1), model(ahead, said(SURE), "Ohio"))
    assert queries(outcome) == ["the maker of Jaws from?"] * 2
    assert len(branches(outcome, "query_fallback")) == 1


def test_the_passages_of_a_search_replace_those_before():
    """The second call sees only passages of the second search; the budget counts all shown passages."""
    script = [said("Cincinnati, Ohio, surely. He", unlikely=["surely."]), said(SURE), "Ohio"]
    generator = model(*script)
    outcome = outcome_of(arm(sentences=1, passages=1), generator)
    assert "Jaws was made by Spielberg." in generator.prompts[0].body
    assert "Jaws was made by Spielberg." not in generator.prompts[1].body
    assert "Cincinnati lies in Ohio." in generator.prompts[1].body
    assert outcome.cost.passages == 2
    assert outcome_of(arm(sentences=1, passages=1), model(*script), passages=1).cost.passages == 1


def test_the_code_preset_writes_a_sure_sentence_twice():
    """With second_call a confident look-ahead is written again without a search."""
    outcome = outcome_of(Flare(preset="code", sentences=1), model(said(f"{SURE}He"), said(f"{SURE}He"), "Ohio"))
    assert purposes(outcome) == ["look_ahead", "write", "conclude"]
    assert len(queries(outcome)) == 1


@pytest.mark.parametrize(
    ("sentences", "script", "budget", "ended"),
    [
        (3, [said(""), "Ohio"], {}, ("Ohio", "empty_sentence")),
        (3, [said("Spielberg made Jaws."), "Ohio"], {}, ("Ohio", "model_ended")),
        (2, [said(f"{SURE}He"), said(f"{SURE}He"), "Ohio"], {}, ("Ohio", "max_sentences")),
        (1, [said("Toledo. He", unlikely=["Toledo."]), "Ohio"], {"rounds": 1}, ("Ohio", "max_sentences")),
        (3, [said(""), ""], {}, ("", "empty_answer")),
    ],
)
def test_the_text_ends_by_every_rule(sentences, script, budget, ended):
    """Each rule has its reason, and the answer is asked for; an unsure text without a round left is accepted."""
    outcome = outcome_of(arm(sentences=sentences), model(*script), **budget)
    assert (outcome.status, outcome.answer, outcome.stop_reason, outcome.steps) == ("answered", *ended, 1)
    assert purposes(outcome) == ["look_ahead"] * (len(script) - 1) + ["conclude"]
    assert branches(outcome, "search_skipped") == (["no round is left"] if budget else [])


def test_the_draft_is_the_latest_sentence():
    """A budget that ends in mid-text leaves the latest sentence as the answer."""
    outcome = outcome_of(arm(), model(*[said(f"{SURE}He")] * 2, dollars=1.0), dollars=1.0)
    ended = ("exhausted", "budget_dollars", "Spielberg made Jaws")
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ended


def test_a_generator_that_tells_nothing_is_a_failure():
    """A text without log-probabilities fails the arm by name, it is not taken for a sure one."""
    outcome = outcome_of(arm(), model("Spielberg made Jaws."))
    assert outcome.status == "failed"
    assert "was asked for logprobs and returned none" in outcome.error


def test_tokens_that_do_not_spell_the_text_are_noted():
    """Details of another text are counted in the trace as parse_failed."""
    wrong = Scripted(text="Spielberg made Jaws.", details={"logprobs": (Token(text="What", logprob=0.0),)})
    assert branches(outcome_of(arm(), model(wrong, "Ohio")), "parse_failed") == ["the tokens do not spell the text"]


@given(some.lists(some.tuples(some.text("ab .", min_size=1, max_size=4), some.floats(0.01, 1.0)), max_size=8))
def test_a_query_never_holds_a_masked_token(pairs):
    """Masking with beta 1 leaves nothing; with beta 0 it leaves every word of the tokens."""
    tokens = [Token(text=text, logprob=math.log(p)) for text, p in pairs]
    whole = " ".join("".join(text for text, _ in pairs).split())
    assert masked_query(tokens, beta=1.0) == ""
    assert masked_query(tokens, beta=0.0) == (whole if re.search(r"\w", whole) else "")


@given(some.lists(some.text("ab ", min_size=1, max_size=3), max_size=8), some.integers(0, 20), some.integers(0, 20))
def test_tokens_between_are_those_with_a_character_there(texts, begin, end):
    """A token is found if and only if one of its characters stands in the span."""
    tokens, place, expected = [Token(text=text, logprob=0.0) for text in texts], 0, []
    for token in tokens:
        if any(begin <= place + at < end for at in range(len(token.text))):
            expected.append(token)
        place += len(token.text)
    assert tokens_between(tokens, begin=begin, end=end) == tuple(expected)


def test_the_pool_of_the_latest_search_heeds_all_that_was_shown():
    """New passages replace the old, fewer than the budget's distinct ones; a search without any leaves the old."""
    one, two, three = (Hit(passage=Passage(id=i, title=i, text=i * 9), score=1.0) for i in "abc")
    run = run_of(passages=2)
    pool = LatestPool(run, cap=2)
    pool.add([one])
    run.note_shown(pool.passages)
    assert pool.add([two, three]).skipped == (("c", "the budget allows 2 passages"),)
    assert [each.id for each in pool.passages] == ["b"]
    run.note_shown(pool.passages)
    assert pool.add([three]).added == ()
    assert [each.id for each in pool.passages] == ["b"]
    assert pool.add([one]).added == ("a",)
