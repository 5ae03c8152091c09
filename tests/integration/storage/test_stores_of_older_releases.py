"""Stores, snapshots, logs and answers of release 0.1 and of schema revision 0008 still work."""

import json
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from sqlalchemy import select

from ragbandit import Router
from ragbandit.router.config.loading import load
from ragbandit.router.jobs.memory_jobs import MemoryJobs
from ragbandit.router.storage.archive.moving import archive
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.rows.outcome_rows import trace_json
from ragbandit.router.storage.sql.database import Database, migrate
from ragbandit.router.storage.sql.tables import decisions
from tests.support.tar_files import unpack

ROOT = Path(__file__).parents[3]
#: made with the code of that release; make.py in it made the store, the log and the answers come from its command
ARCHIVE = ROOT / "tests" / "data" / "store_0_1.tar.gz"
#: ledger -> (policy, sha256 at the ledger's end), as that release's `verify --deep` said
LEDGERS = {
    "main": ("mba", "b3fb6bd2bbae48c4f519a81ab9c525981c8661f6bc174e850c4e8417e0467a38"),
    "ucb": ("linucb", "d5d71a0b8156c0ddc199195fb51ccb18ce1c34b876d7a5f56bcdd30d5e9a52f2"),
    "thompson": ("lints", "bcae33a74b951dc75c891edbd8c525af545e48836141dfddd7d2ef29fe3789dc"),
    "grad": ("softmax", "e183827346303deca9dcca5631c9ba22408e23b2859474ac36756dcce77aa5d5"),
    "even": ("uniform", "e164b236c32dd860883ab2f0e284a94c3ed5af88f01eea1b46d7930927a48fce"),
}


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A folder as release 0.1 left it, its schema brought up by `ragbandit migrate`; it is the current folder."""
    unpack(ARCHIVE, tmp_path)
    monkeypatch.chdir(tmp_path)
    run("migrate")
    return tmp_path


def opened(label: str) -> Router:
    policy, _ = LEDGERS[label]
    tree = load("config.yaml", environ={}).settings
    settings = tree.model_copy(update={"policy": tree.policy.model_copy(update={"name": policy, "label": label})})
    return Router.open(settings, jobs=MemoryJobs())


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ragbandit", *arguments],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("label", LEDGERS)
def test_every_ledger_verifies(old, label):
    """The snapshot is served, the ledger replays to the policy that was live, and every draw is drawn again."""
    with opened(label) as router:
        verdict = router.verify(deep=True)
        assert verdict.ok
        assert (verdict.live_sha256, verdict.replay_sha256) == (LEDGERS[label][1], LEDGERS[label][1])
        assert (verdict.deep_decisions, verdict.deep_mismatches, verdict.not_checkable) == (24, 0, 0)


def test_an_old_ledger_goes_on(old):
    """Feedback on an old decision and on a new one is learned on top of the old ledger, which still verifies."""
    with opened("main") as router:
        before = router.ledger.last_seq()
        decision = router.route("who wrote number 24?")
        router.outcome(decision.id, answer="Paris", steps=1.0)
        router.feedback(decision.id, reward=0.5)
        learned = router.learn()
        assert router.ledger.last_seq() == before + learned
        assert router.decision(decision.id).state == "learned"
        assert router.verify(deep=True).ok


def test_old_logs_are_read(old):
    """What 0.1 exported is what is exported today, and replay finds in it what it found then, but for its folds."""
    for name in ("log.jsonl", "log.parquet"):
        run("export", f"new-{name}")
    rows = [json.loads(line) for line in (old / "log.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in (old / "new-log.jsonl").read_text().splitlines()] == rows
    then = json.loads((old / "replay.json").read_text())
    for name in ("log.jsonl", "log.parquet"):
        now = json.loads(
            run("replay", "--log", name, "--mixed-arms", "--policy", "fixed:single_step,uniform,linucb", "--json")
        )
        assert estimates(now) == pytest.approx(estimates(then), abs=1e-9)


#: made with the code of schema revision 0008, by make.py in it: three ledgers, an erased decision, a segment
DEV_ARCHIVE = ROOT / "tests" / "data" / "store_0_2_dev.tar.gz"
#: ledger -> policy; their sha256 stand in the archive's facts.json
DEV_LEDGERS = {"main": "mba", "ucb": "linucb", "grad": "softmax"}


@pytest.fixture
def dev(tmp_path, monkeypatch):
    """A folder as revision 0008 left it, its schema brought up; it is the current folder."""
    unpack(DEV_ARCHIVE, tmp_path)
    monkeypatch.chdir(tmp_path)
    with closing(Database("sqlite:///store/ragbandit.db")) as database:
        migrate(database)
    return tmp_path


def opened_dev(label: str) -> Router:
    tree = load("config.yaml", environ={}).settings
    chosen = tree.policy.model_copy(update={"name": DEV_LEDGERS[label], "label": label})
    return Router.open(tree.model_copy(update={"policy": chosen}), jobs=MemoryJobs())


@pytest.mark.parametrize("label", DEV_LEDGERS)
def test_every_ledger_of_0008_verifies(dev, label):
    """Its ledgers replay to the same policies, its seals hold, and every draw is drawn again."""
    known = json.loads((dev / "facts.json").read_text())[label]
    with opened_dev(label) as router:
        verdict = router.verify(deep=True)
    assert (verdict.ok, verdict.live_sha256, verdict.replay_sha256) == (True, known["sha256"], known["sha256"])
    assert (verdict.deep_decisions, verdict.archived) == (known["deep_decisions"], known["archived"])


def test_what_0008_tells_is_told(dev):
    """Every decision, outcome and note reads as it did, and learning, archiving and erasing go on with them."""
    records = json.loads((dev / "records.json").read_text())
    known = json.loads((dev / "facts.json").read_text())["main"]["archived"]
    with opened_dev("main") as router:
        database = router.ledger.database
        with database.read() as connection:
            ids = connection.execute(select(decisions.c.id).order_by(decisions.c.made_at)).scalars().all()
        assert len(ids) == len(records) - known
        assert {key: told(router.store.record(key)) for key in ids} == {key: records[key] for key in ids}
        repeated = router.store.record(ids[0]).outcome
        assert router.store.add_outcome(repeated) is False  # the same, though its hash is held in hex digits
        new = router.route("who wrote number 99?")
        router.outcome(new.id, answer="Paris", steps=1.0)
        router.feedback(new.id, reward=0.5)
        assert router.learn() == 1
        moved = archive(database, root="archive", before=new.made_at + 1, now=new.made_at + 2)
        assert (moved.segments, moved.decisions >= 20) == (1, True)
        erase(database, Selection(before=new.made_at + 1), features=False, now=new.made_at + 3)
        verdict = router.verify(deep=True)
        assert (verdict.ok, verdict.archived) == (True, known + moved.decisions)
    assert all(b"number" not in path.read_bytes() for path in (dev / "archive").rglob("*.parquet"))


def test_the_log_of_0008_is_exported_again(dev):
    """What it exported is what is exported today."""
    run("export", "new.jsonl")
    rows = [json.loads(line) for line in (dev / "log.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in (dev / "new.jsonl").read_text().splitlines()] == rows


def told(record) -> object:
    """What the store tells of a decision, as make.py wrote it."""
    d, o = record.decision, record.outcome
    decided = [d.arm, d.arms, d.pmf, d.scores, d.seed, d.propensity, d.version, d.encoder_hash, d.floor, d.query.text]
    done = o and [o.status, o.answer, trace_json(o.trace), asdict(o.cost), dict(o.made_by), o.steps, o.error]
    judged = [[f.id, f.kind, f.value, f.received_at] for f in record.feedback]
    features = None if d.features is None else d.features.tobytes().hex()
    facts = [decided, dict(d.facts), asdict(d.query.budget), features, done, judged, record.state, record.learned_seq]
    return json.loads(json.dumps(facts))


def estimates(replayed: dict) -> list[float]:
    """The numbers of a replay that no fold changes, in the order of its report."""
    numbers: list[float] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                walk(value[key])
        elif isinstance(value, list):
            for each in value:
                walk(each)
        elif isinstance(value, float):
            numbers.append(value)

    # Folds were by decision then and are by question now, so what a reward model or a learner says differs.
    for candidate in replayed["candidates"]:
        if candidate["name"] != "linucb":
            walk([candidate["weights"], candidate["shares"], candidate["others"]["ips"], candidate["others"]["snips"]])
    walk([replayed["baseline_reward"], replayed["baseline_quality"], replayed["baseline_cost"], replayed["arms"]])
    assert len(numbers) > 100
    return numbers


def test_old_answers_are_found(old):
    """`evaluate --resume` asks nothing again: its keys do not follow the place of a file."""
    shutil.copy("answers.jsonl", "before.jsonl")
    arguments = [
        "--strategy",
        "no_retrieval,single_step,wide",
        "--corpus",
        "corpus.jsonl",
        "--answers",
        "answers.jsonl",
    ]
    run("evaluate", "--questions", "questions.jsonl", *arguments, "--resume")
    assert Path("answers.jsonl").read_bytes() == Path("before.jsonl").read_bytes()
