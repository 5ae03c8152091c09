"""The verbs of `ragbandit index` over every retriever, as a user types them."""

import json

import pytest

from tests.integration.retrievers.test_elasticsearch import NAMES, client, remove  # noqa: F401 - one is a fixture
from tests.support import command
from tests.support.logs.replay_logs import close
from tests.support.tiny_models import tiny_encoder

ROWS = [
    {"id": "vistula", "title": "Vistula", "text": "The longest river in Poland."},
    {"id": "paris", "title": "Paris", "text": "The capital of France.", "source": "handbook"},
    {"id": "film", "text": "Who is the director of the film?"},
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a verb in a folder with a corpus, and gives (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))

    def typed(*words):
        done = command.run("index", *words)
        return done.exit_code, done.stdout, done.stderr

    return typed


def configure(**retriever):
    with open("config.yaml", "w", encoding="utf-8") as file:
        json.dump({"retriever": retriever}, file)


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


def test_both_halves_of_a_hybrid_are_built_and_searched(run, tmp_path, other_torch):
    """Words and vectors: both are built, described and searched by one name, also by another processor."""
    configure(name="hybrid", model=tiny_encoder())
    facts = built(run)
    assert facts["dense"]["sha256"] == facts["bm25"]["sha256"]
    assert json.loads(run("search", "--json")[1]) == facts
    code, out, err = run("search", "longest river", "--json")
    assert code == 0, err
    hits = json.loads(out)
    assert sorted(hit["id"] for hit in hits) == ["film", "paris", "vistula"]
    there = json.loads(other_torch.call(command.printed_in, tmp_path, "index", "search", "longest river", "--json"))
    close(there, hits, within=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "--retriever", "bm52"], "did you mean bm25? known: default, bm25"),
        (["search", "q"], "ragbandit index build --retriever bm25"),
        (["search", "--retriever", "dense"], "ragbandit index build --retriever dense"),
        (["search", "--retriever", "elasticsearch"], "retriever.url: Elasticsearch does not answer"),
        (["search", "--retriever", "web"], "known: default, bm25, dense, elasticsearch, hybrid"),
        (["build", "--corpus", "none.jsonl"], "none.jsonl: the file cannot be read"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(run, words, message):
    """A missing index, a server that is down, an unknown retriever and a missing corpus end with exit code 2."""
    configure(url="http://127.0.0.1:9")
    code, _, err = run(*words)
    assert code == 2
    assert message in err
