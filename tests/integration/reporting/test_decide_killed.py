"""`report --decide` in processes that die while they ask."""

import json
import time
from contextlib import closing

import pytest

from benchmarks.service_process import environment
from ragbandit import Router
from ragbandit.router.cli.store import actor
from ragbandit.router.storage.access.spending import Spender, read_spending
from ragbandit.router.storage.sql.database import Database
from tests.integration.reporting.test_decide import CODE
from tests.support import command
from tests.support.forked import Forked

pytestmark = pytest.mark.timeout(300)  # five processes begin, one after the other

ARMS = """
import os
from pathlib import Path

DOLLARS = {"small": 0.001, "large": 0.01}

def arm(name):
    def ask(question):
        with Path("asked.txt").open("a") as file:
            file.write(f"{name} {question}\\n")
        if name == "large" and question == Path("poison.txt").read_text():
            os._exit(9)
        return "yes", {"dollars": DOLLARS[name]}
    return ask

arms = {name: arm(name) for name in DOLLARS}
"""
CONFIG = """
data_dir: data
encoder: {model: hashing, dimension: 8}
policy: {name: uniform}
arms: {small: {run_by: caller}, large: {run_by: caller}}
reward: {weight: 10, cost: {dollars: 1}}
"""
OPTIONS = ["report", "--decide", "--against", "large", "--module", "own_arms:arms", "--judge", "own_judge:right"]


def booked():
    with closing(Database("sqlite:///data/ragbandit.db")) as database, database.read() as connection:
        spender = Spender("key", actor())
        return read_spending(connection, [spender], now=time.time())[spender].month


def test_a_question_that_ends_processes_fails_alone(tmp_path, monkeypatch):
    """A question over which a process died is asked last; after two deaths it fails, is only bounded, and is not asked
    again. The estimates of killed runs are replaced by what was paid and at most one call for each kill.
    """
    monkeypatch.chdir(tmp_path)
    for name, content in (("own_judge.py", CODE), ("own_arms.py", ARMS), ("config.yaml", CONFIG)):
        (tmp_path / name).write_text(content)
    with Router.open("config.yaml") as router:
        routed = [router.route(f"easy {number}") for number in range(16)]
        for one in routed:
            router.outcome(one.id, answer="yes", cost={"dollars": 0.001})
        differing = [number for number, one in enumerate(routed) if one.arm == "small"]
    (tmp_path / "poison.txt").write_text(f"easy {differing[0]}")

    def press():
        asked = tmp_path / "asked.txt"
        asked.write_text("")
        process = Forked([*OPTIONS, "--budget", "5"], environment=environment(), log=tmp_path / "log")
        status = process.wait(100)
        return status, asked.read_text().splitlines()

    poison, presses = f"large easy {differing[0]}", [press() for _ in range(3)]
    assert [status for status, _ in presses] == [9, 9, 0], (tmp_path / "log").read_text()
    assert [asked.count(poison) for _, asked in presses] == [1, 1, 0]
    lines = [line for _, asked in presses for line in asked]
    assert presses[1][1][-1] == poison
    others = [line for line in lines if line.partition(" ")[2] != poison.partition(" ")[2]]
    assert len(others) == len(set(others)) == 2 * (len(differing) - 1)
    paid = sum({"small": 0.001, "large": 0.01}[line.split()[0]] for line in lines if line != poison)
    assert paid - 1e-9 <= booked() <= paid + 2 * 0.01 + 1e-9
    reply = json.loads(command.run("report", "--against", "large", "--json", code=0).stdout)["asked"]
    assert (reply["asked"], reply["unjudged"]) == (len(differing), 1)
