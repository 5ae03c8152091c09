"""The retriever over pgvector of docs/generators.md, from an empty database to an answer."""

import asyncio
import json
import sys

import numpy as np
import psycopg
import pytest
import yaml

from ragbandit.shared.types import Retrieved
from ragbandit.strategies.retrievers.sentences import SentenceEncoder
from tests.support.arms.configured_arms import answered
from tests.support.arms.river_passages import QUESTION, ROWS
from tests.support.pages import module_of
from tests.support.tiny_models import tiny_encoder


@pytest.fixture
def search(empty_postgres_url, tmp_path, monkeypatch):
    """The page's module, with its table filled from ROWS."""
    dsn = empty_postgres_url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(dsn) as connection:
        if not connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("this PostgreSQL has no extension pgvector")
    monkeypatch.setenv("PGVECTOR_DSN", dsn)
    monkeypatch.setenv("CHUNKS_MODEL", tiny_encoder())
    monkeypatch.syspath_prepend(tmp_path)
    module = module_of("generators.md", "chunk_search", folder=tmp_path)
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"id": row.id, "text": row.text}) for row in ROWS))
    module.fill(tmp_path / "corpus.jsonl")
    yield module
    del sys.modules["chunk_search"]


def test_passages_come_by_cosine(search):
    """Hits and scores are those of the vectors' cosines; a query without words finds nothing."""
    encoder = SentenceEncoder(tiny_encoder())
    cosines = encoder.encode([row.text for row in ROWS]) @ encoder.encode(["river in Paris"])[0]
    retriever = search.Chunks()
    hits = asyncio.run(retriever.search("river in Paris", k=4))
    assert [hit.passage for hit in hits] == [ROWS[index] for index in np.argsort(-cosines)[:4]]
    assert [hit.score for hit in hits] == pytest.approx(np.sort(cosines)[:1:-1].tolist(), abs=1e-4)
    assert [asyncio.run(retriever.search(query, k=4)) for query in ("", "?!")] == [(), ()]


def test_an_arm_answers_from_it(search, tmp_path):
    """An arm of a configuration that names the page's class answers from the table."""
    config = tmp_path / "config.yaml"
    tree = {
        "data_dir": str(tmp_path / "data"),
        "encoder": {"model": "hashing"},
        "arms": {"single_step": {"passages": 2}},
    }
    generator = {"name": "scripted", "context_tokens": 8000, "script": {"": "So the answer is: the Seine."}}
    config.write_text(yaml.safe_dump({**tree, "generator": generator, "retriever": {"name": "chunk_search:Chunks"}}))
    outcome = answered(config, QUESTION)
    (hits,) = (event for event in outcome.trace if isinstance(event, Retrieved))
    assert (outcome.status, outcome.answer, outcome.made_by["retriever"]) == (
        "answered",
        "the Seine",
        "pgvector:chunks",
    )
    assert [source.id for source in outcome.sources] == list(hits.ids)
    assert len(hits.ids) == 2
