"""Map of a policy: at most eight kinds of questions, each with its arms.

A regression tree (CART: Breiman, Friedman, Olshen and Stone 1984) predicts the arm probabilities (pmfs) of the newest
questions from simple facts about them. Each step splits the leaf for which a split most reduces the sum of squares of
the pmfs around the leaves' means.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, select

from ragbandit.router.comparison.assessment import QuestionKind
from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.serving.explanations.kind_names import Condition, kind_name, telling_words
from ragbandit.router.serving.explanations.question_facts import Facts, frequent_words, kept_text, question_facts
from ragbandit.router.storage.rows.conversion import arms_value, reward_at, scores_value
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.texts.formats import counted, percent
from ragbandit.shared.types import ArmName, Matrix, Query, Vector

#: number of newest decisions that are read, and most questions among them that are mapped: older ones were decided by
#: policies that had learned less
LOOKED_AT: Final = 5_000
MOST_QUESTIONS: Final = 500
MOST_LEAVES: Final = 8
#: fewest questions of a leaf: FEWEST, or 1 / _FEWEST_PART of all questions if that is more
FEWEST, _FEWEST_PART = 10, 50
#: least reduction by a split, as a share of the sum of squares before all splits; smaller ones may be chance
LEAST_GAIN: Final = 0.01
EXAMPLES, LONGEST = 3, 120
_MOST_VALUES: Final = 100

#: columns of `updates` with the reward, and of `decisions` with facts about the question
_REWARD: Final = ("value", "quality", "cost", "minimum", "maximum", "preset")
_FACTS: Final = ("tenant", "text", "context", "price", "cost_weight")
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyMap:
    questions: int
    #: the kinds of questions, the largest share first; empty for fewer than 2 * FEWEST questions
    kinds: tuple[QuestionKind, ...] = ()
    #: R^2: share of the pmfs' sum of squares that is between kinds
    explained: float = 0.0

    @property
    def of(self) -> str:
        return f"the newest {counted(self.questions, 'question')} with several arms"

    @property
    def sentence(self) -> str:
        if self.explained < LEAST_GAIN:
            return f"no kind of question gets other arms than the rest, in the newest {self.questions:,} questions"
        part = f"these {len(self.kinds)} kinds explain {percent(round(self.explained, 2))}"
        return f"{part} of how the probabilities differ between the newest {self.questions:,} questions"


@dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """A possible split: the questions for which the condition holds, and the others."""

    condition: Condition
    holds: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The questions that are mapped."""

    texts: Sequence[str]  #: "" if a text is not kept
    facts: Sequence[Facts]
    words: Mapping[str, Sequence[int]]  #: frequent word -> places of the questions that have it
    tests: Sequence[Test]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], *, schema: ContextSchema) -> Self:
        """rows: columns of decisions"""
        texts = [kept_text(row["text"]) for row in rows]
        facts, words = [question_facts(row, schema=schema) for row in rows], frequent_words(texts)
        return cls(texts=texts, facts=facts, words=words, tests=[*_tests(facts), *_tests_of_words(words, len(rows))])


Path = tuple[tuple[Test, bool], ...]


def policy_map(
    database: Database, *, label: str, schema: ContextSchema, weight: float, tenant: str | None = None
) -> PolicyMap:
    """Map the newest decisions that had several arms. weight: cost weight."""
    rows = _read(database, label=label, tenant=tenant)
    if len(rows) < 2 * FEWEST:
        return PolicyMap(questions=len(rows))
    arms = list(dict.fromkeys(arm for row in rows for arm in arms_value(row["arms"])))
    pmfs = np.zeros((len(rows), len(arms)))
    for at, row in enumerate(rows):
        pmfs[at, [arms.index(arm) for arm in arms_value(row["arms"])]] = scores_value(row["pmf"])
    rewards = np.array([np.nan if row["value"] is None else reward_at(row, weight=weight) for row in rows])
    return _mapped(Asked.of(rows, schema=schema), pmfs=pmfs, arms=arms, rewards=rewards)


def question_kinds(
    queries: Sequence[Query], *, pmfs: Matrix, arms: Sequence[ArmName], rewards: Vector, schema: ContextSchema
) -> tuple[QuestionKind, ...]:
    """Map questions that need not be in a store. pmfs: shape (n questions, K arms). rewards: expected rewards of the
    policy, shape (n,).

    Returns the kinds of questions, the largest share first.
    """
    same = {"price": None, "cost_weight": None}
    rows = [{"tenant": q.tenant, "text": q.text, "context": json.dumps(dict(q.context)), **same} for q in queries]
    return _mapped(Asked.of(rows, schema=schema), pmfs=pmfs, arms=arms, rewards=rewards).kinds


def _mapped(asked: Asked, *, pmfs: Matrix, arms: Sequence[ArmName], rewards: Vector) -> PolicyMap:
    """The leaves of a tree that is fitted on all questions. rewards: NaN for questions that were not rated."""
    kinds, within = [], 0.0
    for path, places in grow_tree(pmfs, tests=asked.tests):
        within += _squares(pmfs[places])
        rated = rewards[places][~np.isnan(rewards[places])]
        texts = list(dict.fromkeys(asked.texts[at] for at in places if asked.texts[at]))
        kind = QuestionKind(
            name=_name(path, places=places, asked=asked),
            share=len(places) / len(pmfs),
            arms=dict(zip(arms, pmfs[places].mean(axis=0).tolist(), strict=True)),
            reward=float(rated.mean()) if len(rated) >= FEWEST_EFFECTIVE else None,
            examples=tuple(t if len(t) <= LONGEST else f"{t[:LONGEST]} ..." for t in texts[:EXAMPLES]),
        )
        kinds.append(kind)
    kinds.sort(key=lambda kind: -kind.share)
    explained = 1.0 - within / max(_squares(pmfs), 1e-9)
    return PolicyMap(questions=len(pmfs), kinds=tuple(kinds), explained=explained if len(kinds) > 1 else 0.0)


