"""`ragbandit demo` and `make demo`: the whole loop on the embedded default, driven over HTTP like any client would.

First the recorded table: what routing earns while it learns, against always one pipeline, in ten orders of all
questions. Then the same live. A policy that has learned the recorded outcomes of other questions routes, workers with
real retrieval and a small real language model answer, and a script judges, mostly by a thumb up or down, else by gold
answers. The policy goes on learning. At the end stands what always one pipeline earned on the same questions when the
table was recorded, and everything is verified. Prints tables and writes .ragbandit/demo/report.json.
"""

import contextlib
import functools
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ragbandit.client import Client
from ragbandit.examples.handbook.command import DATA, HERE, TABLE, Row, environment_of, ragbandit, read_questions
from ragbandit.examples.handbook.held_out import asked_for, recorded, split, warmed
from ragbandit.examples.handbook.policies import PARAMS, prepared
from ragbandit.examples.handbook.report import show, summarise
from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.learning.reward import containment
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.shared.errors import InvalidInput, missing_package

#: questions answered at a time: a worker writes several answers at once, in little more time than one
CONCURRENCY = 8
#: questions that are asked live, at most
ASKED = 100
#: orders in which the recorded table is learned: half of those of the picture, for the time that they take
ORDERS = 10
#: share of them that a thumb judges, by a script that knows the gold answers, which judge the others
RATED = 0.8
#: feedback sent twice, and decisions judged a second time after they were learned
TWICE, LATE = 8, 5
#: decisions without feedback
UNJUDGED = 3

