"""What a safe start costs and brings on a recorded table: `simulate` for each way to begin, in one table.

    python -m benchmarks.simulation                 # the routing table beside the checkout
    python -m benchmarks.simulation --table T.jsonl --seeds 20 --incumbent single_step

Baselines: vw, uniform, always one arm, the best arm of each question.
"""

import argparse
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rich.console import Console
from rich.table import Table as Printed

from ragbandit.router.config.settings import PolicySettings, Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.offline.simulation import Simulated, simulate
from ragbandit.router.policies import POLICIES
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.types import Json

_ROOT = Path(__file__).parents[2]
ROUTING = _ROOT.parent / "shared" / "data" / "routing" / "flan_t5_xl_dev.jsonl"
#: where features are kept between runs
DATA = _ROOT / ".ragbandit"
#: labelled questions of a warm start
WARM = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to begin."""

    name: str
    policy: str
    params: Mapping[str, Json] = field(default_factory=dict)
    #: whether the incumbent is protected, and how many labelled questions are learned before
    protected: bool = False
    warm: int = 0


WAYS = (
    Way(name="vw", policy="vw"),
    Way(name="uniform", policy="uniform"),
    Way(name="mba", policy="mba"),
    Way(name="mba + incumbent", policy="mba", protected=True),
    Way(name="linucb + incumbent", policy="linucb", protected=True),
    Way(name=f"mba, {WARM} labelled questions first", policy="mba", warm=WARM),
    Way(name=f"mba + incumbent, {WARM} labelled questions first", policy="mba", protected=True, warm=WARM),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A row of the table; None where there is nothing to tell."""

    name: str
    #: mean per question while learning, and its standard error over seeds
    reward: float
    reward_se: float | None = None
    #: question of break-even in the middle pass, and the share of passes that get there
    break_even: int | None = None
    even_share: float | None = None
    #: least ratio to the incumbent over prefixes of 100 questions or more, and after how many
    worst: float | None = None
    worst_after: int | None = None
    #: passes with a prefix below 1 - harm times the incumbent's
    harmed: float | None = None
    #: EM above the line after learning
    above_line: float | None = None
    above_line_se: float | None = None


def starts(
    table: LabelledTable,
    *,
    incumbent: str = "single_step",
    ways: Sequence[Way] = WAYS,
    seeds: int = 4,
    folds: int = 5,
    total: int | None = None,
    encoder: Callable[[], Encoder] | None = None,
    jobs: int = 1,
) -> list[Start]:
    """A row per way, then always each arm and the best arm of each question.

    Policies that are not installed are left out. total: the denominator of EM. encoder: default the configured one.
    """
    encoder = functools.cache(encoder or _default_encoder)
    found: list[Start] = []
    last: list[Simulated] = []
    plain: list[Simulated] = []
    for way in ways:
        if way.policy not in POLICIES:
            continue
        policy = {"incumbent": incumbent} if way.protected else {}
        settings = Settings(data_dir=str(DATA), policy=PolicySettings.model_validate(policy))
        last = simulate(
            table,
            policies={way.policy: dict(way.params)},
            seeds=seeds,
            folds=folds,
            total=total,
            settings=settings,
            encoder=encoder,
            incumbent=incumbent,
            warm=way.warm,
            jobs=jobs,
        )
        found.append(_start(way.name, last[0]))
        if not way.warm:  # the baselines are those of whole passes
            plain = last
    return found + _baselines(plain or last)


def _default_encoder() -> Encoder:
    return make_encoder(Settings().encoder)


def _start(name: str, row: Simulated) -> Start:
    one = row.first_pass
    assert one is not None
    return Start(
        name=name,
        reward=one.reward,
        reward_se=one.reward_se,
        break_even=one.break_even,
        even_share=one.break_even_share,
        worst=one.worst_prefix,
        worst_after=one.worst_after,
        harmed=one.harmed,
        above_line=row.above_line,
        above_line_se=row.above_line_se,
    )


def _baselines(rows: Sequence[Simulated]) -> list[Start]:
    one = rows[0].first_pass
    assert one is not None
    by_name = {row.policy: row for row in rows}
    found = [
        Start(name=f"always {arm}", reward=reward, above_line=by_name[f"always-{arm}"].above_line)
        for arm, reward in one.always.items()
    ]
    oracle = by_name["oracle-by-reward"].above_line
    return [*found, Start(name="best arm of each question", reward=one.oracle, above_line=oracle)]


def print_starts(found: Sequence[Start], *, console: Console, title: str) -> None:
    """The table."""
    table = Printed(
        "", "reward while learning", "break-even", "passes", "worst prefix", "after", "harmed",
        "EM above line", title=title,
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for one in found:
        told = one.even_share is not None
        table.add_row(
            one.name,
            f"{one.reward:.3f}" + ("" if one.reward_se is None else f" ± {one.reward_se:.3f}"),
            "" if not told else "never" if one.break_even is None else str(one.break_even),
            "" if one.even_share is None else f"{100 * one.even_share:.0f}%",
            "" if one.worst is None else f"{one.worst:.3f}",
            "" if one.worst_after is None else str(one.worst_after),
            "" if one.harmed is None else f"{100 * one.harmed:.0f}%",
            ""
            if one.above_line is None
            else f"{one.above_line:+.2f}" + ("" if one.above_line_se is None else f" ± {one.above_line_se:.2f}"),
        )
    console.print(table)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table; nothing without the routing table or one that is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--table", type=Path, default=ROUTING)
    parser.add_argument("--incumbent", default="single_step")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument(
        "--total", type=int, help="denominator of EM; default 3000 for the routing table, else its rows"
    )
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args(list(arguments))
    if not asked.table.exists():
        print(f"simulation: no table at {asked.table}, nothing is measured")
        return
    table = read_table(asked.table)
    total = 3000 if asked.total is None and asked.table == ROUTING else asked.total
    found = starts(table, incumbent=asked.incumbent, seeds=asked.seeds, total=total, jobs=asked.jobs)
    title = (
        f"{asked.table.name}: {len(table.rows):,} questions, {asked.seeds} seeds of 5 folds, against {asked.incumbent}"
    )
    print_starts(found, console=Console(width=150), title=title)


if __name__ == "__main__":
    main(sys.argv[1:])
