"""The checks of an audit: rules for single decisions, and the deep check, which computes every pmf again.

A rule returns an error text, or None if the decision obeys it. The rules read only the decision's stored row. The seed
must follow from the id and the store's secret, and the arm from the pmf and the seed.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, func, select, tuple_

from ragbandit.router.learning.audit.differences import snapshot_difference
from ragbandit.router.learning.examples import is_erased_for, updates_to_learn
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies import FACTS, make_policy
from ragbandit.router.policies.base import Policy, PolicyOutput, apply_update, pmf_of_one, tolerance_of
from ragbandit.router.policies.context import PARAM
from ragbandit.router.policies.draw import (
    DrawResult,
    configured_floor,
    draw,
    draw_index,
    falling_share,
    holdback_of,
    seed_of,
)
from ragbandit.router.storage.ledgers.ledger import SNAPSHOT_ROWS, Ledger
from ragbandit.router.storage.rows.conversion import decision_value, snapshot_value
from ragbandit.router.storage.sql.tables import decisions, snapshots
from ragbandit.shared.errors import RESTORE, RagBanditError, SnapshotError, StoreError
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import (
    IMPORTED,
    ColdStartFloors,
    Decision,
    HoldbackShare,
    Json,
    SnapshotInfo,
    is_released,
)


def seed_fault(decision: Decision, *, secret: bytes | None) -> str | None:
    """Error text if the seed does not follow from the store's secret and the id, else None."""
    follows = secret is not None and decision.seed == seed_of(decision.id, secret=secret)
    return None if follows else "the seed does not follow from the store's secret and the id"


def draw_fault(decision: Decision) -> str | None:
    """Error text if the arm does not follow from the row's pmf and seed, or the pmf is invalid, else None."""
    pmf = decision.pmf
    if len(pmf) != len(decision.arms) or decision.arm not in decision.arms:
        return "arms and pmf do not fit together"
    if not all(math.isfinite(p) and 0.0 <= p <= 1.0 for p in pmf) or abs(math.fsum(pmf) - 1.0) > 1e-9:
        return f"pmf is no distribution: {pmf}"
    if min(pmf) < min(decision.floor, 1.0 / len(pmf)) - 1e-12:
        return f"pmf falls below the floor {decision.floor}"
    if _has_wrong_share(decision):
        return "the share of the holdback does not follow from its settings and its number of learned answers"
    index = draw_index(pmf, seed=decision.seed)
    if decision.arms[index] != decision.arm:
        return f"the draw gives {decision.arms[index]}, the row says {decision.arm}"
    if pmf[index] != decision.propensity:
        return f"propensity {decision.propensity} is not the pmf's {pmf[index]}"
    return None


def _has_wrong_share(decision: Decision) -> bool:
    held = HoldbackShare.of(decision.facts)
    if held is None or held.first is None or held.until is None or held.then is None:
        return False  # the share is constant, as configured
    return held.learned is None or held.share != falling_share(
        held.first, until=held.until, end=held.then, learned=held.learned
    )


Counter = Literal[
    "counter_mismatches", "damages", "deep_mismatches", "ledger_mismatches", "propensity_mismatches", "row_mismatches"
]
#: counter -> noun for what it counts
_COUNTED: Final[Mapping[Counter, str]] = {
    "damages": "damaged place",
    "counter_mismatches": "wrong counter",
    "propensity_mismatches": "wrong draw",
    "ledger_mismatches": "wrong update",
    "deep_mismatches": "wrong pmf",
    "row_mismatches": "wrong row",
}

#: largest number of notes in an AuditResult; further mismatches are only counted
MOST_NAMED: Final = 20


