"""A reranker in one line of a configuration, from an index on disk to an answer."""

import json

import pytest
import torch
import yaml
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ragbandit.router.config.loading import load
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Branch, Retrieved
from ragbandit.workers.setup.generators import inline_arms, worker_arms
from ragbandit.workers.setup.loading import ArmLoader
from tests.support import command
from tests.support.additions import needs
from tests.support.arms.configured_arms import answered
from tests.support.arms.river_passages import QUESTION, ROWS
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply
from tests.support.tiny_models import tiny_cross_encoder, tiny_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with an index of words and one of vectors over ROWS, and a module of the user's own."""
    place = tmp_path_factory.mktemp("reranking")
    (place / "corpus.jsonl").write_text("\n".join(json.dumps({"id": r.id, "text": r.text}) for r in ROWS))
    (place / "own_river_search.py").write_text(
        "from ragbandit.strategies.retrievers.without_index import MemoryRetriever\n"
        f"from {__name__} import ROWS\n"
        "def rows(): return MemoryRetriever(ROWS)\n"
    )
    config = configured(place)
    for name in ("bm25", "dense"):
        command.run(
            *("index", "build", "--corpus", place / "corpus.jsonl", "--config", config, "--retriever", name), code=0
        )
    return place


def configured(place, *, arm=None, **retriever):
    file = place / "config.yaml"
    tree = {
        "data_dir": str(place / "data"),
        "encoder": {"model": "hashing"},
        "generator": {"name": "scripted", "context_tokens": 8000, "script": {"": "So the answer is: the Vistula."}},
        "arms": {"single_step": {"passages": 2, **(arm or {})}},
        "retriever": {"model": tiny_encoder(), **retriever},
    }
    file.write_text(yaml.safe_dump(tree))
    return file


def alone(query, text):
    """The score of a text, by transformers alone."""
    model = AutoModelForSequenceClassification.from_pretrained(tiny_cross_encoder()).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_cross_encoder())
    with torch.inference_mode():
        return torch.sigmoid(model(**tokenizer(query, text, return_tensors="pt")).logits.double()).item()


def longest_last(sent):
    """Long documents are the best ones; the server reports 200 tokens."""
    rows = [{"index": index, "relevance_score": len(text)} for index, text in enumerate(sent["documents"])]
    return json_reply(
        {"results": sorted(rows, key=lambda row: -row["relevance_score"]), "usage": {"total_tokens": 200}}
    )


@pytest.mark.parametrize(
    "retriever",
    ["bm25", "dense", pytest.param("hybrid", marks=needs("hybrid")), "own_river_search:rows"],
)
def test_a_cross_encoder_orders_the_passages_of_an_answer(folder, monkeypatch, retriever):
    """Every retriever's hits have the cross-encoder's scores, and the outcome has its name and seconds."""
    monkeypatch.syspath_prepend(folder)
    outcome = answered(configured(folder, name=retriever, rerank={"model": tiny_cross_encoder(), "depth": 6}), QUESTION)
    (hits,) = (event for event in outcome.trace if isinstance(event, Retrieved))
    scores = {row.id: alone(hits.query, row.text) for row in ROWS}
    best = sorted(scores, key=lambda row: -scores[row])[:2]
    assert (outcome.status, outcome.answer) == ("answered", "the Vistula")
    assert list(hits.ids) == [source.id for source in outcome.sources] == best
    assert hits.scores == pytest.approx([scores[row] for row in best], abs=1e-5)
    (note,) = (event.value for event in outcome.trace if isinstance(event, Branch) and event.rule == "reranked")
    assert ": 6 passages in " in note
    assert note.partition(": 6")[0] in outcome.made_by["retriever"]
    assert 0 < float(note.split()[-2]) <= outcome.cost.seconds_retrieve + 0.0005  # it is rounded
    assert outcome.cost.dollars == 0


def test_a_server_orders_the_passages_of_an_answer(folder, monkeypatch):
    """The passages are the server's best of the first `depth`, and the outcome has its dollars and its key nowhere."""
    monkeypatch.setenv("RERANK_KEY", "k3y")
    with ScriptedHttp(answer=longest_last) as http:
        prices = {"search": 0.002, "documents": 0.5, "tokens": 10.0}
        rerank = {"url": http.url, "model": "judge-1", "api_key_env": "RERANK_KEY", "depth": 4, "prices": prices}
        outcome = answered(configured(folder, rerank=rerank), QUESTION)
        ((_, headers, body),) = http.seen
    found = body["documents"]
    assert (headers["Authorization"], len(found), len({*found} & {row.text for row in ROWS})) == ("Bearer k3y", 4, 4)
    best = sorted(found, key=len, reverse=True)[:2]
    assert [source.text for source in outcome.sources] == best != found[:2]
    assert outcome.cost.dollars == pytest.approx(0.002 + 0.5 * 4 / 1000 + 10 * 200 / 1e6)
    assert outcome.made_by["retriever"].endswith(":reranked:judge-1:4")
    assert "k3y" not in repr(outcome)


