"""`ragbandit demo` and `make demo`: the whole loop with SQLite and a small model, driven over HTTP as by any client.

First the recorded table: a verdict on it, and the reward of routing while it learns, against always one pipeline, in
ten orders of all questions. Then a few questions live. A policy that has learned the recorded outcomes of other
questions routes, real retrieval and a small real language model answer, and a script judges, mostly by a thumb up or
down, else by gold answers. The policy continues to learn, and at the end everything is verified. Prints a page of text,
with `--detail` every table, and writes .ragbandit/demo/report.json.

Weights are fetched, and the curve is computed, while other steps run.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from ragbandit.client import Client
from ragbandit.examples.handbook.command import DATA, HERE, TABLE, Row, environment_of, ragbandit, read_questions
from ragbandit.examples.handbook.fetching import fetching, missing_weights
from ragbandit.examples.handbook.held_out import recorded, split, warmed
from ragbandit.examples.handbook.policies import prepared
from ragbandit.examples.handbook.report import headline, live, show, summarise
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.loading import load
from ragbandit.router.learning.reward import containment
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.router.policies import built_in_policies
from ragbandit.shared.errors import InvalidInput, missing_package
from ragbandit.workers.cli import VERBS

#: number of questions that are asked at the same time: a worker writes several answers in little more time than one
CONCURRENCY = 8
#: maximum number of live questions: a model's answer costs seconds of processor time, and a few answers show the loop
ASKED = 12
#: one in this many questions is held out, so that the policy has not learned live questions before
HELD_OUT = 6
#: number of orders in which the recorded table is learned, half as many as in `make handbook-curve`
ORDERS = 10
#: share of the live questions that a thumb judges (by a script with the gold answers); gold answers judge the others
RATED = 0.8
#: number of feedbacks that are sent twice, and of decisions that are judged again after they were learned
TWICE, LATE = 8, 5
#: number of decisions without feedback
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
    detail: bool


def demo(
    *,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="policy in place of the configured one")] = None,
    limit: Annotated[int, typer.Option(help="maximum number of live questions")] = ASKED,
    seed: Annotated[int, typer.Option(help="seed that decides which questions are live")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="number of orders in which the table is learned")] = ORDERS,
    table: Annotated[Path, typer.Option(help="the recorded table; default: the handbook's")] = TABLE,
    data: Annotated[Path, typer.Option(help="folder for everything the demo writes")] = DATA,
    config: Annotated[Path, typer.Option(help="settings; default: the handbook's")] = HERE / "config.yaml",
    workers: Annotated[int | None, typer.Option(help="answer processes; default: the configured ones")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="keep the service up at the end, until Ctrl-C")] = False,
    detail: Annotated[bool, typer.Option("--detail", help="print every table and figure")] = False,
) -> None:
    """Show what routing earns: a recorded table first, then a few questions live, with a small model.

    Exit code 1 if two results that must be equal differ.
    """
    if policy is not None and policy not in built_in_policies():
        known = ", ".join(built_in_policies())
        raise InvalidInput(f"the demo has no policy {policy!r}", field="--policy", remedy=f"known: {known}")
    for name in ("torch", "fastapi", "rq", "bm25s"):
        if importlib.util.find_spec(name) is None:
            raise missing_package(name, extra="service,models")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    np.seterr(all="raise")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends the service, too
    chosen = Options(
        policy=policy, limit=limit, seed=seed, seeds=seeds, table=table.absolute(), data=data.absolute(),
        config=config.absolute(), workers=workers, keep=keep, detail=detail,
    )  # fmt: skip
    _run(chosen)


def _run(chosen: Options) -> None:
    with contextlib.ExitStack() as running:
        with show_progress(console) as progress:
            url, report = _shown(chosen, progress=progress, running=running)
        file = chosen.data / "report.json"
        if chosen.detail:
            show(console, report, file=Path(os.path.relpath(file)))
        else:
            asked = sum(row["n"] for row in report["arms"].values())
            _step(
                f"3. A real service with a small language model answered {asked} questions that ask for other things:"
            )
            _step(live(report))
        console.print(headline(report), style="bold", highlight=False)
        _point_to_dashboard(f"{url}/ui", file=file, keep=chosen.keep)
    if not report["ok"]:
        raise SystemExit(1)


def _shown(chosen: Options, *, progress: Progress, running: contextlib.ExitStack) -> tuple[str, Row]:
    """Run the steps of the demo. Returns (address of the service, report). running: ends the service."""
    data, began = chosen.data, time.monotonic()
    _clear(data)
    base = environment_of(chosen.config, data=data)
    if chosen.workers is not None:
        base["RAGBANDIT_WORKERS__ANSWER"] = str(chosen.workers)
    settings = load(environ=base).settings
    asked, others = _traffic(chosen, reward=settings.reward)
    if len(asked) <= UNJUDGED:
        message = f"of {len(asked)} questions, all that can be asked, {UNJUDGED} stay unjudged"
        raise InvalidInput(message, field="--limit", remedy="ask more")
    run = functools.partial(ragbandit, environment=base)
    warm, learning = _learned(
        base, missing=missing_weights(settings), others=others, chosen=chosen, progress=progress, running=running
    )
    progress("starting the service", 0, 0)
    environment = prepared(chosen.policy, environment=base, questions=asked, ragbandit=run, console=console)
    url = running.enter_context(_service(environment, data=data))
    with Client(url, timeout_s=120) as client:
        judged = _drive(client, asked, before=warm["rows"], progress=progress)
        progress("waiting until everything is learned and served", 0, 0)
        status = _settled(client, learned=judged["to_learn"])
        records: list[Row] = [dict(client.decision(row["id"])) for row in asked]
    progress("verifying: every draw again, the ledger again, every pmf again", 0, 0)
    verdict = json.loads(ragbandit(["verify", "--deep", "--json"], environment=environment))
    report = summarise(
        asked,
        records=records,
        status=status,
        verdict=verdict,
        judged=judged | {"warm": warm},
        seconds=time.monotonic() - began,
    )
    progress("the policy learns the recorded table", 0, 0)
    report["learning"] = None if learning is None else learning.result()
    (data / "report.json").write_text(json.dumps(report, indent=2))
    if not chosen.keep:
        progress("ending the service", 0, 0)
        running.close()
    return url, report


def _learned(
    environment: dict[str, str],
    *,
    missing: Sequence[str],
    others: list[Row],
    chosen: Options,
    progress: Progress,
    running: contextlib.ExitStack,
) -> "tuple[Row, Future[Row] | None]":
    """Index the handbook and let the policy learn the other questions. Fetch the missing weights, and begin the curve.

    Returns (counts and the advice on the others, Future of the curve; None if another policy runs)
    """
    run = functools.partial(ragbandit, environment=environment)
    fetch = running.enter_context(fetching(environment, data=chosen.data)) if missing else None
    curve = None if chosen.policy else running.enter_context(_curve(environment, chosen=chosen))
    also = f"; fetching the weights of {' and '.join(missing)}, once" if missing else ""
    progress(f"the handbook is indexed{also}", 0, 0)
    run(["index", "build", "--corpus", str(HERE / "corpus.jsonl")])
    warm, learning = {"questions": 0, "rows": 0}, None
    if curve is not None:
        progress(f"the policy learns the recorded outcomes of {len(others)} questions{also}", 0, 0)
        warm = _warm(others, chosen=chosen, ragbandit=run)
        learning = curve()
    if fetch is not None and fetch.poll() is None:
        progress("fetching and converting the weights of a small language model, once", 0, 0)
        fetch.wait()
    return warm, learning


def _step(sentence: str) -> None:
    """Announce a step of the demo."""
    console.print(sentence, soft_wrap=True, highlight=False)


def _point_to_dashboard(address: str, *, file: Path, keep: bool) -> None:
    """Print the address of the pages and the report's path; with `keep`, wait for Ctrl-C."""
    there = os.path.relpath(file)
    if not keep:
        _step(f"The pages were at {address}; KEEP=1 (--keep) keeps them up. All figures: {there}")
        return
    _step(f"The pages: {address} (Ctrl-C ends the service). All figures: {there}")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    console.print("\nthe service ends")


