"""`ragbandit evaluate --table --policy`: rows of routers, from the files to the screen, the JSON and the page."""

import json

import numpy as np
import pytest
import yaml

from tests.support import command
from tests.support.additions import needs
from tests.support.tiny_models import tiny_encoder

ARMS = ("no_retrieval", "single_step", "multi_step")
READING = {"model": tiny_encoder(), "max_tokens": 16, "device": "cpu", "threads": 1}
FITTING = READING | {"epochs": 1, "batch": 8, "learning_rate": 3e-3}


def rows(count=36):
    """Questions whose first word decides: "who" needs nothing, "where" one search, "when" many; some have no answer."""
    random, lines = np.random.default_rng(1), []
    for number in range(count):
        kind = number % 3
        exact = [int(place >= kind and number % 9 != 8) for place in range(3)]
        rest = " ".join(random.choice(["dracula", "born", "city", "river", "film"], size=2))
        lines.append(
            {
                "id": f"q{number}",
                "question": f"{('who', 'where', 'when')[kind]} {rest} {number} ?",
                "correct": dict(zip(ARMS, exact, strict=True)),
                "exact_match": dict(zip(ARMS, exact, strict=True)),
                "f1": dict(zip(ARMS, [max(one, 0.25) for one in exact], strict=True)),
                "steps": dict(zip(ARMS, [0, 1, 2 + number % 4], strict=True)),
                "seconds": dict(zip(ARMS, [0.5, 1.0, 2.0 + number % 4], strict=True)),
                "dataset": ("nq", "squad", "hotpotqa")[kind],
            }
        )
    return lines


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A table, a configuration, and a function that runs `evaluate` on them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, rows())))
    tree = {"data_dir": "data", "encoder": {"model": "hashing", "dimension": 16}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))

    def run(*words, code=0):
        return command.run("evaluate", "--table", "table.jsonl", *words, code=code)

    return run


def routers(done):
    return {row["name"]: row for row in json.loads(done.stdout)["routers"]}


def params(name, **values):
    return [word for key, value in values.items() for word in ("--param", f"{name}.{key}={json.dumps(value)}")]


def test_rows_of_policies_arms_and_oracle(world, tmp_path):
    """Each policy has a row after its pass and one of the pass; arms, mixture and oracle are there for comparison."""
    options = ("--policy", "linucb,fixed:single_step,oracle", "--folds", "3", "--seeds", "2")
    done = world(*options, "--json", "--report", "page.html")
    found = routers(done)
    assert list(found) == ["linucb", "linucb, first pass", *ARMS, "uniform", "mixture", "oracle"]
    table = rows()
    right = [max(row["exact_match"].values()) for row in table]
    assert found["oracle"]["exact_match"] == pytest.approx(np.mean(right))
    cheapest = [next((arm for arm in ARMS if row["exact_match"][arm]), "no_retrieval") for row in table]
    assert found["oracle"]["steps"] == pytest.approx(
        np.mean([row["steps"][arm] for row, arm in zip(table, cheapest, strict=True)])
    )
    assert found["multi_step"]["f1"] == pytest.approx(np.mean([row["f1"]["multi_step"] for row in table]))
    seconds = [np.mean([row["seconds"][arm] for row in table]) for arm in ("multi_step", "single_step")]
    assert found["multi_step"]["time"] == pytest.approx(seconds[0] / seconds[1])
    assert found["single_step"]["by_dataset"]["hotpotqa"]["exact_match"] == 0.0
    assert found["linucb"]["seeds"] == 2
    assert found["linucb"]["exact_match_se"] is not None
    assert found["linucb"]["fault"] is None
    page = (tmp_path / "page.html").read_text()
    assert "F1 against time per question" in page
    assert "Confusion matrix" in page
    screen = world(*options).stdout
    for text in ("EM %", "Time", "above mixture", "Means of the means of 3 data sets", "Accuracy by label"):
        assert text in screen


