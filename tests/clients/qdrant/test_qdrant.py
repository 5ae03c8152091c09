"""The retriever over Qdrant of docs/generators.md, from an empty collection in memory to an answer."""

import asyncio
import json
import os
import sys

import pytest

from tests.support.arms.configured_arms import answered
from tests.support.pages import module_of
from tests.support.servers.scripted_http import ScriptedHttp, json_reply

CORPUS = [
    {"id": "guide.md#1", "title": "France", "text": "Paris is the capital of France.", "url": "guide.md"},
    {"id": "guide.md#2", "title": "Spain", "text": "Madrid is the capital of Spain."},
    {"id": "guide.md#3", "title": "Rivers", "text": "The Vistula flows through Warsaw."},
]


def vector(text):
    """Which of these words are in a text."""
    return [
        float(word in text) + 0.01 for word in ("capital", "Paris", "France", "Madrid", "Spain", "Vistula", "Warsaw")
    ]


def embeddings(sent):
    """The reply of a server of embeddings."""
    texts = sent["input"] if isinstance(sent["input"], list) else [sent["input"]]
    data = [{"object": "embedding", "index": index, "embedding": vector(text)} for index, text in enumerate(texts)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return json_reply({"object": "list", "model": sent["model"], "data": data, "usage": usage})


@pytest.fixture
def search(tmp_path, monkeypatch):
    """The page's module, with its collection filled from CORPUS."""
    for name in [name for name in os.environ if name.startswith("RAGBANDIT_")]:  # they are not settings of this service
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, CORPUS)))
    with ScriptedHttp(answer=embeddings) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("QDRANT_URL", ":memory:")
        module = module_of("generators.md", "handbook_search", folder=tmp_path)
        module.fill(tmp_path / "corpus.jsonl")
        yield module
    del sys.modules["handbook_search"]


def test_passages_come_by_cosine(search):
    """The passage that is nearest comes first, with its id, title and url in the corpus."""
    hits = asyncio.run(search.handbook().search("capital of Spain", k=2))
    assert [hit.passage.id for hit in hits] == ["guide.md#2", "guide.md#1"]
    assert (hits[1].passage.title, hits[1].passage.url, hits[0].passage.url) == ("France", "guide.md", None)


def test_an_arm_answers_from_it(search, tmp_path):
    """An arm of a configuration that names the page's function answers from the collection."""
    generator = {"name": "scripted", "context_tokens": 8000, "script": {"Madrid": "So the answer is: Madrid."}}
    tree = {
        "data_dir": str(tmp_path / "data"),
        "encoder": {"model": "hashing"},
        "arms": {"single_step": {"passages": 1}},
    }
    tree |= {"generator": generator, "retriever": {"name": "handbook_search:handbook"}}
    (tmp_path / "config.yaml").write_text(json.dumps(tree))
    outcome = answered(tmp_path / "config.yaml", "What is the capital of Spain?")
    assert outcome.status == "answered", outcome.error
    assert (outcome.answer, outcome.made_by["retriever"]) == ("Madrid", "qdrant:handbook")
    assert [source.id for source in outcome.sources] == ["guide.md#2"]