@contextlib.contextmanager
def _curve(environment: dict[str, str], *, chosen: Options) -> "Iterator[Callable[[], Future[Row]]]":
    """Compute the learning curve on the recorded table in a process of its own, which gives way to the other steps.

    Yields a function that lets a thread print the curve when it is ready, and returns a Future of the curve.
    """
    command = [sys.executable, "-m", "ragbandit.examples.handbook.learning_curve", "--data", str(chosen.data)]
    command += ["--config", str(chosen.config), "--seeds", str(chosen.seeds)]
    command += ["--table", str(chosen.table), *([] if chosen.detail else ["--brief"])]
    pipe = subprocess.PIPE
    with (
        ThreadPoolExecutor(1) as waiting,
        subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe) as process,
    ):
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, 10)
        try:
            yield lambda: waiting.submit(_print_curve, process, chosen=chosen)
        finally:
            process.kill()  # does nothing if it has ended


def _print_curve(process: "subprocess.Popen[str]", *, chosen: Options) -> Row:
    printed, failure = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"the learning curve failed:\n{failure}")
    _step(
        f"2. A policy learns recorded outcomes, one arm a question, in {chosen.seeds} orders. Reward a question so far:"
    )
    console.print(printed.rstrip(), soft_wrap=True, highlight=False, markup=False)
    learning: Row = json.loads((chosen.data / "learning.json").read_text())
    return learning