console = Console()


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of the command line."""

    policy: str | None
    limit: int
    seed: int
    seeds: int
    table: Path
    data: Path
    config: Path
    workers: int | None
    keep: bool


def demo(
    *,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="another policy than the configured")] = None,
    limit: Annotated[int, typer.Option(help="questions that are asked live, at most")] = ASKED,
    seed: Annotated[int, typer.Option(help="which questions are asked live, and which learned before")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="orders in which the recorded table is learned")] = ORDERS,
    table: Annotated[Path, typer.Option(help="the recorded table; default: the handbook's")] = TABLE,
    data: Annotated[Path, typer.Option(help="folder for everything the demo writes")] = DATA,
    config: Annotated[Path, typer.Option(help="settings; default: the handbook's")] = HERE / "config.yaml",
    workers: Annotated[int | None, typer.Option(help="answer processes; default: the configured ones")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="keep the service up at the end, until Ctrl-C")] = False,
) -> None:
    """Show what routing earns: a recorded table first, then the same live, with a small model. Takes 6 minutes.

    Exit code 1 if anything that must agree does not.
    """
    if policy is not None and policy not in PARAMS:
        known = ", ".join(sorted(PARAMS))
        raise InvalidInput(f"the demo has no policy {policy!r}", field="--policy", remedy=f"known: {known}")
    for name in ("torch", "fastapi", "rq", "bm25s"):
        if importlib.util.find_spec(name) is None:
            raise missing_package(name, extra="service,models")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    np.seterr(all="raise")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the service ends as well
    chosen = Options(
        policy=policy, limit=limit, seed=seed, seeds=seeds, table=table.absolute(), data=data.absolute(),
        config=config.absolute(), workers=workers, keep=keep,
    )  # fmt: skip
    _run(chosen)


def _run(chosen: Options) -> None:
    data = chosen.data
    began = time.monotonic()
    _clear(data)
    base = environment_of(chosen.config, data=data)
    if chosen.workers is not None:
        base["RAGBANDIT_WORKERS__ANSWER"] = str(chosen.workers)
    asked, others = _traffic(chosen, reward=load(environ=base).settings.reward)
    if len(asked) <= UNJUDGED:
        message = f"of {len(asked)} questions, all that can be asked, {UNJUDGED} stay unjudged"
        raise InvalidInput(message, field="--limit", remedy="ask more")
    learning = None if chosen.policy else _curve(base, chosen=chosen, data=data)
    run = functools.partial(ragbandit, environment=base)
    run(["index", "build", "--corpus", str(HERE / "corpus.jsonl")])
    warm = {"questions": 0, "rows": 0} if chosen.policy else _warm(others, chosen=chosen, ragbandit=run)
    ready = prepared(chosen.policy, environment=base, questions=asked, ragbandit=run, console=console)
    with ready as environment, _service(environment, data=data) as url, Client(url, timeout_s=120) as client:
        judged = _drive(client, asked, before=warm["rows"])
        status = _settled(client, learned=judged["to_learn"])
        records: list[Row] = [dict(client.decision(row["id"])) for row in asked]
        with console.status("verifying: every draw again, the ledger again, every pmf again"):
            verdict = json.loads(ragbandit(["verify", "--deep", "--json"], environment=environment))
        report = summarise(
            asked,
            records=records,
            status=status,
            verdict=verdict,
            judged=judged | {"warm": warm},
            seconds=time.monotonic() - began,
        )
        (data / "report.json").write_text(json.dumps(report | {"learning": learning}, indent=2))
        show(console, report, file=Path(os.path.relpath(data / "report.json")))
        _point_to_dashboard(f"{url}/ui", keep=chosen.keep)
    if not report["ok"]:
        raise SystemExit(1)


def _point_to_dashboard(address: str, *, keep: bool) -> None:
    """Where all of this can be looked at; keep: until somebody presses Ctrl-C."""
    if not keep:
        console.print(f"\nthe dashboard was at {address}; --keep keeps it up (make demo KEEP=1)")
        return
    console.print(f"\nthe dashboard is at {address}; Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    console.print("\nthe service ends")


def _curve(environment: dict[str, str], *, chosen: Options, data: Path) -> Row:
    """The learning curve on the recorded table, in a process of its own, whose encoder is gone when it ends."""
    command = [sys.executable, "-m", "ragbandit.examples.handbook.learning_curve", "--data", str(data)]
    command += ["--config", str(chosen.config), "--seeds", str(chosen.seeds)]
    command += ["--table", str(chosen.table)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=900)
    if done.returncode != 0:
        raise SystemExit(f"the learning curve failed:\n{done.stderr}")
    found: Row = json.loads((data / "learning.json").read_text())
    console.print()
    return found


def _warm(others: list[Row], *, chosen: Options, ragbandit: Callable[[list[str]], str]) -> Row:
    """The policy learns the recorded outcomes of these; how many questions and rows of the ledger that are."""
    if not others:
        return {"questions": 0, "rows": 0}
    with console.status(f"the policy learns the recorded outcomes of {len(others)} other questions"):
        advice = warmed(chosen.table, others=others, file=chosen.data / "warm.jsonl", ragbandit=ragbandit)
    return {"questions": len(others), "rows": advice["added"], "advice": advice["sentence"]}


def _clear(data: Path) -> None:
    """Take away what an earlier demo left, and nothing else."""
    for name in ("indexes", "logs", "snapshots", "trained"):
        shutil.rmtree(data / name, ignore_errors=True)
    for pattern in ("ragbandit.db*", "*.log", "learning.json", "report.json", "table.jsonl", "warm.jsonl"):
        for file in data.glob(pattern):
            file.unlink()


def _traffic(chosen: Options, *, reward: RewardSettings) -> tuple[list[Row], list[Row]]:
    """The questions in the order they are asked, with what the table has of them; and the questions not asked."""
    table = recorded(read_table(chosen.table), settings=reward)
    known = [question for question in read_questions() if question["id"] in table]
    asked, others = split(known, limit=chosen.limit, seed=chosen.seed)
    for number, row in enumerate(asked):
        row |= {"recorded": table[row["id"]], "asked_for": asked_for(row["question"])}
        row["id"] = f"demo-{chosen.seed}-{row['id']}"
        row["judge"] = "rating" if random.Random(row["id"]).random() < RATED else "label"
        row["judged"] = number < len(asked) - UNJUDGED
    return asked, others


@contextlib.contextmanager
def _service(environment: dict[str, str], *, data: Path) -> Iterator[str]:
    """`ragbandit up` as a child, until it answers; ended the way a person would, by an interrupt."""
    url = f"http://127.0.0.1:{environment['RAGBANDIT_SERVER__PORT']}"
    data.mkdir(parents=True, exist_ok=True)
    with (data / "up.log").open("wb") as output:
        command = [sys.executable, "-m", "ragbandit", "up"]
        up = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            _wait_ready(url, up, data=data)
            yield url
        finally:
            up.send_signal(signal.SIGINT)
            try:
                up.wait(60)
            except subprocess.TimeoutExpired:
                up.kill()


def _wait_ready(url: str, up: "subprocess.Popen[bytes]", *, data: Path, timeout_s: float = 900) -> None:
    give_up = time.monotonic() + timeout_s
    with (
        console.status("starting service, workers and learner (the first time: fetching weights)"),
        Client(url) as client,
    ):
        while not client.ready():
            if up.poll() is not None or time.monotonic() > give_up:
                said = (data / "up.log").read_text(errors="replace").strip() or "it said nothing"
                raise SystemExit(f"the service did not start: {said}\n(logs: {data}/logs)")
            time.sleep(0.5)


def _drive(client: Client, asked: list[Row], *, before: int) -> Row:
    """Ask, judge, and now and then say something twice or too late. Counts what was sent.

    before: rows that the ledger has already.
    """
    sent = right = done = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("asking and judging", total=len(asked))
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            futures = {pool.submit(_ask, client, row): row for row in asked}
            for future in as_completed(futures):
                row = futures[future]
                row["reply"] = future.result()
                done += 1
                right += row["quality"] > 0
                sent += row["judged"]
                progress.update(bar, advance=1, description=f"asking and judging ({right / done:4.0%} right)")
    judged = [row for row in asked if row["judged"]]
    # A client that retries after a lost reply, and a person who changes their mind.
    twice = [client.feedback(row["id"], **row["feedback"])["duplicate"] for row in judged[:TWICE]]
    _settled(client, learned=before + len(judged))
    late = [client.feedback(row["id"], feedback_id=f"late-{row['id']}", rating=False)["late"] for row in judged[:LATE]]
    return {
        "feedback_sent": sent + len(twice) + len(late),
        "duplicates_sent": len(twice),
        "duplicates_recognised": sum(twice),
        "late_sent": len(late),
        "late_recognised": sum(late),
        "to_learn": before + len(judged),
    }


def _ask(client: Client, row: Row) -> Row:
    """One question: answered by a worker, then judged."""
    reply = client.answer(row["question"], decision_id=row["id"], wait_s=100)
    while reply["status"] == "pending":
        reply = client.answer(row["question"], decision_id=row["id"], wait_s=100)
    row["quality"] = containment(reply["answer"] or "", gold=row["answers"])
    thumb = {"rating": bool(row["quality"]), "source": "human"}
    label = {"label": row["answers"], "source": "code"}
    row["feedback"] = {"feedback_id": f"fb-{row['id']}"} | (thumb if row["judge"] == "rating" else label)
    if row["judged"]:
        client.feedback(row["id"], **row["feedback"])
    return dict(reply)


def _settled(client: Client, *, learned: int, timeout_s: float = 300) -> Row:
    """The status once everything judged is learned and served; the report shows it if that never comes.

    That takes a moment, but for mba_paper: every question is a step of training, and a snapshot takes many seconds.
    """
    give_up = time.monotonic() + timeout_s
    with console.status("waiting until everything is learned and served"):
        while True:
            status = client.status()
            served = status["serving"] == status["snapshot"] and status["behind"] == 0
            if (status["counters"]["learned"] >= learned and served) or time.monotonic() > give_up:
                return dict(status)
            time.sleep(0.1)
