"""A board as tables in Markdown. Figures are thousandths of a reward per question."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import numpy as np
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from benchmarks.worlds.board import Board
from benchmarks.worlds.measures import AFTER, CHEAPEST, READ, WHOLE, WORTH, Estimate, Measured, blocks_of, mean_of
from benchmarks.worlds.passes import BEST, COLD, DEAREST
from ragbandit.shared.texts.formats import decimal

_KEYS: Final = tuple(map(str, READ))
_BESIDE: Final = {COLD: "cold", BEST: "beside the best fixed arm", DEAREST: "beside the dearest arm"}

#: figures of Measured -> what they are compared with
_OTHERS: Final = {"best": "best fixed arm", "choice": "best choice by the chances"}


def print_board(board: Board, *, console: Console) -> None:
    """The worlds, a table for each way to begin and share of labels, and the means."""
    _print(_worlds_table(board), console=console)
    for mode, share in _parts(board):
        _print(_part_table(_rows(board, mode=mode, share=share), title=_title(mode, share)), console=console)
    for table in _blocks_tables(board):
        _print(table, console=console)
    _print(_means_table(board), console=console)
    if len(board.worlds) == 1:
        _print(_answers_table(board), console=console)
    for note in _notes(board):
        console.print(note, soft_wrap=True, highlight=False, markup=False)


def _parts(board: Board) -> list[tuple[str, float]]:
    return list(dict.fromkeys((row.mode, row.labelled) for row in board.rows))


def _rows(board: Board, *, mode: str, share: float) -> list[Measured]:
    return [row for row in board.rows if (row.mode, row.labelled) == (mode, share)]


def _title(mode: str, share: float) -> str:
    return f"{_BESIDE[mode]}, {100 * share:g} % labelled"


def _worlds_table(board: Board) -> Table:
    table = _table("world", "questions", "arms", "best fixed arm", "reward", "dearest", "reward", "possible", "known")
    for world in board.worlds:
        arms, always = world.table.arms, world.rewards.mean(axis=0)
        table.add_row(
            world.name,
            f"{len(world.table.rows):,}",
            str(len(arms)),
            *(cell for arm in (world.best, world.dearest) for cell in (arms[arm], f"{always[arm]:.3f}")),
            _thousandths(board.possible[world.name]),
            _thousandths(world.truth),
        )
    return table


def _part_table(rows: Sequence[Measured], *, title: str) -> Table:
    table = _table(
        title, "policy", *_keys(rows), WHOLE, AFTER, "of possible", "against the incumbent", "of the lead",
        "break-even", "worst prefix", "labels",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.world,
            row.policy,
            *(_cell(row.best.get(key)) for key in (*_keys(rows), WHOLE, AFTER)),
            "" if row.share is None else f"{row.share:.2f}",
            _cell(row.incumbent[WHOLE]),
            _share_cell(_of_the_lead([row])),
            "never" if row.break_even is None else str(row.break_even),
            "" if row.worst_prefix is None else f"{row.worst_prefix:.3f}",
            f"{row.labels:.0f}",
        )
    return table


def _blocks_tables(board: Board) -> Iterator[Table]:
    """Rewards of long passes by block, less the best fixed arm's and, if chances are known, the best choice's."""
    keys, first = [*(key for key, _, _ in blocks_of(board.conditions.questions)), WHOLE, AFTER], board.policies[0]
    for (mode, share), (name, other) in product(_parts(board) if len(keys) > 2 else [], _OTHERS.items()):
        rows = [row for row in _rows(board, mode=mode, share=share) if getattr(row, name)]
        table = _table(f"{_title(mode, share)}: less the {other}", "policy", *keys)
        by_policy: dict[str, list[Mapping[str, Estimate]]] = {}
        for row in rows:
            figures: Mapping[str, Estimate] = getattr(row, name)
            by_policy.setdefault(row.policy, []).append(figures)
            table.add_row(row.world, row.policy, *(_cell(figures.get(key)) for key in keys))
        for policy, mine in by_policy.items():
            table.add_row("mean", policy, *(_mean_cell(mine, key) for key in keys))
        for policy, mine in list(by_policy.items())[1:]:
            pairs = zip(mine, by_policy[first], strict=True)
            less = [{key: one - base[key] for key, one in figures.items()} for figures, base in pairs]
            table.add_row(f"mean less {first}'s", policy, *(_mean_cell(less, key) for key in keys))
        if rows:
            yield table


def _means_table(board: Board) -> Table:
    first = board.policies[0]
    last = _KEYS[-1]
    table = _table(
        "mean over the worlds", "policy", *_KEYS, WHOLE, AFTER, "of possible", "against the incumbent",
        "of the lead", "least", f"{WHOLE} less {first}'s", f"worst at {last}", "worst whole pass", "harmed",
        "worst prefix",
    )  # fmt: skip
    for mode, share in _parts(board):
        rows = _rows(board, mode=mode, share=share)
        base = {row.world: row.best[WHOLE] for row in rows if row.policy == first}
        for policy in board.policies:
            mine = [row for row in rows if row.policy == policy]
            shares = [row.share for row in mine if row.share is not None]
            least = min((row for row in mine if _of_the_lead([row])), key=_value_of_the_lead, default=None)
            ratios = [row.worst_prefix for row in mine if row.worst_prefix is not None]
            less = mean_of([row.best[WHOLE] - base[row.world] for row in mine])
            table.add_row(
                _title(mode, share),
                policy,
                *(_mean_cell([row.best for row in mine], key) for key in (*_KEYS, WHOLE, AFTER)),
                f"{np.mean(shares):.2f} ({len(shares)})" if shares else "",
                _cell(mean_of([row.incumbent[WHOLE] for row in mine])),
                _share_cell(_of_the_lead(mine)),
                "" if least is None else f"{_share_cell(_of_the_lead([least]))} {least.world}",
                "" if policy == first else _cell(less),
                *(_worst_cell(mine, key) for key in (last, WHOLE)),
                _harmed_cell(mine),
                f"{min(ratios):.3f}" if ratios else "",
            )
    return table


def _answers_table(board: Board) -> Table:
    """Right answers in percent and steps, on the questions that the passes did not ask.

    Above line: difference from a mixture of the cheapest and the most expensive arm that search, at the same steps.
    """
    arms = {name: one for name, one in board.rows[0].answers.items() if name != board.rows[0].policy}
    ends = sorted((steps, right) for name, (right, _, steps) in arms.items() if name != CHEAPEST and steps > 0.0)
    (near, low), (far, high) = ends[0], ends[-1]
    shown = _table("answers", "", "right, %", "steps", "above line")
    ways = [(name, "", one) for name, one in arms.items()]
    ways += [(row.policy, _title(row.mode, row.labelled), row.answers[row.policy]) for row in board.rows]
    for name, way, (right, error, steps) in ways:
        above = right - low - (steps - near) / ((far - near) or 1.0) * (high - low)
        spread = "" if error is None else f" ± {100.0 * error:.1f}"
        shown.add_row(name, way, f"{100.0 * right:.1f}{spread}", f"{steps:.2f}", decimal(100.0 * above, 1, sign="+"))
    return shown


def _of_the_lead(rows: Sequence[Measured]) -> Estimate | None:
    """Share of the lead; a ratio of sums, since a world with a small lead would decide a mean of ratios.

    None if the sum is too small, and for passes that start with the best fixed arm. Worlds whose most expensive arm is
    the best one have no lead, and do not count.
    """
    rows = [row for row in rows if row.lead > 0.0 and row.mode != BEST]
    lead = math.fsum(row.lead for row in rows)
    if lead <= WORTH * len(rows):
        return None
    return mean_of([row.above_dearest for row in rows]) / (lead / len(rows))


def _value_of_the_lead(row: Measured) -> float:
    return row.above_dearest.value / row.lead


def _share_cell(share: Estimate | None) -> str:
    return "" if share is None else f"{share.value:.2f} ± {share.error:.2f}"


def _harmed_cell(rows: Sequence[Measured]) -> str:
    """Passes with a broken promise, and the upper bound of their share, one-sided, at 95 % (Clopper and Pearson)."""
    harmed, passes = sum(row.harmed for row in rows), sum(row.passes for row in rows)
    return f"{harmed} of {passes} (at most {100.0 * upper_bound(harmed, of=passes):.1f} %)"


def upper_bound(count: int, *, of: int, error: float = 0.05) -> float:
    """The largest probability at which `count` or fewer successes in `of` trials are as likely as `error`."""
    low, high = count / of, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        chance = math.fsum(math.comb(of, k) * middle**k * (1.0 - middle) ** (of - k) for k in range(count + 1))
        low, high = (middle, high) if chance > error else (low, middle)
    return high


def _keys(rows: Sequence[Measured]) -> list[str]:
    return [key for key in _KEYS if any(key in row.best for row in rows)]


def _mean_cell(rows: Sequence[Mapping[str, Estimate]], key: str) -> str:
    there = [figures[key] for figures in rows if key in figures]
    return _cell(mean_of(there)) + (f" ({len(there)})" if len(there) < len(rows) else "") if there else ""


def _worst_cell(rows: Sequence[Measured], key: str) -> str:
    there = [row for row in rows if key in row.best]
    if not there:
        return ""
    worst = min(there, key=lambda row: row.best[key].value)
    return f"{_thousandths(worst.best[key].value)} {worst.world}"


def _cell(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{_thousandths(estimate.value)} ± {1000.0 * estimate.error:.0f}"


def _thousandths(value: float | None) -> str:
    return "" if value is None else f"{round(1000.0 * value) + 0:+d}"


def _notes(board: Board) -> list[str]:
    conditions = board.conditions
    extra = [
        "long made worlds repeat their questions; rewards are by chances, not by drawn outcomes; possible: as known"
        if any(world.repeats for world in board.worlds)
        else "",
        f"{conditions.warm} questions are learned with all outcomes before, and not asked" if conditions.warm else "",
        f"{100 * conditions.wrong:g} % of the ratings are turned round" if conditions.wrong else "",
        f"labels come {conditions.late} decisions late" if conditions.late else "",
    ]
    read = (
        f"{', '.join(_KEYS)}: mean until so many questions, labelled or not, against the best fixed arm; {AFTER}: the "
        "greedy choice on the rest; break-even, worst prefix: against the incumbent, cold against the best fixed arm; "
        f"of the lead: what a {WHOLE} earns more than always the dearest arm, over what always the best fixed arm "
        f"earns more, if this is above {1000 * WORTH:g}; over all worlds as a ratio of sums; least: the world with the "
        "smallest share; harmed: passes with a prefix below what policy.harm allows, with an upper bound at 95 %"
    )
    possible = (
        "possible: gain of the better of kernel ridge and nearest neighbours with all outcomes, 10 folds; where it is "
        f"above {1000 * WORTH:g}, of possible is {AFTER} over it; known: of the best arm of each kind, by its chances"
    )
    errors = f"thousandths of a reward per question, seeds: {board.seeds}, ± standard error over questions and seeds"
    return [f"{errors}; in brackets: worlds, where not all count", read, possible, *(note for note in extra if note)]


def _table(*columns: str) -> Table:
    table = Table(*columns, box=box.MARKDOWN)
    for number, column in enumerate(table.columns):
        column.no_wrap, column.justify = True, "left" if number < 2 else "right"
    return table


def _print(table: Table, *, console: Console) -> None:
    """As wide as it is, in a pipe or a file too."""
    wide = Measurement.get(console, console.options.update(width=1000), table).maximum
    Console(file=console.file, width=max(wide, console.width), emoji=False).print(table)
