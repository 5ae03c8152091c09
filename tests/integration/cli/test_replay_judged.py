"""`ragbandit replay --judged`: few human ratings, many scores of a judge, on files and on a store."""

import json
import random

import pytest
from typer.testing import CliRunner

from ragbandit.router.offline.logs import Defaults, read_rows, write_rows
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import Query
from ragbandit.workers.cli import app

ARMS = ("plain", "good", "best")
WORTH = (0.3, 0.5, 0.8)
CONFIG = """
data_dir: data
encoder: {model: hashing, dimension: 8}
arms: {plain: {run_by: caller}, good: {run_by: caller}, best: {run_by: caller}}
"""


def made_rows(count, *, rate=0.15, hangs_on_quality=False, seed=1, bias=0.3):
    """Rows of a uniform log; the judge gives `plain` too much."""
    rng = random.Random(seed)
    for number in range(count):
        arm = rng.randrange(3)
        quality = float(rng.random() < WORTH[arm])
        score = min(1.0, max(0.0, 0.4 + 0.3 * (2 * quality - 1) + rng.gauss(0, 0.1) + bias * (arm == 0)))
        row = {
            "id": f"d{number}",
            "text": f"{('who', 'where')[number % 2]} {number}?",
            "arms": list(ARMS),
            "pmf": [1 / 3, 1 / 3, 1 / 3],
            "arm": ARMS[arm],
            "made_at": 1.7e9 + number,
            "judge_score": score,
            "judge_probability": 1.0,
            "reward": {"cost": float(arm), "weight": 0.05},
        }
        if rng.random() < rate * (2.0 * quality if hangs_on_quality else 1.0):
            row["reward"]["quality"] = quality
        yield row


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return lambda *words: CliRunner().invoke(app, ["replay", *words])


def found(done):
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_judge_is_corrected_by_the_ratings(run, tmp_path):
    """The intervals hold what each arm is worth, though the judge prefers the worst arm by .3."""
    write(tmp_path / "log.jsonl", made_rows(3000))
    result = found(run("--log", "log.jsonl", "--judged", "--json"))
    for arm, worth, cost in zip(ARMS, WORTH, (0.0, 1.0, 2.0), strict=True):
        (candidate,) = [one for one in result["candidates"] if one["name"] == f"fixed:{arm}"]
        assert candidate["reward"]["low"] < worth - 0.05 * cost < candidate["reward"]["high"]
        assert candidate["quality"]["low"] < worth < candidate["quality"]["high"]
        assert candidate["reward"]["high"] - candidate["reward"]["low"] < 0.3
    assert result["rows"] == 3000
    assert 350 < result["ratings"]["rated"] < 550
    assert result["ratings"]["judge_weight"] > 0.8
    assert any("have a human rating" in note for note in result["notes"])
    assert not any("hangs on" in note for note in result["notes"])


def test_warning_where_raters_choose(run, tmp_path):
    """Where good answers are rated more often, text and JSON warn."""
    write(tmp_path / "log.jsonl", made_rows(3000, hangs_on_quality=True))
    assert "being rated hangs on how good the answer was" in run("--log", "log.jsonl", "--judged").stdout.replace(
        "\n", " "
    )
    result = found(run("--log", "log.jsonl", "--judged", "--json"))
    assert result["ratings"]["selection"][0] > 0


@pytest.mark.parametrize("ends", ["jsonl.gz", "parquet"])
def test_formats_agree(run, tmp_path, ends):
    """Scores, chances and missing rewards come through every format that keeps other keys: the same numbers."""
    write(tmp_path / "log.jsonl", made_rows(300))
    rows = list(read_rows("log.jsonl", defaults=Defaults(unrated=True)))
    write_rows(f"again.{ends}", rows)
    one = found(run("--log", "log.jsonl", "--judged", "--json"))
    two = found(run("--log", f"again.{ends}", "--judged", "--json"))
    assert one["ratings"] == two["ratings"]
    assert [one["reward"] for one in one["candidates"]] == [one["reward"] for one in two["candidates"]]


def test_policies_learn_from_what_was_judged(run, tmp_path):
    """A policy by name learns ratings and calibrated scores, and prefers what people would: the best arm."""
    write(tmp_path / "log.jsonl", made_rows(1500))
    result = found(run("--log", "log.jsonl", "--judged", "--policy", "mba,fixed:plain", "--json"))
    (mba, _) = result["candidates"]
    assert max(mba["shares"], key=mba["shares"].get) == "best"


def test_missing_rewards_need_the_option(run, tmp_path):
    """Without --judged a row without a reward is refused as ever."""
    write(tmp_path / "log.jsonl", made_rows(50))
    done = run("--log", "log.jsonl")
    assert done.exit_code == 2
    assert "reward.value is missing" in done.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("judge_score", 1.5, "out of range"),
        ("judge_score", "good", "no number"),
        ("judge_probability", 0.0, "out of range"),
        ("judge_probability", True, "no number"),
    ],
)
def test_what_is_out_of_range_is_named(run, tmp_path, key, value, said):
    """A score or a chance that cannot be is refused with line and key."""
    rows = list(made_rows(50))
    rows[6][key] = value
    write(tmp_path / "log.jsonl", rows)
    done = run("--log", "log.jsonl", "--judged")
    assert done.exit_code == 2
    assert f"line 7 {key}" in done.output
    assert said in done.output


def test_what_cannot_be_completed(run, tmp_path):
    """Several files, and a log that nobody rated are refused with the remedy."""
    write(tmp_path / "log.jsonl", made_rows(50, rate=0.0))
    done = run("--log", "log.jsonl", "--judged")
    assert (done.exit_code, "no row has a human rating" in done.output) == (2, True)
    (tmp_path / "logs").mkdir()
    write(tmp_path / "log.jsonl", made_rows(50))
    write_rows("logs/a.parquet", list(read_rows("log.jsonl", defaults=Defaults(unrated=True))))
    done = run("--log", "logs", "--judged")
    assert (done.exit_code, "name one file" in done.output) == (2, True)


def test_decisions_of_the_store(run):
    """Of the store all decisions with an outcome are read: rated, judged, neither, and failed ones as worth 0."""
    rng = random.Random(4)
    with Router.open() as router:
        for number in range(90):
            decision = router.submit(Query(text=f"who {number}?"), run_by="caller").result(30)
            quality = float(rng.random() < WORTH[ARMS.index(decision.arm)])
            failed = number % 30 == 0
            status = "failed" if failed else "answered"
            router.outcome(decision.id, status=status, answer=None if failed else "x", steps=1)
            if number % 3 == 1:
                router.feedback(decision.id, rating=quality)
            if not failed and number % 9:
                router.feedback(decision.id, rating=0.3 + 0.5 * quality, source="judge")
        router.submit(Query(text="no outcome?"), run_by="caller").result(30)
        router.learn()
    for words in ((), ("--policy", "mba")):
        (note,) = [note for note in found(run("--json", *words))["notes"] if "a judge's" in note]
        assert "48 of 78 rewards" in note
    result = found(run("--judged", "--json"))
    ratings = result["ratings"]
    assert (result["rows"], ratings["rated"], ratings["scored"]) == (90, 33, 78)
    assert result["log"] == "the decisions of the store"
