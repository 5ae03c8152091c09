"""Map of a policy: at most eight kinds of questions, each with its arms.

A tree splits the newest questions by simple facts about them: first where the rewards of an arm differ between the
sides, whether or not the policy follows, then where the arm probabilities (pmfs) differ. The latter is the split that
most reduces their sum of squares around the leaves' means (CART: Breiman, Friedman, Olshen and Stone 1984). A split is
made from half of the questions, and kept if the other half confirms it.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, select

from ragbandit.router.comparison import Difference
from ragbandit.router.comparison.assessment import QuestionKind
from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.reporting.reading import Report
from ragbandit.router.serving.explanations.kind_names import Condition, kind_name, telling_words
from ragbandit.router.serving.explanations.kind_rewards import KindRewards
from ragbandit.router.serving.explanations.question_facts import (
    FIRST,
    LATER,
    Facts,
    frequent_words,
    kept_text,
    question_facts,
)
from ragbandit.router.storage.rows.conversion import arms_value, reward_at, scores_value
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.texts.formats import counted, percent
from ragbandit.shared.types import ArmName, Matrix, Query

#: number of newest decisions that are read, and most questions among them that are mapped: older ones were decided by
#: policies that had learned less
LOOKED_AT: Final = 5_000
MOST_QUESTIONS: Final = 1_000
#: part of these that is mapped if kinds do not explain the whole, for example since a safe start decided older ones
_NEWEST_PART: Final = 4
MOST_LEAVES: Final = 8
#: fewest questions of a leaf: FEWEST, or 1 / _FEWEST_PART of all questions if that is more
FEWEST, _FEWEST_PART = 10, 50
#: least reduction by a split, as a share of the sum of squares before all splits; smaller ones may be chance
LEAST_GAIN: Final = 0.01
EXAMPLES, LONGEST = 3, 120
#: kinds that rewards do not show are named if they explain so much, if the pmfs are on average so far from their mean,
#: and if rewards confirm that this pays
EXPLAINED, LEAST_SPREAD = 1 / 3, 0.05
#: largest number of arms whose likeliest questions are shown if kinds are not named
MOST_DIFFERENT: Final = 4
_MOST_VALUES: Final = 100

#: columns of `updates` with the reward, and of `decisions` with facts about the question
_REWARD: Final = ("value", "quality", "cost", "minimum", "maximum", "preset")
_FACTS: Final = ("tenant", "text", "context", "price", "cost_weight")
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyMap:
    questions: int
    #: the kinds of questions, the largest share first, or the questions that differ most; empty if none differ
    kinds: tuple[QuestionKind, ...] = ()
    #: whether the probabilities differ between questions
    differs: bool = False
    #: R^2: share of the pmfs' sum of squares that is between kinds, on questions from which no kind was made
    explained: float = 0.0
    #: the fixed arm with the highest mean reward; None if it is not known
    best: ArmName | None = None
    has_texts: bool = True
    confirmed: bool = False  #: see `KindRewards.confirmed`
    by_rewards: bool = False  #: whether rewards show that the advantage of an arm differs between kinds
    #: id of each mapped decision -> the name of its kind; empty if kinds are not named
    kind_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        """Whether `kinds` are kinds, and not single questions."""
        return self.by_rewards or self.is_followed

    @property
    def is_followed(self) -> bool:
        """Whether the probabilities follow the kinds, and rewards confirm that this pays."""
        return self.confirmed and self.explained >= EXPLAINED

    @property
    def sentence(self) -> str:
        if self.questions < 2 * FEWEST:
            return ""
        newest = f"the newest {counted(self.questions, 'question')} with several arms"
        share = percent(round(self.explained, 2))
        texts = "" if self.has_texts else "; the kinds have no words, since texts are not kept (log.text)"
        if self.is_named:
            part = f"these {len(self.kinds)} kinds explain {share} of how the probabilities differ between {newest}"
            if not self.is_followed:
                part = (
                    f"an arm's advantage differs between these kinds, but the probabilities do not follow yet: {part}"
                )
            best = f"; the best fixed arm is {self.best}" if self.best else ""
            return f"{part}{best}{texts}"
        if not self.differs:
            return f"no kind of question gets other arms than the rest, in {newest}{texts}"
        if not self.confirmed:
            return f"different questions get different arms; no rewards confirm yet that this pays, in {newest}{texts}"
        part = f"kinds of questions explain {share} of how the probabilities differ between {newest}"
        which = ": these are the questions that differ most" if self.kinds else ""
        return f"{part}, too little to name them{which}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """A possible split: the questions for which the condition holds, and the others."""

    condition: Condition
    holds: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The questions that are mapped."""

    texts: Sequence[str]  #: "" if a text is not kept
    ids: Sequence[str] = ()  #: ids of the decisions; () if the questions are not in a store
    facts: Sequence[Facts]
    tests: Sequence[Test]
    #: whether splits are made from the question; the others prove them. Equal texts are on the same side
    made: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], *, schema: ContextSchema) -> Self:
        """rows: columns of decisions"""
        texts = [kept_text(row["text"]) for row in rows]
        facts = [question_facts(row, schema=schema) for row in rows]
        tests = [*_tests(facts), *_tests_of_words(frequent_words(texts), len(rows))]
        ids = [row["id"] for row in rows if "id" in row]
        return cls(texts=texts, ids=ids, facts=facts, tests=tests, made=halves(texts))

    def newest(self, count: int) -> Self:
        """The first `count` questions."""
        tests = [replace(test, holds=test.holds[:count]) for test in self.tests]
        texts, ids, facts = self.texts[:count], self.ids[:count], self.facts[:count]
        return type(self)(texts=texts, ids=ids, facts=facts, tests=tests, made=self.made[:count])


