"""Warm start: a policy learns labelled questions or a log before it serves."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import embed_texts
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.ledger_transfer import ImportCounts, import_rows
from ragbandit.router.offline.logs.tables import ORIGIN, LabelledTable, arm_rows, charged_costs, table_query
from ragbandit.router.policies.base import Policy, TableTrained
from ragbandit.router.serving.loading.snapshots import SnapshotLoader
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import IMPORTED, ArmName, Decision, Indices, Matrix, Query


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmRows:
    rows: Sequence[Logged]
    arms: tuple[ArmName, ...]
    source: str
    origin: str  #: name of the format, stored in the facts of the decisions
    encoded: int = 0  #: number of rows whose features were missing or from another encoder, and were computed


def question_key(query: Query) -> str:
    """Key of a question. Two rows with the same key are the same question for a policy."""
    return canonical([query.text, dict(query.context), query.tenant])


def check_warm_policy(policy: Policy, *, name: str) -> None:
    if "pick" in policy.needs:
        message = f"{name} asks a model for each question, and learns from no table and no log"
        remedy = "let it decide, or run it in shadow (docs/rollouts.md), and replay the log"
        raise ConfigError(message, field="policy.name", remedy=remedy)
    if isinstance(policy, TableTrained):
        message = f"{name} is trained on a table as a whole, not row by row"
        remedy = f"use: `ragbandit policy train --policy {name} --table T.jsonl --out FOLDER`"
        raise ConfigError(message, field="policy.name", remedy=remedy)


def warm_rows_of_table(
    table: LabelledTable,
    *,
    source: str,
    settings: Settings,
    encoder: Encoder,
    now: float,
    progress: Progress = no_progress,
) -> WarmRows:
    """Make a row for each question and arm.

    The rows are sorted by the hash of the question: tables are often sorted by source, which would look like drift.
    Raises ConfigError if the reward charges no cost of the table, and InvalidInput if only some rows have seconds.
    """
    first, reward = table.rows[0], settings.reward
    charged = [{*charged_costs(row, prices=reward.cost)} for row in table.rows]
    if any(terms != charged[0] for terms in charged):
        raise InvalidInput("some rows lack seconds", field=source, remedy="give seconds in every row, or in none")
    if reward.weight > 0.0 and not charged[0]:
        known = [*(["steps"] if first.steps else []), *(["seconds_total"] if first.seconds else []), *first.costs]
        message = f"the reward charges {', '.join(reward.cost)}, and the table has {', '.join(known) or 'no costs'}"
        remedy = f"add {known[0] if known else 'steps'}: 1.0, or give one of the charged costs for each arm"
        raise ConfigError(message, field="reward.cost", remedy=remedy)
    queries = [table_query(row) for row in table.rows]
    texts = [query.text for query in queries]
    features = embed_texts(texts, encoder=encoder, progress=progress)
    occurrences: Counter[str] = Counter()
    rows: list[Logged] = []
    for row, query, row_features in zip(table.rows, queries, features, strict=True):
        key = question_key(query)
        rows += arm_rows(
            row,
            arms=table.arms,
            features=row_features,
            encoder_hash=encoder.hash,
            reward=reward,
            label=settings.policy.label,
            now=now,
            first=len(rows) + 1,
            occurrence=occurrences[key],
        )
        occurrences[key] += 1
    return WarmRows(
        rows=_shuffled_by_question(rows, arms=len(table.arms)), arms=table.arms, source=source, origin=ORIGIN
    )


def warm_rows_of_log(
    rows: Sequence[Logged],
    *,
    source: str,
    origin: str,
    settings: Settings,
    encoder: Encoder,
    needs_features: bool,
    progress: Progress = no_progress,
) -> WarmRows:
    """Read the rows of a log at the configured cost weight; encode rows without features of this encoder.

    The order is that of the log, or by the hash of the question if every arm of every question has an outcome. Raises
    InvalidInput if the policy needs features and a row without usable features has no question.
    """
    weight = settings.reward.weight
    # Every row is learned at `reward.weight`, whatever price its caller or a budget had set.
    material = [_at_weight(row, weight) for row in rows]
    unencoded = []
    for at, row in enumerate(material):
        if row.decision.features is not None and row.decision.encoder_hash == encoder.hash:
            continue
        if row.decision.query.text.strip():
            unencoded.append(at)
        elif needs_features:
            message = "has no question, and its features are missing or another encoder's"
            remedy = "log the question as `text`, or the features of the configured encoder, or leave the row out"
            raise InvalidInput(message, field=f"{source}:{row.line} text", remedy=remedy)
    texts = [material[at].decision.query.text for at in unencoded]
    encoded = embed_texts(texts, encoder=encoder, progress=progress) if texts else ()
    for at, features in zip(unencoded, encoded, strict=True):
        decision = material[at].decision
        # The new features do not reproduce the logged pmf, so the row counts as imported.
        facts = {**decision.facts, IMPORTED: origin}
        decision = replace(decision, features=features, encoder_hash=encoder.hash, facts=facts)
        material[at] = replace(material[at], decision=decision)
    arms = tuple(dict.fromkeys(arm for row in material for arm in row.decision.arms))
    if has_every_arm(material):
        material = _shuffled_by_question(sorted(material, key=lambda row: question_key(row.decision.query)), arms=1)
    return WarmRows(rows=material, arms=arms, source=source, origin=origin, encoded=len(unencoded))


def _at_weight(row: Logged, weight: float) -> Logged:
    decision = replace(row.decision, query=replace(row.decision.query, cost_weight=None), cost_weight=None)
    return replace(row, decision=decision, reward=row.reward.at(weight))


def has_every_arm(rows: Sequence[Logged]) -> bool:
    """Whether every question has all its offered arms equally often, each with the probability of a uniform draw."""
    counts: dict[str, Counter[ArmName]] = {}
    offered: dict[str, set[ArmName]] = {}
    for row in rows:
        decision = row.decision
        share, key = 1.0 / len(decision.arms), question_key(decision.query)
        if offered.setdefault(key, set(decision.arms)) != set(decision.arms):
            return False
        if any(abs(p - share) > 1e-9 for p in decision.pmf):
            return False
        counts.setdefault(key, Counter())[decision.arm] += 1
    return all(set(drawn) == offered[key] and len(set(drawn.values())) == 1 for key, drawn in counts.items())


def _shuffled_by_question(rows: Sequence[Logged], *, arms: int) -> list[Logged]:
    """The rows with their questions in random order, always the same: by the sha256 of the question. Numbered from 1.

    arms: number of rows of a question, which stay together
    """

    def question_hash(group: Sequence[Logged]) -> bytes:
        return hashlib.sha256(question_key(group[0].decision.query).encode("utf-8", "surrogatepass")).digest()

    groups = sorted((rows[start : start + arms] for start in range(0, len(rows), arms)), key=question_hash)
    return [replace(row, seq=seq) for seq, row in enumerate(chain.from_iterable(groups), start=1)]


#: time to wait for a learner that holds the ledger, seconds
PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryCounts:
    added: int
    known: int  #: rows that the ledger already had
    last_seq: int
    #: version of the snapshot that has learned the rows; None if a running learner has yet to make it
    version: str | None


def enter_rows(
    material: WarmRows, *, ledger: Ledger, settings: Settings, encoder: Encoder, progress: Progress = no_progress
) -> EntryCounts:
    """Append the rows that the ledger does not have, learn them, and make a snapshot.

    Raises Conflict if a row contradicts what the ledger has learned, or has features of another encoder; NotReady if a
    learner holds the ledger for longer than PATIENCE_S.
    """
    files = SnapshotFiles(settings.snapshot_root)
    snapshots = SnapshotLoader(ledger.database, settings=settings, files=files, encoder=encoder)
    snapshots.register()
    learner = make_learner(settings, ledger, files=files)
    learner.drain(patience_s=PATIENCE_S)  # the ledger's own decisions are learned before these rows
    rows = material.rows
    if settings.log.text != "full":
        rows = [replace(row, decision=_without_texts(row.decision, schema=settings.context)) for row in rows]

    def show(counts: ImportCounts) -> None:
        progress("rows entered", counts.added + counts.known, len(rows))

    counts = import_rows(
        ledger,
        lambda: rows,
        origin=material.origin,
        source=material.source,
        lease_s=settings.learning.lease_s,
        patience_s=PATIENCE_S,
        remade=True,
        progress=show,
    )
    progress("learning", 0, 0)
    learner.drain(patience_s=PATIENCE_S)
    last = ledger.last_seq()
    newest = snapshots.newest(limit=1)
    version = newest[0].version if newest and newest[0].last_seq == last else None
    return EntryCounts(added=counts.added, known=counts.known, last_seq=last, version=version)


def _without_texts(decision: Decision, *, schema: Collection[str]) -> Decision:
    """The decision as the service stores it with `log.text: none`."""
    context = {key: value for key, value in decision.query.context.items() if key in schema}
    return replace(decision, query=replace(decision.query, text="", context=context))


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Mean outcomes by question and arm, of the questions that each of the arms `complete` answered."""

    arms: tuple[ArmName, ...]
    complete: tuple[ArmName, ...]  #: arms that answered these questions; routing chooses between these
    #: "reward", "quality" and "cost", each of shape (questions, arms), NaN where an arm did not answer
    values: Mapping[str, Matrix]
    #: a row for each question and each arm of `complete`, in order of questions, as a uniform draw would log it
    rows: Sequence[Logged]

    @property
    def queries(self) -> list[Query]:
        return [row.decision.query for row in self.rows[:: len(self.complete)]]


