"""The judge with a whole service of real processes: its scores are learned; kill -9 and a lost Redis lose none."""

import json
import time
from pathlib import Path

import pytest
import yaml
from sqlalchemy import func, select

from benchmarks.service_process import free_port
from ragbandit.router.config.loading import load
from ragbandit.router.queue.jobs import connect_redis
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.sql.counters import row_counts, stored_counts
from ragbandit.router.storage.sql.tables import feedback, jobs
from ragbandit.strategies.retrievers.bm25 import build_index
from tests.support.judge_days import judge_state
from tests.support.waiting import runs

from .conftest import PASSAGES, children_of, client_of_up, running_up, until

GOOD = json.dumps(
    {"supported": {"score": 1.0, "reason": "it stands there"}, "answers": {"score": 0.5, "reason": "in part"}}
)


def judging(*, seconds=5.0, script_s=0.0, **more):
    generator = {"name": "scripted", "context_tokens": 4000, "script": {"": GOOD}, "script_s": script_s}
    return {"generator": generator, "share": 1.0, "seconds": seconds, "retry_s": 0.2, "attempts": 20, **more}


def asked(client, count):
    """Ask questions until this many are answered; returns their ids."""
    replies = [client.answer("What is the capital of France?", wait_s=30) for _ in range(count)]
    return [reply["decision_id"] for reply in replies]


def scored(settings):
    """Decision -> number of scores; nothing waits, and the counters equal the tables."""
    database = open_database(settings)
    try:
        with database.read() as connection:
            rows = connection.execute(
                select(feedback.c.decision_id, func.count())
                .where(feedback.c.source == "judge")
                .group_by(feedback.c.decision_id)
            ).all()
            assert connection.execute(select(func.count()).select_from(jobs)).scalar_one() == 0
            assert stored_counts(connection, label="main") == row_counts(connection, label="main")
        return {row[0]: row[1] for row in rows}, judge_state(database, now=time.time()).today
    finally:
        database.close()


@pytest.mark.timeout(300)
def test_up_judges_and_learns(tmp_path):
    """`ragbandit up` with a judge: questions that nobody judges are scored, and the policy learns the scores.

    When `up` itself is killed, service, workers and Redis end by themselves.
    """
    port = free_port()
    tree = {
        "data_dir": str(tmp_path / "data"),
        "encoder": {"model": "hashing"},
        "generator": {"name": "scripted", "script": {"": "So the answer is: Paris."}},
        "server": {"port": port},
        "workers": {"sweep_interval_s": 0.3},
        "judge": judging(),
    }
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    settings = load(config, environ={}).settings
    build_index(PASSAGES, Path(settings.data_dir) / "indexes" / "default")
    with running_up(tmp_path, "--config", str(config)) as up, client_of_up(up, port=port, folder=tmp_path) as client:
        ids = asked(client, 4)
        until(lambda: client.status()["counters"]["learned"] == 4)
        records = [client.decision(key) for key in ids]
        children = children_of(up.pid)
        up.kill()
        up.wait(10)
        assert len(children) == 5
        until(lambda: not any(runs(pid) for pid in children), seconds=30)
    for record in records:
        (score,) = record["feedback"]
        assert (score["source"], score["rater"], score["value"]) == ("judge", "scripted", 0.75)
        assert score["facts"]["share"] == 1.0
        assert score["facts"]["passages_from"] in ("arm", "search")
        assert record["state"] == "learned"
    assert scored(settings)[0] == dict.fromkeys(ids, 1)


def claimed(database):
    """Decisions whose judgement has begun and not ended."""
    with database.read() as connection:
        return set(connection.execute(select(jobs.c.decision_id).where(jobs.c.tries > 0)).scalars())


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_killed_judges_and_a_lost_redis_lose_no_score(make_system):
    """Judges die in the middle of their calls, Redis forgets everything: every answer is scored, once."""
    system = make_system(judge=judging(script_s=1.0, seconds=1.5))
    with system.client() as client:
        ids = asked(client, 24)
    redis, database = connect_redis(system.settings.redis), open_database(system.settings)
    died = set()
    for _ in range(3):
        system.start_process("judge")
        before = claimed(database)
        until(lambda before=before: claimed(database) - before or not judge_state(database, now=time.time()).waiting)
        system.kill("judge")
        redis.flushall()
        died |= claimed(database)
    redis.close()
    assert died  # calls that were under way when their judge was killed
    system.start_process("judge")
    until(lambda: judge_state(database, now=time.time()).waiting == 0, seconds=120)
    database.close()
    found, today = scored(system.settings)
    assert found == dict.fromkeys(ids, 1)
    assert today["scored"] == 24
    assert today["begun"] >= 24 + len(died)
    assert today["given_up"] == 0
