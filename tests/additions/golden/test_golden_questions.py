"""Golden questions: all arms are asked once in each period, and the policy learns the outcomes."""

import logging
import os
from pathlib import Path

import pytest

from ragbandit.additions.golden import run as golden
from ragbandit.additions.golden.run import LEASE_S, ask_golden
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import leases
from ragbandit.shared.errors import ConfigError
from ragbandit.workers.asking.question_run import QuestionRun
from tests.support.logs.log_rows import write_json

SCRIPT = {"name": "scripted", "script": {"": "So the answer is: yes."}, "token_prices": {"input": 1.0, "output": 1.0}}


@pytest.fixture
def asked(make_world, tmp_path, caplog):
    """A function that asks the questions due at a time. Returns (number of learned rows, log lines about the run)."""

    def start(*, questions=6, **learning):
        rows = [{"question": f"question {number}?", "answers": ["yes"]} for number in range(questions)]
        file = write_json(tmp_path / "golden.jsonl", rows)
        world = make_world(
            arms={"a": {"class": "no_retrieval"}, "b": {"class": "model"}},
            generator=SCRIPT,
            learning={"golden": str(file), "golden_s": 100.0, **learning},
        )

        def ask(at):
            caplog.clear()
            with caplog.at_level(logging.INFO, logger="ragbandit.worker"):
                ask_golden(world.settings, ledger=world.ledger, holder="golden-1", clock=lambda: at)
            lines = [record for record in caplog.records if getattr(record, "action", "") == "golden"]
            return world.ledger.last_seq(), lines

        ask.world = world
        return ask

    return start


def test_every_period_teaches_every_arm(asked):
    """Each period adds a row for each question and arm, once, and its price is logged."""
    ask = asked()
    seq, lines = ask(1000.0)
    assert seq == 12
    assert (lines[0].questions, lines[0].arms, lines[0].dollars) == (6, 2, None)
    assert lines[1].dollars > 0.0
    assert ask(1050.0) == (12, [])
    assert ask(1100.0)[0] == 24
    assert {row["arm"] for row in ask.world.updates()} == {"a", "b"}


def test_only_one_process_asks(asked, monkeypatch):
    """While another process has the lease nothing is asked, and the cap on dollars ends a run early."""
    ask = asked(golden_dollars=1e-9)
    other = {"name": "golden", "holder": "another-host/1", "expires_at": 1e12}
    ask.world.write(leases.insert().values(**other))
    monkeypatch.setattr("ragbandit.router.storage.sql.leases.is_holder_alive", lambda _: True)
    assert ask(1000.0) == (0, [])
    ask.world.write(leases.delete())
    seq, lines = ask(1000.0)
    assert seq == 2
    assert lines[1].ended == "the budget of 1e-09 dollars is spent"


def test_the_cap_survives_a_restart(asked, monkeypatch):
    """A run that is interrupted after the cap was spent asks nothing more, and learns what was paid for."""
    ask = asked(golden_dollars=1e-9)

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(golden, "write_records", killed)
        with pytest.raises(KeyboardInterrupt):
            ask(1000.0)
    seq, lines = ask(1000.0)
    assert (seq, lines[1].answered) == (2, 1)
    stored = (Path(ask.world.settings.data_dir) / "golden" / "10.jsonl").read_text().splitlines()
    assert len(stored) == 2


