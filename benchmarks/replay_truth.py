"""Does a replay tell the truth? Live decisions on a table whose every outcome is known, and other policies on that log.

The decisions are made, committed and learned by the real router, one `learn` for every BATCH of them, so that the log's
pmfs move as a live policy's do. What each of the other policies would have earned is read off the table.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Printed

from ragbandit import Router
from ragbandit.examples.handbook.side_by_side import rewards_of
from ragbandit.router.config.settings import ServerSettings, Settings
from ragbandit.router.encoders.base import Encoder, HashingEncoder
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.offline.replay import MemoryLog, Plan, estimate_candidates, memory_log, parse_candidates, prepare
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.checks.reports import made_feedback
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database, migrate
from ragbandit.shared.types import ArmName, DecisionId, FeatureRows, PolicyLabel, Query, TableRow

Matrix = npt.NDArray[np.float64]

TABLE = Path(__file__).parents[2] / "shared" / "data" / "routing" / "flan_t5_xl_dev.jsonl"
#: decisions between two rounds of learning
BATCH = 250
#: the five that are judged, beside the logged one
OTHERS = ("fixed:no_retrieval", "fixed:single_step", "fixed:multi_step", "uniform", "linucb")


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A policy's value by the replay, and by the table."""

    name: str
    value: float
    low: float
    high: float
    truth: float

    @property
    def inside(self) -> bool:
        """The truth lies in the interval."""
        return self.low <= self.truth <= self.high


def made_table(rows: int = 1_000, *, seed: int = 0) -> LabelledTable:
    """Questions of three kinds, whose words tell the kind: each is best answered by another arm."""
    draw = np.random.default_rng(seed)
    arms = tuple(ArmName(name) for name in ("no_retrieval", "single_step", "multi_step"))
    chances = np.array([[0.8, 0.85, 0.85], [0.1, 0.75, 0.8], [0.05, 0.2, 0.7]])
    words = (("capital", "colour", "sum"), ("founder", "height", "author"), ("spouse", "successor", "birthplace"))
    found = []
    for number in range(rows):
        kind = int(draw.integers(3))
        right = draw.random(3) < chances[kind]
        steps = (0.0, 1.0, float(draw.integers(2, 7)))
        found.append(
            TableRow(
                id=f"made-{number}",
                question=f"Which {words[kind][int(draw.integers(3))]} has item {number}?",
                correct={arm: float(each) for arm, each in zip(arms, right, strict=True)},
                steps=dict(zip(arms, steps, strict=True)),
            )
        )
    return LabelledTable(rows=tuple(found), arms=arms)


class Remembering:
    """An encoder that reads every question once: the table's come again and again."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.dimension, self.hash, self.source = encoder.dimension, encoder.hash, encoder.source
        self._known: dict[str, FeatureRows] = {}

    def encode(self, texts: Sequence[str]) -> FeatureRows:
        """Shape (n, d)."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            self._known |= zip(missing, self._encoder.encode(missing), strict=True)
        return np.array([self._known[text] for text in texts], dtype=np.float32).reshape(-1, self.dimension)


