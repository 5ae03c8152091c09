"""Sources: the passages that a model was shown, kept with the outcome, erased with its texts."""

import asyncio
from dataclasses import replace

import pytest

from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.shared.types import Budget, DecisionId, Query, Source
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.without_index import MemoryRetriever

PASSAGES = [
    Passage(id="jaws", title="Jaws", text="The director of Jaws was Steven Spielberg. " * 9, url="https://films/jaws"),
    Passage(id="ohio", title="Ohio", text="The director was born in Ohio \ud800."),
    Passage(id="sharks", title="Sharks", text="Fish, large ones."),
]


def outcome_of(*, key="d1", arm="single_step", source_chars=2000):
    result = make_arms({arm: {}}, capabilities=ScriptedGenerator.capabilities)[arm]
    return asyncio.run(
        run_strategy(
            result,
            query=Query(id=DecisionId(key), text="Who was the director of Jaws?"),
            budget=Budget(),
            retriever=MemoryRetriever(PASSAGES),
            generator=ScriptedGenerator(lambda _: "finish[Ohio]"),
            source_chars=source_chars,
        )
    )


def test_the_passages_shown_are_the_sources():
    """In the order shown, with title, address, score and the beginning of the text; what was not shown is none."""
    first, second = outcome_of(source_chars=20).sources
    assert first == Source(
        id="jaws", title="Jaws", text="The director of Jaws", url="https://films/jaws", score=first.score
    )
    assert second.id == "ohio"
    assert second.url is None
    assert first.score > second.score > 0
    assert [source.text for source in outcome_of(source_chars=0).sources] == ["", ""]
    assert outcome_of(arm="no_retrieval").sources == ()


@pytest.mark.parametrize(("text", "kept"), [("full", 2), ("none", 0)])
def test_sources_are_kept_where_texts_are(make_world, database_url, text, kept):
    """They come back as they were, half a character replaced; with log.text "none" nothing is kept."""
    world = make_world(database_url=database_url, log={"text": text}, arms={"single_step": {"run_by": "caller"}})
    decision = world.route()
    outcome = replace(outcome_of(key=decision.id), run_by="caller")
    assert world.store.add_outcome(outcome)
    assert not world.store.add_outcome(replace(outcome, sources=())), "sources are no part of what makes it the same"
    found = world.store.outcomes_by_id([decision.id])[decision.id]
    assert len(found.sources) == kept
    if kept:
        assert found.sources[0] == outcome.sources[0]
        assert found.sources[1].text == "The director was born in Ohio ?."
    erase(world.database, Selection(decision=decision.id), features=False, actor="cli:me", now=2.0)
    assert world.store.outcomes_by_id([decision.id])[decision.id].sources == ()