def test_the_cap_holds_over_hosts(asked, monkeypatch, tmp_path):
    """A run that is interrupted on a host without a lasting folder is not paid for again on the next one."""
    ask = asked(golden_dollars=1e-9)
    with monkeypatch.context() as patch:
        patch.setattr(golden, "write_records", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ask(1000.0)
    ask.world.settings = ask.world.settings.model_copy(update={"data_dir": str(tmp_path / "other")})
    seq, lines = ask(1000.0)
    assert (seq, lines[1].answered, lines[1].dollars > 0.0) == (0, 0, True)


def test_failures_are_no_answers(asked):
    """While arms fail their questions are asked again; after a quarter of the period the others are learned alone."""
    ask = asked()
    right = ask.world.settings
    down = right.generator.model_copy(update={"script": {"question 0?": "So the answer is: yes."}})
    ask.world.settings = right.model_copy(update={"generator": down})
    assert ask(1000.0)[0] == 0
    ask.world.settings = right
    assert ask(1003.0) == (0, [])  # the next try is later, for all processes
    assert ask(1010.0)[0] == 12
    ask.world.settings = right.model_copy(update={"generator": down})
    assert ask(1100.0)[0] == 12
    assert ask(1126.0)[0] == 14
    assert ask(1130.0) == (14, [])


def test_an_interrupted_run_goes_on_at_another_host(asked, monkeypatch, tmp_path):
    """The lease is short and released, and a run that is done anywhere is done, whatever files a host has."""
    ask = asked()
    held = []
    monkeypatch.setattr(golden, "_ask_and_learn", lambda *_, **__: held.append(lease(ask.world)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ask(1000.0)
    assert (held[0] <= LEASE_S, lease(ask.world)) == (True, None)
    monkeypatch.undo()
    ask.world.settings = ask.world.settings.model_copy(update={"data_dir": str(tmp_path / "other")})
    assert ask(1000.0)[0] == 12
    ask.world.settings = ask.world.settings.model_copy(update={"data_dir": str(tmp_path / "third")})
    assert ask(1050.0) == (12, [])


def test_a_run_that_is_stopped_in_the_middle_goes_on(asked, monkeypatch):
    """After five of twelve answers a second process asks the other seven within the period, and learns all twelve."""
    ask, answered, calls = asked(), QuestionRun._answer, []

    async def stopping(run, work, **more):
        if len(calls) == 5:
            raise SystemExit(0)
        calls.append(work.query.id)
        return await answered(run, work, **more)

    async def counting(run, work, **more):
        calls.append(work.query.id)
        return await answered(run, work, **more)

    monkeypatch.setattr(QuestionRun, "_answer", stopping)
    with pytest.raises(SystemExit):
        ask(1000.0)
    assert (ask.world.ledger.last_seq(), lease(ask.world)) == (0, None)
    monkeypatch.setattr(QuestionRun, "_answer", counting)
    seq, lines = ask(1090.0)
    assert (seq, lines[1].answered, len(calls), len(set(calls))) == (12, 6, 12, 12)
    assert ask(1095.0) == (12, [])


def lease(world):
    """Seconds left of the lease; None if no process has it."""
    held = Lease(database=world.database, name="golden").last_holder()
    return None if held is None else held.left_s


def test_old_answers_are_deleted(asked, monkeypatch):
    """The folder has the files of the newest runs only."""
    monkeypatch.setattr("ragbandit.additions.golden.run._RUNS_WITH_FILES", 2)
    ask = asked(questions=1)
    for number in range(4):
        ask(10_000.0 - 2_500.0 * number)
    files = {file.name for file in (Path(ask.world.settings.data_dir) / "golden").iterdir()}
    assert files == {"50.jsonl", "50.outcomes.jsonl", "25.jsonl", "25.outcomes.jsonl"}


def test_a_fall_raises_the_alarm_of_the_arm(asked):
    """An arm whose answers to the golden questions become wrong is learned again: its test for changes has an alarm."""
    ask = asked(questions=40)
    for number in range(4):
        assert ask(1000.0 + 100.0 * number)[0] == 80 * (number + 1)
    settings = ask.world.settings
    wrong = settings.generator.model_copy(update={"script": {"": "So the answer is: no."}})
    ask.world.settings = settings.model_copy(update={"generator": wrong})
    for number in range(4, 6):
        ask(1000.0 + 100.0 * number)
    assert set(ask.world.replayed().alarms) == {"a", "b"}


def test_a_pipe_of_golden_questions_is_refused(asked, tmp_path):
    """A pipe as `learning.golden` is refused before anybody waits for it, since each period reads the file again."""
    ask = asked()
    (tmp_path / "golden.jsonl").unlink()
    os.mkfifo(tmp_path / "golden.jsonl")
    with pytest.raises(ConfigError, match=r"learning\.golden: .* it is a pipe, not a file \(give a file"):
        ask(1000.0)
