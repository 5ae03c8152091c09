"""The verbs of `ragbandit index` over every retriever, as a user types them."""

import json

import pytest

from ragbandit.router.config.section import RETRIEVERS
from ragbandit.shared.additions import offered_places
from tests.support import command

ROWS = [
    {"id": "vistula", "title": "Vistula", "text": "The longest river in Poland."},
    {"id": "paris", "title": "Paris", "text": "The capital of France.", "source": "handbook"},
    {"id": "film", "text": "Who is the director of the film?"},
]

KNOWN = sorted([*RETRIEVERS, *offered_places("retrievers")])


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a verb in a folder with a corpus, and gives (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))

    def typed(*words):
        done = command.run("index", *words)
        return done.exit_code, done.stdout, done.stderr

    return typed


def built(run, *words):
    code, out, err = run("build", "--corpus", "corpus.jsonl", "--json", *words)
    assert code == 0, err
    return json.loads(out)


def best(run, query, *words):
    code, out, err = run("search", query, "-k", "1", "--json", *words)
    assert code == 0, err
    return [hit["id"] for hit in json.loads(out)]


def test_bm25_is_built_described_and_searched(run):
    """The default retriever: build, description and search agree."""
    facts = built(run)
    assert facts["passages"] == 3
    assert json.loads(run("search", "--json")[1]) == facts
    assert best(run, "rivers") == ["vistula"]
    assert "vistula" in run("search", "rivers")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "--retriever", "bm52"], "did you mean bm25? known: default, bm25"),
        (["search", "q"], "ragbandit index build --retriever bm25"),
        (["search", "--retriever", "dense"], "ragbandit index build --retriever dense"),
        (["search", "--retriever", "web"], f"known: {', '.join(['default', *KNOWN])}"),
        (["build", "--corpus", "none.jsonl"], "none.jsonl: the file cannot be read"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(run, words, message):
    """A missing index, an unknown retriever and a missing corpus end with exit code 2."""
    code, _, err = run(*words)
    assert code == 2
    assert message in err