@dataclass(kw_only=True, slots=True)
class AuditResult:
    """Result of an audit: numbers of checked rows and of mismatches."""

    decisions: int = 0
    #: decisions drawn by another system, whose draws cannot be repeated
    made_elsewhere: int = 0
    propensity_mismatches: int = 0
    updates: int = 0
    #: missing update numbers, and updates that contradict their decision or whose reward does not follow from its parts
    ledger_mismatches: int = 0
    refused: int = 0
    replay_sha256: str = ""
    live_sha256: str = ""
    live_version: str = ""
    #: largest relative difference of relearned and live policy; None if it is 0, not known, or more than rounding
    within_rounding: float | None = None
    #: only in a deep check: decisions whose pmf was computed again, plus `not_checkable`
    deep_decisions: int = 0
    deep_mismatches: int = 0
    #: only in a deep check: decisions whose pmf cannot be computed again: they were erased, or params have changed
    not_checkable: int = 0
    #: only in a deep check: outcomes, feedback and paired answers that changed after they were stored, learned rows
    #: that do not follow from them, and sums of dollars, sessions and tasks that do not fit their rows
    row_mismatches: int = 0
    #: only in a deep check: versions whose arrays are not compared, for example because their files were deleted
    not_compared: int = 0
    #: decisions whose texts, or texts and features, were erased on request
    erased: int = 0
    #: updates that the live policy cannot learn again, because their data was erased
    not_relearnable: int = 0
    #: updates that cannot be checked, because `retention` deleted their rows
    archived: int = 0
    counter_mismatches: int = 0
    #: damaged places in the SQLite file; in a damaged file nothing else is checked
    damages: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all differences come from rounding, or from rows that were erased or removed."""
        differences = sum(getattr(self, counter) for counter in _COUNTED)
        is_same = self.replay_sha256 == self.live_sha256 or self.within_rounding is not None
        is_same = is_same or self.not_relearnable > 0 or (self.archived > 0 and not self.replay_sha256)
        is_unreadable = self.live_version != "" and self.live_sha256 == ""
        return differences == 0 and is_same and not is_unreadable

    @property
    def sentence(self) -> str:
        """The result in one sentence; if something is wrong, with the remedy."""
        checked = f"{counted(self.decisions, 'decision')}, {self.updates:,} learned"
        if self.ok:
            is_relearned = self.replay_sha256 != "" and not self.not_relearnable
            policy = "is what its ledger says" if is_relearned else "was not compared with its ledger"
            return f"all good: {checked}; the policy {policy}"
        faults = [counted(getattr(self, counter), noun) for counter, noun in _COUNTED.items() if getattr(self, counter)]
        remedy = f"keep a copy of the store for a report of the fault, then {RESTORE}"
        if len(faults) == 1 and self.counter_mismatches:
            remedy = "run `ragbandit verify --recount`"
        found = ", ".join(faults) or "the policy is not what its ledger says"
        return f"something is wrong: {found} ({checked}); {remedy}"

    def fail(self, counter: Counter, text: str) -> None:
        setattr(self, counter, getattr(self, counter) + 1)
        self.note(text)

    def note(self, text: str) -> None:
        if len(self.notes) < MOST_NAMED:
            self.notes.append(text)


PAGE: Final = 500
#: largest difference that rounding may cause between a logged and a recomputed probability
PMF_ROUNDING: Final = 1e-9
_MAX_ROUNDING: Final = 1e-6
#: policy params that are recorded only if they are set
_OPTIONAL: Final = frozenset({PARAM, FACTS})
#: end of a version's name: the number of its last update, and 12 digits of the snapshot's sha256
_VERSION_END: Final = re.compile(r"(\d{1,18})-[0-9a-f]{12}")


def read_decisions(ledger: Ledger, *where: Any, unreadable: Any = lambda _: None) -> Iterator[Decision]:
    """The decisions in the order of time. Calls `unreadable` with an error text for each row that cannot be read."""
    order = (decisions.c.made_at, decisions.c.id)
    last: list[Any] = []
    while True:
        query = select(decisions).where(*where).order_by(*order).limit(PAGE)
        if last:
            query = query.where(tuple_(*order) > tuple_(*last))
        with ledger.database.read() as connection:
            rows = connection.execute(query).mappings().all()
        if not rows:
            return
        for row in rows:
            try:
                decision = decision_value(row)
            except (ValueError, TypeError, KeyError) as error:
                unreadable(f"decision {row['id']}: cannot be read: {error}")
                continue
            yield decision
        last = [rows[-1][column.name] for column in order]


class DeepCheck:
    """Learns each policy of a ledger (algorithm and params) again, and checks every version of the policy.

    If the snapshot row of a version was pruned, the version's name still contains the last update, but not the policy.
    Then one of the ledger's policies must reproduce all decisions of the version.
    """

    def __init__(self, ledger: Ledger, *, files: SnapshotFiles, verdict: AuditResult) -> None:
        self.ledger, self.files = ledger, files
        self.verdict = verdict
        of_ledger = select(snapshots).where(snapshots.c.policy == ledger.label)
        oldest = of_ledger.order_by(snapshots.c.last_seq.desc()).offset(SNAPSHOT_ROWS - 1).limit(1)
        at = decisions.c.made_at
        spans = select(decisions.c.version, func.min(at).label("first"), func.max(at).label("last"))
        spans = spans.where(decisions.c.policy == ledger.label).group_by(decisions.c.version)
        with ledger.database.read() as connection:
            self.snapshots = {row["version"]: snapshot_value(row) for row in connection.execute(of_ledger).mappings()}
            #: version -> times of its first and last decision
            self.spans = {row.version: (row.first, row.last) for row in connection.execute(spans)}
            last = connection.execute(oldest).mappings().first()
        #: snapshot rows up to this update number may have been pruned; -1 if no row was pruned
        self.pruned_to = -1 if last is None else last["last_seq"]
        #: version without a snapshot row -> mismatches of the policy that reproduces most of its decisions
        self.mismatches: dict[str, list[str]] = {}

    def run(self) -> None:
        policies = {_policy_key(info) for info in self.snapshots.values()}
        walks: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        for version in sorted(self.spans):
            info, last_seq = self.snapshots.get(version), self._pruned_seq(version)
            if info is not None:
                walks[_policy_key(info)].append((info.last_seq, version))
            elif last_seq is not None and policies:
                for key in policies:
                    walks[key].append((last_seq, version))
            else:
                self._check_missing(version)
        for (algorithm, params), versions in walks.items():
            self._walk(algorithm, params=json.loads(params), versions=sorted(versions))
        for version, faults in sorted(self.mismatches.items()):
            self.verdict.deep_decisions += len(list(self._decisions(version)))
            for fault in faults:
                self.verdict.fail("deep_mismatches", fault)

    def _pruned_seq(self, version: str) -> int | None:
        """Number of the last update, from the version's name, if the snapshot row may have been pruned; else None."""
        matched = _VERSION_END.fullmatch(version.removeprefix(f"{self.ledger.label}-"))
        return int(matched[1]) if matched is not None and int(matched[1]) <= self.pruned_to else None

    def _decisions(self, version: str) -> Iterator[Decision]:
        made = read_decisions(self.ledger, *self._made_by(version))
        return (decision for decision in made if IMPORTED not in decision.facts)

    def _made_by(self, version: str) -> list[ColumnElement[bool]]:
        at = decisions.c.made_at.between(*self.spans[version])  # so the database can use its index of times
        is_first = decisions.c.turn_of.is_(None)  # no policy made the pmf of a later turn
        return [at, decisions.c.version == version, decisions.c.policy == self.ledger.label, is_first]

    def _skip(self, versions: Sequence[str], *, cause: str) -> None:
        """Count the decisions of versions whose pmfs cannot be computed again."""
        count = sum(1 for version in versions for _ in self._decisions(version))
        self.verdict.deep_decisions += count
        self.verdict.not_checkable += count
        if count:
            self.verdict.note(f"{count} decisions are not redrawn: {cause}; their draws are checked by the logged pmf")

    def _walk(self, algorithm: str, *, params: Mapping[str, Json], versions: Sequence[tuple[int, str]]) -> None:
        """Let a policy learn the ledger, and compare it with each version. versions: sorted (last update, name)."""
        if is_of_another_release(algorithm, params=params) and not _can_repeat_decisions(algorithm, params=params):
            stored = [version for _, version in versions if version in self.snapshots]
            self.verdict.not_compared += len(stored)
            self._skip(stored, cause=f"{algorithm} had other params in the release that made them")
            return
        try:
            policy = make_policy(algorithm, params=params)
        except RagBanditError as error:  # a table, a package or a param of an earlier policy is missing now
            self.verdict.fail("deep_mismatches", f"{algorithm} cannot be made again: {error}")
            return
        if not policy.deterministic:
            self.verdict.note(f"{algorithm} does not give the same pmf twice: its decisions are not made again")
            return
        position = 0
        erased: int | None = None
        if self.verdict.erased:
            pairs = self.ledger.read_with_decisions(after=0)
            erased = next((update.seq for update, decision in pairs if is_erased_for(policy, decision)), None)
        for last_seq, version in versions:
            if erased is not None and last_seq >= erased:
                effect = "the pmfs of its later versions are not made again"
                self.verdict.note(f"update {erased} was erased for {policy.algorithm}: {effect}")
                return
            try:
                for update in updates_to_learn(self.ledger, policy=policy, after=position, upto=last_seq):
                    apply_update(policy, update)
            except (StoreError, ValueError, TypeError, KeyError) as error:
                self.verdict.fail("deep_mismatches", f"the ledger cannot be read up to {last_seq}: {error}")
                return
            position = max(position, last_seq)
            self._compare(policy, version=version)

    def _compare(self, policy: Policy, *, version: str) -> None:
        info = self.snapshots.get(version)
        if info is None:
            checked = (self._pmf_fault(decision, policy=policy) for decision in self._decisions(version))
            faults = [fault for fault in checked if fault]
            self.mismatches[version] = min(self.mismatches.get(version, faults), faults, key=len)
            return
        self._check_state(policy, info=info)
        for decision in self._decisions(version):
            self.verdict.deep_decisions += 1
            if is_erased_for(policy, decision):
                self.verdict.not_checkable += 1
                continue
            fault = self._pmf_fault(decision, policy=policy)
            if fault:
                self.verdict.fail("deep_mismatches", fault)

    def _check_state(self, policy: Policy, *, info: SnapshotInfo) -> None:
        """Compare policy and snapshot: the sha256 must be equal, or the arrays differ by at most the tolerance."""
        text = f"replaying to {info.last_seq} does not give {info.version}"
        try:
            distance = snapshot_difference(policy, files=self.files, info=info)
        except SnapshotError as error:
            self.verdict.fail("deep_mismatches", f"{text}: {error}")
            return
        if distance is None and tolerance_of(policy) > 0.0:
            self.verdict.not_compared += 1
        elif distance is None or distance > tolerance_of(policy):
            self.verdict.fail("deep_mismatches", text if distance is None else f"{text}: it differs by {distance:.2g}")

    def _pmf_fault(self, decision: Decision, *, policy: Policy) -> str | None:
        """Error text if this policy does not reproduce the logged pmf; None if it does, or if it cannot be checked."""
        if decision.fault is not None or is_erased_for(policy, decision):
            return None  # after a fault the pmf follows from the fallback arm, and `draw_fault` checks the draw
        redrawn = _redraw(decision, policy=policy)
        held = holdback_of(decision.facts)
        if (
            held is not None
            and held.learned is not None
            and held.learned != policy.seen.get(held.arm, 0)
            and policy.seen
        ):
            return f"decision {decision.id}: {decision.version} had learned another number of answers of {held.arm}"
        if redrawn.fault is None and agrees(redrawn, decision=decision, tolerance=tolerance_of(policy)):
            return None
        return f"decision {decision.id}: {redrawn.fault or f'{decision.version} gives another pmf'}"

    def _check_missing(self, version: str) -> None:
        """Count a mismatch for a version without a snapshot row, unless all decisions of the version were imported."""
        if next(self._decisions(version), None) is not None:
            text = f"decisions were made by {version}, which no snapshot row describes"
            self.verdict.fail("deep_mismatches", text)


