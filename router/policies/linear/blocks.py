"""Ridge heads that learn an arm's rows in blocks: the same regression as in ridge.py, a tenth of the work per row.

The rows of an arm, in the ledger's order, are cut into blocks of 1, 1, 2, 4, 8, ... rows, up to `block` (and no more
than 1/16 of the memory). At the end of a block the arm's precision A takes it at once,

    A <- A + Z^T Z,   b <- b + Y^T Z,

and is inverted. Old rows fade at the beginning of a block, by what they lose until its end: A <- k A + (1 - k) prior,
so the prior never fades. Within a block the served posterior takes the rows one by one, by Sherman-Morrison on the
inverse of the block's beginning; that is work only where somebody asks (`_catch_up`), so a rebuild skips all of it but
the last unfinished block of each arm. Either way the state after n rows is the same, to the last bit: it is a function
of the rows alone.

Residuals, and with them the noise and a policy's test for changes, are taken row by row against the mean at the
block's beginning.

Z^T Z comes from BLAS, whose order of sums differs between processors. So features are rounded to multiples of 2^-14
first: then every product and every sum of a block is a whole number below 2^53, exact in any order. The inverse has a
fixed order of its own (inversion.py). Rows that count as w are summed apart for each w, and these sums are put
together in the order of w. Old rows fade by what the rows of the block before counted as.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.policies.base import Arrays, Facts, checked_arrays, rows_of, tally
from ragbandit.router.policies.linear.inversion import inverse_of
from ragbandit.router.policies.linear.ridge import (
    LATEST,
    Prediction,
    RidgeHeads,
    add_row,
    design,
    whole_matrix,
)
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import ArmName, Features, Json, Matrix, Update, Vector

#: Most rows of a block: 2^22 units a feature, squared, times 2^9 rows are 2^53.
LARGEST_BLOCK: Final = 512
#: one unit of a rounded feature
_UNIT: Final = 2.0**-14
#: features are below this many units, which is 256
_MOST_UNITS: Final = 2.0**22
#: arrays of a block in a saved state
_KINDS: Final = ("precision", "start", "units", "targets", "counts")
#: a block has at most this share of the memory's rows: within a block rows count alike
_SHARE_OF_MEMORY: Final = 16

#: rows and columns of a product that OpenBLAS does not spread over threads: up to 2^18 multiplications
_TILE: Final = 64

Units = npt.NDArray[np.float32]


@dataclass(slots=True)
class Block:
    """An arm at the beginning of its block, and the rows since."""

    #: precision and moment of all rows before the block, faded; the means they give; their leverage
    precision: Matrix
    moment: Matrix
    start: Matrix
    leverage: float
    #: rows of the block so far: features in units (rows, d), quality and cost (rows, 2), what they count as (rows,)
    units: Units
    targets: Matrix
    counts: Vector
    rows: int
    #: of these, the rows that the served posterior has taken; their sums of y z^T, None where they are to be made
    taken: int
    sums: Matrix | None


class BlockHeads(RidgeHeads):
    """RidgeHeads that learn in blocks of at most `block` rows (2 to 512)."""

    def __init__(self, *, ridge: float, bias_ridge: float, memory: float | None = None, block: int) -> None:
        super().__init__(ridge=ridge, bias_ridge=bias_ridge, memory=memory)
        most = block if memory is None else min(block, int(memory) // _SHARE_OF_MEMORY)
        self.block = 1 << (max(most, 1).bit_length() - 1)  # a power of two, as the blocks before it are
        self._blocks: dict[ArmName, Block] = {}
        #: arms with rows that the served posterior has not taken
        self._behind: set[ArmName] = set()

    def predict(self, features: Features, *, arms: Sequence[ArmName], weight: float | None = None) -> Prediction:
        """As RidgeHeads."""
        self._catch_up()
        return super().predict(features, arms=arms, weight=weight)

    def predict_fast(self, features: Features, *, arms: Sequence[ArmName], weight: float | None = None) -> Prediction:
        """As RidgeHeads."""
        self._catch_up()
        return super().predict_fast(features, arms=arms, weight=weight)

    def learn(self, update: Update) -> float:
        """One row into the drawn arm's block and into the noise; PolicyFault and no change if it cannot be used.

        The row's residual, in standard deviations of its prediction. `finish` must follow.
        """
        if update.features is None or (self._blocks and update.features.size != self._width):
            raise PolicyFault("features are missing or of another length")
        arm, units, rows = update.arm, _rounded(update.features), rows_of(update)
        if rows == 0.0:
            tally(self.seen, update)
            return 0.0
        quality, cost, weight = self._targets(update)
        block = self._blocks.get(arm)
        leverage = self._prior_leverage if block is None else block.leverage
        fade = self._kept(rows)
        q = c = 0.0
        if block is not None:
            z = design(np.multiply(units, _UNIT))
            q, c = np.multiply(block.start, z).sum(axis=1).tolist()
        q, c = quality - q, cost - c  # what the block's beginning misses
        square = np.array([[q * q, q * c], [q * c, c * c]])
        scatter = fade * self._scatter + rows * square / (1.0 + rows * leverage)
        # The moment's entries are below 512 * 256 times the largest target that is multiplied by its count.
        reach = leverage * weight * weight + update.reward.cost + 1e6 * max(rows, 1.0) * (abs(quality) + abs(cost))
        if not (math.isfinite(scatter[0, 0] + scatter[1, 1]) and math.isfinite(reach)):
            raise PolicyFault("the row holds numbers that are not finite, or too large to be squared")
        residual = self._standardised((q, c), weight=weight, leverage=leverage, rows=rows)
        if block is None:
            block = self._blocks[arm] = self._opened(self._new(units.size + 1), rows=self.block_rows(0))
        block.units[block.rows], block.targets[block.rows] = units, (quality, cost)
        block.counts[block.rows] = rows
        block.rows += 1
        self._scatter, self._rows = scatter, fade * self._rows + rows
        self._follow(update, weight=weight)
        self._age[arm], self._mass[arm] = self._age.get(arm, 0) + 1, self._mass.get(arm, 0.0) + rows
        self._behind.add(arm)
        tally(self.seen, update)
        return residual

    def finish(self, arm: ArmName, *, restart: float | None = None) -> None:
        """End the arm's block if it is full; or at once, its rows counting as `restart` (> 0) together from then on."""
        block, age = self._blocks.get(arm), self._age.get(arm, 0)
        if block is None:  # rows that counted as none
            return
        if restart is None and block.rows < self.block_rows(age - block.rows):
            return
        share = 1.0
        if restart is not None:
            share = self._share(arm, rows=restart)
            self._age[arm], self._mass[arm] = 0, 0.0
        if block.rows == 0:  # started again between two blocks
            self._begin(arm, gram=None, share=share, count=1.0)
            return
        gram = self._close(arm)
        mass = math.fsum(block.counts[: block.rows].tolist())
        self._begin(arm, gram=gram / mass, share=share, count=mass / block.rows)

    def _close(self, arm: ArmName) -> Matrix:
        """Let the block's beginning take its rows; their sum of w z z^T, (d+1, d+1)."""
        block = self._blocks[arm]
        gram = _gram(block)
        block.precision += gram
        block.moment += np.einsum("nk,nj->kj", _counted(block), designs(block))
        return gram

    def _begin(self, arm: ArmName, *, gram: Matrix | None, share: float, count: float) -> float:
        """Begin the arm's next block: fade, invert. What rows keep of their weight, in (0, 1].

        gram: mean of z z^T over its latest rows, each with what it counts as, None where there is none; count: what one
        of these rows counts as on average; share: what all keep.
        """
        old = self._blocks[arm]
        rows = self.block_rows(self._age[arm])
        fade = share * self._faded(rows, count=count)
        old.precision *= fade
        old.precision[np.diag_indices(len(old.precision))] += (1.0 - fade) * self._precision(len(old.precision))
        old.moment *= fade
        inverse = inverse_of(old.precision)
        old.start = np.einsum("kj,ij->ki", old.moment, inverse)
        # The mean of z^T P z over rows that P has learned with the weight `fade * count`, as if it had not (leave one
        # out).
        own = old.leverage / share if gram is None else float((inverse * gram).sum())
        free = 1.0 if gram is None else 1.0 - fade * count * own
        old.leverage = min(own / free, self._prior_leverage) if free > 0.0 else self._prior_leverage
        self._blocks[arm] = self._opened(old, rows=rows)
        self._serve(arm, inverse)
        return fade

    def _opened(self, old: Block, *, rows: int) -> Block:
        """The block that begins after `old`, with room for so many rows."""
        width = len(old.precision) - 1
        return Block(
            precision=old.precision,
            moment=old.moment,
            start=old.start,
            leverage=old.leverage,
            units=np.empty((rows, width), dtype=np.float32),
            targets=np.empty((rows, 2)),
            counts=np.ones(rows),
            rows=0,
            taken=0,
            sums=None,
        )

    def _new(self, size: int) -> Block:
        nothing = np.zeros((2, size))
        return Block(
            precision=np.diag(self._precision(size)),
            moment=nothing,
            start=nothing.copy(),
            leverage=self._prior_leverage,
            units=np.empty((0, size - 1), dtype=np.float32),
            targets=np.empty((0, 2)),
            counts=np.ones(0),
            rows=0,
            taken=0,
            sums=None,
        )

    def _serve(self, arm: ArmName, inverse: Matrix) -> None:
        """Let the posterior of the block's beginning be the served one."""
        block = self._blocks[arm]
        self._inverse[arm], self._moment[arm], self._mean[arm] = inverse, block.moment, block.start
        self._leverage[arm] = block.leverage
        self._behind.discard(arm)
        self._forget(arm)

    def _catch_up(self) -> None:
        """Let the served posterior take the rows of unfinished blocks, one by one."""
        for arm in sorted(self._behind):
            block = self._blocks[arm]
            if arm not in self._inverse:
                self._serve(arm, np.diag(1.0 / np.diag(block.precision)))
            before = self._age[arm] - block.rows
            if block.sums is None:
                block.sums = np.zeros_like(block.moment)
                _add_up(block.sums, block, first=0, last=block.taken)
            for row, z in enumerate(designs(block, first=block.taken), start=block.taken):
                leverage = self._take(arm, z, row=row)
                known = self._leverage[arm]
                self._leverage[arm] = known + (leverage - known) / min(before + row + 1, LATEST)
            _add_up(block.sums, block, first=block.taken, last=block.rows)
            block.taken = block.rows
            self._mean[arm] = np.einsum("kj,ij->ki", block.moment + block.sums, self._inverse[arm])
            self._forget(arm)
        self._behind.clear()

    def _take(self, arm: ArmName, z: Vector, *, row: int) -> float:
        """Let the served posterior take a row of the block; its leverage before."""
        return add_row(self._inverse[arm], z, rows=float(self._blocks[arm].counts[row]))

    def block_rows(self, age: int) -> int:
        """Rows of the block that begins when the arm has learned `age` rows."""
        return max(1, min(self.block, age))

    def _faded(self, rows: int, *, count: float) -> float:
        """What is left of a row's weight after that many rows of its arm, each of which counts as `count`.

        A power, its products in a fixed order.
        """
        left = 1.0
        if self.memory is not None:
            for _ in range(rows):
                left *= self._kept(count)
        return left

    @property
    def _prior_leverage(self) -> float:
        return 1.0 / self.bias_ridge + 1.0 / self.ridge

    @property
    def _width(self) -> int:
        return len(next(iter(self._blocks.values())).precision) - 1

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Per arm: the served inverse and mean, the block's beginning, and its rows so far.

        Symmetric matrices as upper triangles, row by row; features in units of 2^-14, which float32 holds exactly.
        """
        self._catch_up()
        arrays, facts = super().state()
        for arm, block in sorted(self._blocks.items()):
            arrays[f"precision/{arm}"] = block.precision[np.triu_indices(len(block.precision))]
            arrays[f"moment/{arm}"] = block.moment
            arrays[f"start/{arm}"] = block.start
            arrays[f"units/{arm}"] = block.units[: block.rows]
            arrays[f"targets/{arm}"] = block.targets[: block.rows]
            arrays[f"counts/{arm}"] = block.counts[: block.rows]
        facts["block_leverage"] = {arm: block.leverage for arm, block in sorted(self._blocks.items())}
        return arrays, facts

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state: besides that of RidgeHeads, every arm's block."""
        of_blocks = {name: array for name, array in arrays.items() if name.split("/", 1)[0] in _KINDS}
        super().restore({name: array for name, array in arrays.items() if name not in of_blocks}, facts)
        shapes: dict[str, tuple[int, ...]] = {}
        for arm in self._age:
            rows, size = len(arrays[f"units/{arm}"]), len(self._inverse[arm])
            parts = {"precision": (size * (size + 1) // 2,), "start": (2, size), "targets": (rows, 2)}
            parts |= {"units": (rows, size - 1), "counts": (rows,)}
            shapes |= {f"{kind}/{arm}": shape for kind, shape in parts.items()}
        own = checked_arrays(of_blocks, shapes=shapes, float32={f"units/{arm}" for arm in self._age})
        self._blocks, self._behind = {}, set()
        for arm, age in self._age.items():
            rows, size = len(own[f"units/{arm}"]), len(self._inverse[arm])
            block = self._opened(self._new(size), rows=self.block_rows(age - rows))
            block.precision = whole_matrix(own[f"precision/{arm}"], size=size)
            block.moment, block.start = self._moment[arm].copy(), own[f"start/{arm}"]
            block.leverage = facts["block_leverage"][arm]
            block.units[:rows], block.targets[:rows] = own[f"units/{arm}"], own[f"targets/{arm}"]
            block.counts[:rows] = own[f"counts/{arm}"]
            block.rows = block.taken = rows
            self._blocks[arm] = block


def _rounded(features: Features) -> Vector:
    """Features as whole numbers of units, float64 (d,). Raises PolicyFault for one that is no number or too large."""
    units = np.rint(features.astype(np.float64) / _UNIT)
    if not float(np.abs(units).max(initial=0.0)) < _MOST_UNITS:  # also where one is NaN
        raise PolicyFault(
            f"a feature is not finite, or not below {_MOST_UNITS * _UNIT:g}; use an encoder whose features are near 1"
        )
    return units


def designs(block: Block, *, first: int = 0) -> Matrix:
    """The rows z of a block, from the row `first` on; (rows, d+1)."""
    units = block.units[first : block.rows].astype(np.float64)
    z = np.ones((len(units), units.shape[1] + 1))
    z[:, 1:] = units * _UNIT / math.sqrt(units.shape[1])
    return z


def _add_up(sums: Matrix, block: Block, *, first: int, last: int) -> None:
    """Add y z^T of these rows, one after the other: the order of sums does not depend on how often this is called."""
    for target, z in zip(_counted(block)[first:last], designs(block, first=first), strict=False):
        sums += target[:, None] * z[None, :]


def _counted(block: Block) -> Matrix:
    """Quality and cost of a block's rows, times what each row counts as; (rows, 2)."""
    product: Matrix = block.targets[: block.rows] * block.counts[: block.rows, None]
    return product


def _gram(block: Block) -> Matrix:
    """Z^T W Z of a block, (d+1, d+1): sums of whole numbers, which no order of sums rounds, then scaled.

    W holds what the rows count as: one sum for each of its values, put together in their order.
    """
    units = np.ones((block.rows, block.units.shape[1] + 1))
    units[:, 1:] = block.units[: block.rows]
    counts = block.counts[: block.rows]
    first, *others = sorted(set(counts.tolist()))
    total = first * _exact_gram(units[counts == first])
    for count in others:
        total += count * _exact_gram(units[counts == count])
    scale = np.full(units.shape[1], _UNIT / math.sqrt(units.shape[1] - 1))
    scale[0] = 1.0
    gram: Matrix = total * (scale[:, None] * scale[None, :])
    return gram


def _exact_gram(units: Matrix) -> Matrix:
    """X^T X of whole numbers (rows, n), in tiles so small that BLAS uses the calling thread alone.

    Its other threads would spin for milliseconds after every call, on cores that routers and workers need.
    """
    across, gram = np.ascontiguousarray(units.T), np.zeros((units.shape[1], units.shape[1]))
    places = [slice(start, start + _TILE) for start in range(0, len(gram), _TILE)]
    for at, rows in enumerate(places):
        for columns in places[at:]:
            tile = gram[rows, columns]
            for some in range(0, len(units), _TILE):
                tile += across[rows, some : some + _TILE] @ units[some : some + _TILE, columns]
            gram[columns, rows] = tile.T
    return gram
