"""Does what a limit or a spent budget decided change what others get? Made sessions whose late turns are harder.

    python -m benchmarks.confounding                 # five seeds
    python -m benchmarks.confounding --seeds 1

Forty sessions of 16 turns are asked at a time, staggered, so that 6 of 16 questions are early. On the first 6 turns the
cheap arm is right on .9 and the expensive one on .7, on later turns both on .1; the expensive arm costs five times as
much. The policy is `mba` with `reward.weight: 0.2`. Modes:

    none     the policy draws every arm
    limit    `session_limit: {turns: 6}` with `at_limit: cheapest`: the cheapest arm answers every late turn
    budget   one key asks the late turns, and spends its budget (`dollars_per_day`) in the first quarter

The draws of a seed follow from the same secret and ids in each mode, and the answers from the same random numbers. So
the modes differ by what the policy has learned alone.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal, NamedTuple, get_args

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes share the cores already
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from sqlalchemy import insert
from starlette.testclient import TestClient

from ragbandit.router.api.app import create_app
from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.shared_secrets import DRAWS
from ragbandit.router.storage.sql.tables import service_secrets
from ragbandit.shared.texts.formats import decimal

Mode = Literal["none", "limit", "budget"]
SEEDS: Final = (3, 8, 21, 34, 55)
SESSIONS: Final = 40
#: turns of a session, and how many of them are early
TURNS, EARLY = 16, 6
STEPS: Final = 32
DOLLARS: Final = {"cheap": 0.01, "expensive": 0.05}
#: chance of each arm to be right on an early turn, and of both on a late one
RIGHT: Final = {"cheap": 0.9, "expensive": 0.7}
RIGHT_LATE: Final = 0.1
#: budget of the key that asks the late turns, dollars: a quarter of what they cost
BUDGET: Final = 6.0


class Shares(NamedTuple):
    mode: Mode
    seed: int
    #: share of the early turns of the second half that the expensive arm answered
    early: float
    #: its mean probability for new questions without a session
    new: float


class _Session:
    """A conversation that begins again when it has ended."""

    def __init__(self, number: int) -> None:
        self.number, self.round, self.turn, self.length = number, 0, 0, TURNS - number % TURNS

    def ask(self) -> tuple[str, bool]:
        """The id of the session, and whether this turn is early."""
        if self.turn >= self.length:
            self.round, self.turn, self.length = self.round + 1, 0, TURNS
        self.turn += 1
        return f"s{self.number}-{self.round}", self.turn <= EARLY


def settings_of(mode: Mode, *, folder: Path) -> Settings:
    sections: dict[str, Any] = {
        "data_dir": str(folder),
        "encoder": {"model": "hashing", "dimension": 32},
        "arms": {"cheap": {"run_by": "caller"}, "expensive": {"run_by": "caller"}},
        "policy": {"name": "mba"},
        "learning": {"wait_s": 0.0, "snapshot_interval_s": 0.0},
        "reward": {"cost": {"dollars": 1.0}, "weight": 0.2},
    }
    if mode == "limit":
        sections["conversation"] = {"session_limit": {"turns": EARLY}, "at_limit": "cheapest"}
    return Settings.model_validate(sections)


def measured(mode: Mode, *, seed: int, steps: int = STEPS) -> Shares:
    """What early and new questions get, once the policy has learned from these sessions."""
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(mode, folder=Path(folder))
        database = open_database(settings)
        with database.write() as connection:
            connection.execute(insert(service_secrets).values(name=DRAWS, value=f"{seed:064x}", made_at=0.0))
        keys = KeyStore(database)
        about: dict[str, Any] = {"role": "app", "now": time.time(), "actor": "cli:benchmark"}
        plain = keys.create(name="plain", **about)
        spender = keys.create(name="spender", scopes={"dollars_per_day": BUDGET}, **about)
        database.close()
        with TestClient(create_app(lambda: Router.open(settings, jobs=MemoryJobs()))) as http:
            of_late = spender if mode == "budget" else plain
            return _played(http, plain=plain.text, of_late=of_late.text, mode=mode, seed=seed, steps=steps)


def _played(http: TestClient, *, plain: str, of_late: str, mode: Mode, seed: int, steps: int) -> Shares:
    state: Any = http.app.state  # type: ignore[attr-defined] # of FastAPI
    router: Router = state.router
    noon = time.time() // 86_400 * 86_400 + 43_200
    state.budgets._clock = lambda: noon  # noqa: SLF001 # the price would depend on the time of the day
    chance, sessions, early = random.Random(seed), [_Session(number) for number in range(SESSIONS)], list[bool]()
    for step in range(steps):
        asked: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        luck = dict[str, float]()
        for session in sessions:
            name, is_early = session.ask()
            key = f"q{seed}-{step}-{session.number}"
            luck[key] = chance.random()
            item = {"question": f"question {key} {chance.random()}", "session_id": name, "decision_id": key}
            asked[is_early].append(item)
        for is_early, items in asked.items():
            for decided in _routed(http, items, key=plain if is_early else of_late):
                arm, key = decided["arm"], decided["decision_id"]
                if is_early and 2 * step >= steps:
                    early.append(arm == "expensive")
                right = luck[key] < (RIGHT[arm] if is_early else RIGHT_LATE)
                router.outcome(key, answer="an answer", steps=1.0, cost={"dollars": DOLLARS[arm]})
                router.feedback(key, rating=right)
        state.budgets._cached.clear()  # noqa: SLF001 # the sums would be read again after 2 s
        router.learn()
    new = [{"question": f"new question {number}", "decision_id": f"n{seed}-{number}"} for number in range(60)]
    probabilities = [decided["pmf"]["expensive"] for decided in _routed(http, new, key=plain)]
    return Shares(mode, seed, fmean(early), fmean(probabilities))


def _routed(http: TestClient, items: Sequence[dict[str, Any]], *, key: str) -> list[dict[str, Any]]:
    if not items:
        return []
    reply = http.post("/v1/route/batch", json={"items": items}, headers={"authorization": f"Bearer {key}"})
    assert reply.status_code == 200, reply.text
    return list(reply.json()["items"])


def lines_of(shares: Sequence[Shares]) -> Iterator[str]:
    """A line for each mode: its shares by seed, their means, and how far these are from the mode `none`."""
    means = {mode: [one for one in shares if one.mode == mode] for mode in get_args(Mode)}
    for mode, of_mode in means.items():
        early, new = (fmean(getattr(one, name) for one in of_mode) for name in ("early", "new"))
        apart = early - fmean(one.early for one in means["none"])
        by_seed = ", ".join(f"{one.early:.2f}" for one in of_mode)
        change = f"{decimal(apart, sign='+')} from none"
        yield f"{mode:7} early turns to expensive: {early:.3f} ({by_seed}), {change}; new questions: {new:.3f}"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.confounding",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds are played")
    seeds = SEEDS[: parser.parse_args(list(arguments)).seeds]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(measured, mode, seed=seed) for seed in seeds for mode in get_args(Mode)]
        for line in lines_of([job.result() for job in jobs]):
            print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
