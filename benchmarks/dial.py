"""The dial through HTTP: one policy that learned at mixed prices, beside a policy that was learned for each price.

    python -m benchmarks.dial [--seeds 3] [--publish]

Of each routing table beside the checkout four fifths of the questions are asked over POST /v1/route/batch (the service
runs in this process), with their outcomes and ratings; `mba` learns them after every block. The dial's service gets
each question at one of six prices (`cost_weight`), in turn; six others have one of them each, as their `reward.weight`.
Then the held-out questions are asked at every price. EM and steps are means over the probabilities of the replies, so
the draw adds no error. `reward` is EM - price * steps; `difference` is the dial's less that of the policy of the price,
with its standard error over the seeds, of which each has its own split and order.
"""

import argparse
import asyncio
import io
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.figures import machine
from benchmarks.publish import PAGE, fenced, put
from ragbandit.router.api.app import create_app
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import CachingEncoder
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.types import TableRow

ROUTING: Final = Path(__file__).parents[2] / "shared" / "data" / "routing"
TABLES: Final = {"FLAN-T5-XL": "flan_t5_xl_dev.jsonl", "Llama-3.1-8B": "llama31_8b_dev.jsonl"}
PRICES: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
#: part of the questions that is held out
HELD_OUT: Final = 0.2
#: questions of a batch, which are learned before the next
BLOCK: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Means over the held-out questions: EM in [0, 1], and steps."""

    quality: float
    steps: float

    def reward(self, price: float) -> float:
        """What it is worth at this price."""
        return self.quality - price * self.steps


def main(given: Sequence[str] | None = None) -> None:
    """Print a table for each routing table that is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    asked = parser.parse_args(given)
    printed = io.StringIO()
    console = Console(file=printed, width=120)
    encoder = CachingEncoder(make_encoder(Settings().encoder), entries=10_000)
    for name, file in TABLES.items():
        if not (ROUTING / file).exists():
            print(f"dial: no routing table at {ROUTING / file}, nothing is measured of it")
            continue
        table = read_table(ROUTING / file)
        seeds = [asyncio.run(frontiers(table, encoder=encoder, seed=seed)) for seed in range(asked.seeds)]
        console.print(shown(f"{name}, {len(table.rows):,} questions, {asked.seeds} seeds", seeds))
    console.print(machine())
    print(printed.getvalue())
    if asked.publish:
        put("dial", fenced(printed.getvalue()), file=PAGE)


async def frontiers(
    table: LabelledTable, *, encoder: Encoder, seed: int, prices: Sequence[float] = PRICES
) -> list[tuple[Point, Point]]:
    """For each price (the dial's point, that of the policy of this price), of one split and order of the questions."""
    order: list[int] = np.random.default_rng(seed).permutation(len(table.rows)).tolist()
    cut = round(HELD_OUT * len(order))
    held, learned = order[:cut], order[cut:]
    mixed = [float(prices[at % len(prices)]) for at in range(len(learned))]
    dial = await _points(table, learned, held, encoder=encoder, weights=mixed, asked=prices)
    return [
        (of_dial, (await _points(table, learned, held, encoder=encoder, weight=price, asked=(None,)))[0])
        for of_dial, price in zip(dial, prices, strict=True)
    ]


async def _points(
    table: LabelledTable,
    learned: Sequence[int],
    held: Sequence[int],
    *,
    encoder: Encoder,
    asked: Sequence[float | None],
    weights: Sequence[float | None] = (),
    weight: float = 0.05,
) -> list[Point]:
    """Learn over HTTP, then ask the held-out questions with each of `asked`.

    weights: cost_weight of each question that is learned; none: none. weight: the service's reward.weight.
    """
    with tempfile.TemporaryDirectory() as folder:
        arms = {arm: {"run_by": "caller"} for arm in table.arms}
        given = {"data_dir": folder, "arms": arms, "policy": {"name": "mba"}, "reward": {"weight": weight}}
        settings = Settings.model_validate(given)
        app = create_app(lambda: Router.open(settings, encoder=encoder, jobs=MemoryJobs()))
        transport = httpx.ASGITransport(app=app)
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)
        async with app.router.lifespan_context(app), client as http:
            for begin in range(0, len(learned), BLOCK):
                rows = [table.rows[at] for at in learned[begin : begin + BLOCK]]
                await _teach(http, rows, weights=weights[begin : begin + BLOCK] or [None] * len(rows))
                while app.state.router.learn():
                    pass
                app.state.router.refresh()
            return [await _asked(http, table, held, weight=one) for one in asked]


async def _teach(http: httpx.AsyncClient, rows: Sequence[TableRow], *, weights: Sequence[float | None]) -> None:
    """Ask a block of questions, and report of each what its arm did."""
    decided = await _routed(http, rows, weights=weights)
    for row, decision in zip(rows, decided, strict=True):
        key, steps = decision["decision_id"], row.steps[decision["arm"]]
        (await http.post("/v1/outcomes", json={"decision_id": key, "steps": steps})).raise_for_status()
    items = [
        {"decision_id": one["decision_id"], "rating": float(row.correct[one["arm"]])}
        for row, one in zip(rows, decided, strict=True)
    ]
    (await http.post("/v1/feedback/batch", json={"items": items})).raise_for_status()


async def _routed(
    http: httpx.AsyncClient, rows: Sequence[TableRow], *, weights: Sequence[float | None]
) -> list[dict[str, Any]]:
    items = [{"question": row.question, "cost_weight": weight} for row, weight in zip(rows, weights, strict=True)]
    reply = await http.post("/v1/route/batch", json={"items": items})
    reply.raise_for_status()
    found: list[dict[str, Any]] = reply.json()["items"]
    assert all(one["cost_weight"] == weight for one, weight in zip(found, weights, strict=True)), found[0]
    return found


async def _asked(http: httpx.AsyncClient, table: LabelledTable, held: Sequence[int], *, weight: float | None) -> Point:
    shares: list[list[float]] = []  # (questions, arms)
    for begin in range(0, len(held), BLOCK):
        rows = [table.rows[at] for at in held[begin : begin + BLOCK]]
        replies = await _routed(http, rows, weights=[weight] * len(rows))
        shares += [[one["pmf"][arm] for arm in table.arms] for one in replies]
    pmf = np.array(shares)
    means = [(pmf * amounts[held]).sum(axis=1).mean() for amounts in (table.correct, table.steps)]
    return Point(quality=float(means[0]), steps=float(means[1]))


def shown(title: str, seeds: Sequence[Sequence[tuple[Point, Point]]], *, prices: Sequence[float] = PRICES) -> Table:
    """A row for each price. seeds: for each seed the points of each price."""
    table = Table(
        "price", "EM of the dial", "steps", "EM of its own policy", "steps", "difference of reward", title=title
    )
    for at, price in enumerate(prices):
        dial, own = ([seed[at][which] for seed in seeds] for which in (0, 1))
        apart = np.array([one.reward(price) - other.reward(price) for one, other in zip(dial, own, strict=True)])
        error = f" ± {apart.std(ddof=1) / len(apart) ** 0.5:.3f}" if len(apart) > 1 else ""
        cells = [
            text
            for points in (dial, own)
            for text in (
                f"{100 * np.mean([one.quality for one in points]):.1f} %",
                f"{np.mean([one.steps for one in points]):.2f}",
            )
        ]
        table.add_row(f"{price:g}", *cells, f"{apart.mean():+.3f}{error}")
    return table


if __name__ == "__main__":
    main()
