"""The verbs of `ragbandit index` over every retriever, as a user types them."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ragbandit.strategies.retrievers.sentences import SentenceEncoder
from ragbandit.workers.cli import app
from tests.integration.retrievers.test_elasticsearch import NAMES, client, remove  # noqa: F401 - one is a fixture
from tests.support.tiny_models import tiny_cross_encoder, tiny_encoder

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
    """The default retriever: build, description and search agree, and the mentions are counted for the policy."""
    facts = built(run)

    assert facts["passages"] == 3
    assert facts.pop("popularity").endswith("popularity.json")
    assert json.loads(run("search", "--json")[1]) == facts
    assert best(run, "rivers") == ["vistula"]
    assert "vistula" in run("search", "rivers")[1]


def test_documents_that_are_left_out_are_said_once_and_counted(run, tmp_path, caplog):
    """The folder is read four times, for words, vectors and mentions: each reason stands once, with their number."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "city.md").write_text("# Warsaw\n\nIt stands by the river.", encoding="utf-8")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "plan.docx").write_bytes(b"PK")
    configure(name="hybrid", model=tiny_encoder())
    facts = built(run, "--corpus", "docs")

    assert facts["left_out"] == 2
    assert (facts["bm25"]["passages"], facts["dense"]["passages"]) == (1, 1)
    said = [record.getMessage() for record in caplog.records if record.name == "ragbandit.documents"]
    assert [line.split(":")[0] for line in said] == ["latin.txt is left out", "plan.docx is left out"]
    assert re.search(r"left out +2\b", run("build", "--corpus", "docs")[1])
    assert "left_out" not in built(run)


def test_another_title_is_another_passage(run, tmp_path, monkeypatch):
    """A build of vectors that was cut off does not keep the vector of a document whose title has changed since."""
    folder = tmp_path / "docs"
    folder.mkdir()
    texts = {f"{name}.md": f"# {name}\n\nIt stands by the river." for name in ("a", "b", "c")}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    configure(name="dense", model=tiny_encoder())
    monkeypatch.setattr("ragbandit.strategies.retrievers.dense._BATCH", 1)
    encode, encoded = SentenceEncoder.encode, []

    def counting(encoder, given, **options):
        if len(encoded) == 2:
            encoded.append("cut off")
            raise KeyboardInterrupt
        encoded.extend(given)
        return encode(encoder, given, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", counting)
    code, out, err = run("build", "--corpus", "docs")
    assert (code, out, err.splitlines()[-1]) == (130, "", "stopped; the same command goes on where dense ended")
    assert (code, len(encoded)) == (130, 3)
    (folder / "b.md").write_text(f"---\ntitle: Beta\n---\n{texts['b.md']}", encoding="utf-8")
    built(run, "--corpus", "docs")

    assert [text.splitlines()[0] for text in encoded] == ["a", "b", "cut off", "Beta", "c"]


def test_ctrl_c_says_that_an_index_of_words_begins_anew(run, monkeypatch):
    """What was there is searched as before."""
    built(run)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ragbandit.strategies.retrievers.corpus.passage_line", interrupted)
    code, out, err = run("build", "--corpus", "corpus.jsonl")

    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "stopped; the same command starts from the beginning"
    assert best(run, "rivers") == ["vistula"]


def test_a_search_that_finds_nothing_says_so(run):
    """On standard error, so that a pipe gets nothing; JSON is an empty list."""
    built(run)

    assert run("search", "\U0001f600") == (0, "", "nothing was found\n")
    assert run("search", "rivers")[2] == ""
    assert json.loads(run("search", "\U0001f600", "--json")[1]) == []


def test_half_a_surrogate_pair_can_be_indexed_and_shown(run, tmp_path):
    """Every retriever takes a corpus that holds some; on the terminal it is its code, in JSON what it was."""
    half = {"id": "half\ud800", "title": "\udfff Oder", "text": "A river \ud800 too."}
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in [*ROWS, half]))
    for name in ("bm25", "dense", "hybrid"):
        configure(name=name, model=tiny_encoder())
        built(run)
        assert "half\\ud800  \\udfff Oder" in run("search", "Oder river")[1]
        found = json.loads(run("search", "Oder river", "--json")[1])
        assert [hit["title"] for hit in found if hit["id"] == half["id"]] == [half["title"]]


