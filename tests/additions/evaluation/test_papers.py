"""Every command of docs/papers.md for routers, on a small made table with tiny models.

The numbers are compared with an independent computation from the tables and from the choices in the file of plays.
"""

import json
import re

import numpy as np
import pytest
import yaml

from tests.integration.test_base_install import ROOT
from tests.integration.test_documented_commands import commands
from tests.support import command
from tests.support.additions import needs
from tests.support.logs.log_rows import write_json
from tests.support.tiny_models import tiny_encoder

pytestmark = needs("classifiers", "model_picks", "popularity", "vw")

ARMS = ("no_retrieval", "single_step", "multi_step")
DATASETS = ("nq", "squad", "trivia", "musique", "hotpotqa", "2wikimultihopqa")
READING = {"model": tiny_encoder(), "max_tokens": 16, "device": "cpu", "threads": 1}
#: params of the policies that fine-tune a model, for tiny models
TINY = {
    "mba_paper": READING,
    "adaptive_rag": READING | {"epochs": 1, "batch": 8},
    "multi_label": READING | {"epochs": 1, "batch": 8},
}
PAGE = "docs/papers.md"
#: the file of CodeRouterBench, and its columns
STREAM = "id_test_results_long.csv"
HEADS = (
    "task_id,split,source_split,dimension,model,score,cost_usd,input_tokens,output_tokens,total_tokens,latency_ms,"
    "cost_source"
)
MODELS = ("claude-opus-4-6", "gpt-5.4", "Qwen3-Max")


def table(*, first, count=18, right=True):
    """Rows of the six data sets. About half of the answers are right; every third question has no right answer."""
    random, rows = np.random.default_rng(first), []
    for number in range(first, first + count):
        exact = (random.random(3) < 0.6) & (number % 3 > 0) & right
        rows.append(
            {
                "id": f"q{number}",
                "question": f"{('who', 'where', 'when')[number % 3]} dracula {number} ?",
                "dataset": DATASETS[number % 6],
                "correct": dict(zip(ARMS, exact.astype(float).tolist(), strict=True)),
                "exact_match": dict(zip(ARMS, exact.astype(float).tolist(), strict=True)),
                "f1": dict(zip(ARMS, np.maximum(exact, random.random(3).round(2)).tolist(), strict=True)),
                "steps": dict(zip(ARMS, [0, 1, int(random.integers(2, 6))], strict=True)),
                "seconds": dict(zip(ARMS, random.random(3).round(3).tolist(), strict=True)),
            }
        )
    return rows


