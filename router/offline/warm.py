"""Warm start: a policy learns labelled questions or a log before it serves.

`table_material` and `log_material` give rows with features, `outcomes_of` the outcomes by question and arm; `enter`
appends rows to the configured ledger and learns them.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder, embedded
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.estimation import Choices, Progress, no_progress
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.ledger_transfer import ImportCounts, take_in
from ragbandit.router.offline.logs.tables import ORIGIN, LabelledTable, arm_rows, table_query
from ragbandit.router.policies.base import Policy, TableTrained
from ragbandit.router.policies.kinds.conservative import ConservativePolicy
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import IMPORTED, ArmName, Decision, FeatureRows, Matrix, Query


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmRows:
    """Rows to learn from, in their order."""

    rows: Sequence[Logged]
    #: all arms that occur
    arms: tuple[ArmName, ...]
    #: the file, for messages
    source: str
    #: the format, kept in the facts of the decisions
    origin: str
    #: rows of a log whose features were made again, since they had none or another encoder's
    encoded: int = 0


def question_key(query: Query) -> str:
    """What makes two rows the same question to a policy."""
    return canonical([query.text, dict(query.context), query.tenant])


def learner_of(policy: Policy) -> Policy:
    """The policy that learns: the one inside, where an incumbent holds it back."""
    return policy.inner if isinstance(policy, ConservativePolicy) else policy


def check_policy(policy: Policy, *, name: str) -> None:
    """Raises ConfigError for a policy that does not learn from a ledger."""
    if isinstance(policy, TableTrained):
        raise ConfigError(
            f"{name} is trained on a table as a whole, not row by row",
            field="policy.name",
            remedy=f"use: ragbandit policy train --policy {name} --table T.jsonl --out FOLDER",
        )


def table_material(
    table: LabelledTable,
    *,
    source: str,
    settings: Settings,
    encoder: Encoder,
    now: float,
    progress: Progress = no_progress,
) -> WarmRows:
    """A row for each question and arm, in an order that follows from the texts of the questions.

    Tables are often sorted by source, which would look like drift. Raises ConfigError if steps have no price.
    """
    if not settings.reward.cost.get("steps", 0.0) > 0.0:
        raise ConfigError(
            "steps have no price: they are the only cost that a table knows",
            field="reward.cost",
            remedy="add steps: 1.0, or learn from the log of `ragbandit evaluate --log`, which has every cost",
        )
    queries = [table_query(row) for row in table.rows]
    texts = [query.text for query in queries]
    features = embedded(texts, encoder=encoder, data_dir=settings.data_dir, progress=progress)
    occurrences: Counter[str] = Counter()
    rows: list[Logged] = []
    for row, query, mine in zip(table.rows, queries, features, strict=True):
        key = question_key(query)
        rows += arm_rows(
            row,
            arms=table.arms,
            features=mine,
            encoder_hash=encoder.hash,
            settings=settings,
            now=now,
            first=len(rows) + 1,
            occurrence=occurrences[key],
        )
        occurrences[key] += 1
    return WarmRows(rows=_mixed(rows, arms=len(table.arms)), arms=table.arms, source=source, origin=ORIGIN)


def log_material(
    rows: Sequence[Logged],
    *,
    source: str,
    origin: str,
    settings: Settings,
    encoder: Encoder,
    needs_features: bool,
    progress: Progress = no_progress,
) -> WarmRows:
    """The rows of a log at the configured weight of cost. Missing features, and another encoder's, are made.

    Rows are in the order of the log, or of `table_material` if every arm of every question has an outcome.
    Raises InvalidInput for a row without a question whose features the policy needs.
    """
    weight = settings.reward.weight
    material = [replace(row, reward=row.reward.at(weight)) for row in rows]
    decisions = [row.decision for row in rows]
    blind = [at for at, one in enumerate(decisions) if one.features is None or one.encoder_hash != encoder.hash]
    for at in blind:
        if needs_features and not material[at].decision.query.text.strip():
            raise InvalidInput(
                "has no question, and its features are missing or another encoder's",
                field=f"{source}:{material[at].line} text",
                remedy="log the questions or the features of the configured encoder, or leave the row out",
            )
    blind = [at for at in blind if material[at].decision.query.text.strip()]
    texts = [material[at].decision.query.text for at in blind]
    encoded = embedded(texts, encoder=encoder, data_dir=settings.data_dir, progress=progress) if texts else ()
    for at, features in zip(blind, encoded, strict=True):
        decision = material[at].decision
        # Its pmf can no longer be computed again from what is stored: it was made elsewhere.
        facts = {**decision.facts, IMPORTED: origin}
        decision = replace(decision, features=features, encoder_hash=encoder.hash, facts=facts)
        material[at] = replace(material[at], decision=decision)
    arms = tuple(dict.fromkeys(arm for row in material for arm in row.decision.arms))
    if tells_every_arm(material):
        material = _mixed(sorted(material, key=lambda row: question_key(row.decision.query)), arms=1)
    return WarmRows(rows=material, arms=arms, source=source, origin=origin, encoded=len(blind))


def tells_every_arm(rows: Sequence[Logged]) -> bool:
    """Whether every question has each arm that it was offered equally often, with the probability of a uniform draw."""
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
    return all(set(found) == offered[key] and len(set(found.values())) == 1 for key, found in counts.items())


def _mixed(rows: Sequence[Logged], *, arms: int) -> list[Logged]:
    """Groups of `arms` rows, sorted by the sha256 of their question."""
    groups = [rows[start : start + arms] for start in range(0, len(rows), arms)]
    groups.sort(
        key=lambda group: hashlib.sha256(
            question_key(group[0].decision.query).encode("utf-8", "surrogatepass")
        ).digest()
    )
    return [replace(row, seq=seq) for seq, row in enumerate((row for group in groups for row in group), start=1)]


#: how long to wait for the ledger's learner, seconds
PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Entered:
    """What became of the rows."""

    #: in the ledger now and not before
    added: int
    #: it had them already
    known: int
    #: last seq of the ledger after the import
    last_seq: int
    #: the snapshot that has learned them; None where a running learner makes it
    version: str | None


def enter(
    material: WarmRows,
    *,
    ledger: Ledger,
    settings: Settings,
    encoder_hash: str,
    patience_s: float | None = None,
    clock: Callable[[], float] = time.time,
    progress: Progress = no_progress,
) -> Entered:
    """Append the rows that the ledger does not have, learn them, and make a snapshot.

    Raises Conflict where a row says something else than the ledger has learned, or was made with another encoder;
    NotReady where a learner holds the ledger for longer than patience_s (default PATIENCE_S).
    """
    patience_s = PATIENCE_S if patience_s is None else patience_s
    policy = register(ledger, settings=settings, encoder_hash=encoder_hash, now=clock())
    learner = Learner(ledger, files=SnapshotFiles(settings.snapshot_root), settings=settings, clock=clock)
    learner.drain(patience_s=patience_s)  # earlier decisions come before these rows
    rows = material.rows
    if settings.log.text != "full":
        rows = [replace(row, decision=_without_texts(row.decision, settings=settings)) for row in rows]

    def show(taken: ImportCounts) -> None:
        progress("rows entered", taken.added + taken.known, len(rows))

    taken = take_in(
        ledger,
        lambda: rows,
        origin=material.origin,
        source=material.source,
        lease_s=settings.learning.lease_s,
        patience_s=patience_s,
        remade=True,
        clock=clock,
        progress=show,
    )
    progress("learning", 0, 0)
    learner.drain(patience_s=patience_s)
    last = ledger.last_seq()
    newest = ledger.latest_snapshots(
        limit=1, algorithm=policy.algorithm, params=policy.params, encoder_hash=_hash_for(policy, encoder_hash)
    )
    version = newest[0].version if newest and newest[0].last_seq == last else None
    return Entered(added=taken.added, known=taken.known, last_seq=last, version=version)


def register(ledger: Ledger, *, settings: Settings, encoder_hash: str, now: float) -> Policy:
    """Make the ledger known as a router would, with the configured policy; a fresh one of it. Raises Conflict."""
    policy = policy_of(settings)
    register_policy(
        ledger.database,
        label=ledger.label,
        algorithm=policy.algorithm,
        params=canonical(dict(policy.params)),
        encoder_hash=_hash_for(policy, encoder_hash),
        now=now,
    )
    return policy


def _hash_for(policy: Policy, encoder_hash: str) -> str:
    return encoder_hash if "features" in policy.needs else ""


def _without_texts(decision: Decision, *, settings: Settings) -> Decision:
    """As live decisions are kept under log.text: none."""
    context = {key: value for key, value in decision.query.context.items() if key in settings.context}
    return replace(decision, query=replace(decision.query, text="", context=context))


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What arms made of questions; the matrices have shape (questions, arms), NaN where an arm did not answer."""

    arms: tuple[ArmName, ...]
    reward: Matrix
    quality: Matrix
    cost: Matrix
    #: places of the arms that answered every question: those that can be routed between
    complete: Choices
    #: a row for each question and arm of these, question by question, as logged by a uniform draw between them
    rows: Sequence[Logged]
    queries: Sequence[Query]
    #: features of the questions, shape (questions, d), or None
    features: FeatureRows | None
    encoder_hash: str

    def permuted(self, *, seed: int) -> "Outcomes":
        """These questions with permuted outcomes; the arms' outcomes for a question stay together."""
        order = np.random.default_rng(seed).permutation(len(self.queries))
        arms = len(self.complete)
        rows = [
            replace(row, reward=self.rows[int(order[at // arms]) * arms + at % arms].reward)
            for at, row in enumerate(self.rows)
        ]
        reward, quality, cost = self.reward[order], self.quality[order], self.cost[order]
        return replace(self, rows=rows, reward=reward, quality=quality, cost=cost)


def numbered(rows: Sequence[Logged]) -> Choices:
    """The number of each row's question, from 0, in the order in which they come; shape (n,)."""
    keys = [question_key(row.decision.query) for row in rows]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.intp)


def outcomes_of(rows: Sequence[Logged]) -> Outcomes | None:
    """The mean outcomes by question and arm, or None if a question lacks the outcome of an offered arm.

    Questions that were not answered by every arm of `complete` are left out.
    """
    if not tells_every_arm(rows):
        return None
    arms = tuple(dict.fromkeys(arm for row in rows for arm in row.decision.arms))
    question = numbered(rows)
    shape = int(question.max()) + 1, len(arms)
    places = {arm: place for place, arm in enumerate(arms)}
    column = np.array([places[row.decision.arm] for row in rows], dtype=np.intp)
    count = np.zeros(shape)
    np.add.at(count, (question, column), 1.0)
    answered = (count > 0.0).sum(axis=0)
    complete = np.flatnonzero(
        answered >= np.sort(answered)[-2]
    )  # two arms at least: one has nothing to be compared with
    whole = np.flatnonzero((count[:, complete] > 0.0).all(axis=1))
    means = {}
    for key in ("value", "quality", "cost"):
        total = np.zeros(shape)
        np.add.at(total, (question, column), [getattr(row.reward, key) for row in rows])
        means[key] = np.divide(total, count, out=np.full(shape, np.nan), where=count > 0.0)[whole]
    first: dict[tuple[int, int], Logged] = {}
    for at, row in enumerate(rows):
        first.setdefault((int(question[at]), int(column[at])), row)
    names = tuple(arms[place] for place in complete)
    even = (1.0 / len(names),) * len(names)
    kept = [
        replace(
            one,
            decision=replace(one.decision, arms=names, pmf=even, propensity=even[0]),
            reward=replace(one.reward, value=v, quality=q, cost=c),
        )
        for at, number in enumerate(whole)
        for place in complete
        for one in [first[int(number), int(place)]]
        for v, q, c in [(float(means[key][at, place]) for key in ("value", "quality", "cost"))]
    ]
    decisions = [kept[at].decision for at in range(0, len(kept), len(names))]
    known = [one.features for one in decisions if one.features is not None]
    return Outcomes(
        arms=arms,
        reward=means["value"],
        quality=means["quality"],
        cost=means["cost"],
        complete=complete,
        rows=kept,
        queries=[one.query for one in decisions],
        features=np.stack(known) if len(known) == len(decisions) else None,
        encoder_hash=decisions[0].encoder_hash,
    )
