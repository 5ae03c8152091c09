"""`ragbandit policy train` from table to folder to service, and the classifiers in the live loop."""

import json

import numpy as np
import pytest
import yaml

from ragbandit.router.offline.logs.tables import read_table
from ragbandit.router.offline.replay import memory_log, parse_candidates, replay
from ragbandit.router.offline.training import trainable_policies
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.shared.types import Query
from ragbandit.testing.policies import ARMS
from tests.support import command
from tests.support.additions import needs
from tests.support.finetuned import READING
from tests.support.logs.replay_logs import rows_from
from tests.support.tiny_models import tiny_trained
from tests.support.training import counts_in, counts_of

FAST = READING | {"epochs": 8, "batch": 4, "learning_rate": 3e-3}


def fitting(name="adaptive_rag", **params):
    """The words of `train` for these params."""
    return [word for key, value in params.items() for word in ("--param", f"{name}.{key}={json.dumps(value)}")]


@pytest.mark.parametrize("name", ["adaptive_rag", "multi_label"])
def test_train_writes_a_folder_that_routes(train, table, tmp_path, name):
    """`train --json` prints the report; the folder it wrote makes a policy that routes by what the table taught."""
    out = tmp_path / "out"
    done = train("--policy", name, "--table", table, "--out", out, *fitting(name, **FAST), "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["rows"], report["used"], report["folder"]) == (24, 24, str(out))
    assert len(report["epochs"]) == 8
    choice = {"choice": "cheapest"} if name == "multi_label" else {}
    policy = make_policy(name, params=READING | {"trained": str(out)} | choice)
    assert policy.state()[1]["trained"] == report["sha256"]
    for word, arm in (("who", 0), ("when", 2)):
        pmf = pmf_of_one(policy, Query(text=f"{word} born city ?"), features=None, arms=ARMS).pmf
        assert pmf[arm] == 1.0


def choices(name, params):
    """What names the training, and the pmfs of two questions."""
    policy = make_policy(name, params=params)
    texts = ("who born city ?", "when born city ?")
    pmfs = [pmf_of_one(policy, Query(text=text), features=None, arms=ARMS).pmf for text in texts]
    return policy.state()[1]["trained"], pmfs


@pytest.mark.parametrize("name", ["adaptive_rag", "multi_label"])
def test_another_processor_routes_by_the_folder(other_torch, name):
    """A trained folder has the same sha256 on another processor, which chooses the same arms."""
    params = READING | {"trained": tiny_trained(name)}
    assert other_torch.call(choices, name, params) == choices(name, params)


@pytest.mark.parametrize("name", ["adaptive_rag", "multi_label"])
def test_train_prints_the_confusion_matrix_of_the_held_out_rows(train, table, tmp_path, name):
    """The matrix counts the choices of the saved folder on the rows that the training did not learn."""
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    for line in lines[::4]:
        line["correct"] = dict.fromkeys(ARMS, 0)
        line["hops"] = 2
    table.write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "out"
    choice = {"choice": "cheapest"} if name == "multi_label" else {}
    fast = FAST | {"epochs": 2, "validation": 0.5} | choice
    done = train("--policy", name, "--table", table, "--out", out, *fitting(name, **fast), "--json")
    assert done.exit_code == 0, done.output
    confusion = json.loads(done.stdout)["confusion"]
    rows = read_table(table).rows
    held_out = [rows[place] for place in np.random.default_rng([0, 2]).permutation(24)[:12]]
    policy = make_policy(name, params=READING | {"trained": str(out)} | choice)

    def chosen(row):
        pmf = pmf_of_one(policy, Query(text=row.question), features=None, arms=ARMS).pmf
        return ARMS[pmf.index(max(pmf))]

    counts = counts_of(held_out, chosen=chosen)
    assert (confusion["judged_on"], confusion["questions"]) == ("held-out", 12)
    assert counts_in(confusion) == counts
    with_label = {label: sum(n for (own, _), n in counts.items() if own == label) for label in ARMS}
    right = {label: counts[label, label] for label in ARMS}
    assert confusion["label_accuracy"] == pytest.approx(sum(right.values()) / sum(with_label.values()))
    assert confusion["accuracy_by_label"] == {
        label: pytest.approx(right[label] / count) if count else None for label, count in with_label.items()
    }


def test_questions_add_inductive_labels(train, table, tmp_path):
    """Questions with hops are labelled by them, except those in the table."""
    known = read_table(table).rows[0].question
    asked = [(known, 2), ("which film ?", 1), ("who wrote the film ?", 2), ("where ?", 0)]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(json.dumps({"question": text, "hops": hops, "answers": []}) for text, hops in asked))
    params = fitting(**FAST | {"epochs": 1})
    words = ("--policy", "adaptive_rag", "--table", table, "--questions", file, "--out", "out", *params)
    done = train(*words, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    counted = {key: report[key] for key in ("rows", "used", "inductive", "dropped")}
    assert counted == {"rows": 27, "used": 26, "inductive": 2, "dropped": 1}
    assert report["labels"] == {"no_retrieval": 12, "single_step": 1, "multi_step": 13}


def test_a_table_of_routerbench_is_trained_on(train, table, tmp_path):
    """A policy trains on columns of models with `--columns steps=total_cost`, an option that the refusal names."""
    names = {arm: f"model-{place}" for place, arm in enumerate(ARMS)}
    heads = ["sample_id", "prompt", *names.values(), *(f"{name}|total_cost" for name in names.values())]
    lines = [json.dumps(heads)[1:-1]]
    for number, row in enumerate(read_table(table).rows):
        right, costs = ([amounts[arm] for arm in ARMS] for amounts in (row.correct, row.steps))
        lines.append(json.dumps([f"s.{number}", row.question, *right, *costs])[1:-1].replace(", ", ","))
    (file := tmp_path / "routerbench.csv").write_text("\n".join([lines[0].replace(", ", ","), *lines[1:]]))
    words = (
        "--policy",
        "multi_label",
        "--table",
        file,
        "--out",
        "out",
        *fitting("multi_label", **FAST | {"epochs": 1}),
    )
    refused = train(*words)
    assert refused.exit_code == 2
    assert "--columns steps=total_cost" in refused.output
    done = train(*words, "--columns", "steps=total_cost", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout[done.stdout.index("{") :])["used"] == 24


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"--policy": "mba"}, f"policy: 'mba' is not trained on tables (use one of {', '.join(trainable_policies())})"),
        ({"--policy": "oracle"}, "policy: 'oracle' is not trained on tables"),
        ({"--table": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"--questions": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"--param": "adaptive_rag.colour=1"}, "policy.params.colour"),
        ({"--param": "adaptive_rag.batch=0"}, "policy.params.batch"),
        ({"--param": "adaptive_rag.trained=x"}, "policy.params.trained"),
        ({"--param": "adaptive_rag.model=./nowhere"}, "policy.params.model"),
        ({"--out": "used"}, "out: used already exists"),
    ],
)
def test_train_refuses_what_it_cannot_use(train, table, tmp_path, changes, named):
    """A wrong option ends the command with exit code 2 and one line: what, where and the remedy. Nothing is written."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("x")
    before = sorted(path.name for path in tmp_path.iterdir())
    given = {"--policy": "adaptive_rag", "--table": table, "--out": "out"} | changes
    params = fitting(**FAST) if given["--policy"] == "adaptive_rag" else []
    done = train(*params, *(word for pair in given.items() for word in pair))
    assert done.exit_code == 2
    assert named in done.output
    assert "Traceback" not in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@needs("advice")
def test_advice_on_a_trained_classifier(train, table, tmp_path):
    """`advise --table` judges a trained classifier as it is; a warm start, which it would not learn, is refused."""
    train("--policy", "adaptive_rag", "--table", table, "--out", "out", *fitting(**FAST | {"epochs": 2}))
    policy = {"name": "adaptive_rag", "params": READING | {"trained": "out"}}
    tree = {"policy": policy, "data_dir": "data", "encoder": {"model": "hashing", "dimension": 8}, "arms": {}}
    tree["arms"] = {arm: {"run_by": "caller"} for arm in ARMS}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    done = command.run("advise", "--table", table, "--json")
    assert done.exit_code in (0, 3, 4), done.output
    assert any("adaptive_rag was trained before" in note for note in json.loads(done.stdout)["notes"])
    refused = command.run("advise", "--table", table, "--warm", code=2)
    assert "trained on a table as a whole" in refused.output


def test_replay_names_a_classifier_that_was_trained_elsewhere():
    """The description of a trained classifier has that it was trained elsewhere."""
    name = "adaptive_rag"
    asked = parse_candidates([name], params={name: READING | {"trained": tiny_trained(name)}})
    drawn = ({"text": f"who {n} ?", "arms": [*ARMS], "pmf": [0.25, 0.5, 0.25], "arm": ARMS[n % 3]} for n in range(30))
    rows = rows_from({**record, "reward": float(n % 2)} for n, record in enumerate(drawn))
    (judged,) = replay(memory_log(rows), candidates=asked).candidates
    assert judged.described == "adaptive_rag, trained before on a table, not on this log"
    assert judged.learned is None


@pytest.mark.parametrize("name", ["adaptive_rag", "multi_label"])
def test_trained_policy_serves_and_replays(make_world, name):
    """A trained policy decides over the whole loop: its choice is the likeliest arm of the log, its updates are
    counted, and the ledger replayed gives the live policy.
    """
    params = READING | {"trained": tiny_trained(name)}
    world = make_world(policy={"name": name, "params": params, "floor": 0.02, "cold_start_floor": 0.0})
    decided = world.judged(6)
    assert world.learn() == 6
    for decision in decided:
        assert max(decision.pmf) == pytest.approx(0.96)
        assert decision.fault is None
        assert len(decision.facts["probability"]) == 3
    assert world.router.service.serving.policy.state()[1]["updates"] == 6
    assert world.sha256(world.replayed()) == world.sha256(world.router.service.serving.policy)