def test_a_server_that_fails_fails_the_answer(folder):
    """The answer fails with the reranker's name; it does not go on with the order of the retriever."""
    with ScriptedHttp(json_reply({"error": "no memory"}, status=507)) as http:
        outcome = answered(configured(folder, rerank={"url": http.url, "model": "judge-1", "retries": 0}), QUESTION)
    assert (outcome.status, outcome.answer, outcome.cost.llm_calls) == ("failed", None, 0)
    assert "the reranker judge-1 failed: " in outcome.error
    assert "507" in outcome.error


def test_a_reranker_within_the_budget_of_seconds(folder):
    """A slow server is cut off at the question's deadline, and what it was asked is paid."""
    with ScriptedHttp(Scripted(delay_s=30)) as http:
        rerank = {"url": http.url, "prices": {"search": 0.002}}
        outcome = answered(configured(folder, rerank=rerank), QUESTION, seconds=3.0)
    assert (outcome.status, outcome.stop_reason, outcome.cost.dollars) == ("exhausted", "budget_seconds", 0.002)


def test_index_search_prints_the_scores_of_the_reranker(folder):
    """`ragbandit index search` shows what arms get."""
    config = configured(folder, rerank={"model": tiny_cross_encoder(), "depth": 6})
    done = command.run("index", "search", QUESTION, "--k", 2, "--config", config, "--json", code=0)
    rows = json.loads(done.stdout)
    assert [row["score"] for row in rows] == pytest.approx(
        sorted(alone(QUESTION, row.text) for row in ROWS)[:-3:-1], abs=1e-5
    )


SERVER = {"url": "http://127.0.0.1:9"}
WRONG = {
    "no model": ({}, {}, "retriever.rerank", "needs the model of a cross-encoder, or the url of a server"),
    "half a server": ({"model": "m", "batch": 3}, {}, "retriever.rerank", "has batch, which only a server reads"),
    "a device": ({**SERVER, "device": "cpu"}, {}, "retriever.rerank", "has a device"),
    "depth 0": ({**SERVER, "depth": 0}, {}, "retriever.rerank.depth", "must be at least 1"),
    "a low depth": ({**SERVER, "depth": 4}, {"passages": 5}, "retriever.rerank.depth", "4 is below the 5 passages"),
    "no url": ({"url": "localhost"}, {}, "retriever.rerank.url", "is not a url"),
    "no key": ({**SERVER, "api_key_env": "NO_KEY"}, {}, "retriever.rerank.api_key_env", "NO_KEY is not set"),
    "a typo": ({**SERVER, "dept": 4}, {}, "retriever.rerank.dept", "did you mean depth?"),
    "a price": ({**SERVER, "prices": {"search": -1}}, {}, "retriever.rerank.prices.search", "must be at least 0"),
    "no such model": ({"model": "nobody/no-such"}, {}, "retriever.rerank.model", "found no weights"),
}


@pytest.mark.parametrize("case", WRONG)
def test_validate_names_the_setting(folder, monkeypatch, case):
    """`ragbandit validate` refuses a reranker that no worker could use, by setting and remedy."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rerank, arm, field, words = WRONG[case]
    config = configured(folder, arm=arm, rerank=rerank)
    done = command.run("validate", "--settings-only", "--config", config, code=2)
    assert f"CONFIG_INVALID {field}: " in done.stderr
    assert words in done.stderr


def test_a_named_retriever_names_its_own_section(folder):
    """The depth of a retriever in `retrievers` is checked for the arms that use it, and the message has its name."""
    config = configured(folder, arm={"retriever": "wiki"})
    tree = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**tree, "retrievers": {"wiki": {"rerank": {**SERVER, "depth": 1}}}}))
    with pytest.raises(ConfigError, match=r"^retrievers\.wiki\.rerank\.depth: 1 is below the 2 passages"):
        worker_arms_of(config)


def worker_arms_of(config):
    settings = load(config, environ={}).settings
    ArmLoader(settings).load(worker_arms(settings))


def test_stored_answers_of_other_prices_are_not_used(folder):
    """The version of an arm, by which `evaluate` finds its stored answers, changes with the reranker's prices only."""

    def version(rerank):
        settings = load(configured(folder, rerank=rerank), environ={}).settings
        (arm,) = ArmLoader(settings).load(worker_arms(settings)).values()
        return arm.version

    cheap, dear = ({**SERVER, "prices": {"search": dollars}} for dollars in (0.001, 0.002))
    assert version(None) == version(SERVER) != version(cheap) != version(dear)


@needs("elasticsearch")
@pytest.mark.parametrize(("rerank", "is_inline"), [(SERVER, True), ({"model": "m"}, False), (None, True)])
def test_the_service_reranks_by_a_server_itself(folder, rerank, is_inline):
    """An arm on Elasticsearch runs in the service if a server reranks, and in a worker if a model does."""
    config = configured(folder, name="elasticsearch", rerank=rerank)
    tree = yaml.safe_load(config.read_text())
    openai = {"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    config.write_text(yaml.safe_dump({**tree, "generator": openai}))
    assert bool(inline_arms(load(config, environ={}).settings)) is is_inline