Path = tuple[tuple[Test, bool], ...]


def halves(texts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """True for every second question. Equal texts count once; without a text, every question is another one."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(text or at, len(numbers)) % 2 == 0 for at, text in enumerate(texts)])


def policy_map(
    database: Database, *, label: str, schema: ContextSchema, weight: float, tenant: str | None = None
) -> PolicyMap:
    """Map the newest MOST_QUESTIONS decisions with several arms; all that are read confirm it. weight: cost weight."""
    rows = _read(database, label=label, tenant=tenant)
    if len(rows) < 2 * FEWEST:
        return PolicyMap(questions=len(rows))
    offers = {row["arms"]: arms_value(row["arms"]) for row in rows}
    arms = list(dict.fromkeys(arm for offer in offers.values() for arm in offer))
    places = {text: [arms.index(arm) for arm in offer] for text, offer in offers.items()}
    pmfs = np.zeros((len(rows), len(arms)))
    for at, row in enumerate(rows):
        pmfs[at, places[row["arms"]]] = scores_value(row["pmf"])
    rewards = np.array([np.nan if row["value"] is None else reward_at(row, weight=weight) for row in rows])
    drawn = np.array([arms.index(row["arm"]) for row in rows])
    earned = KindRewards.of_draws(rewards, drawn=drawn, pmfs=pmfs, most=MOST_QUESTIONS)
    newest = Asked.of(rows[:MOST_QUESTIONS], schema=schema)
    return map_of_newest(newest, pmfs=pmfs[:MOST_QUESTIONS], arms=arms, earned=earned)


def map_of_newest(asked: Asked, *, pmfs: Matrix, arms: Sequence[ArmName], earned: KindRewards) -> PolicyMap:
    """Map questions, the newest first: all of them, or the newest ones if only these have kinds that can be named."""
    whole, count = map_of(asked, pmfs=pmfs, arms=arms, earned=earned), len(pmfs) // _NEWEST_PART
    if not whole.differs or whole.is_named or count < 2 * FEWEST:
        return whole
    if not whole.confirmed:
        one = _all_of(earned, name=f"of these, the newest {count:,}", pmfs=pmfs[:count], arms=arms, whole=len(pmfs))
        return replace(whole, kinds=(*whole.kinds, one))
    newest = map_of(asked.newest(count), pmfs=pmfs[:count], arms=arms, earned=earned.newest(count))
    return newest if newest.is_named else whole


def with_kinds(report: Report, database: Database, *, label: str, schema: ContextSchema, weight: float) -> Report:
    """The report with the kinds of the newest questions of its tenant. label, weight: see `policy_map`"""
    mapped = policy_map(database, label=label, schema=schema, weight=weight, tenant=report.tenant)
    return replace(report, kinds=mapped.kinds, kinds_of=mapped.sentence)


def map_of_queries(
    queries: Sequence[Query], *, pmfs: Matrix, arms: Sequence[ArmName], rewards: Matrix, schema: ContextSchema
) -> PolicyMap:
    """Map questions that need not be in a store. pmfs: shape (n questions, K arms). rewards: of every arm, (n, K)."""
    same = {"price": None, "cost_weight": None}
    rows = [{"tenant": q.tenant, "text": q.text, "context": json.dumps(dict(q.context)), **same} for q in queries]
    earned = KindRewards.of_outcomes(rewards, pmfs=pmfs)
    return map_of(Asked.of(rows, schema=schema), pmfs=pmfs, arms=arms, earned=earned)


def map_of(asked: Asked, *, pmfs: Matrix, arms: Sequence[ArmName], earned: KindRewards) -> PolicyMap:
    """The leaves of a tree. Without a split by rewards: all questions together if rewards do not confirm that questions
    need different arms; the questions that differ most if the leaves explain too little.
    """
    leaves, by_rewards = grow_tree(pmfs, tests=asked.tests, made=asked.made, earned=earned)
    best, has_texts = earned.best(), any(asked.texts)
    common: dict[str, Any] = {"questions": len(pmfs), "has_texts": has_texts, "by_rewards": by_rewards}
    common["best"] = None if best is None else arms[best]
    differs = math.sqrt(_squares(pmfs) / (2 * len(pmfs))) >= LEAST_SPREAD
    if not differs and not by_rewards:
        return PolicyMap(**common)
    explained = _explained(pmfs, leaves, made=asked.made) if differs else 0.0
    common |= {"differs": differs, "explained": explained, "confirmed": earned.confirmed}
    if not earned.confirmed and not by_rewards:
        everything = _all_of(earned, name=f"these {len(pmfs):,}", pmfs=pmfs, arms=arms, whole=len(pmfs))
        return PolicyMap(kinds=(everything,), **common)
    if explained < EXPLAINED and not by_rewards:
        return PolicyMap(kinds=tuple(_most_different(asked, pmfs=pmfs, arms=arms)), **common)
    names = [_name(path, places=places, asked=asked) for path, places in leaves]
    leaf_of = {place: name for name, (_, places) in zip(names, leaves, strict=True) for place in places.tolist()}
    better = [None if best is None else earned.better(best, places=places) for _, places in leaves]
    kinds = [
        QuestionKind(
            name=name,
            share=len(places) / len(pmfs),
            arms=dict(zip(arms, pmfs[places].mean(axis=0).tolist(), strict=True)),
            reward=earned.mean(places),
            over_best=Difference() if best is None else earned.over(best, places=places),
            better_arm=None if other is None else arms[other[0]],
            better_by=Difference() if other is None else other[1],
            examples=_examples(asked, places=places),
        )
        for name, (_, places), other in zip(names, leaves, better, strict=True)
    ]
    kinds.sort(key=lambda kind: -kind.share)
    kind_of = {key: leaf_of[place] for place, key in enumerate(asked.ids)}
    return PolicyMap(kinds=tuple(kinds), kind_of=kind_of, **common)


def _explained(pmfs: Matrix, leaves: Sequence[tuple[Path, Rows]], *, made: npt.NDArray[np.bool_]) -> float:
    """R^2 of the leaves' means on the questions that they were not made from."""
    within = sum(_unexplained(pmfs, rows, made=made) for _, rows in leaves)
    whole = _unexplained(pmfs, np.arange(len(pmfs)), made=made)
    return max(0.0, (whole - within) / max(whole, 1e-9))


def _all_of(earned: KindRewards, *, name: str, pmfs: Matrix, arms: Sequence[ArmName], whole: int) -> QuestionKind:
    """The first questions together, of `whole` ones."""
    means, reward = dict(zip(arms, pmfs.mean(axis=0).tolist(), strict=True)), earned.mean(np.arange(len(pmfs)))
    return QuestionKind(name=name, share=len(pmfs) / whole, arms=means, reward=reward)


def _most_different(asked: Asked, *, pmfs: Matrix, arms: Sequence[ArmName]) -> Iterator[QuestionKind]:
    """For each arm whose probability varies most, the questions with its highest probability."""
    if not any(asked.texts):
        return
    for arm in np.argsort(-np.ptp(pmfs, axis=0), kind="stable")[:MOST_DIFFERENT]:
        places = _example_places(asked, places=np.argsort(-pmfs[:, arm], kind="stable"))
        texts = _examples(asked, places=places)
        means = dict(zip(arms, pmfs[places].mean(axis=0).tolist(), strict=True))
        name = f"the {counted(len(texts), 'question')} most likely to get {arms[arm]}"
        yield QuestionKind(name=name, share=len(places) / len(pmfs), arms=means, reward=None, examples=texts)


def _example_places(asked: Asked, *, places: Iterable[int]) -> list[int]:
    """The first EXAMPLES places with different texts."""
    first = dict[str, int]()
    for at in map(int, places):
        if asked.texts[at]:
            first.setdefault(asked.texts[at], at)
    return list(first.values())[:EXAMPLES]


def _examples(asked: Asked, *, places: Iterable[int]) -> tuple[str, ...]:
    texts = (asked.texts[at] for at in _example_places(asked, places=places))
    return tuple(text if len(text) <= LONGEST else f"{text[:LONGEST]} ..." for text in texts)


def _name(path: Path, *, places: Rows, asked: Asked) -> str:
    has_words = any(test.condition.is_word for test, _ in path)
    words = {test.condition.fact: test.holds for test in asked.tests if has_words and test.condition.is_word}
    conditions = [(test.condition, side) for test, side in path]
    facts = [asked.facts[at] for at in places]
    return kind_name(conditions, facts=facts, words=telling_words(words, inside=places))


def _read(database: Database, *, label: str, tenant: str | None) -> list[dict[str, Any]]:
    newest = (
        select(decisions.c.id).order_by(decisions.c.made_at.desc(), decisions.c.id.desc()).limit(LOOKED_AT).subquery()
    )
    learned = and_(updates.c.policy == label, updates.c.decision_id == decisions.c.id, updates.c.source == "explicit")
    columns = [*decisions.c["id", "session", "arms", "arm", "pmf", *_FACTS]]
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
        found = connection.execute(query.order_by(decisions.c.made_at.desc(), decisions.c.id.desc())).mappings()
        rows = [dict(row) for row in found]
        places = _session_places(rows)
        drawn = [place for place, row in enumerate(rows) if _has_choice(row)]
        ids = [rows[place]["id"] for place in drawn[:MOST_QUESTIONS]]
        query = select(decisions.c.id, decisions.c.request).where(decisions.c.id.in_(ids))
        requests = {row.id: row.request for row in connection.execute(query)}
    return [
        {**rows[place], "request": requests.get(rows[place]["id"]), "session_place": places[place]} for place in drawn
    ]


def _has_choice(row: Mapping[str, Any]) -> bool:
    return not QueriedFacts.of_row(row).is_undrawn and len(arms_value(row["arms"])) > 1


def _session_places(rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Whether each question is the first one of its session among these, the newest first; None without a session."""
    sessions = [(row["tenant"], row["session"]) for row in rows]
    first = {session: place for place, session in enumerate(sessions)}
    return [
        None if name is None else FIRST if first[tenant, name] == place else LATER
        for place, (tenant, name) in enumerate(sessions)
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


def grow_tree(
    targets: Matrix, *, tests: Sequence[Test], made: npt.NDArray[np.bool_], earned: KindRewards
) -> tuple[list[tuple[Path, Rows]], bool]:
    """Returns (the leaves of a tree, whether one of its splits is by rewards).

    targets: pmfs, shape (n questions, K arms). Leaves are split by pmfs only if rewards confirm that routing pays.
    made: see `Asked`
    """
    holds = np.array([test.holds for test in tests]).reshape(len(tests), len(targets))

    def best_of(places: Rows) -> tuple[bool, float, int]:
        """(whether the split is by rewards, its gain, its number) of the best split; a gain of 0 for none."""
        if (split := earned.best_split(holds, places=places, made=made)) is not None:
            return True, *split
        return False, *(_split_by_pmfs(targets, holds, places=places, made=made) if earned.confirmed else (0.0, 0))

    rows = np.arange(len(targets))
    leaves: list[tuple[Path, Rows]] = [((), rows)]
    best, any_by_rewards = [best_of(rows)], False
    while len(leaves) < MOST_LEAVES:
        at = max(range(len(leaves)), key=lambda leaf: best[leaf][:2])
        by_rewards, gain, test = best[at]
        if gain <= 0.0:
            break
        path, places = leaves[at]
        sides, any_by_rewards = _sides(places, holds[test]), any_by_rewards or by_rewards
        leaves[at : at + 1] = [
            ((*path, (tests[test], side)), part) for side, part in zip((True, False), sides, strict=True)
        ]
        best[at : at + 1] = [best_of(part) for part in sides]
    return leaves, any_by_rewards


def _split_by_pmfs(
    targets: Matrix, holds: npt.NDArray[np.bool_], *, places: Rows, made: npt.NDArray[np.bool_]
) -> tuple[float, int]:
    """(gain, number) of the best split of a leaf; (0, 0) if none reduces the sum of squares of both halves enough."""
    least = [LEAST_GAIN * _squares(targets[side]) + 1e-12 * len(targets) for side in (made, ~made)]
    from_these, fewest = places[made[places]], max(FEWEST, len(targets) // _FEWEST_PART) // 2
    gain, test = _best_split(targets[from_these], holds[:, from_these], fewest=fewest)
    if gain <= least[0]:
        return 0.0, 0
    before, *after = (_unexplained(targets, part, made=made) for part in (places, *_sides(places, holds[test])))
    return (gain, test) if before - sum(after) > least[1] else (0.0, 0)


def _sides(places: Rows, holds: npt.NDArray[np.bool_]) -> list[Rows]:
    """The places for which the condition of a split holds, and the others."""
    return [places[holds[places] == side] for side in (True, False)]


def _unexplained(targets: Matrix, rows: Rows, *, made: npt.NDArray[np.bool_]) -> float:
    """Sum of squares of the questions that prove, around the mean of those that splits are made from."""
    return _squares(targets[rows[~made[rows]]], around=targets[rows[made[rows]]])


def _squares(targets: Matrix, *, around: Matrix | None = None) -> float:
    """Sum of squares around the mean of these rows, or of other ones."""
    mean = (targets if around is None else around).mean(axis=0) if len(targets) else 0.0
    return float(((targets - mean) ** 2).sum())


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
