"""Partial pooling: arms whose weights differ little from those of one regression of all rows (Gelman and Hill 2007).

Some questions are hard for every arm. Independent regressions learn this once per arm; here a regression of all arms'
rows, the pool, learns it once, and an arm has to learn only by how much it differs:

    w_arm ~ N(w_pool, diag(v) / NARROW),    v as for independent arms

The posterior mean of an arm is A^-1 (b + prior precision * w_pool), with A and b of its own rows (posterior.py). So a
row costs O(d^2) for the pool and O(d^2) for its arm, whatever the number of arms. An arm copies w_pool before its first
row, after its rows 4, 8, 16 and 32, and at the end of each of its blocks. The state stores the copy.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ragbandit.router.policies.base import Arrays, Facts
from ragbandit.router.policies.posterior import RIDGE, Heads, JointWeights, Row
from ragbandit.router.policies.surrogates import Scale
from ragbandit.shared.types import ArmName, Json, Matrix, Vector

#: name of the model whose arms are pooled
POOLED: Final = "pooled"
#: prior precision of an arm's difference from the pool / prior precision of an independent arm
NARROW: Final = 3.0
#: numbers of rows after which an arm copies w_pool, besides the ends of blocks
_EARLY: Final = (4, 8, 16, 32)
_POOL: Final = ArmName("pool")


class PooledHeads(Heads):
    """The posterior means of quality and cost, without samples. Only quality is pooled: costs differ by arm.

    ridge, bias_ridge, memory: see `Heads`. For the pool, memory counts the rows of all arms.
    """

    def __init__(self, *, ridge: float, bias_ridge: float, memory: float | None) -> None:
        super().__init__(None, ridge=NARROW * ridge, bias_ridge=bias_ridge, memory=memory, pairs=0)
        self._pool = Heads(None, ridge=ridge, bias_ridge=bias_ridge, memory=memory, pairs=0)
        #: arm -> its copy of w_pool for quality, (p,)
        self._pool_weights: dict[ArmName, Vector] = {}

    def means(self, z: Vector, *, arms: Sequence[ArmName]) -> Matrix:
        means = super().means(z, arms=arms)
        new = [place for place, arm in enumerate(arms) if arm not in self._pool_weights]
        if new:
            means[0, new] = self._pool.means(z, arms=[_POOL])[0]
        return means

    def learn(self, z: Vector, row: Row) -> tuple[float, float]:
        if row.arm not in self._pool_weights:
            self._pool_weights[row.arm] = self._pool.quality_weights(_POOL, size=z.size)
        errors = super().learn(z, row)
        self._pool.learn(z, Row(_POOL, row.target, row.weight, row.rows, row.source))
        return errors

    def _ends_block(self, number: int) -> bool:
        return number in _EARLY or super()._ends_block(number)

    def _end_block(self, joint: JointWeights) -> None:
        for arm in joint.arms:
            self._pool_weights[arm] = self._pool.quality_weights(_POOL, size=self._size)
        super()._end_block(joint)

    def _prior_moment(self, arm: ArmName) -> Vector | float:
        moment: Vector = self._pool_weights[arm] * RIDGE / self._variances(self._size)
        return moment

    def rescale(self, source: str, scale: Scale) -> None:
        super().rescale(source, scale)
        self._pool.rescale(source, scale)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        arrays, facts = super().state()
        pool_arrays, pool = self._pool.state()
        arrays |= {f"pool/{name}": array for name, array in pool_arrays.items()}
        if self._pool_weights:
            arrays["read"] = np.array([self._pool_weights[arm] for arm in self._arms])
        return arrays, facts | {"pool": pool}

    def restore(self, arrays: Arrays, facts: Facts, *, scales: Mapping[str, Scale]) -> None:
        own = {name: array for name, array in arrays.items() if not name.startswith("pool/")}
        pool = {name.removeprefix("pool/"): array for name, array in arrays.items() if name.startswith("pool/")}
        self._pool.restore(pool, facts["pool"], scales=scales)
        self._pool_weights = dict(zip(facts["arms"], own.pop("read", np.zeros((0, 0))), strict=True))
        super().restore(own, facts, scales=scales)
