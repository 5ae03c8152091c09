"""How soon the questions of a killed worker are under way again.

`python -m benchmarks.worker_death` runs two answer workers, a learner and a service, each in a process of its own,
with a scripted model that takes 5 s, so that both workers are always at their questions. Some times it kills the worker
that runs the most with SIGKILL, starts it again at once as `ragbandit up` does, and waits until every question that it
ran is run by a process that lives. "another host" is the same by a claim in the name of a process of another
host, which stops renewing it. Printed are the seconds from the kill. In about three minutes.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import yaml

from benchmarks.service_process import free_port
from ragbandit.client import Client
from ragbandit.router.config.loading import load
from ragbandit.router.queue.redis_server import RedisServer
from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.answer_queue import AnswerQueue, claims, waiting_ids
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.child_process import this_process
from ragbandit.shared.types import DecisionId
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.bm25 import build_index

#: longest wait for anything, seconds
MAX_WAIT_S = 120.0


class Worker:
    """A worker process of this configuration that can be killed and started again."""

    def __init__(self, config: Path, *, queue: str) -> None:
        self._command = [sys.executable, "-m", "ragbandit", "worker", "--queue", queue, "--config", str(config)]
        self._log = config.with_name(f"{queue}.log")
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    kills = parser.parse_args(arguments).kills
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        config, port = folder / "config.yaml", free_port()
        config.write_text(yaml.safe_dump(_tree(folder, port=port)))
        settings = load(config, environ={}).settings
        passage = Passage(id="p", title="France", text="Paris is the capital of France.")
        build_index([passage], folder / "data" / "indexes" / "default")
        database = open_database(settings)
        opened.callback(database.close)
        server = RedisServer(settings)
        server.start()
        opened.callback(server.stop)
        serve = subprocess.Popen([sys.executable, "-m", "ragbandit", "serve", "--config", str(config)])
        opened.callback(serve.wait)
        opened.callback(serve.terminate)
        workers = [Worker(config, queue=queue) for queue in ("answer", "answer", "learn")]
        for worker in workers:
            opened.callback(worker.kill)
        asking = opened.enter_context(Client(f"http://127.0.0.1:{port}"))
        _until(asking.ready)
        print(f"seconds until every question of the dead process is run again, {kills} kills")
        _print("this host", [_killed(database, asking, workers[:2], number=number) for number in range(kills)])
        _print("another host", [_silent(database, asking, number=number) for number in range(3)])


def _tree(folder: Path, *, port: int) -> dict[str, object]:
    return {
        "data_dir": str(folder / "data"),
        "encoder": {"model": "hashing"},
        "arms": {"single_step": {}},
        "policy": {"name": "uniform", "fallback": "single_step"},
        "generator": {"name": "scripted", "script": {"": "So the answer is: Paris."}, "script_s": 5.0},
        "workers": {"concurrency": 8},
        "server": {"port": port},
    }


def _killed(database: Database, asking: Client, workers: Sequence[Worker], *, number: int) -> float:
    """Kill the worker that runs the most of these; seconds until each of its questions is run again."""
    # A question that is killed twice runs alone the third time: that is another delay than the one measured here.
    _until(lambda: not claims(database) and not waiting_ids(database, limit=1))
    for question in range(12):
        asking.answer("Capital of France?", decision_id=f"kill-{number}-{question}", wait_s=0)
    _until(lambda: len(claims(database)) >= 4)
    owners = {key: holder.split(":")[1] for key, holder in claims(database).items()}
    most = Counter(owners.values()).most_common(1)[0][0]
    victims = {name for name, owner in owners.items() if owner == most}
    victim = next(worker for worker in workers if str(worker.process.pid) == most)
    victim.kill()
    began = time.monotonic()
    victim.start()
    _until(lambda: _are_run_again(database, victims, dead=most))
    return time.monotonic() - began


def _are_run_again(database: Database, names: set[DecisionId], *, dead: str) -> bool:
    """True once each of these is run by another process, or answered: then it is neither run nor queued."""
    held = claims(database)
    queued = set(waiting_ids(database, limit=1000))
    return not any(name in queued or held.get(name, ":").split(":")[1] == dead for name in names)


def _silent(database: Database, asking: Client, *, number: int) -> float:
    """Claim a question for a process of another host that renews nothing; seconds until a live process has it."""
    _until(lambda: not claims(database) and not waiting_ids(database, limit=1))
    other = replace(this_process(), host="another", pid_space="another")
    queue = AnswerQueue(database, process=other)
    busy = [DecisionId(f"busy-{number}-{each}") for each in range(16)]
    for key in busy:  # both workers are at these, so that the next question can be claimed here
        asking.answer("Capital of France?", decision_id=key, wait_s=0)
    _until(lambda: len(claims(database)) == len(busy))
    key = DecisionId(f"silent-{number}")
    asking.answer("Capital of France?", decision_id=key, wait_s=0)
    queue.claim()
    while set(claims(database)) - {key}:
        queue.renew([key])
        time.sleep(0.2)
    queue.renew([key])
    began = time.monotonic()
    _until(lambda: claims(database).get(key, other.key) != other.key)
    return time.monotonic() - began


def _print(name: str, seconds: Sequence[float]) -> None:
    print(f"{name:<13} median {statistics.median(seconds):5.2f}  most {max(seconds):5.2f}")


def _until(seen: Callable[[], bool]) -> None:
    give_up = time.monotonic() + MAX_WAIT_S
    while not seen():
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {MAX_WAIT_S} s")
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1:])
