"""A routing table made ready for routers: the outcomes that passes learn, and numbers by question and arm."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.labels import labels_of
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.tables import LabelledTable, charged_costs
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import ArmName, FeatureRows, Indices, Matrix, Vector

#: name or class of the arm whose Time is 1: Time is mean seconds of an arm / mean seconds of this arm (Adaptive-RAG,
#: section 4)
TIME_ONE: Final = "single_step"


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutingTable:
    """The outcomes of every arm (K of them) for every question (n of them)."""

    table: LabelledTable
    #: name of the quality measure that `table.correct` contains
    measure: str
    #: rows with reward and cost, sorted by question, one for each arm
    rows: Sequence[Logged]
    #: features of the questions, shape (n, d); None if no policy needs them
    features: FeatureRows | None = None
    #: data set -> number of its questions, including questions that no arm answers and that the table lacks. None if
    #: the table has all questions
    totals: Mapping[str, float] | None = None
    #: the arm whose Time is 1; None if there is none
    time_one: ArmName | None = None

    @property
    def arms(self) -> tuple[ArmName, ...]:
        return self.table.arms

    @cached_property
    def reward(self) -> Matrix:
        """Reward by question and arm, shape (n, K)."""
        return self._by_question([row.reward.value for row in self.rows])

    @cached_property
    def cost(self) -> Matrix:
        """Cost by question and arm, shape (n, K), in the unit of the reward."""
        return self._by_question([row.reward.cost for row in self.rows])

    @cached_property
    def cheapest_right(self) -> Indices:
        """The oracle's choice for each question: the cheapest of its best arms; the cheapest arm if none is right."""
        best = self.table.correct == self.table.correct.max(axis=1, keepdims=True)
        return np.asarray(np.where(best, self.cost, np.inf).argmin(axis=1), dtype=np.intp)

    @cached_property
    def labels(self) -> Indices:
        """The label of each question: its cheapest right arm, and -1 if no arm is right."""
        return labels_of(self.table.correct, cost=self.cost)

    @cached_property
    def qualities(self) -> Mapping[str, Matrix]:
        """Measure of quality -> values, shape (n, K), including `measure`."""
        return {self.measure: self.table.correct, **self.table.measures}

    @cached_property
    def amounts(self) -> Mapping[str, Matrix]:
        """Amount -> values, shape (n, K): steps, seconds, passages, dollars, if known, and cost, reward and regret.

        The regret is the reward of the question's best arm minus the arm's reward.
        """
        first, arms = self.table.rows[0], self.arms
        known: dict[str, Matrix] = {"steps": self.table.steps} if first.steps else {}
        if self.table.seconds is not None:
            known["seconds"] = self.table.seconds
        for name in ("passages", "dollars"):
            if name in first.costs:
                known[name] = np.array([[row.costs[name][arm] for arm in arms] for row in self.table.rows])
        regret = self.reward.max(axis=1, keepdims=True) - self.reward
        return known | {"cost": self.cost, "reward": self.reward, "regret": regret}

    @cached_property
    def datasets(self) -> Mapping[str, Indices]:
        """Data set -> the places of its questions, in the order of their first rows; {} if a row has no data set."""
        places: dict[str, list[int]] = {}
        for place, row in enumerate(self.table.rows):
            if row.dataset is None:
                return {}
            places.setdefault(row.dataset, []).append(place)
        return {name: np.array(rows, dtype=np.intp) for name, rows in places.items()}

    def answerable(self, dataset: str | None = None) -> float:
        """Share of all questions that are in the table, in (0, 1], for one data set or for all."""
        if self.totals is None:
            return 1.0
        if dataset is not None:
            return len(self.datasets[dataset]) / self.totals[dataset]
        return len(self.table.rows) / sum(self.totals.values())

    def _by_question(self, values: Sequence[float]) -> Matrix:
        return np.array(values, dtype=np.float64).reshape(-1, len(self.arms))


def check_has_charged_cost(table: LabelledTable, *, reward: RewardSettings) -> None:
    """Raise ConfigError if a row lacks every cost that the reward charges."""
    if reward.weight > 0.0 and not all(charged_costs(row, prices=reward.cost) for row in table.rows):
        message = f"the reward charges {', '.join(reward.cost)}, and the table does not have it for every answer"
        names = (
            ["steps"]
            if table.rows[0].steps
            else ["dollars" if name == "cost" else name for name in table.rows[0].costs]
        )
        known = next(iter(names), "steps")
        raise ConfigError(message, field="reward.cost", remedy=f"charge a cost of the table, for example {known}: 1.0")


def question_totals(table: LabelledTable, *, total: Mapping[str, float]) -> Mapping[str, float] | None:
    """Number of questions by data set; None if `total` is empty. Raises InvalidInput.

    total: numbers by data set, or {"": number of all questions}, which is divided evenly, as in the papers, where each
    data set has 500 questions.
    """
    if not total:
        return None
    names = list(dict.fromkeys(row.dataset or "" for row in table.rows))
    shares = {name: total[""] / len(names) for name in names} if set(total) == {""} else dict(total)
    for name in names:
        count = sum((row.dataset or "") == name for row in table.rows)
        if name not in shares:
            remedy = f"give it too: {name or 'rows without a data set'}=N"
            raise InvalidInput(f"the number of questions of {name!r} is missing", field="total", remedy=remedy)
        if shares[name] < count:
            message = f"{shares[name]:g} questions are fewer than the {count} of the table ({name or 'all'})"
            raise InvalidInput(message, field="total", remedy="count the questions that no arm answers too")
    return {name: shares[name] for name in names}


def mixture_shares(at: float, *, costs: Vector, qualities: Vector) -> Vector:
    """Shares of the arms, shape (K,), in the best random mixture of two arms whose mean cost is at most `at`.

    costs, qualities: means of the arms, shape (K,). If `at` is below all costs, the cheapest arm has the share 1.
    """
    every = np.eye(len(costs))
    best = every[costs.argmin()]
    for low in np.flatnonzero(costs <= at):
        for high in (low, *np.flatnonzero(costs > at)):
            part = 0.0 if high == low else (at - costs[low]) / (costs[high] - costs[low])
            shares = (1.0 - part) * every[low] + part * every[high]
            if shares @ qualities > best @ qualities:
                best = shares
    return np.asarray(best, dtype=np.float64)


def time_one_of(names: Iterable[str], *, arms: Mapping[str, Mapping[str, object]]) -> ArmName | None:
    """The arm named TIME_ONE, else the first arm of this class; None if there is none. arms: the setting `arms`."""
    known = list(names)
    if TIME_ONE in known:
        return ArmName(TIME_ONE)
    of_class = [name for name in known if arms.get(name, {}).get("class") == TIME_ONE]
    return ArmName(of_class[0]) if of_class else None
