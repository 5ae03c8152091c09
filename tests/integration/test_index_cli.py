"""The verbs of `ragbandit index` over every retriever, as a user types them."""

import json

import pytest
from typer.testing import CliRunner

from tests.integration.test_elasticsearch import NAMES, client, remove, url  # noqa: F401 - two are fixtures
from tests.tiny_models import tiny_encoder
from workers.cli import app

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
        done = CliRunner().invoke(app, ["index", *words])
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
    """The default retriever: build, info and search agree, and the mentions are counted for the policy."""
    facts = built(run)

    assert facts["passages"] == 3
    assert facts.pop("popularity").endswith("popularity.json")
    assert json.loads(run("info", "--json")[1]) == facts
    assert best(run, "rivers") == ["vistula"]
    assert "vistula" in run("search", "rivers")[1]


def test_dense_and_bm25_of_one_name_lie_side_by_side(run, tmp_path):
    """The same --index serves both; building one leaves the other."""
    configure(name="bm25", model=tiny_encoder())
    words = built(run)
    vectors = built(run, "--retriever", "dense")

    assert words["folder"] == str(tmp_path / ".ragbandit" / "indexes" / "default")
    assert vectors["folder"] == f"{words['folder']}-dense"
    assert words["sha256"] == vectors["sha256"]
    assert json.loads(run("info", "--retriever", "dense", "--json")[1]) == vectors
    assert best(run, "Who is the director of the film?", "--retriever", "dense") == ["film"]
    assert best(run, "rivers") == ["vistula"]


def test_hybrid_builds_and_describes_both(run):
    """One build makes the indexes of both retrievers, one search joins them."""
    configure(name="hybrid", model=tiny_encoder())
    facts = built(run)

    assert sorted(facts) == ["bm25", "dense", "popularity"]
    del facts["popularity"]
    assert json.loads(run("info", "--json")[1]) == facts
    assert best(run, "director film") == ["film"]


@pytest.mark.parametrize("search", ["words", "meaning", "both"])
def test_elasticsearch_is_built_described_and_searched(run, client, url, search):  # noqa: F811 - the fixtures
    """The three ways of searching a server, chosen in the configuration."""
    name = next(NAMES)
    configure(name="elasticsearch", url=url, index=name, search=search, model=tiny_encoder())
    try:
        facts = built(run)
        assert (facts["url"], facts["index"], facts["passages"]) == (url, name, 3)
        assert json.loads(run("info", "--json")[1]) == facts
        assert best(run, "Who is the director of the film?") == ["film"]
    finally:
        remove(client, name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "q"], "ragbandit index build --retriever bm25"),
        (["info", "--retriever", "dense"], "ragbandit index build --retriever dense"),
        (["info", "--retriever", "elasticsearch"], "retriever.url: Elasticsearch does not answer"),
        (["info", "--retriever", "web"], "known: bm25, dense, elasticsearch, hybrid"),
        (["build", "--corpus", "none.jsonl"], "none.jsonl cannot be read"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(run, words, message):
    """A missing index, a server that is down, an unknown retriever and a missing corpus end with exit code 2."""
    configure(url="http://127.0.0.1:9")
    code, _, err = run(*words)

    assert code == 2
    assert message in err


def test_a_hybrid_of_one_retriever_is_refused(run):
    """Both halves the same joins nothing."""
    configure(name="hybrid", first="bm25", second="bm25")
    code, _, err = run("info")

    assert code == 2
    assert "retriever.second" in err


def test_an_index_of_another_retriever_is_not_built_over(run):
    """The folder of a bm25 index is refused to the index of vectors."""
    configure(model=tiny_encoder())
    built(run, "--index", "mine-dense")
    code, _, err = run("build", "--corpus", "corpus.jsonl", "--retriever", "dense", "--index", "mine-dense")

    assert code == 2
    assert "is an index of another retriever" in err


def test_dense_by_a_graph_is_chosen_in_the_configuration(run):
    """retriever.search_by faiss builds the graph and searches by it; without it the index is refused."""
    configure(name="dense", model=tiny_encoder(), index="plain")
    assert built(run)["search_by"] == "exact"
    configure(name="dense", model=tiny_encoder(), index="plain", search_by="faiss")
    code, _, err = run("search", "director film")
    assert (code, "has no graph of faiss" in err) == (2, True)

    assert built(run)["search_by"] == "faiss"
    assert best(run, "Who is the director of the film?") == ["film"]