def mentions():
    """Entity -> its mentions. The number in a question is an entity: a popular one in training if memory is enough, and
    in the test if it is even.
    """
    popular = {row["id"]: row["correct"][ARMS[0]] for row in table(first=0)}
    popular |= {f"q{number}": number % 2 == 0 for number in range(100, 118)}
    return {"dracula": 9, **{name.removeprefix("q"): 9 if known else 1 for name, known in popular.items()}}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The output of each command, in the order of the page: (words, JSON, plays)."""
    world = tmp_path_factory.mktemp("papers")
    write_json(world / "train.jsonl", table(first=0))
    (world / "routing").mkdir()
    for name in ("test", "routing/flan_t5_xl_dev", "routing/llama31_8b_dev"):
        write_json(world / f"{name}.jsonl", table(first=100))
    write_json(world / "zeros.jsonl", table(first=0, right=False))
    (world / "counts.json").write_text(json.dumps({"format": 1, "mentions": mentions()}))
    script = {'"question": "who': ARMS[0], "": ARMS[1]}
    tree = {"data_dir": "data", "encoder": {"model": "hashing"}, "generator": {"name": "scripted", "script": script}}
    (world / "config.yaml").write_text(yaml.safe_dump(tree | {"arms": {arm: {} for arm in ARMS}}, sort_keys=False))
    shown = [
        words
        for page, words in commands()
        if page == PAGE and words[:2] in (["evaluate", "--table"], ["policy", "train"]) and STREAM not in words
    ]
    outputs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        for number, words in enumerate(shown):
            names = words[words.index("--policy") + 1].split(",")
            params = [
                f"{name}.{key}={json.dumps(value)}" for name in names for key, value in TINY.get(name, {}).items()
            ]
            words = [*words, *(word for param in params for word in ("--param", param)), "--json"]
            if words[0] == "policy":
                command.run(*words, code=0)
                continue
            plays = f"plays-{number}.jsonl"
            output = command.run(*words, "--seeds", "1", "--answers", plays, code=0).stdout
            found = [json.loads(line) for line in (world / plays).read_text().splitlines()]
            outputs.append((words, json.loads(output), found))
    return outputs


def means(shares, rows, *, total, dataset=None):
    """Independent means of (n, K) shares over rows, with qualities divided by the number of all questions."""
    inside = [place for place, row in enumerate(rows) if dataset in (None, row["dataset"])]
    found = {}
    for name in ("exact_match", "f1", "steps", "seconds"):
        values = np.array([[rows[place][name][arm] for arm in ARMS] for place in inside])
        count = total if total and name in ("exact_match", "f1") else len(inside)
        found[name] = float((shares[inside] * values).sum() / count)
    return found


def option(words, name):
    return words[words.index(name) + 1] if name in words else None


def test_every_command_for_routers_ran(done):
    """The page has commands for both papers on routing, the choice by a language model, Adaptive Retrieval, and all
    routers together.
    """
    policies = {name for words, _, _ in done for name in option(words, "--policy").split(",")}
    assert policies == {"mba_paper", "mba", "adaptive_rag", "multi_label", "linucb", "vw", "llm", "popularity"}
    assert len(done) == 10


def test_the_numbers_are_those_of_an_independent_computation(done):
    """Means of policies, arms and oracle, over all questions and by data set, follow from tables and choices alone."""
    for words, output, plays in done:
        wanted = (option(words, "--datasets") or ",".join(DATASETS)).split(",")
        rows = [row for row in table(first=100) if row["dataset"] in wanted]
        total = int(option(words, "--total") or 0)
        exact = np.array([[row["exact_match"][arm] for arm in ARMS] for row in rows])
        steps = np.array([[row["steps"][arm] for arm in ARMS] for row in rows])
        best = np.where(exact == exact.max(axis=1, keepdims=True), steps, np.inf).argmin(axis=1)
        chosen = {"oracle": np.eye(3)[best]} | {arm: np.eye(3)[[k] * len(rows)] for k, arm in enumerate(ARMS)}
        for policy in {play["task"]["policy"] for play in plays}:
            shares = np.zeros((len(rows), 3))
            for play in (play["played"] for play in plays if play["task"]["policy"] == policy):
                shares[play["test"]] = play["shares"]
            assert shares.sum(axis=1) == pytest.approx(np.ones(len(rows)))
            chosen[policy] = shares
        printed = {row["name"]: row for row in output["routers"]}
        for name, shares in chosen.items():
            for measure, value in means(shares, rows, total=total).items():
                if measure != "seconds" or name in ARMS:  # a policy's seconds include the time of choosing
                    assert printed[name][measure] == pytest.approx(value), (words, name, measure)
            for dataset in wanted:
                part = means(shares, rows, total=total / len(wanted), dataset=dataset)
                assert printed[name]["by_dataset"][dataset]["f1"] == pytest.approx(part["f1"])
        one = means(chosen["single_step"], rows, total=0)["seconds"]
        assert printed["multi_step"]["time"] == pytest.approx(printed["multi_step"]["seconds"] / one)
        label = [int(row) if exact[place].any() else None for place, row in enumerate(best)]
        known = [place for place, one in enumerate(label) if one is not None]
        for name, shares in chosen.items():
            accuracy = np.mean([shares[place, label[place]] for place in known])
            assert printed[name]["label_accuracy"] == pytest.approx(accuracy)


def test_popularity_answers_popular_questions_without_retrieval(done):
    """The threshold is learned from the training table, and the counts choose the arm of each test question."""
    ((_, _, plays),) = [one for one in done if option(one[0], "--policy") == "popularity"]
    chosen = [ARMS[shares.index(1.0)] for shares in plays[0]["played"]["shares"]]
    assert chosen == [ARMS[number % 2] for number in range(100, 118)]


def test_policies_had_no_fault(done):
    """No policy fell back, and no outcome was refused."""
    assert [row["fault"] for _, output, _ in done for row in output["routers"] if row["fault"]] == []


def test_the_published_stream_is_read_as_it_is(tmp_path, monkeypatch):
    """The command for CodeRouterBench reads a file of its columns; the lead of the pass is score minus .1 dollars above
    always the best model, and the dimension is context.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data_dir": "data", "encoder": {"model": "hashing"}}))
    random, lines = np.random.default_rng(3), [HEADS]
    scores = random.random((30, 3)).round(3)
    dollars = random.random((30, 3)).round(4)
    for place in range(30):
        for model, score, paid in zip(MODELS, scores[place], dollars[place], strict=True):
            dimension = ("algorithm", "bug_fixing")[place % 2]
            lines.append(
                f"dim1_mbpp_{place},id_test,test,{dimension},{model},{score},{paid},9,9,18,1500,token_log_pricing"
            )
    (tmp_path / STREAM).write_text("\n".join(lines))
    text = (ROOT / PAGE).read_text("utf-8")
    [block] = [block for block in text.split("\n\n") if STREAM in block and "ragbandit evaluate" in block]
    for name, value in re.findall(r"(RAGBANDIT_\w+)=(\S+)", block):
        monkeypatch.setenv(name, value)
    [words] = [words for page, words in commands() if page == PAGE and STREAM in words]
    output = json.loads(command.run(*words, "--seeds", "2", "--json", code=0).stdout)
    plays = [json.loads(line) for line in (tmp_path / "stream.jsonl").read_text().splitlines()]
    passes = [play["played"] for play in plays if play["task"]["policy"] == "mba"]
    reward = scores - 0.1 * dollars
    best = reward.mean(axis=0).argmax()
    leads = [reward[one["order"], one["drawn"]].sum() - reward[:, best].sum() for one in passes]
    mba = output["online"][0]
    assert (mba["name"], mba["questions"]) == ("mba", 30)
    assert mba["above_best"] == pytest.approx(np.mean(leads))
    assert any("context dimension from dimension" in note for note in output["notes"])
    arms = [row["name"] for row in output["online"] if row["kind"] == "arm"]
    assert sorted(arms) == sorted(MODELS)
