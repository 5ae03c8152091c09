"""Worlds whose arms are made of parts: every choice of a model, a retriever and a depth is an arm of its own.

An arm's probability of a right answer is the sum of the kind's difficulty, the effects of its parts (overall and per
kind), and an effect of the arm. With a wrong structure the arms are unrelated although facts are declared. Each truth
is another draw of the effects for the same questions. Costs of parts multiply; the most expensive arm costs 3 steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from benchmarks.worlds.made import ROWS, questions_of
from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.shared.types import ArmName, Matrix, TableRow

#: draws of the effects for each grid
TRUTHS: Final = 16
#: kinds of questions: each has two of the sentences
KINDS: Final = 4
#: standard deviations: of kinds, of parts, of parts by kind, of arms, of arms by kind
_KIND, _PART, _PART_BY_KIND, _ARM, _ARM_BY_KIND = 0.12, 0.084, 0.05, 0.025, 0.02
#: cost of each value of the parts, which multiply
_COSTS: Final = ((0.3, 1.2), (1.0, 1.15, 1.5, 1.9), (0.7, 1.0, 1.5, 2.2), (1.0, 1.8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """How many values each part has, and what else its truth is made of."""

    values: Sequence[int]
    #: the part that is worth nothing
    useless: int | None = None
    #: standard deviation of effects of pairs of parts
    pairs: float = 0.0
    #: number of arms; None: the default
    own: float = _ARM
    #: arms are unrelated
    unrelated: bool = False


GRIDS: Final[Mapping[str, Grid]] = {
    "grid18": Grid(values=(2, 3, 3)),
    "grid24 useless part": Grid(values=(2, 3, 4), useless=2),
    "grid12 own": Grid(values=(2, 3, 2), own=0.06),
    "grid32 pairs": Grid(values=(2, 2, 4, 2), pairs=0.05),
    "grid18 unrelated": Grid(values=(2, 3, 3), unrelated=True),
    "grid32 unrelated": Grid(values=(2, 2, 4, 2), unrelated=True),
}


def grid_world(name: str, *, truth: int) -> tuple[LabelledTable, Matrix, dict[ArmName, dict[str, int]]]:
    """The table, the chance of every arm on every row (rows, arms), and the facts of the arms."""
    grid = GRIDS[name]
    random = np.random.default_rng([truth, *name.encode()])
    places = np.array(list(product(*map(range, grid.values))))
    arms = [ArmName("-".join(map(str, place))) for place in places.tolist()]
    texts, sentences = questions_of(ROWS)
    chances = np.clip(_chances(grid, places=places, random=random), 0.03, 0.97)[sentences % KINDS]
    costs = np.array([np.prod([_COSTS[part][value] for part, value in enumerate(place)]) for place in places.tolist()])
    steps = dict(zip(arms, (3.0 * costs / costs.max()).tolist(), strict=True))
    right = (random.random(chances.shape) < chances).astype(float)
    rows = tuple(
        TableRow(id=f"grid-{number}", question=text, correct=dict(zip(arms, of_row, strict=True)), steps=steps)
        for number, (text, of_row) in enumerate(zip(texts, right.tolist(), strict=True))
    )
    facts = {
        arm: {f"part{part}": value for part, value in enumerate(place)}
        for arm, place in zip(arms, places.tolist(), strict=True)
    }
    return LabelledTable(rows=rows, arms=tuple(arms)), chances, facts


def _chances(grid: Grid, *, places: Matrix, random: np.random.Generator) -> Matrix:
    """Shape (kinds, arms)."""
    count = len(places)
    kinds: Matrix = np.full((KINDS, count), 0.5) + random.normal(0.0, _KIND, KINDS)[:, None]
    if grid.unrelated:
        return kinds + random.normal(0.0, 1.25 * _PART, count) + random.normal(0.0, 1.5 * _PART_BY_KIND, kinds.shape)
    useful = [part for part in range(len(grid.values)) if part != grid.useless]
    for part in useful:
        values = grid.values[part]
        effects = np.sort(random.normal(0.0, _PART, values))
        kinds += (effects - effects.mean())[places[:, part]]
        kinds += random.normal(0.0, _PART_BY_KIND, (KINDS, values))[:, places[:, part]]
        for other in useful[: useful.index(part)]:
            pair = random.normal(0.0, grid.pairs, (grid.values[other], values))
            kinds += pair[places[:, other], places[:, part]]
    return kinds + random.normal(0.0, grid.own, count) + random.normal(0.0, _ARM_BY_KIND, kinds.shape)