@needs("classifiers")
def test_classifiers_are_trained_in_the_folds(world):
    """Classifiers and `mba_paper` are played on the texts; only `mba_paper` learns in a pass."""
    words = [*params("adaptive_rag", **FITTING), *params("mba_paper", **READING, reward="single", total=9)]
    words += params("multi_label", **FITTING)
    options = ("--policy", "adaptive_rag,multi_label,mba_paper", "--folds", "2", "--seeds", "1", "--json")
    totals = "nq=20,squad=20,hotpotqa=20"
    found = routers(world(*options, *words, "--hops", "nq=1,squad=1,hotpotqa=2", "--total", totals))
    assert {"adaptive_rag, first pass", "multi_label, first pass"} & {*found} == set()
    for name in ("adaptive_rag", "multi_label", "mba_paper", "mba_paper, first pass"):
        assert found[name]["fault"] is None
        assert sum(found[name]["arms"].values()) == pytest.approx(1.0)
    by_dataset = [means["exact_match"] for means in found["adaptive_rag"]["by_dataset"].values()]
    assert found["adaptive_rag"]["exact_match"] == pytest.approx(np.mean(by_dataset))
    assert found["oracle"]["by_dataset"]["nq"]["exact_match"] == pytest.approx(12 / 20)
    assert found["adaptive_rag"]["labels"]["none right"]["questions"] == 4


def test_another_table_is_learned(world, tmp_path):
    """With --train the whole table is predicted by what another table taught."""
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows(60)[36:])))
    learned = routers(world("--policy", "linucb", "--train", "train.jsonl", "--seeds", "1", "--json"))
    assert sum(row["questions"] for row in learned["linucb"]["labels"].values()) == 36
    same = world("--policy", "linucb", "--train", "table.jsonl", "--seeds", "1", "--json")
    assert any("36 questions of table.jsonl were learned too" in note for note in json.loads(same.stdout)["notes"])


@needs("classifiers")
def test_a_trained_folder_is_judged_as_it_is(world, tmp_path):
    """`evaluate` trains a classifier with a trained folder no more, and plays it once."""
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows(60)[36:])))
    words = params("adaptive_rag", **FITTING)
    train = ("--policy", "adaptive_rag", "--table", "train.jsonl", "--out", "trained", "--measure", "f1", *words)
    assert json.loads(command.run("policy", "train", *train, "--json", code=0).stdout)["measure"] == "f1"
    given = [*params("adaptive_rag", **READING), *params("adaptive_rag", trained="trained")]
    judged = routers(world("--policy", "adaptive_rag", *given, "--seeds", "3", "--json"))
    assert judged["adaptive_rag"]["seeds"] == 1


def test_plays_are_kept_and_used_again(world, tmp_path):
    """--answers keeps every play; --resume uses those again whose table and params are the same."""
    options = ("--policy", "linucb", "--folds", "2", "--seeds", "2", "--answers", "plays.jsonl", "--json")
    first = world(*options)
    assert len((tmp_path / "plays.jsonl").read_text().splitlines()) == 4
    assert "plays.jsonl" in world(*options, code=2).output
    assert routers(world(*options, "--resume")) == routers(first)
    assert len((tmp_path / "plays.jsonl").read_text().splitlines()) == 4
    world(*options, "--resume", *params("linucb", ridge=3.0))
    assert len((tmp_path / "plays.jsonl").read_text().splitlines()) == 8
    world(*options, "--resume", "--hops", "nq=1")
    assert len((tmp_path / "plays.jsonl").read_text().splitlines()) == 12


def test_a_repeat_without_resume_is_refused_before_the_table_is_read(world, tmp_path):
    """A file with plays ends the command at once, with the option that continues."""
    (tmp_path / "plays.jsonl").write_text("{}\n")
    (tmp_path / "table.jsonl").unlink()
    printed = world("--policy", "linucb", "--answers", "plays.jsonl", code=2).output
    assert "--resume" in printed


def test_a_first_pass_names_its_denominator(world, tmp_path):
    """With --train, qualities of a first pass are shares of that table's questions, or of --train-total."""
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows(60)[36:])))
    options = ("--policy", "linucb", "--train", "train.jsonl", "--seeds", "1", "--json")
    alone, counted = world(*options), world(*options, "--train-total", "48")
    assert any("shares of the 24 questions of train.jsonl" in note for note in json.loads(alone.stdout)["notes"])
    assert any("all 48 questions of --train-total" in note for note in json.loads(counted.stdout)["notes"])
    name = "linucb, first pass"
    assert routers(counted)[name]["exact_match"] == pytest.approx(routers(alone)[name]["exact_match"] / 2)
    assert routers(counted)["linucb"]["exact_match"] == routers(alone)["linucb"]["exact_match"]


def test_the_encoder_in_use_is_named(world):
    """A note has the origin of the weights, such as a stand-in of the configured encoder."""
    notes = json.loads(world("--policy", "linucb", "--seeds", "1", "--json").stdout)["notes"]
    assert "features are of the encoder style and hashed words" in notes