def _warm(others: list[Row], *, chosen: Options, ragbandit: Callable[[list[str]], str]) -> Row:
    """Let the policy learn the recorded outcomes of these questions. Returns counts and the advice on them."""
    if not others or "advise" not in VERBS:  # an addition: without it the demo starts cold
        return {"questions": 0, "rows": 0}
    advice = warmed(chosen.table, others=others, file=chosen.data / "warm.jsonl", ragbandit=ragbandit)
    if not chosen.detail:
        _step(f"1. ragbandit advise --warm: a verdict on {len(others)} questions, which the policy then learns:")
        console.print(advice["sentence"], highlight=False)
    gains = {
        row["second"].removeprefix("always "): {"value": row["reward"]["estimate"], **row["reward"]}
        for row in advice["comparisons"]
    }
    return {"questions": len(others), "rows": advice["added"], "advice": advice["sentence"], "gains": gains}


def _clear(data: Path) -> None:
    """Remove the files of an earlier demo, and nothing else."""
    for name in ("indexes", "logs", "snapshots", "trained"):
        shutil.rmtree(data / name, ignore_errors=True)
    for pattern in ("ragbandit.db*", "*.log", "learning.json", "report.json", "table.jsonl", "warm.jsonl"):
        for file in data.glob(pattern):
            file.unlink()


def _traffic(chosen: Options, *, reward: RewardSettings) -> tuple[list[Row], list[Row]]:
    """Returns (questions to ask in this order, each with its recorded outcomes; questions to learn before).

    A few held-out questions are in neither.
    """
    table = recorded(read_table(chosen.table), settings=reward)
    known = [question for question in read_questions() if question["id"] in table]
    asked, others = split(known, limit=max(chosen.limit, len(known) // HELD_OUT), seed=chosen.seed)
    asked = asked[: chosen.limit]
    for number, row in enumerate(asked):
        row["recorded"] = table[row["id"]]
        row["id"] = f"demo-{chosen.seed}-{row['id']}"
        row["judge"] = "rating" if random.Random(row["id"]).random() < RATED else "label"
        row["judged"] = number < len(asked) - UNJUDGED
    return asked, others


@contextlib.contextmanager
def _service(environment: dict[str, str], *, data: Path) -> Iterator[str]:
    """Start `ragbandit up` as a child and wait until it answers; interrupt it at the end, as a person would."""
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
    with Client(url) as client:
        while not client.ready():
            if up.poll() is not None or time.monotonic() > give_up:
                output = (data / "up.log").read_text(errors="replace").strip() or "it printed nothing"
                raise SystemExit(f"the service did not start: {output}\n(logs: {data}/logs)")
            time.sleep(0.5)


def _drive(client: Client, asked: list[Row], *, before: int, progress: Progress) -> Row:
    """Ask and judge; send some feedback twice or too late. Returns counts of what was sent.

    before: rows that the ledger has already.
    """
    progress("questions answered and judged", 0, len(asked))
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        futures = {pool.submit(_ask, client, row): row for row in asked}
        for done, future in enumerate(as_completed(futures), start=1):
            futures[future]["reply"] = future.result()
            progress("questions answered and judged", done, len(asked))
    judged = [row for row in asked if row["judged"]]
    # A client that retries after a lost reply, and a person who changes their mind.
    twice = [client.feedback(row["id"], **row["feedback"])["duplicate"] for row in judged[:TWICE]]
    _settled(client, learned=before + len(judged))
    late = [client.feedback(row["id"], feedback_id=f"late-{row['id']}", rating=False)["late"] for row in judged[:LATE]]
    return {
        "feedback_sent": len(judged) + len(twice) + len(late),
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
    """Wait until at least `learned` rows are learned and served, `timeout_s` at most. Returns the last status.

    This takes a moment, except with mba_paper, which trains on every question and writes snapshots for many seconds.
    """
    give_up = time.monotonic() + timeout_s
    while True:
        status = client.status()
        served = status["serving"] == status["snapshot"] and status["behind"] == 0
        if (status["counters"]["learned"] >= learned and served) or time.monotonic() > give_up:
            return dict(status)
        time.sleep(0.1)