def question_numbers(rows: Sequence[Logged]) -> Indices:
    """The number of each row's question, shape (n,): from 0, in order of first occurrence."""
    keys = [question_key(row.decision.query) for row in rows]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.intp)


def outcomes_of(rows: Sequence[Logged]) -> Outcomes | None:
    """The outcomes in these rows; None if `has_every_arm(rows)` is False, or no question was answered by every complete
    arm.
    """
    if not (rows and has_every_arm(rows)):
        return None
    arms = tuple(dict.fromkeys(arm for row in rows for arm in row.decision.arms))
    questions: dict[str, dict[ArmName, list[Logged]]] = {}
    for row in rows:
        questions.setdefault(question_key(row.decision.query), {}).setdefault(row.decision.arm, []).append(row)
    answered = Counter(chain.from_iterable(questions.values()))
    # An arm is complete if at most one arm answered more questions. So at least two are complete, as routing needs.
    least = sorted(answered.values())[-2]
    complete = tuple(arm for arm in arms if answered[arm] >= least)
    whole = [answers for answers in questions.values() if {*complete} <= {*answers}]
    if not whole:
        return None
    means: dict[str, Matrix] = {
        part: np.array(
            [
                [_nan_mean(getattr(row.reward, name) for row in answers.get(arm, ())) for arm in arms]
                for answers in whole
            ]
        )
        for part, name in (("reward", "value"), ("quality", "quality"), ("cost", "cost"))
    }
    even = (1.0 / len(complete),) * len(complete)
    mean_rows = []
    for at, answers in enumerate(whole):
        for arm in complete:
            row, column = answers[arm][0], arms.index(arm)
            decision = replace(row.decision, arms=complete, pmf=even, propensity=even[0])
            value, quality, cost = (float(means[part][at, column]) for part in means)
            mean_rows.append(
                replace(row, decision=decision, reward=replace(row.reward, value=value, quality=quality, cost=cost))
            )
    return Outcomes(arms=arms, complete=complete, values=means, rows=mean_rows)


def _nan_mean(values: Iterable[float]) -> float:
    """The mean; NaN without a value."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else math.nan
