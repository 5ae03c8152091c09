"""What runs between a request and its effect: files and functions of the product, counted by a profiler."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measures.checkout import PRODUCT
from benchmarks.service_process import environment, free_port

#: (file, function), each once
Walk = set[tuple[str, str]]
#: longest wait for a process, seconds
LIMIT_S = 120.0
#: a request is traced this often; what ran each time is its walk, what ran once is the background
REPEATS = 5

#: loaded by every process of the service: SIGUSR1 begins a trace, SIGUSR2 ends and writes it
_TRACER = """
import json, os, signal, sys, threading
_root, _folder = os.environ["WALK_ROOT"], os.environ["WALK_FOLDER"]
_parts = tuple(_root + part + "/" for part in os.environ["WALK_PARTS"].split())
_seen, _on, _paths = set(), False, {}
def _profile(frame, event, arg):
    if _on and event == "call":
        _seen.add(frame.f_code)
def _begin(*_):
    global _on
    _seen.clear()
    _on = True
def _end(*_):
    global _on
    _on = False
    rows = []
    for code in list(_seen):
        path = _paths.setdefault(code.co_filename, os.path.realpath(code.co_filename))
        if path.startswith(_parts) and not code.co_name.startswith("<"):
            rows.append([path[len(_root):], code.co_qualname])
    name = os.path.join(_folder, str(os.getpid()))
    with open(name + ".part", "w") as file:
        json.dump(rows, file)
    os.rename(name + ".part", name + ".json")
signal.signal(signal.SIGUSR1, _begin)
signal.signal(signal.SIGUSR2, _end)
threading.setprofile(_profile)
sys.setprofile(_profile)
"""

#: runs a replay and prints what ran of ours, imports left out, and how often the file was read
_REPLAY = """
import json, os, sys
root = sys.argv[1]
parts = tuple(root + part + "/" for part in os.environ["WALK_PARTS"].split())
import pyarrow.dataset, pyarrow.parquet
passes = [0]
def counted(owner, name):
    call = getattr(owner, name)
    def counting(*args, **kwargs):
        passes[0] += 1
        return call(*args, **kwargs)
    setattr(owner, name, counting)
counted(pyarrow.parquet.ParquetFile, "iter_batches")
import ragbandit.workers.cli
seen, depth = set(), [0]
def profile(frame, event, arg):
    code = frame.f_code
    if code.co_name == "<module>":
        depth[0] += {"call": 1, "return": -1}.get(event, 0)
    elif event == "call" and not depth[0]:
        seen.add(code)
sys.setprofile(profile)
sys.argv = ["ragbandit", *sys.argv[2:]]
try:
    ragbandit.workers.cli.main()
except SystemExit as ended:
    rc = ended.code
sys.setprofile(None)
rows = []
for code in seen:
    path = os.path.realpath(code.co_filename)
    if path.startswith(parts) and not code.co_name.startswith("<"):
        rows.append([path[len(root):], code.co_qualname])
print("\\nWALK " + json.dumps({"rows": rows, "passes": passes[0]}))
sys.exit(rc)
"""


def _catches_signal(pid: int) -> bool:
    """Whether a process handles SIGUSR1: any other is not one that loaded the tracer, and would end."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)