def _policy_key(info: SnapshotInfo) -> tuple[str, str]:
    return info.algorithm, json.dumps(dict(info.params), sort_keys=True)


def is_of_another_release(algorithm: str, *, params: Mapping[str, Json]) -> bool:
    """Whether this policy, or the policy that it wraps, has other params or another revision in this release."""
    inner = params.get("params")
    required: dict[str, Json] = {}
    if isinstance(inner, Mapping):
        if is_of_another_release(str(params["policy"]), params=inner):
            return True
        required = {name: params[name] for name in ("incumbent", "target") if name in params}
    try:
        present = make_policy(algorithm, params=required).params
    except RagBanditError:
        return False
    has_same_names = params.keys() - _OPTIONAL == present.keys() - _OPTIONAL
    return not has_same_names or params.get("revision") != present.get("revision")


def _can_repeat_decisions(algorithm: str, *, params: Mapping[str, Json]) -> bool:
    """Whether this release can compute the pmfs of this policy, which may have a former revision."""
    inner = params.get("params")
    if isinstance(inner, Mapping) and is_of_another_release(str(params["policy"]), params=inner):
        return False
    try:
        policy = make_policy(algorithm, params=params)
    except RagBanditError:
        return False
    return policy.params.keys() - _OPTIONAL == params.keys() - _OPTIONAL


