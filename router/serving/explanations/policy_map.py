"""Map of a policy: at most eight kinds of questions, each with the arms that it gets, as a tree over readable facts.

A regression tree (CART: Breiman, Friedman, Olshen and Stone 1984) of the pmfs of the newest questions over facts that
anybody can check. Each split is the one, in all leaves, that takes most of the squares of the pmf around the leaves'
means; of equal ones the first. R^2 is measured on questions that had no part in the fit.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, not_, select

from ragbandit.router.config.context_schema import ContextSchema, is_number
from ragbandit.router.storage.rows.conversion import arms_value, reward_at, scores_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.confidence_sequences import Tried
from ragbandit.shared.formats import number, percent
from ragbandit.shared.types import IMPORTED, KILLED, STICKY, ArmName, Matrix

#: newest decisions that are looked at, and the questions of them that are mapped
LOOKED_AT: Final = 5_000
MOST_QUESTIONS: Final = 2_000
MOST_LEAVES: Final = 8
#: questions of a leaf, at least, and as a part of all
FEWEST, _FEWEST_PART = 10, 50
#: share of all squares that a split takes, at least: less is chance
LEAST_GAIN: Final = 0.01
#: questions of a leaf that are shown, and the characters of each
EXAMPLES, LONGEST = 3, 120
#: values of all facts that a split may name, the commonest
_MOST_VALUES: Final = 100
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
#: first words of English questions -> their kind
_YES_OR_NO: Final = "is are was were do does did can could has have had will would should may might"
_KINDS: Final = (
    {word: word for word in ("who", "what", "which", "when", "where", "why", "how")}
    | dict.fromkeys(("whose", "whom"), "who")
    | dict.fromkeys(_YES_OR_NO.split(), "yes or no")
)
_PREPOSITIONS: Final = frozenset(("in", "on", "at", "of", "for", "from", "to", "by", "with", "under", "about"))
_AMOUNTS: Final = frozenset(("many", "much", "long", "old", "far", "often", "big", "large", "tall", "high"))

#: columns that facts are read of
_REWARD: Final = ("value", "quality", "cost", "minimum", "maximum", "preset")
_FACTS: Final = ("tenant", "text", "context", "price", "cost_weight")
#: numbers that are counts of what they are named by
_COUNTED: Final = frozenset(("words", "names", "numbers"))
#: a fact of a question: a name or a number
Facts = Mapping[str, str | float]
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """Questions that the policy treats alike."""

    #: what they have in common, in words; empty: nothing
    conditions: tuple[str, ...]
    #: share of all questions
    share: float
    #: mean probability of each arm, the largest first
    arms: Mapping[ArmName, float]
    #: mean of the rewards as the arms were drawn; None where there are too few
    reward: float | None
    tried: Tried
    #: the newest questions; none where no text is stored
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyMap:
    """What a policy does."""

    questions: int
    #: the largest first
    leaves: tuple[Leaf, ...]
    #: R^2 of the tree on the half of the questions that it was not fitted on; None if they are all treated alike
    explained: float | None

    @property
    def cells(self) -> list[dict[str, str]]:
        """Each leaf in words, the largest first."""
        return [
            {
                "questions": ", ".join(one.conditions) or "all",
                "share": percent(round(one.share, 3)),
                "arms": ", ".join(f"{arm} {percent(round(share, 2))}" for arm, share in one.arms.items()),
                "reward": number(one.reward) if one.tried.enough else f"{one.tried.judged} rated",
                "for example": " / ".join(one.examples),
            }
            for one in self.leaves
        ]

    @property
    def sentence(self) -> str:
        """How much of the policy the map explains."""
        if self.explained is None:
            return f"all of the newest {self.questions:,} questions have the same probabilities"
        part = f"these {len(self.leaves)} kinds explain {percent(round(max(self.explained, 0.0), 2))}"
        return f"{part} of how the probabilities differ between the newest {self.questions:,} questions"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Test:
    """A condition that divides questions; is_limit: "at most", of which a stricter one says more."""

    fact: str
    yes: str
    no: str
    is_limit: bool
    holds: npt.NDArray[np.bool_]


#: tests with their results, from the root
Path = tuple[tuple[_Test, bool], ...]


def policy_map(
    database: Database, *, label: str, schema: ContextSchema, weight: float, tenant: str | None = None
) -> PolicyMap | None:
    """The map of the policy's newest decisions; None before 2 * FEWEST questions.

    weight: reward.weight, at which rewards are read. tenant: only its questions; None for all. Left out are
    questions that had no choice. Raises StoreError.
    """
    rows = _read(database, label=label, tenant=tenant)
    if len(rows) < 2 * FEWEST:
        return None
    arms = list(dict.fromkeys(arm for row in rows for arm in arms_value(row["arms"])))
    pmfs = np.zeros((len(rows), len(arms)))
    for at, row in enumerate(rows):
        pmfs[at, [arms.index(arm) for arm in arms_value(row["arms"])]] = scores_value(row["pmf"])
    tests = _tests([facts_of(row, schema=schema) for row in rows])
    leaves = []
    for path, here in grown(pmfs, tests=tests, rows=np.arange(len(rows))):
        means = dict(zip(arms, pmfs[here].mean(axis=0).tolist(), strict=True))
        leaves.append(_leaf([rows[at] for at in here], path, means=means, weight=weight, of=len(rows)))
    digests = [hashlib.sha256((row["text"] or row["id"]).encode("utf-8", "surrogatepass")).digest() for row in rows]
    explained = _explained(pmfs, tests=tests, is_fitted=np.array([digest[0] % 2 == 0 for digest in digests]))
    return PolicyMap(questions=len(rows), leaves=tuple(sorted(leaves, key=lambda one: -one.share)), explained=explained)


def _read(database: Database, *, label: str, tenant: str | None) -> list[dict[str, Any]]:
    """The newest questions, the newest first."""
    newest = (
        select(decisions.c.id).order_by(decisions.c.made_at.desc(), decisions.c.id.desc()).limit(LOOKED_AT).subquery()
    )
    learned = and_(updates.c.policy == label, updates.c.decision_id == decisions.c.id, updates.c.source == "explicit")
    columns = (decisions.c[name] for name in ("id", "arms", "pmf", *_FACTS))
    query = (
        select(*columns, *(updates.c[name] for name in _REWARD))
        .join(newest, newest.c.id == decisions.c.id)
        .outerjoin(updates, learned)
    )
    query = query.where(decisions.c.policy == label, decisions.c.fault.is_(None))
    query = query.where(*(not_(decisions.c.facts.contains(f'"{fact}":')) for fact in (IMPORTED, STICKY, KILLED)))
    query = query.where(decisions.c.request.is_(None) | not_(decisions.c.request.contains('"forced":true')))
    if tenant is not None:
        query = query.where(decisions.c.tenant == tenant)
    with database.read() as connection:
        rows = connection.execute(query.order_by(decisions.c.made_at.desc(), decisions.c.id.desc())).mappings().all()
    return [dict(row) for row in rows if len(arms_value(row["arms"])) > 1][:MOST_QUESTIONS]


def facts_of(row: Mapping[str, Any], *, schema: ContextSchema) -> Facts:
    """Facts of a question, by its columns; of a text in another language they are true, and say less."""
    facts: dict[str, str | float] = {"tenant": row["tenant"], "price": row["price"] or "none"}
    if row["cost_weight"] is not None:
        facts["weight of cost"] = float(row["cost_weight"])
    context, words = json.loads(row["context"]), [] if _SHA256.fullmatch(row["text"]) else row["text"].split()
    if words:
        facts |= {"question": kind_of(words), "words": float(len(words))}
        facts["names"] = float(sum(word[:1].isupper() for word in words[1:]))
        facts["numbers"] = float(sum(any(map(str.isdigit, word)) for word in words))
    for key, one in schema.items():
        value = context.get(key)
        if one.type == "number" and is_number(value):
            facts[key] = float(value)
        elif one.type == "words" and isinstance(value, list):
            facts |= {f"{key} {word}": "yes" for word in value if isinstance(word, str)}
        elif one.type in ("category", "boolean") and isinstance(value, str | bool):
            facts[key] = json.dumps(value) if isinstance(value, bool) else value
    return facts


def kind_of(words: Sequence[str]) -> str:
    """The kind of a question, by its first word except prepositions: who, how many, yes or no, ..., other."""
    first, *rest = [*(word.strip("\"'(¿¡,?").casefold() for word in words[:3]), ""]
    if first in _PREPOSITIONS:
        first, *rest = rest
    return "how many" if first == "how" and rest and rest[0] in _AMOUNTS else _KINDS.get(first, "other")


def _tests(facts: Sequence[Facts]) -> list[_Test]:
    """The splits that there can be: a name or not, and at most one of 31 quantiles of a number."""
    counts = Counter((fact, value) for row in facts for fact, value in row.items() if isinstance(value, str))
    named = sorted((-count, fact, value) for (fact, value), count in counts.items() if count >= FEWEST)[:_MOST_VALUES]
    tests = []
    for _, fact, value in named:
        holds = np.array([row.get(fact) == value for row in facts])
        tests.append(
            _Test(fact=fact, yes=f"{fact}: {value}", no=f"{fact}: other than {value}", is_limit=False, holds=holds)
        )
    for fact in sorted({fact for row in facts for fact, value in row.items() if isinstance(value, float)}):
        values = np.array([row.get(fact, np.nan) for row in facts], dtype=np.float64)
        known = values[np.isfinite(values)]
        for limit in np.unique(np.quantile(known, np.arange(1, 32) / 32, method="lower")):
            yes, no = (
                f"{sign} {number(limit)} {fact if limit != 1.0 else fact[:-1]}" for sign in ("at most", "more than")
            )
            if fact not in _COUNTED:
                yes, no = (f"{fact} {sign} {number(limit)}" for sign in ("at most", "above"))
            no += " or unknown" if len(known) < len(values) else ""
            tests.append(_Test(fact=fact, yes=yes, no=no, is_limit=True, holds=values <= limit))
    return tests


def grown(targets: Matrix, *, tests: Sequence[_Test], rows: Rows) -> list[tuple[Path, Rows]]:
    """The leaves of the tree of targets (n, K) that is fitted on these rows."""
    holds = np.array([test.holds for test in tests]).reshape(len(tests), len(targets))
    least, fewest = LEAST_GAIN * _squares(targets[rows]), max(FEWEST, len(rows) // _FEWEST_PART)
    leaves: list[tuple[Path, Rows]] = [((), rows)]
    best = [_best_split(targets[rows], holds[:, rows], fewest=fewest)]
    while len(leaves) < MOST_LEAVES:
        at = max(range(len(leaves)), key=lambda leaf: best[leaf][0])
        gain, test = best.pop(at)
        path, here = leaves.pop(at)
        if gain <= max(least, 1e-12 * len(rows)):
            return [*leaves[:at], (path, here), *leaves[at:]]
        for side in (True, False):
            part = here[holds[test, here] == side]
            leaves.append(((*path, (tests[test], side)), part))
            best.append(_best_split(targets[part], holds[:, part], fewest=fewest))
    return leaves


def _squares(targets: Matrix) -> float:
    return float(((targets - targets.mean(axis=0)) ** 2).sum())


def _best_split(targets: Matrix, holds: npt.NDArray[np.bool_], *, fewest: int) -> tuple[float, int]:
    """(squares that it takes, its number) of the best split of these rows; (0, 0) if that may be chance.

    The best of T splits by a fact that means nothing takes up to about 2 log T of the rows' mean square.
    """
    count, whole = len(targets), targets.sum(axis=0)
    ones = holds.sum(axis=1)
    sums = holds.astype(np.float64) @ targets
    fits = (ones >= fewest) & (count - ones >= fewest)
    if not fits.any():
        return 0.0, 0
    inside, outside = np.maximum(ones, 1), np.maximum(count - ones, 1)
    kept = (sums**2).sum(axis=1) / inside + ((whole - sums) ** 2).sum(axis=1) / outside
    gains = np.where(fits, kept - (whole**2).sum() / count, 0.0)
    most = float(gains.max())
    if most <= 2.0 * math.log(len(holds)) * _squares(targets) / count:
        return 0.0, 0
    return most, int(np.argmax(gains >= most - 1e-9 * count))  # the first of ties, however they are rounded


def _explained(targets: Matrix, *, tests: Sequence[_Test], is_fitted: npt.NDArray[np.bool_]) -> float | None:
    """R^2 of the tree of one half on the other; a question that is repeated is in one of them."""
    fitted, apart = np.flatnonzero(is_fitted), np.flatnonzero(~is_fitted)
    if min(len(fitted), len(apart)) < FEWEST or _squares(targets) < 1e-9 * len(targets):
        return None
    left = around = 0.0
    for path, here in grown(targets, tests=tests, rows=fitted):
        part = apart[np.logical_and.reduce([test.holds[apart] == side for test, side in path] or [apart >= 0])]
        left += float(((targets[part] - targets[here].mean(axis=0)) ** 2).sum())
        around += float(((targets[part] - targets[fitted].mean(axis=0)) ** 2).sum())
    return 1.0 - left / around if around > 0.0 else None


def _leaf(
    rows: Sequence[Mapping[str, Any]], path: Path, *, means: Mapping[ArmName, float], weight: float, of: int
) -> Leaf:
    rewards = [reward_at(row, weight=weight) for row in rows if row["value"] is not None]
    tried = Tried(draws=len(rows), judged=len(rewards), effective=float(len(rewards)), questions=of)
    texts = dict.fromkeys(row["text"] for row in rows if row["text"] and not _SHA256.fullmatch(row["text"]))
    return Leaf(
        conditions=tuple(_conditions(path)),
        share=len(rows) / of,
        arms=dict(sorted(means.items(), key=lambda one: -one[1])),
        reward=float(np.mean(rewards)) if tried.enough else None,
        tried=tried,
        examples=tuple(one if len(one) <= LONGEST else f"{one[:LONGEST]} ..." for one in list(texts)[:EXAMPLES]),
    )


def _conditions(path: Path) -> Iterator[str]:
    """In words, without what a later condition implies."""
    for at, (test, side) in enumerate(path):
        later = [(other, way) for other, way in path[at + 1 :] if other.fact == test.fact]
        if not any(way == side if test.is_limit else way for _, way in later):
            yield test.yes if side else test.no