class _Service:
    """`ragbandit up` of a tree, traced: the hashing encoder, one learner, no answer workers' models."""

    def __init__(self, tree: Path, folder: Path) -> None:
        """tree: the checkout. folder: for its data and the traces."""
        self._tree, self._folder, self._port = tree, folder, free_port()
        config = {
            "data_dir": str(folder / "data"),
            "encoder": {"model": "hashing"},
            "generator": {"name": "scripted"},
            "arms": {"no_retrieval": {"run_by": "caller"}, "single_step": {"run_by": "caller"}},
            "server": {"port": self._port},
        }
        (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
        (folder / "sitecustomize.py").write_text(_TRACER, encoding="utf-8")
        (folder / "traces").mkdir()

    @contextmanager
    def running(self) -> Iterator["_Service"]:
        """The processes run while the block does."""
        environ = environment() | {
            "PYTHONPATH": f"{self._folder}:{self._tree}",
            "WALK_ROOT": f"{self._tree.resolve()}/",
            "WALK_PARTS": " ".join(PRODUCT),
            "WALK_FOLDER": str(self._folder / "traces"),
        }
        command = [sys.executable, "-m", "ragbandit", "up", "--config", str(self._folder / "config.yaml")]
        with (self._folder / "log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(command, cwd=self._folder, env=environ, stdout=log, stderr=log)
        self._pid = process.pid
        try:
            give_up = time.monotonic() + LIMIT_S
            while True:
                try:
                    self._post("/v1/route", {"question": "is it there ?"})
                    break
                except urllib.error.HTTPError as error:
                    raise RuntimeError(error.read().decode()) from error
                except OSError:
                    if time.monotonic() > give_up or process.poll() is not None:
                        text = (self._folder / "log").read_text(encoding="utf-8")
                        raise RuntimeError(f"the service did not start: {text[-2000:]}") from None
                    time.sleep(0.2)
            time.sleep(5)  # learner and workers come after the service
            yield self
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            answer: dict[str, Any] = json.loads(reply.read())
            return answer

    def _pids(self) -> list[int]:
        """The Python processes of the service."""
        pids, level = [self._pid], [self._pid]
        while level:
            children = [
                int(pid)
                for parent in level
                for task in Path(f"/proc/{parent}/task").glob("*/children")
                for pid in task.read_text(encoding="utf-8").split()
            ]
            pids, level = [*pids, *children], children
        return [pid for pid in pids if _catches_signal(pid)]

    @contextmanager
    def _traced(self, into: list[Walk], *, every_process: bool) -> Iterator[None]:
        traces = self._folder / "traces"
        for file in traces.iterdir():
            file.unlink()
        pids = self._pids()
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.2)
        yield
        for pid in pids:
            os.kill(pid, signal.SIGUSR2)
        time.sleep(1)
        processes = [
            {(file, function) for file, function in json.loads(path.read_text(encoding="utf-8"))}
            for path in traces.glob("*.json")
        ]
        into.append(
            {
                step
                for process in processes
                if every_process or any(file.startswith("router/api/") for file, _ in process)
                for step in process
            }
        )

    def walk(self, *, rated: bool) -> Walk:
        """What ran for a question; rated: for its rating, until the routers have the next snapshot."""
        runs: list[Walk] = []
        idle: list[Walk] = []
        for number in range(REPEATS):
            question = {"question": f"who wrote book number {number} ?"}
            if not rated:
                with self._traced(runs, every_process=False):
                    self._post("/v1/route", question)
                continue
            decision = self._post("/v1/route", question)["decision_id"]
            self._post("/v1/outcomes", {"decision_id": decision, "answer": "x", "steps": 1})
            time.sleep(2)
            with self._traced(idle, every_process=True):
                time.sleep(4)
            with self._traced(runs, every_process=True):
                self._post("/v1/feedback", {"decision_id": decision, "rating": True})
                time.sleep(4)
        walk = runs[0].intersection(*runs[1:])
        return walk - idle[0].intersection(*idle[1:]) if rated else walk


def service_walks(tree: Path) -> dict[str, Walk]:
    """For each walk what of the product ran: (file, function)."""
    with tempfile.TemporaryDirectory() as folder, _Service(tree, Path(folder)).running() as service:
        return {"question to row": service.walk(rated=False), "rating to snapshot": service.walk(rated=True)}


def replay_walk(tree: Path) -> tuple[Walk, int]:
    """What ran in a replay of a Parquet log, and how often the file was read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as name:
        folder, count = Path(name), 2000
        pmf = [[0.5, 0.5]] * count
        rows = {
            "id": [f"q{n}" for n in range(count)],
            "text": [f"question {n}" for n in range(count)],
            "arms": [["a", "b"]] * count,
            "arm": ["a" if n % 2 else "b" for n in range(count)],
            "pmf": pmf,
            "reward": [float(n % 3 == 0) for n in range(count)],
        }
        pq.write_table(pa.table(rows), folder / "log.parquet")
        command = [sys.executable, "-c", _REPLAY, f"{tree.resolve()}/", "replay", "--log", str(folder / "log.parquet")]
        done = subprocess.run(
            [*command, "--policy", "fixed:a"],
            cwd=folder,
            env=environment() | {"PYTHONPATH": str(tree), "WALK_PARTS": " ".join(PRODUCT)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("WALK ")]
        if done.returncode or not lines:
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        walk = json.loads(lines[-1].removeprefix("WALK "))
        return {(file, function) for file, function in walk["rows"]}, walk["passes"]