def _name(path: Path, *, places: Rows, asked: Asked) -> str:
    inside = places.tolist()
    lacks_a_word = any(test.condition.is_word for test, _ in path)
    words = telling_words(asked.words, inside=inside, questions=len(asked.facts)) if lacks_a_word else {}
    conditions = [(test.condition, side) for test, side in path]
    return kind_name(conditions, facts=[asked.facts[at] for at in inside], words=words)


def _read(database: Database, *, label: str, tenant: str | None) -> list[dict[str, Any]]:
    newest = (
        select(decisions.c.id).order_by(decisions.c.made_at.desc(), decisions.c.id.desc()).limit(LOOKED_AT).subquery()
    )
    learned = and_(updates.c.policy == label, updates.c.decision_id == decisions.c.id, updates.c.source == "explicit")
    columns = [*decisions.c["id", "arms", "pmf", *_FACTS]]
    columns += FACT_COLUMNS
    query = (
        select(*columns, *(updates.c[name] for name in _REWARD))
        .join(newest, newest.c.id == decisions.c.id)
        .outerjoin(updates, learned)
    )
    query = query.where(decisions.c.policy == label, decisions.c.fault.is_(None))
    if tenant is not None:
        query = query.where(decisions.c.tenant == tenant)
    with database.read() as connection:
        rows = connection.execute(query.order_by(decisions.c.made_at.desc(), decisions.c.id.desc())).mappings().all()
    return [dict(row) for row in rows if not QueriedFacts.of_row(row).is_undrawn and len(arms_value(row["arms"])) > 1][
        :MOST_QUESTIONS
    ]


def _tests(facts: Sequence[Facts]) -> Iterator[Test]:
    """All possible splits by facts: by each frequent value, and by 31 quantiles of each number."""
    counts = Counter(
        (fact, value) for row in facts for fact, value in row.items() if value is True or type(value) is str
    )
    frequent = ((-count, fact, value) for (fact, value), count in counts.items() if count >= FEWEST)
    for _, fact, value in sorted(frequent)[:_MOST_VALUES]:
        yield Test(condition=Condition(fact, value), holds=np.array([row.get(fact) == value for row in facts]))
    for fact in sorted({fact for row in facts for fact, value in row.items() if isinstance(value, float)}):
        values = np.array([row.get(fact, np.nan) for row in facts], dtype=np.float64)
        finite = values[np.isfinite(values)]
        for limit in np.unique(np.quantile(finite, np.arange(1, 32) / 32, method="lower")):
            yield Test(condition=Condition(fact, float(limit)), holds=values <= limit)


def _tests_of_words(words: Mapping[str, Sequence[int]], questions: int) -> Iterator[Test]:
    for word, places in words.items():
        holds = np.zeros(questions, dtype=np.bool_)
        holds[places] = True
        yield Test(condition=Condition(word, True, is_word=True), holds=holds)


def grow_tree(targets: Matrix, *, tests: Sequence[Test]) -> list[tuple[Path, Rows]]:
    """The leaves of a tree. targets: pmfs, shape (n questions, K arms)."""
    rows, holds = np.arange(len(targets)), np.array([test.holds for test in tests]).reshape(len(tests), len(targets))
    least, fewest = LEAST_GAIN * _squares(targets), max(FEWEST, len(rows) // _FEWEST_PART)
    leaves: list[tuple[Path, Rows]] = [((), rows)]
    best = [_best_split(targets, holds, fewest=fewest)]
    while len(leaves) < MOST_LEAVES:
        at = max(range(len(leaves)), key=lambda leaf: best[leaf][0])
        gain, test = best.pop(at)
        if gain <= max(least, 1e-12 * len(rows)):
            break
        path, places = leaves.pop(at)
        for side in (True, False):
            part = places[holds[test, places] == side]
            leaves.append(((*path, (tests[test], side)), part))
            best.append(_best_split(targets[part], holds[:, part], fewest=fewest))
    return leaves


def _squares(targets: Matrix) -> float:
    return float(((targets - targets.mean(axis=0)) ** 2).sum())


def _best_split(targets: Matrix, holds: npt.NDArray[np.bool_], *, fewest: int) -> tuple[float, int]:
    """Returns (reduction of the sum of squares, number) of the best split; (0, 0) if the reduction may be chance.

    If T splits by irrelevant facts are tried, the best one reduces the sum by up to about 2 log(T) mean squares.
    """
    count, whole = len(targets), targets.sum(axis=0)
    ones = holds.sum(axis=1)
    sums = holds.astype(np.float64) @ targets
    fits = (ones >= fewest) & (count - ones >= fewest)
    if not fits.any():
        return 0.0, 0
    inside, outside = np.maximum(ones, 1), np.maximum(count - ones, 1)
    explained = (sums**2).sum(axis=1) / inside + ((whole - sums) ** 2).sum(axis=1) / outside
    gains = np.where(fits, explained - (whole**2).sum() / count, 0.0)
    best = float(gains.max())
    if best <= 2.0 * math.log(len(holds)) * _squares(targets) / count:
        return 0.0, 0
    return best, int(np.argmax(gains >= best - 1e-9 * count))  # the first of splits whose gains differ by rounding