def test_a_file_of_plays_that_was_cut_or_is_another_file(world, tmp_path):
    """A play whose line was cut is repeated, and whole lines stay; a file of another kind is refused."""
    options = ("--policy", "linucb", "--folds", "2", "--seeds", "2", "--answers", "plays.jsonl", "--json")
    first, file = world(*options), tmp_path / "plays.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    before, after = (routers(done)["linucb"] for done in (first, world(*options, "--resume")))
    same = ("exact_match", "f1", "steps", "arms", "labels")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 4
    file.write_text('{"key": "an answer"}\n')
    assert "plays.jsonl:1" in world(*options, "--resume", code=2).output
    (tmp_path / "folder").mkdir()
    assert "answers" in world(*options[:-2], "folder", code=2).output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.replace('"seconds": ', '"seconds": 1e400, "old": '), "1e400 is not a finite number"),
        (lambda line: line.replace('"seconds": ', '"seconds": NaN, "old": '), "NaN is not a finite number"),
        (lambda line: line.replace('"test": [', '"test": [1' + "0" * 400 + ", "), "test.0"),
        (lambda line: line.replace('"seed": 0', '"seed": [0]'), "task.seed"),
        (lambda line: line.replace('"policy": "linucb"', '"policy": ["linucb"]'), "task.policy"),
        (lambda line: line.replace('"seed": 0', '"seed": 0, "seed": 1'), "'seed' stands twice"),
        (lambda _: "[" * 100_000 + "\n", "maximum recursion"),
        (lambda _: "[1]\n", "it is a list"),
        (lambda _: "\n", "Expecting value"),
    ],
)
def test_a_line_of_plays_with_wrong_values_is_named(world, tmp_path, change, said):
    """A line of plays with infinite, missing, repeated or other values is refused with its number and a remedy."""
    options = ("--policy", "linucb", "--folds", "2", "--seeds", "1", "--answers", "plays.jsonl", "--json")
    world(*options)
    file = tmp_path / "plays.jsonl"
    first, second = file.read_text().splitlines(keepends=True)
    file.write_text(first + change(second))
    done = world(*options, "--resume", code=2)
    printed = " ".join(done.output.split())
    assert isinstance(done.exception, SystemExit)
    assert "plays.jsonl:2" in printed
    assert said in printed
    assert "--answers" in printed


def test_plays_of_another_table_do_not_count_and_are_named(world, tmp_path):
    """Plays of another table or of other params stay in the file, and a line says how many are not used."""
    options = ("--policy", "linucb", "--folds", "2", "--seeds", "1", "--answers", "plays.jsonl", "--json")
    world(*options)
    before = (tmp_path / "plays.jsonl").read_text()
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, rows(37))))
    done = world(*options, "--resume")
    assert "not used: 2 plays of another table, policy or setting in plays.jsonl" in " ".join(done.stderr.split())
    assert (tmp_path / "plays.jsonl").read_text().startswith(before)


@pytest.mark.parametrize("text", ["my notes, in one line", '{"a": 1}', '{\n "policy": 1\n}', "keys: 5"])
def test_another_file_is_not_cut(world, tmp_path, text):
    """A file of the user that is named by mistake stays as it is, also if it has no line end."""
    (tmp_path / "notes").write_text(text)
    done = world("--policy", "linucb", "--folds", "2", "--answers", "notes", "--resume", code=2)
    assert "notes:1" in done.output
    assert (tmp_path / "notes").read_text() == text


@needs("model_picks")
def test_a_language_model_picks_the_arms(world, tmp_path):
    """`llm` asks the model once per question; picks that were kept are used again, and a failed pick is counted."""
    script = {f'"question": "{word}': arm for word, arm in zip(("who", "where"), ARMS, strict=False)}
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    tree["generator"] = {"name": "scripted", "script": script | {"": "neither"}}
    tree["arms"] = {arm: {"description": f"the arm {arm}"} for arm in ARMS}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    options = ("--policy", "llm", "--folds", "2", "--json", "--answers", "plays.jsonl")
    options += tuple(params("llm", fallback=ARMS[2]))
    done = world(*options)
    found = routers(done)["llm"]
    assert found["exact_match"] == pytest.approx(32 / 36)
    assert found["arms"] == pytest.approx(dict.fromkeys(ARMS, 1 / 3))
    assert (found["seeds"], found["label_accuracy"]) == (1, 1.0)
    notes = json.loads(done.stdout)["notes"]
    assert any("36 calls" in note and "no usable pick for 12 questions" in note for note in notes)
    assert found["remark"] == "no pick for 12 of 36 questions"
    again = world(*options, "--resume")
    assert any("0 calls" in note for note in json.loads(again.stdout)["notes"])


