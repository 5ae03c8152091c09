"""What each call costs on a store of a million decisions, as a multiple of what it costs on one of 10,000.

`python -m benchmarks.scale [--rows 1000000] [--postgres]`: the rows are copies of decisions that a router made, with
ids, draws and times of their own over 30 days; 30 % are rated and learned.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in the service's own processes

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from sqlalchemy import insert, select, text

from benchmarks.figures import machine
from benchmarks.service_process import ServiceProcess, environment, served
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.draw import draw_index, seed_of
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.counters import recount
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.schema import migrate
from ragbandit.router.storage.sql.tables import metadata
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.types import PolicyLabel

SMALL, TEMPLATES, UNLEARNED, PART = 10_000, 1_000, 2_000, 20_000
#: rated decisions in every ten
RATED = 3
DAYS, EXPIRE_DAYS = 30.0, 7.0
#: mean rating and steps of each arm
ARMS: Final = {"a": (0.5, 0.0), "b": (0.7, 1.0), "c": (0.72, 3.0)}
CONFIG: Final[dict[str, Any]] = {"encoder": {"model": "hashing"}, "arms": {arm: {"run_by": "caller"} for arm in ARMS}}
TABLES: Final = ("decisions", "outcomes", "feedback", "updates", "closures", "waiting")
WORDS: Final = ["price", "city", "year", "book", "who", "when", "where", "how", "capital", "river", "king"]


def settings_at(folder: Path, *, url: str | None) -> Settings:
    """The settings of one store."""
    return Settings(**CONFIG, data_dir=str(folder), database_url=url)


def question(number: int) -> str:
    """A question that nobody asked before."""
    return " ".join(WORDS[number // 11**place % 11] for place in range(6)) + f" {number}"


def made_here(router: Router, number: int, *, rated: bool) -> str:
    """The id of a decision that was routed, reported and perhaps rated."""
    decision = router.route(question(number))
    quality, steps = ARMS[decision.arm]
    router.outcome(decision.id, answer="an answer of ordinary length", steps=steps, cost={"seconds_total": 0.5})
    if rated:
        router.feedback(decision.id, rating=float(number * 7919 % 1000 < 1000 * quality))
    return decision.id


class Templates:
    """Rows that a router and a learner made."""

    def __init__(self, folder: Path) -> None:
        settings = settings_at(folder, url=None)
        with Router.open(settings, jobs=MemoryJobs()) as router:
            for number in range(TEMPLATES):
                made_here(router, number, rated=True)
            make_learner(settings, router.ledger).drain()
            with router.database.read() as connection:
                read = {table: connection.execute(select(metadata.tables[table])).mappings().all() for table in TABLES}
                self.once = {
                    table: [dict(row) for row in connection.execute(select(metadata.tables[table])).mappings()]
                    for table in ("policies", "service_secrets")
                }
        self.secret = bytes.fromhex(
            next(row["value"] for row in self.once["service_secrets"] if row["name"] == "draws")
        )
        self.decisions = [dict(row) for row in read["decisions"]]
        by_id = {
            table: {row["decision_id"]: dict(row) for row in read[table]}
            for table in ("outcomes", "feedback", "updates")
        }
        self.of_arm = defaultdict[str, list[Any]](list)
        for row in self.decisions:
            if row["id"] in by_id["updates"]:
                self.of_arm[row["arm"]].append(tuple(by_id[table][row["id"]] for table in by_id))

    def rows(self, count: int, *, now: float) -> Iterator[dict[str, list[dict[str, Any]]]]:
        """The rows of `count` decisions, PART at a time."""
        seq = 0
        for start in range(0, count, PART):
            part = defaultdict[str, list[dict[str, Any]]](list)
            for number in range(start, min(count, start + PART)):
                seq += self._add(part, number, seq=seq, count=count, now=now)
            yield part

    def _add(self, part: dict[str, list[dict[str, Any]]], number: int, *, seq: int, count: int, now: float) -> bool:
        """Add the rows of one decision; whether it was learned."""
        at = now - 60.0 - DAYS * 86_400 * (1.0 - number / count)
        key = f"{int(at * 1000):012x}"
        key = f"{key[:8]}-{key[8:]}-7000-8000-{number:012x}"
        row = self.decisions[number % len(self.decisions)]
        pmf, arms, seed = json.loads(row["pmf"]), json.loads(row["arms"]), seed_of(key, secret=self.secret)
        drawn = draw_index(pmf, seed=seed)
        arm, chance = arms[drawn], pmf[drawn]
        outcome, rating, learned = self.of_arm[arm][number % len(self.of_arm[arm])]
        body = {"id": key, "text": question(number), "arm": arm, "propensity": chance, "seed": str(seed), "made_at": at}
        part["decisions"].append(row | body | {"explored": chance < max(pmf)})
        part["outcomes"].append(outcome | {"decision_id": key, "made_at": at + 1})
        is_rated, is_new = number % 10 < RATED, number >= count - UNLEARNED
        if is_rated:
            part["feedback"].append(rating | {"id": f"f-{key}", "decision_id": key, "received_at": at + 5})
        if is_rated and not is_new:
            marks = {"seq": seq + 1, "feedback_ids": f'["f-{key}"]', "made_at": at + 6, "decided": number + 1}
            given = {"decision_id": key, "propensity": chance, "feedback_at": at + 5}
            part["updates"].append(learned | marks | given)
        elif at < now - EXPIRE_DAYS * 86_400:
            given = {"field": None, "reason": "no feedback in time", "made_at": at + EXPIRE_DAYS * 86_400}
            part["closures"].append({"policy": "main", "decision_id": key, "state": "closed", **given})
        else:
            flags = {"has_outcome": True, "has_feedback": is_rated, "has_reward": False}
            part["waiting"].append(
                {"decision_id": key, "policy": "main", "decided_at": at, "run_by": "caller", **flags}
            )
        return is_rated and not is_new


def fill(url: str, *, templates: Templates, count: int) -> None:
    """Make a store of `count` decisions."""
    database = Database(url)
    migrate(database)
    with database.write() as connection:
        for table, rows in templates.once.items():
            connection.execute(insert(metadata.tables[table]), rows)
    for part in templates.rows(count, now=time.time()):
        with database.write() as connection:
            driver = connection.driver
            for table in TABLES:
                names = list(metadata.tables[table].columns.keys())
                values = [tuple(row[name] for name in names) for row in part[table]]
                listed = ", ".join(f'"{name}"' for name in names)
                if database.is_sqlite:
                    marks = ", ".join("?" * len(names))
                    driver.executemany(f"INSERT INTO {table} ({listed}) VALUES ({marks})", values)
                elif values:
                    with driver.cursor() as cursor, cursor.copy(f"COPY {table} ({listed}) FROM STDIN") as copy:
                        for row in values:
                            copy.write_row(row)
    with database.write() as connection:
        recount(connection)
        connection.execute(text("ANALYZE") if not database.is_sqlite else text("SELECT 1"))
    database.close()


def learn(settings: Settings, url: str) -> float:
    """Learn what waits; milliseconds a row. The ledger is learned from its beginning first, and the totals extended."""
    database = Database(url)
    learner = make_learner(settings, Ledger(database, label=PolicyLabel(settings.policy.label)))
    learner.catch_up()
    began, before = time.process_time(), learner.last_seq
    while learner.drain():
        pass
    took = 1000.0 * (time.process_time() - began) / max(1, learner.last_seq - before)
    extender = TotalsExtender(database, holder="benchmark", weight=settings.reward.weight)
    while extender.extend(seconds=60.0):
        pass
    extender.release()
    database.close()
    return took


def calls(service: ServiceProcess) -> dict[str, tuple[Callable[[int], object], int]]:
    """Name -> what to call with a number, and how often."""
    numbers = itertools.count(10**8)
    last = {}

    def send(path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{service.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.read()

    def route(_: int) -> None:
        last["id"] = json.loads(send("/v1/route", {"question": question(next(numbers))}))["decision_id"]

    def outcome(number: int) -> None:
        route(number)
        send("/v1/outcomes", {"decision_id": last["id"], "answer": "x", "steps": 1, "cost": {"llm_calls": 1}})

    def read(path: str, _: int) -> None:
        send(path.format(**last))

    timed: dict[str, tuple[Callable[[int], object], int]] = {
        "route": (route, 60),
        "route and outcome": (outcome, 40),
        "feedback": (lambda number: send("/v1/feedback", {"decision_id": last["id"], "rating": number % 2}), 20),
    }
    paths = {"decision": "/v1/decisions/{id}", "explanation": "/v1/decisions/{id}/explanation"}
    paths |= {"search": "/ui/decisions?arm=b&state=learned", "page of a decision": "/ui/decisions/{id}"}
    for name in ("status", "overview", "report", "label-queue"):
        paths[name] = f"/v1/{name}"
    for name in ("metrics", "ui", "ui/arms", "ui/decisions", "ui/feedback", "ui/labels", "ui/queues", "ui/policies"):
        paths[name] = f"/{name}"
    for name, path in paths.items():
        timed[name] = (partial(read, path), 7)
    return timed


def command(folder: Path, url: str, *given: str) -> tuple[float, float]:
    """Processor time of a command, in seconds, and the memory of its largest process, in MiB."""
    (folder / "config.yaml").write_text(json.dumps({**CONFIG, "data_dir": str(folder)}), encoding="utf-8")
    line = [sys.executable, "-m", "ragbandit", *given, "--config", str(folder / "config.yaml")]
    with (folder / "printed.txt").open("w+") as printed:
        child = subprocess.Popen(line, env=environment() | {"DATABASE_URL": url}, stdout=printed, stderr=printed)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            printed.seek(0)
            print(f"{given}: {printed.read()[-1200:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(given: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="decisions of the large store")
    parser.add_argument("--policy", default="mba", help="what learns them; another one than mba fills faster")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL of its own, not on SQLite")
    asked = parser.parse_args(given)
    CONFIG["policy"] = {"name": asked.policy}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = None
        if asked.postgres:
            from tests.support.servers.postgres_server import PostgresServer  # a package that only tests need

            server = PostgresServer(durable=False)
            server.start()
            stack.callback(server.stop)
        templates, stores, learned = Templates(folder / "templates"), [], []
        for count in (SMALL, asked.rows):
            home = folder / str(count)
            home.mkdir()
            url = server.url(server.new_database()) if server else f"sqlite:///{home / 'ragbandit.db'}"
            settings = settings_at(home, url=url)
            began = time.monotonic()
            fill(url, templates=templates, count=count)
            filled = time.monotonic() - began
            learned.append(learn(settings, url))
            print(f"{count} decisions: filled in {filled:.0f} s, learned by {time.monotonic() - began:.0f} s")
            stores.append((home, url))
        show("learning a row (CPU)", learned)
        with ExitStack() as running:
            both = [
                calls(running.enter_context(served({**CONFIG, "data_dir": str(home)}, database=url)))
                for home, url in stores
            ]
            compare(*both)
        for line in (["report"], ["verify"], ["replay", "--policy", "fixed:b"]):
            (seconds, memory), (large_seconds, large_memory) = [command(home, url, *line) for home, url in stores]
            show(" ".join(line) + " (CPU)", [1000.0 * seconds, 1000.0 * large_seconds])
            print(f"{'  memory':28} {memory:10.0f} MiB {large_memory:11.0f} MiB", flush=True)
        print(f"{'PostgreSQL' if server else 'SQLite'}, {asked.rows} decisions; {machine()}")


def compare(*stores: Mapping[str, tuple[Callable[[int], object], int]]) -> None:
    """Call each store in turn, and print the medians."""
    for name, (_, times) in stores[0].items():
        took: list[list[float]] = [[] for _ in stores]
        try:
            for number in range(times):
                for each, spent in zip(stores, took, strict=True):
                    began = time.perf_counter()
                    each[name][0](number)
                    spent.append(1000.0 * (time.perf_counter() - began))
        except OSError as error:  # it took too long
            print(f"{name:28} {error}", flush=True)
        else:
            show(name, [median(spent) for spent in took])


def show(name: str, took: Sequence[float]) -> None:
    """One line: both stores and the ratio."""
    small, large = took
    print(f"{name:28} {small:10.2f} ms {large:12.2f} ms {large / small:8.2f}", flush=True)


if __name__ == "__main__":
    main()