def lived(
    table: LabelledTable, *, decisions: int, settings: Settings, encoder: Encoder, seed: int, progress: Progress
) -> MemoryLog:
    """Decisions on questions drawn from the table, each told what its arm made of it, learned as they come."""
    draw = np.random.default_rng(seed)
    every = rewards_of(table, reward=settings.reward)
    rewards = {
        (row.id, arm): float(value)
        for row, values in zip(table.rows, every, strict=True)
        for arm, value in zip(table.arms, values, strict=True)
    }
    bar = progress.add_task("decisions", total=decisions)
    with Router.open(settings, encoder=encoder, jobs=MemoryJobs()) as router:
        router.service.secret = None  # draws follow from the ids, so they are the same in every run
        for start in range(0, decisions, BATCH):
            numbers = range(start, min(start + BATCH, decisions))
            rows = [table.rows[int(place)] for place in draw.integers(len(table.rows), size=len(numbers))]
            futures = [
                router.submit(
                    Query(text=row.question, id=DecisionId(f"truth-{seed}-{number:07}"), context={"row": row.id})
                )
                for number, row in zip(numbers, rows, strict=True)
            ]
            made = [future.result(timeout=60) for future in futures]
            told = [
                router.submit_feedback(
                    made_feedback(
                        decision_id=decision.id,
                        settings=settings,
                        now=decision.made_at,
                        feedback_id=f"{decision.id}-told",
                        reward=rewards[row.id, decision.arm],
                        source="code",
                    )
                )
                for decision, row in zip(made, rows, strict=True)
            ]
            for future in told:
                future.result(timeout=60)
            router.learn()
            progress.update(bar, advance=len(numbers))
        ledger = Ledger(router.store.database, label=PolicyLabel(settings.policy.label))
        return memory_log(ledger_rows(ledger), ledger=settings.policy.label).read()


def judged(log: MemoryLog, *, table: LabelledTable, settings: Settings, confidence: float) -> list[Judged]:
    """Estimates of the five other candidates, and their true values from the table."""
    rewards = truth_of(log, table=table, settings=settings)
    found = []
    plan, asked = Plan(confidence=confidence), parse_candidates(OTHERS)
    ready = prepare(log, candidates=asked, plan=plan, settings=settings)
    replayed = estimate_candidates(
        [ready.part()], candidates=asked, candidate_pmfs=ready.candidate_pmfs, plan=plan, log="live decisions"
    )
    assert not replayed.faults
    for one, candidate in zip(ready.candidate_pmfs, replayed.candidates, strict=True):
        reward, truth = candidate.reward, float((one.pmf * rewards).sum(axis=1).mean())
        assert reward.estimate is not None
        assert reward.low is not None
        assert reward.high is not None
        found.append(Judged(name=candidate.name, value=reward.estimate, low=reward.low, high=reward.high, truth=truth))
    return found


def truth_of(log: MemoryLog, *, table: LabelledTable, settings: Settings) -> Matrix:
    """Reward of every arm on every row of the log, shape (n, K), in the order of the log's arms."""
    all_rewards = rewards_of(table, reward=settings.reward)
    places = {row.id: place for place, row in enumerate(table.rows)}
    columns = [table.arms.index(arm) for arm in log.log.arms]
    rows = [places[str(json.loads(context)["row"])] for context in log.log.batch.column("context").to_pylist()]
    return np.asarray(all_rewards[rows][:, columns], dtype=np.float64)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how often the truth was in the interval."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_truth", description=__doc__)
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--made", action="store_true", help="the made table and the hashing encoder")
    asked = parser.parse_args(arguments)
    console = Console()
    made = asked.made or not TABLE.exists()
    table = made_table() if made else read_table(TABLE)
    encoder = Remembering(HashingEncoder(64) if made else make_encoder(Settings().encoder))
    found: list[Judged] = []
    with Progress(console=console, transient=True) as progress:
        for seed in range(asked.seeds):
            with tempfile.TemporaryDirectory() as folder:
                settings = Settings(data_dir=folder, server=ServerSettings(max_wait_s=60.0))
                database = Database(settings.database)
                migrate(database)
                database.close()
                log = lived(
                    table, decisions=asked.decisions, settings=settings, encoder=encoder, seed=seed, progress=progress
                )
                found += judged(log, table=table, settings=settings, confidence=0.95)
    printed = Printed("policy", "replay says", "truth", "inside", title="five policies on a live log")
    for one in found:
        says = f"{one.value:.4f} ({one.low:.4f} to {one.high:.4f})"
        printed.add_row(one.name, says, f"{one.truth:.4f}", "yes" if one.inside else "NO")
    console.print(printed)
    inside = sum(one.inside for one in found)
    console.print(f"{inside} of {len(found)} inside at 95 %; {asked.decisions:,} decisions, {asked.seeds} seeds")


if __name__ == "__main__":
    main()