@needs("model_picks")
def test_a_row_of_a_model_that_never_picked_says_so(world, tmp_path):
    """If no pick names an arm, the row of `llm` says on the screen that it is the fallback arm's."""
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    tree |= {"generator": {"name": "scripted", "script": {"": "neither"}}, "arms": {arm: {} for arm in ARMS}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    assert "llm (no pick: the fallback arm)" in world("--policy", "llm", "--folds", "2").output


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--policy", "linucb", "--train-total", "99"), "train-total"),
        (("--policy", "linucb", "--questions", "q.jsonl"), "questions"),
        (("--policy", "linucb", "--folds", "99"), "folds"),
        (("--policy", "linucb", "--family", "ours"), "family"),
        (("--policy", "linucb", "--concurrency", "2"), "concurrency"),
        (("--policy", "linucb", "--retry-failed"), "retry-failed"),
        (("--policy", "linucb", "--train", "table.jsonl", "--folds", "3"), "folds"),
        (("--policy", "linucb", "--measure", "accuracy"), "measure"),
        (("--policy", "linucb", "--datasets", "trivia"), "datasets"),
        (("--policy", "linucb", "--total", "3"), "total"),
        (("--policy", "linucb", "--hops", "nq"), "hops"),
        (("--policy", "fixed:flare"), "policy"),
        (("--policy", "linucb", "--param", "linucb.nothing=1"), "policy.params.nothing"),
        (("--strategy", "single_step"), "questions"),
        (("--questions", "q.jsonl", "--strategy", "single_step", "--total", "9"), "total"),
        (("--questions", "q.jsonl", "--strategy", "single_step", "--seeds", "2"), "seeds"),
    ],
)
def test_options_that_do_not_fit_are_refused(world, words, field):
    """An option of the other use, or one that the table cannot serve, is refused by name before anything runs."""
    assert field in world(*words, code=2).output


def answers_csv(file, *, count=36):
    """The same table with a row for each answer, as a spreadsheet saves it."""
    lines = ["Prompt;Model;Score;Steps;Benchmark;Plan"]
    for row in rows(count):
        ends = f"{row['dataset']};{'pro' if row['dataset'] == 'nq' else 'free'}"
        for arm in ARMS:
            score = "passed" if row["correct"][arm] else "failed"
            lines.append(f"{row['question']};{arm};{score};{row['steps'][arm]};{ends}")
    file.write_text("\n".join(lines), encoding="utf-8-sig")


def test_a_long_table_has_the_rows_of_the_wide_one(world, tmp_path):
    """`evaluate` prints the same numbers for a table with a row for each answer, and says how it was read."""
    wide = [{name: row[name] for name in ("question", "correct", "steps", "dataset")} for row in rows()]
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, wide)))
    answers_csv(tmp_path / "answers.csv")
    options = ("--policy", "linucb", "--folds", "2", "--seeds", "1", "--json")
    long = command.run("evaluate", "--table", "answers.csv", *options, code=0)
    for name, row in routers(world(*options)).items():
        assert routers(long)[name]["correct"] == row["correct"], name
        assert routers(long)[name]["steps"] == row["steps"], name
        assert routers(long)[name]["by_dataset"].keys() == row["by_dataset"].keys()
    assert any("question from Prompt" in note for note in json.loads(long.stdout)["notes"])


