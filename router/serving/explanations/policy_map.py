"""Map of a policy: at most eight kinds of questions, each with its arms.

A regression tree (CART: Breiman, Friedman, Olshen and Stone 1984) predicts the arm probabilities (pmfs) of the newest
questions from simple facts about them. Each step splits the leaf for which a split most reduces the sum of squares of
the pmfs around the leaves' means.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, select

from ragbandit.router.comparison.assessment import QuestionKind
from ragbandit.router.config.context_schema import ContextSchema, is_number
from ragbandit.router.storage.rows.conversion import arms_value, reward_at, scores_value
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.texts.formats import counted, number, percent
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
EXAMPLES, LONGEST = 2, 120
_MOST_VALUES: Final = 100
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_YES_OR_NO: Final = "is are was were do does did can could has have had will would should may might"
#: first word of an English question -> its kind
_KINDS: Final = (
    {word: word for word in ("who", "what", "which", "when", "where", "why", "how")}
    | dict.fromkeys(("whose", "whom"), "who")
    | dict.fromkeys(_YES_OR_NO.split(), "yes or no")
)
#: kind of a question without any of these words. If two splits are equally good, the one by a named kind is taken
_OTHER: Final = "other"
_PREPOSITIONS: Final = frozenset(("in", "on", "at", "of", "for", "from", "to", "by", "with", "under", "about"))
_AMOUNTS: Final = frozenset(("many", "much", "long", "old", "far", "often", "big", "large", "tall", "high"))

#: columns of `updates` with the reward, and of `decisions` with facts about the question
_REWARD: Final = ("value", "quality", "cost", "minimum", "maximum", "preset")
_FACTS: Final = ("tenant", "text", "context", "price", "cost_weight")
_COUNTED: Final = frozenset(("words", "names", "numbers"))
Facts = Mapping[str, str | float]
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
class _Test:
    fact: str
    yes: str
    no: str
    #: whether the condition is "at most a number"
    is_limit: bool
    holds: npt.NDArray[np.bool_]


Path = tuple[tuple[_Test, bool], ...]


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
    tests = _tests([question_facts(row, schema=schema) for row in rows])
    return _mapped([row["text"] for row in rows], tests=tests, pmfs=pmfs, arms=arms, rewards=rewards)


def question_kinds(
    queries: Sequence[Query], *, pmfs: Matrix, arms: Sequence[ArmName], rewards: Vector, schema: ContextSchema
) -> tuple[QuestionKind, ...]:
    """Map questions that need not be in a store. pmfs: shape (n questions, K arms). rewards: expected rewards of the
    policy, shape (n,).

    Returns the kinds of questions, the largest share first.
    """
    same = {"price": None, "cost_weight": None}
    rows = [{"tenant": q.tenant, "text": q.text, "context": json.dumps(dict(q.context)), **same} for q in queries]
    tests = _tests([question_facts(row, schema=schema) for row in rows])
    return _mapped([query.text for query in queries], tests=tests, pmfs=pmfs, arms=arms, rewards=rewards).kinds


def _mapped(
    texts: Sequence[str], *, tests: Sequence[_Test], pmfs: Matrix, arms: Sequence[ArmName], rewards: Vector
) -> PolicyMap:
    """The leaves of a tree that is fitted on all questions. rewards: NaN for questions that were not rated."""
    kinds, within = [], 0.0
    for path, places in grow_tree(pmfs, tests=tests):
        within += _squares(pmfs[places])
        rated = rewards[places][~np.isnan(rewards[places])]
        asked = dict.fromkeys(texts[at] for at in places if texts[at] and not _SHA256.fullmatch(texts[at]))
        kind = QuestionKind(
            name=", ".join(_conditions(path)) or "all questions",
            share=len(places) / len(texts),
            arms=dict(zip(arms, pmfs[places].mean(axis=0).tolist(), strict=True)),
            reward=float(rated.mean()) if len(rated) >= FEWEST_EFFECTIVE else None,
            examples=tuple(t if len(t) <= LONGEST else f"{t[:LONGEST]} ..." for t in list(asked)[:EXAMPLES]),
        )
        kinds.append(kind)
    kinds.sort(key=lambda kind: -kind.share)
    explained = 1.0 - within / max(_squares(pmfs), 1e-9)
    return PolicyMap(questions=len(texts), kinds=tuple(kinds), explained=explained if len(kinds) > 1 else 0.0)


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


def question_facts(row: Mapping[str, Any], *, schema: ContextSchema) -> Facts:
    """Facts about a question, from its columns. Facts about words are most useful in English."""
    facts: dict[str, str | float] = {"tenant": row["tenant"], "price": row["price"] or "none"}
    if row["cost_weight"] is not None:
        facts["weight of cost"] = float(row["cost_weight"])
    context, words = json.loads(row["context"]), [] if _SHA256.fullmatch(row["text"]) else row["text"].split()
    if words:
        facts |= {"question": question_kind(words), "words": float(len(words))}
        facts["names"] = float(sum(word[:1].isupper() for word in words[1:]))
        facts["numbers"] = float(sum(any(map(str.isdigit, word)) for word in words))
    for key, declared in schema.items():
        value = context.get(key)
        if declared.type == "number" and is_number(value):
            facts[key] = float(value)
        elif declared.type == "words" and isinstance(value, list):
            facts |= {f"{key} {word}": "yes" for word in value if isinstance(word, str)}
        elif declared.type in ("category", "boolean") and isinstance(value, str | bool):
            facts[key] = json.dumps(value) if isinstance(value, bool) else value
    return facts


def question_kind(words: Sequence[str]) -> str:
    """The kind of a question (who, how many, yes or no, ..., other) by its first word, leaving out a preposition."""
    first, *rest = [*(word.strip("\"'(¿¡,?").casefold() for word in words[:3]), ""]
    if first in _PREPOSITIONS:
        first, *rest = rest
    return "how many" if first == "how" and rest and rest[0] in _AMOUNTS else _KINDS.get(first, _OTHER)


def _tests(facts: Sequence[Facts]) -> list[_Test]:
    """All possible splits: by each frequent text value, and by 31 quantiles of each number."""
    counts = Counter((fact, value) for row in facts for fact, value in row.items() if isinstance(value, str))
    frequent = ((value == _OTHER, -count, fact, value) for (fact, value), count in counts.items() if count >= FEWEST)
    tests = []
    for _, _, fact, value in sorted(frequent)[:_MOST_VALUES]:
        holds = np.array([row.get(fact) == value for row in facts])
        tests.append(
            _Test(fact=fact, yes=f"{fact}: {value}", no=f"{fact}: other than {value}", is_limit=False, holds=holds)
        )
    for fact in sorted({fact for row in facts for fact, value in row.items() if isinstance(value, float)}):
        values = np.array([row.get(fact, np.nan) for row in facts], dtype=np.float64)
        finite = values[np.isfinite(values)]
        for limit in np.unique(np.quantile(finite, np.arange(1, 32) / 32, method="lower")):
            yes, no = (
                f"{sign} {number(limit)} {fact if limit != 1.0 else fact[:-1]}" for sign in ("at most", "more than")
            )
            if fact not in _COUNTED:
                yes, no = (f"{fact} {sign} {number(limit)}" for sign in ("at most", "above"))
            no += " or unknown" if len(finite) < len(values) else ""
            tests.append(_Test(fact=fact, yes=yes, no=no, is_limit=True, holds=values <= limit))
    return tests


def grow_tree(targets: Matrix, *, tests: Sequence[_Test]) -> list[tuple[Path, Rows]]:
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


def _conditions(path: Path) -> Iterator[str]:
    """The conditions in words, except those that a later condition implies."""
    for at, (test, side) in enumerate(path):
        later_sides = [later_side for later, later_side in path[at + 1 :] if later.fact == test.fact]
        if not any(later_side == side if test.is_limit else later_side for later_side in later_sides):
            yield test.yes if side else test.no
