"""Material of a warm start: a table or a log as rows that a ledger can take in."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import embedded
from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.offline.logs.tables import ORIGIN, LabelledTable, arm_rows, table_query
from ragbandit.router.offline.types import Progress, no_progress
from ragbandit.router.policies.base import Policy, TableTrained
from ragbandit.router.policies.kinds.conservative import ConservativePolicy
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import IMPORTED, ArmName, Query


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
    #: rows of a log whose features were made anew, since they had none or another encoder's
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
    """A row for each question and arm, the questions in an order that follows from their texts.

    A table is often sorted by where its questions come from; learned in that order it would look like drift, and a
    policy that forgets would know the last part alone. Raises ConfigError where the reward has no price for steps.
    """
    if not settings.reward.cost.get("steps", 0.0) > 0.0:
        raise ConfigError(
            "steps have no price: they are the only cost that a table knows",
            field="reward.cost",
            remedy="add steps: 1.0, or learn from the log of `ragbandit evaluate --log`, which has every cost",
        )
    queries = [table_query(row) for row in table.rows]
    features = _embedded([query.text for query in queries], encoder=encoder, settings=settings, progress=progress)
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
    """The rows of a log; the features of a row that has none, or another encoder's, are made by this encoder.

    In the order of the log, unless it tells every arm of every question: then in that of a table. Their weight of cost
    is that of the settings: the policy decides by the last one that it learned.
    Raises InvalidInput for a row that has no question to make them of, where the policy needs features.
    """
    weight = settings.reward.weight
    material = [replace(row, reward=row.reward.at(weight)) for row in rows]
    blind = [at for at, row in enumerate(material) if not _has_features(row, encoder=encoder)]
    for at in blind:
        if needs_features and not material[at].decision.query.text.strip():
            raise InvalidInput(
                "has no question, and its features are missing or another encoder's",
                field=f"{source}:{material[at].line} text",
                remedy="log the questions or the features of the configured encoder, or leave the row out",
            )
    blind = [at for at in blind if material[at].decision.query.text.strip()]
    texts = [material[at].decision.query.text for at in blind]
    encoded = _embedded(texts, encoder=encoder, settings=settings, progress=progress) if texts else ()
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
    """Whether every question has each offered arm equally often, each with the probability of a uniform draw."""
    counts: dict[str, Counter[ArmName]] = {}
    for row in rows:
        decision = row.decision
        share = 1.0 / len(decision.arms)
        if set(decision.arms) != set(rows[0].decision.arms) or any(abs(p - share) > 1e-9 for p in decision.pmf):
            return False
        counts.setdefault(question_key(decision.query), Counter())[decision.arm] += 1
    arms = len(rows[0].decision.arms)
    return all(len(counted) == arms and len(set(counted.values())) == 1 for counted in counts.values())


def _mixed(rows: Sequence[Logged], *, arms: int) -> list[Logged]:
    """Groups of so many rows, in the order of the sha256 of their question; equal ones stay in theirs."""
    groups = [rows[start : start + arms] for start in range(0, len(rows), arms)]
    groups.sort(
        key=lambda group: hashlib.sha256(
            question_key(group[0].decision.query).encode("utf-8", "surrogatepass")
        ).digest()
    )
    return [replace(row, seq=seq) for seq, row in enumerate((row for group in groups for row in group), start=1)]


def _has_features(row: Logged, *, encoder: Encoder) -> bool:
    return row.decision.features is not None and row.decision.encoder_hash == encoder.hash


def _embedded(
    texts: Sequence[str], *, encoder: Encoder, settings: Settings, progress: Progress
) -> npt.NDArray[np.float32]:
    folder = Path(settings.data_dir) / "cache" / "features"
    return embedded(texts, encoder=encoder, folder=folder, progress=partial(progress, "questions encoded"))