def test_facts_are_for_people_and_json_for_programs(run):
    """A person reads times as dates, and both halves of a hybrid; the same numbers are in the JSON."""
    configure(name="hybrid", model=tiny_encoder())
    facts = built(run)
    _, words, vectors = re.split("\nbm25\n|\ndense\n", run("search")[1])

    for half, shown in (("bm25", words), ("dense", vectors)):
        lines = dict(re.split("  +", line, maxsplit=1) for line in shown.strip().splitlines())
        made_at = datetime.fromisoformat(lines["created at"].replace(" UTC", "+00:00"))
        assert made_at.timestamp() == int(facts[half]["created_at"])
        assert lines["sha256"] == facts[half]["sha256"]
        assert Path(lines["folder"]).is_dir()


def test_dense_and_bm25_of_one_name_lie_side_by_side(run, tmp_path):
    """The same --index serves both; building one leaves the other."""
    configure(name="bm25", model=tiny_encoder())
    words = built(run)
    vectors = built(run, "--retriever", "dense")

    assert words["folder"] == str(tmp_path / ".ragbandit" / "indexes" / "default")
    assert vectors["folder"] == f"{words['folder']}-dense"
    assert words["sha256"] == vectors["sha256"]
    assert json.loads(run("search", "--retriever", "dense", "--json")[1]) == vectors
    assert best(run, "Who is the director of the film?", "--retriever", "dense") == ["film"]
    assert best(run, "rivers") == ["vistula"]


@pytest.mark.parametrize("search", ["words", "meaning", "both"])
def test_elasticsearch_is_built_described_and_searched(run, client, elasticsearch_url, search):  # noqa: F811 - a fixture
    """The three ways of searching a server, chosen in the configuration."""
    name = next(NAMES)
    configure(name="elasticsearch", url=elasticsearch_url, index=name, search=search, model=tiny_encoder())
    try:
        facts = built(run)
        assert (facts["url"], facts["index"], facts["passages"]) == (elasticsearch_url, name, 3)
        assert json.loads(run("search", "--json")[1]) == facts
        assert best(run, "Who is the director of the film?") == ["film"]
    finally:
        remove(client, name)


def test_an_index_of_a_named_retriever(run):
    """--retriever NAME builds, describes and searches that one; with --index another place of it."""
    Path("config.yaml").write_text(json.dumps({"retrievers": {"wiki": {"index": "wiki", "rerank": None}}}))
    assert built(run, "--retriever", "wiki")["folder"].endswith("/indexes/wiki")
    assert json.loads(run("search", "--retriever", "wiki", "--json")[1])["folder"].endswith("/indexes/wiki")
    assert best(run, "Who is the director of the film?", "--retriever", "wiki") == ["film"]
    assert built(run, "--retriever", "wiki", "--index", "other")["folder"].endswith("/indexes/other")


def test_a_vector_database_is_one_half_of_a_hybrid(run, tmp_path):
    """Qdrant in a folder: both halves are built, described and searched, and their hits reranked, by one name."""
    pytest.importorskip("qdrant_client")
    folder = str(tmp_path / "qdrant")
    configure(
        name="hybrid", first="bm25", second="qdrant", url=folder, model=tiny_encoder(), rerank=tiny_cross_encoder()
    )
    facts = built(run)
    assert (facts["qdrant"]["collection"], facts["qdrant"]["passages"]) == ("default", 3)
    assert facts["qdrant"]["sha256"] == facts["bm25"]["sha256"]
    assert json.loads(run("search", "--json")[1])["qdrant"] == facts["qdrant"]
    code, out, err = run("search", "longest river", "--json")
    assert code == 0, err
    assert sorted(hit["id"] for hit in json.loads(out)) == ["film", "paris", "vistula"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "--retriever", "bm52"], "did you mean bm25? known: default, bm25"),
        (["search", "q"], "ragbandit index build --retriever bm25"),
        (["search", "--retriever", "dense"], "ragbandit index build --retriever dense"),
        (["search", "--retriever", "elasticsearch"], "retriever.url: Elasticsearch does not answer"),
        (["search", "--retriever", "web"], "known: default, bm25, dense, elasticsearch, hybrid, pgvector, qdrant"),
        (["build", "--corpus", "none.jsonl"], "none.jsonl: cannot be read"),
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
    code, _, err = run("search")

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


def test_building_and_describing_need_no_reranker(run):
    """One that cannot be had stops a search, and neither `build` nor `info`."""
    configure(rerank="nobody/no-such-model")
    facts = built(run)
    assert json.loads(run("search", "--json")[1]) == {key: facts[key] for key in facts if key != "popularity"}

    code, _, err = run("search", "river")
    assert code == 2
    assert "retriever.rerank: found no weights for 'nobody/no-such-model'" in err
