"""`advise`: whether routing is worth it by a table, a log or a run of the arms; warm starts and the incumbent."""

import html
import json
import random
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from ragbandit.additions.advice.applying import edit_policy
from ragbandit.router.config.loading import load
from ragbandit.router.learning.audit.verify import verify
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.learning.status import counters
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.policies import untrained_policy
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import open_ledger
from ragbandit.shared.types import IMPORTED, Query
from ragbandit.workers.judge.rubric import CRITERIA
from tests.support import command
from tests.support.additions import needs
from tests.support.logs.log_rows import write_json

ARMS = ("no_retrieval", "single_step", "multi_step")
CONFIG = """
data_dir: data
encoder: {model: hashing, dimension: 64}
arms: {no_retrieval: {}, single_step: {}, multi_step: {}}
"""


def made_rows(count, *, seed=0):
    """The first word tells the right arm, mostly."""
    rng = random.Random(seed)
    for number in range(count):
        kind = number % 3
        right = [int(rng.random() < (0.95 if k == kind else 0.1)) for k in range(3)]
        yield {
            "question": f"{(' '.join([('who', 'where', 'why')[kind]] * 4))} {number}?",
            "correct": dict(zip(ARMS, right, strict=True)),
            "steps": {"no_retrieval": 0, "single_step": 1, "multi_step": 3},
        }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    write_json(tmp_path / "t.jsonl", made_rows(60))
    return tmp_path


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    """A folder with a learned table, to be copied, and the command's output as JSON and as text."""
    made, say = tmp_path_factory.mktemp("warmed"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.chdir(made)
        (made / "config.yaml").write_text(CONFIG)
        write_json(made / "t.jsonl", made_rows(60))
        say["text"] = advise("--table", "t.jsonl", "--report", "page.html", code=0)
        say["store"] = Path("data/ragbandit.db").exists()
        say["facts"] = warm("--table", "t.jsonl", "--json")
    return made, say


@pytest.fixture
def learned(warmed, tmp_path, monkeypatch):
    """A copy of that folder, which is the working directory, and the output of the command."""
    shutil.copytree(warmed[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return SimpleNamespace(folder=tmp_path / "copy", **warmed[1])


def advise(*words, code=None):
    """Output of the verb. code: the expected exit code; None accepts that of any verdict."""
    folds = () if "--folds" in words else ("--folds", "2")  # the default of five learns four times as many rows
    done = command.run("advise", *words, *folds)
    assert done.exit_code in ({0, 3, 4} if code is None else {code}), done.output
    return json.loads(done.stdout) if "--json" in words and done.stdout.startswith("{") else done.output


def warm(*words, code=None):
    """The same, and the policy learns."""
    return advise(*words, "--warm", code=code)


def audited():
    """The verdict on the configured ledger, which is whole, and its counters, which balance."""
    settings = load(None).settings
    with open_ledger(settings, label="main") as ledger:
        serving = untrained_policy(settings.policy_definition)
        verdict = verify(ledger, files=SnapshotFiles(settings.snapshot_root), serving=serving, deep=True)
        assert counters(ledger).balanced
        return verdict, list(ledger.read(after=0))


def test_table_is_learned_with_exact_propensities_and_verified(learned):
    """A row of the ledger for each question and arm, propensity 1 / arms; `verify --deep` learns the same policy."""
    found = learned.facts
    assert (found["added"], found["known"], found["last_seq"]) == (180, 0, 180)
    verdict, updates = audited()
    assert verdict.ok
    assert verdict.live_sha256 == verdict.replay_sha256
    assert verdict.live_version == found["version"]
    assert {update.propensity for update in updates} == {1 / 3}
    assert [update.arm for update in updates] == list(ARMS) * 60
    assert all(update.features is not None for update in updates)
    with open_ledger(load(None).settings, label="main") as ledger:
        assert {row.decision.facts[IMPORTED] for row in ledger_rows(ledger)} == {"table"}


def test_the_verdict_is_printed_and_written(learned):
    """Text, page and JSON have the same sentence; JSON has each comparison once; nothing is stored without --warm."""
    assert not learned.store
    found = learned.facts
    assert found["sentence"] in learned.text
    assert html.escape(found["sentence"][:40]) in (learned.folder / "page.html").read_text()
    assert [one["second"] for one in found["comparisons"]] == [f"always {arm}" for arm in ARMS]
    assert all(one["reward"]["low"] > 0.1 for one in found["comparisons"])
    assert (found["verdict"], found["best"], found["questions"]) == ("route", "no_retrieval", 60)
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert "add --apply" in learned.text
    assert "ragbandit advise" not in learned.text


def test_what_apply_did_is_said_in_whole_sentences(learned):
    """Each bullet of `--apply` is a sentence with its brackets closed; the holdback has one of its own."""
    shown = advise("--table", "t.jsonl", "--apply", "--all", code=0)
    first, second, *_ = [line for line in shown.splitlines() if line.startswith("- ")]
    assert first.startswith("- policy.incumbent: no_retrieval, with a holdback of ")
    assert first.endswith(" %, in config.yaml; restart a running service to use them")
    assert second.startswith("- the holdback: ")
    assert all(line.count("(") == line.count(")") for line in (first, second))


def test_the_first_live_question_after_a_warm_start_cannot_be_replayed(learned):
    """If one row is live and all others are those of a warm start, `replay` says that it needs two decisions."""
    with Router.open(load(None).settings) as router:
        decision = router.route("who who who who 7?")
        router.outcome(decision.id, answer="x", steps=1)
        router.feedback(decision.id, rating=1.0)
        assert router.learn() == 1
    done = command.run("replay", "--policy", "fixed:single_step", code=2)
    assert "log: the log has fewer than two rows to judge" in done.stderr
    assert "replay when two decisions have feedback" in done.stderr


def test_the_confusion_matrix_of_routing(learned):
    """The labels are the table's cheapest right arms; rows add up to routing's shares; screen and page have them."""
    confusion, rows = learned.facts["confusion"], list(made_rows(60))
    labels = [next((arm for arm in ARMS if row["correct"][arm]), "none right") for row in rows]  # by rising steps
    known = confusion["labels"]
    assert {label: row["questions"] for label, row in known.items()} == {
        label: labels.count(label) for label in (*ARMS, "none right")
    }
    for arm in ARMS:
        share = sum(row["questions"] * row["chosen"][arm] for row in known.values()) / 60
        assert share == pytest.approx(learned.facts["shares"][arm])
    right = sum(known[arm]["questions"] * known[arm]["chosen"][arm] for arm in ARMS)
    assert confusion["accuracy"] == pytest.approx(right / (60 - labels.count("none right")))
    title = "Confusion matrix in %: for each label (rows), the arms that routing chose"
    assert title in (learned.folder / "page.html").read_text()
    cell = f"single_step ({labels.count('single_step')})"
    shown = advise("--table", "t.jsonl", "--all")
    assert cell in shown
    assert cell in (learned.folder / "page.html").read_text()
    share = f"{100 * known['single_step']['chosen']['single_step']:.1f}"
    assert share in next(line for line in shown.splitlines() if cell in line)


def test_twice_adds_nothing_and_a_longer_table_the_rest(learned):
    """The same table again is known; with ten more questions, these are added, also with an incumbent."""
    again = warm("--table", "t.jsonl", "--json")
    assert (again["added"], again["known"], again["last_seq"]) == (0, 180, 180)
    (learned.folder / "config.yaml").write_text(CONFIG + "policy: {incumbent: single_step}\n")
    write_json(learned.folder / "t.jsonl", made_rows(70))
    more = warm("--table", "t.jsonl", "--json")
    assert (more["added"], more["known"], more["last_seq"]) == (30, 180, 210)
    assert any("holds the policy back to single_step" in note for note in more["notes"])
    assert audited()[0].ok


def test_what_answers_cost_includes_earlier_runs(tmp_path, monkeypatch):
    """The cost of the answers is that of all of them, stored ones too, and is not called that of new answers."""
    monkeypatch.chdir(tmp_path)
    generator = 'generator: {name: scripted, script: {"": "yes"}, token_prices: {input: 1.0, output: 1.0}}'
    arms = "arms: {quick: {class: no_retrieval}, other: {class: no_retrieval}}"
    (tmp_path / "config.yaml").write_text(f"encoder: {{model: hashing, dimension: 16}}\n{arms}\n{generator}\n")
    write_json(tmp_path / "q.jsonl", [{"question": f"question {number}?", "answers": ["yes"]} for number in range(12)])
    lines = [
        [line for line in advise("q.jsonl", "--budget", "1").splitlines() if "answers cost: " in line] for _ in range(2)
    ]
    assert lines[0] == lines[1] != []
    assert "; answers cost: $" in lines[0][0]


def test_a_log_is_learned_with_its_own_probabilities(folder):
    """Rows of another store keep their propensities and get the configured weight; a wrong log is not learned."""
    rng = random.Random(5)
    (folder / "config.yaml").write_text(CONFIG + "reward: {weight: 0.08}\n")

    def write(weights):
        lines = []
        for number, row in enumerate(made_rows(240)):
            (arm,) = rng.choices(ARMS, weights=weights)
            reward = {"quality": row["correct"][arm], "cost": row["steps"][arm], "weight": 0.05}
            line = {"id": f"d{number}", "text": row["question"], "arm": arm, "reward": reward}
            lines.append({**line, "arms": list(ARMS), "pmf": [0.5, 0.3, 0.2], "made_at": 1000.0 + number})
        write_json(folder / "log.jsonl", lines)

    write([2, 3, 5])
    wrong = warm("--log", "log.jsonl", "--json", code=2)
    assert (wrong["verdict"], "added" in wrong) == ("wrong log", False)
    write([5, 3, 2])
    found = warm("--log", "log.jsonl", "--json")
    assert (found["added"], found["comparisons"][0]["design"]) == (240, "logged draws")
    assert any("the features of 240 rows" in note for note in found["notes"])
    verdict, updates = audited()
    assert verdict.ok
    assert {update.reward.weight for update in updates} == {0.08}
    assert {update.propensity for update in updates} == {0.5, 0.3, 0.2}
    assert warm("--log", "log.jsonl", "--json")["added"] == 0


def test_a_table_of_dollars_with_gaps(folder):
    """Rows without an outcome are named, and --skip-bad leaves them out; dollars are charged if they have a price."""
    rows = [row | {"dollars": {arm: 0.001 * steps for arm, steps in row.pop("steps").items()}} for row in made_rows(60)]
    rows[3]["correct"]["multi_step"] = None
    write_json(folder / "t.jsonl", rows)
    assert (
        "charges steps, and the table has dollars" in command.run("advise", "--table", "t.jsonl", "--skip-bad").stderr
    )
    (folder / "config.yaml").write_text(f"{CONFIG}\nreward: {{cost: {{dollars: 1.0}}}}\n")
    refused = command.run("advise", "--table", "t.jsonl")
    assert refused.exit_code == 2
    assert "1 of 60 rows cannot be used: line 4 correct.multi_step" in refused.stderr
    assert "give --skip-bad" in refused.stderr
    found = advise("--table", "t.jsonl", "--skip-bad", "--json")
    assert found["questions"] == 59
    costs = {one["second"]: one["cost"]["second"] for one in found["comparisons"]}
    assert costs["always multi_step"] == pytest.approx(0.003)
    assert {one["unit"] for one in found["comparisons"]} == {"dollars"}


@pytest.mark.parametrize(
    ("words", "config", "said"),
    [
        (("t.jsonl", "--log", "t.jsonl"), "", "QUESTIONS, --table and --log exclude each other"),
        (("--table", "t.jsonl", "--log", "t.jsonl"), "", "QUESTIONS, --table and --log exclude each other"),
        (("--table", "none.jsonl"), "", "none.jsonl"),
        pytest.param(
            ("--table", "t.jsonl"),
            "policy: {name: multi_label}\n",
            "ragbandit policy train --policy multi_label",
            marks=needs("classifiers"),
        ),
        (("--table", "t.jsonl"), "reward: {cost: {dollars: 1.0}}\n", "reward.cost"),
        (("--table", "t.jsonl", "--folds", "61"), "", "61 folds"),
        (("--log", "t.jsonl"), "", "t.jsonl"),
    ],
)
def test_what_cannot_be_learned(folder, words, config, said):
    """Each is refused with what is wrong, before anything is written."""
    (folder / "config.yaml").write_text(CONFIG + config)
    output = warm(*words, code=2)
    assert said in output.replace("\n", " ").replace("  ", " ")
    assert "Traceback" not in output


def test_a_store_with_one_arm_is_refused(folder):
    """The refusal names the only arm and the remedy, and is not a traceback."""
    (folder / "config.yaml").write_text(CONFIG[: CONFIG.index("arms:")] + "arms: {only: {run_by: caller}}")
    with Router.open(load(None).settings) as router:
        for number in range(6):
            decision = router.route(f"who is number {number}?")
            router.outcome(decision.id, answer="x", steps=1)
            router.feedback(decision.id, rating=True)
            router.learn()
    output = warm(code=2)
    assert "the store: has only the arm only (add another arm" in output
    assert "Traceback" not in output


def test_contexts_of_a_table_are_learned(folder):
    """A warm start learns what hangs on the declared context of the rows, also where no texts are kept."""
    arms = "arms: {no_retrieval: {run_by: caller}, single_step: {run_by: caller}, multi_step: {run_by: caller}}"
    schema = "context: {tier: {type: category, values: [free, pro]}}"
    head = CONFIG[: CONFIG.index("arms:")]
    (folder / "config.yaml").write_text(f"{head}{arms}\n{schema}\nlog: {{text: none}}\n")
    rows = [
        {
            "question": f"who is number {number}?",
            "context": {"tier": tier, "secret": "Zygmunt"},
            "correct": {arm: int((arm == "multi_step") == (tier == "pro")) for arm in ARMS},
            "steps": dict.fromkeys(ARMS, 1),
        }
        for number in range(60)
        for tier in [("free", "pro")[number % 2]]
    ]
    write_json(folder / "t.jsonl", rows)
    warm("--table", "t.jsonl", "--folds", "2")
    verdict, updates = audited()
    assert verdict.ok
    assert {tuple(update.query.context) for update in updates} == {("tier",)}
    settings = load(None).settings
    with Router.open(settings) as router:
        pmfs = {tier: router.route(Query(text="who is it?", context={"tier": tier})).pmf for tier in ("free", "pro")}
    assert pmfs["pro"][2] > 0.5 > pmfs["free"][2]


_SHARED = "labels: &b {arm: b, share: 0.1}\npolicy: {holdback: *b}  # one\n"


@pytest.mark.parametrize(
    "text",
    [
        *("", "# why\n", "arms: {a: {}}\n", "arms: {a: {}}", "policy:\narms: {a: {}}\n", "policy: ~  # one\n"),
        *("policy: {}\n", "policy:\n  # why\n  name: mba\narms: {}\n", "policy: {\n  name: mba, # one\n}\n"),
        *("policy: {name: mba}  # one\n", "policy:\n    incumbent: b   # now\n    harm: 0.1\n"),
        *("policy:\n  incumbent:\n  harm: 0.1  # now", "policy:\n  {name: mba}\n", "policy: &a\n  name: mba  # one\n"),
        "policy:\n  incumbent: b\n  holdback: {share: 0.1, arm: b}  # one\n",
        "policy:\n  holdback:\n    # why\n    arm: 'b'\n    share: 0.1\n",
        "policy: {holdback: {arm: b, share: 0.1}, incumbent: b}  # now\n",
        "policy:\n  holdback:\n  params: {explore: 0.5}\n\nreward: {weight: 1}  # now\n",
        *("x: &i b\npolicy:\n  incumbent: *i  # one\n", "x: &p {name: mba}\npolicy: *p  # one\n", _SHARED),
        "x: &p {incumbent: b}\npolicy:\n  <<: *p  # one\n  harm: 0.1\n",
        "  arms: {a: {}}  # one\r\n  policy:\r\n    name: mba\r\n",
        "{arms: {a: {}}, policy: {name: mba}}",
        "log: |\n  policy: {incumbent: b}\narms: {}",
    ],
)
def test_the_incumbent_and_a_holdback_are_put_into_a_configuration(text):
    """Both are set in every form of the file; its comments, other settings, share and ends of lines stay."""
    share = 0.1 if "share" in text else 0.02
    wanted = {"incumbent": "deep", "holdback": {"arm": "deep", "share": share}}
    changed = edit_policy(text, wanted)
    before, after = yaml.safe_load(text) or {}, yaml.safe_load(changed)
    assert after == {**before, "policy": {**(before.get("policy") or {}), **wanted}}
    assert text.count("#") == changed.count("#")
    assert text.count("\r\n") == 0 or changed.count("\n") == changed.count("\r\n")
    assert edit_policy(changed, wanted) == changed


@pytest.mark.parametrize(
    "text", ["policy: &p {name: mba}\nx: *p\n", "{arms: {}}", "a: 1\n...\n", "- a\n", "a: |+\n b\n\n\n"]
)
def test_a_file_without_a_safe_change_is_left_alone(text):
    """If another setting would change too, or the form is not known, there is no change."""
    assert edit_policy(text, {"incumbent": "deep"}) is None


@needs("other_tools")
@pytest.mark.parametrize("labelled", [True, False])
def test_the_next_command_of_a_log_runs_as_printed(tmp_path, monkeypatch, labelled):
    """The line that `data questions` prints is run word by word, with right answers and with a judge."""
    monkeypatch.chdir(tmp_path)
    scores = json.dumps({name: {"reason": "so", "score": 0.75} for name in CRITERIA})
    settings = {"judge": {"generator": {"name": "scripted", "script": {"": scores}}}}
    settings["generator"] = {"name": "scripted", "script": {"": "So the answer is: Paris."}}
    settings["arms"] = {"no_retrieval": {}, "model": {}}
    Path("config.yaml").write_text(yaml.safe_dump(yaml.safe_load(CONFIG) | settings))
    answers = {"expected": ["Paris"]} if labelled else {}
    write_json(tmp_path / "log.jsonl", [{"question": f"capital {n}?", **answers} for n in range(20)])
    out, config = "my questions.jsonl", "config.yaml"
    shown = command.run("data", "questions", "log.jsonl", "-o", out, "-c", config, terminal_width=80, code=0).stdout
    (printed,) = [line.split("`")[1] for line in shown.splitlines() if line.startswith("- next")]
    program, *words = shlex.split(printed)
    assert (program, words) == ("ragbandit", ["advise", out, "--budget", "5", "--config", "config.yaml"])
    done = command.run(*words)
    assert done.exit_code == 4, done.output  # the verdict that more questions are needed
    assert "on 20 questions with the outcomes of every arm" in " ".join(done.output.split())