@needs("classifiers")
def test_columns_of_the_context_and_skipped_tasks(world, tmp_path):
    """--columns names columns, declared keys become context, --skip-bad leaves out questions without an arm's row."""
    answers_csv(tmp_path / "answers.csv")
    text = (tmp_path / "answers.csv").read_text(encoding="utf-8-sig").splitlines()
    (tmp_path / "gap.csv").write_text("\n".join(["ask;who;good;Steps;Benchmark;Plan", *text[1:3], *text[4:]]))
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    tree["context"] = {"plan": {"type": "category", "values": ["pro", "free"]}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    options = ("--columns", "question=ask,arm=who", "--columns", "correct=good")
    evaluated = ("evaluate", "--table", "gap.csv", "--policy", "linucb", "--folds", "2", "--seeds", "1")
    trained = ("policy", "train", "--policy", "adaptive_rag", "--table", "gap.csv", "--out", "t", "--hops", "nq=1")
    for words in (evaluated, trained, ("advise", "--table", "gap.csv")):
        said = command.run(*words, *options, code=2).output
        assert (
            "1 of 36 questions cannot be used: line 2 correct.multi_step is missing: this question has no row of "
            in said
        )
        assert "--skip-bad" in said
    done = json.loads(command.run(*evaluated, *options, "--skip-bad", "--json", code=0).stdout)
    assert done["questions"] == 35
    assert any("context plan from Plan" in note for note in done["notes"])
    assert any("left out: line 2 correct.multi_step" in note for note in done["notes"])
    advised = command.run("advise", "--table", "gap.csv", *options, "--skip-bad", "--json")
    assert json.loads(advised.stdout)["questions"] == 35
    fit = command.run(*trained, *options, "--skip-bad", *params("adaptive_rag", **FITTING), code=0)
    assert "question from ask" in fit.stderr
    wrong = command.run("advise", "--log", "gap.csv", "--columns", "arm=who", code=2)
    assert "--columns names the columns of --table" in wrong.stderr


def test_measures_of_online_routers(world, tmp_path):
    """Regret, lead and quality per dollar of a pass follow from the table and the drawn arms, on each surface."""
    table = [{**row, "dollars": {arm: 0.01 * steps for arm, steps in row["steps"].items()}} for row in rows()]
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, table)))
    options = ("--policy", "linucb,mba", "--folds", "3", "--seeds", "2")
    kept = ("--answers", "plays.jsonl", "--report", "page.html")
    found = {row["name"]: row for row in json.loads(world(*options, *kept, "--json").stdout)["online"]}
    assert list(found)[:2] == ["linucb", "mba"]
    assert {*found} == {"linucb", "mba", *ARMS}
    right, steps = (np.array([[row[key][arm] for arm in ARMS] for row in table]) for key in ("exact_match", "steps"))
    reward = right - 0.05 * steps
    regret, best = reward.max(axis=1, keepdims=True) - reward, reward.mean(axis=0).argmax()
    plays = [json.loads(line) for line in (tmp_path / "plays.jsonl").read_text().splitlines()]
    passes = [play["played"] for play in plays if play["task"]["policy"] == "mba"]
    places = [(np.array(one["order"]), np.array(one["drawn"])) for one in passes]
    assert found["mba"]["questions"] == 24
    assert found["mba"]["regret"] == pytest.approx(np.mean([regret[place].sum() for place in places]))
    ahead = [(reward[place] - reward[place[0], best]).sum() for place in places]
    assert found["mba"]["above_best"] == pytest.approx(np.mean(ahead))
    assert found["mba"]["regret_se"] > 0.0
    assert found["mba"]["curve"]["regret"][-1] == pytest.approx(found["mba"]["regret"])
    assert found["multi_step"]["quality_per_dollar"] == pytest.approx(right[:, 2].sum() / (0.01 * steps[:, 2].sum()))
    assert found[ARMS[best]]["above_best"] == pytest.approx(0.0)
    page = (tmp_path / "page.html").read_text()
    for text in (
        "Reward per question so far",
        "routing, linucb",
        "routing, mba",
        "Regret so far",
        f"always {ARMS[best]}",
    ):
        assert text in page
    assert "rated</text>" not in page  # every question is rated
    screen = world(*options).stdout
    for text in ("While learning: sums over a pass of 24 questions", "regret", "right per dollar", "ahead from"):
        assert text in screen


def test_a_table_may_be_one_stream(world, tmp_path):
    """With --folds 1 each question is decided once in the order of the seed, and nothing is predicted afterwards."""
    options = ("--policy", "linucb", "--folds", "1", "--seeds", "2", "--answers", "plays.jsonl", "--json")
    done = json.loads(world(*options).stdout)
    assert [row["name"] for row in done["routers"]] == ["linucb, first pass", *ARMS, "uniform", "mixture", "oracle"]
    assert done["online"][0]["questions"] == 36
    plays = [json.loads(line)["played"] for line in (tmp_path / "plays.jsonl").read_text().splitlines()]
    assert [sorted(play["order"]) for play in plays] == [[*range(36)]] * 2
    assert json.loads(world(*options, "--resume").stdout)["online"] == done["online"]
    assert len((tmp_path / "plays.jsonl").read_text().splitlines()) == 2
    assert "first pass: " in world("--policy", "linucb", "--folds", "1", "--seeds", "1").stdout
    again = ("--policy", "linucb", "--train", "table.jsonl", "--seeds", "2", "--answers", "plays.jsonl", "--resume")
    assert any(row["name"] == "linucb" for row in json.loads(world(*again, "--json").stdout)["routers"])


@needs("classifiers")
def test_a_classifier_makes_no_pass_over_a_stream(world):
    """With --folds 1 a policy that is trained on a table is refused by name."""
    refused = world("--policy", "linucb,adaptive_rag", "--folds", "1", *params("adaptive_rag", **FITTING), code=2)
    assert "adaptive_rag makes none" in refused.stderr