def agrees(redrawn: DrawResult, *, decision: Decision, tolerance: float) -> bool:
    """Whether a recomputed pmf equals the logged pmf, except for rounding and exchanged probabilities of tied arms."""
    if len(redrawn.pmf) != len(decision.pmf):
        return False
    rounding = max(PMF_ROUNDING, min(tolerance, _MAX_ROUNDING))

    def near(first: Sequence[float], second: Sequence[float]) -> bool:
        return all(abs(p - q) <= rounding for p, q in zip(first, second, strict=True))

    if near(redrawn.pmf, decision.pmf):
        return True
    if tolerance == 0.0 or redrawn.scores is None or not near(sorted(redrawn.pmf), sorted(decision.pmf)):
        return False
    moved = [score for score, p, q in zip(redrawn.scores, redrawn.pmf, decision.pmf, strict=True) if p != q]
    return max(moved) - min(moved) <= 2.0 * tolerance * max(map(abs, redrawn.scores))


def _redraw(decision: Decision, *, policy: Policy) -> DrawResult:
    output: PolicyOutput | Exception
    try:
        output = pmf_of_one(policy, decision.served, features=decision.features, arms=decision.arms)
    except RagBanditError as error:
        output = error
    cold_start = ColdStartFloors.of(decision.facts)
    return draw(
        output,
        arms=decision.arms,
        floor=configured_floor(decision),
        fallback=decision.arm,
        seed=decision.seed,
        floors=None if cold_start is None else cold_start.floors,
        holdback=holdback_of(decision.facts),
        released=is_released(decision.facts),
    )
