"""Rounds, passages, tokens and dollars of an arm's run."""

import pytest

from ragbandit.shared.types import Conversation, Cost
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.strategies.run import Answer
from tests.unit.strategies.ended_arms import PROMPT, Own, ended

TITLES = ("one", "two", "three")


def caps_run(act, *, generator=None, **budget):
    """The outcome of an arm that does `act` and then answers, over three passages that "the" finds."""

    async def end(run):
        await act(run)
        return Answer(text="yes", stop_reason="rule")

    corpus = MemoryRetriever([Passage(id=each, title=each, text=f"the {each}") for each in TITLES])
    return ended(Own(end), retriever=corpus, generator=generator, **budget)


def test_an_arm_that_was_refused_a_round_may_read_and_answer():
    """After the first refusal the arm may still read the passages found, as often as it likes."""

    async def reading(run):
        said = [run.begin_round(cap=9), run.rounds_over, run.begin_round(cap=9), run.rounds_over]
        for _ in range(3):
            await run.complete(PROMPT, purpose="p", max_tokens=3)
        seen.append(said)

    seen = []
    outcome = caps_run(reading, rounds=1)
    assert seen == [[True, False, False, True]]
    assert (outcome.status, outcome.steps, outcome.cost.llm_calls) == ("answered", 1, 3)


@pytest.mark.parametrize(
    ("asked", "message"), [((), "outside any round (call run.begin_round first)"), ((1, 1), "its own cap refused")]
)
def test_a_search_without_a_round_is_a_failure(asked, message):
    """A search before the first round, or in one that the arm's own cap refused, would be one that no step pays for."""

    async def cheating(run):
        for cap in asked:
            run.begin_round(cap=cap)
        await run.search("the", k=1)

    outcome = caps_run(cheating)
    assert (outcome.status, outcome.cost.retriever_calls) == ("failed", 0)
    assert message in outcome.error


@pytest.mark.parametrize(("shown", "status", "reason"), [(2, "answered", "rule"), (3, "exhausted", "budget_passages")])
def test_an_arm_that_shows_too_much_is_ended_by_its_passages(shown, status, reason):
    """More passages than the budget allows are in the cost, as they were shown, and end the arm."""

    async def showing(run):
        run.show(1)
        run.show(shown)

    outcome = caps_run(showing, passages=2)
    assert (outcome.status, outcome.stop_reason, outcome.cost.passages) == (status, reason, shown)


@pytest.mark.parametrize(("tokens", "cut"), [(4, ["p"]), (40, [])])
def test_an_answer_that_the_tokens_cut_says_so(tokens, cut):
    """A text that ends where the budget's tokens ended leaves a branch in the trace; one that had room leaves none."""

    async def written(run):
        await run.complete(PROMPT, purpose="p", max_tokens=30)
        return Answer(text="x", stop_reason="x")

    outcome = ended(Own(written), generator=ScriptedGenerator(["one two three four five six"]), tokens=tokens)
    assert [event.value for event in outcome.trace if getattr(event, "rule", "") == "cut_by_budget_tokens"] == cut


def test_an_arm_reports_the_cost_of_its_own_model():
    """What an arm spent outside the run is in the outcome's cost; beyond the budget it ends the arm."""

    async def own_model(run):
        run.draft = "draft"
        run.add_cost(Cost(llm_calls=1, prompt_tokens=30, completion_tokens=5, dollars=0.25))
        return Answer(text="answer", stop_reason="own")

    outcome = ended(Own(own_model))
    assert (outcome.status, outcome.cost.llm_calls, outcome.cost.dollars) == ("answered", 1, 0.25)
    assert (outcome.cost.prompt_tokens, outcome.cost.completion_tokens) == (30, 5)
    for cap, value in (("dollars", 0.2), ("tokens", 34)):
        outcome = ended(Own(own_model), **{cap: value})
        assert (outcome.status, outcome.stop_reason) == ("exhausted", f"budget_{cap}")
        assert (outcome.answer, outcome.cost.dollars) == ("draft", 0.25)
    assert ended(Own(own_model), dollars=0.25, tokens=35).status == "answered"


@pytest.mark.parametrize(
    ("sent", "tokens", "expected"),
    [
        ({"max_completion_tokens": 60}, None, {"max_completion_tokens": 60}),
        ({"max_tokens": 9, "max_completion_tokens": 60}, None, {"max_tokens": 9, "max_completion_tokens": 60}),
        ({"max_completion_tokens": 60}, 20, {"max_completion_tokens": 20}),
        ({"max_completion_tokens": 6}, 20, {"max_completion_tokens": 6}),
        ({"max_tokens": None}, None, {"max_tokens": 30}),
        ({"max_output_tokens": 60}, None, {"max_tokens": 60}),
        ({}, 20, {"max_tokens": 20}),
    ],
)
def test_the_limit_of_a_chat_keeps_its_name(sent, tokens, expected):
    """A lower limit of ours has the name that the caller chose; without one, the server's options choose the name."""
    generator, chats = ScriptedGenerator(["one two"]), []
    complete = generator.complete

    async def noted(request):
        chats.append(request.conversation.fields)
        assert request.is_limit_named == any(sent.get(name) for name in ("max_tokens", "max_completion_tokens"))
        return await complete(request)

    generator.complete = noted

    async def passed(run):
        await run.chat(Conversation(fields={"messages": [], **sent}), prompt=PROMPT, max_tokens=30)
        return Answer(text="x", stop_reason="x")

    assert ended(Own(passed), generator=generator, tokens=tokens).status == "answered"
    assert chats == [{"messages": [], **expected}]
