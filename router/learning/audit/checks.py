"""What an audit checks: the rows of decisions and updates, each rule once; and with `deep` all pmfs made again.

A rule gives the fault in words, or None. Nothing is trusted but the row: seeds come from the ids and the store's
secret, arms from pmf and seed, the pmf of a canary from its parts. The deep check learns every policy version again
from the ledger, and lets it decide its decisions once more.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, func, select, tuple_

from ragbandit.router.learning.examples import is_erased_for, lessons
from ragbandit.router.learning.snapshots import SnapshotFiles, policy_sha256
from ragbandit.router.policies import FACTS, make_policy
from ragbandit.router.policies.base import Policy, PolicyOutput, apply, pmf_of_one, tolerance_of
from ragbandit.router.policies.context import PARAM
from ragbandit.router.policies.draw import (
    Drawn,
    choose,
    configured_floor,
    draw,
    holdback_of,
    mixed,
    raised_floors,
    seed_of,
)
from ragbandit.router.storage.ledgers.inheritance import replaced_encoders
from ragbandit.router.storage.ledgers.ledger import SNAPSHOT_ROWS, Ledger
from ragbandit.router.storage.rows.conversion import decision_value, snapshot_value
from ragbandit.router.storage.sql.tables import decisions, outcomes, snapshots
from ragbandit.shared.errors import RagBanditError, SnapshotError, StoreError
from ragbandit.shared.types import CANDIDATE, IMPORTED, SEEDED_ELSEWHERE, Decision, Json, SnapshotInfo, Update

#: tolerance of a mixture of the row's floats, whose order of addition differs between releases
_ROUNDING: Final = 1e-12


def seed_fault(decision: Decision, *, secret: bytes | None) -> str | None:
    """The fault of a seed that follows neither from the secret and the id nor, as in earlier releases, from the id."""
    if SEEDED_ELSEWHERE in decision.facts or decision.seed == seed_of(decision.id):
        return None
    follows = secret is not None and decision.seed == seed_of(decision.id, secret=secret)
    return None if follows else "the seed does not follow from the id"


def draw_fault(decision: Decision) -> str | None:
    """The first rule of a draw from its seed that the row breaks; None where it breaks none."""
    return next(_draw_faults(decision), None)


def _draw_faults(decision: Decision) -> Iterator[str]:
    """In this order: a rule may count on those before it."""
    pmf = decision.pmf
    if len(pmf) != len(decision.arms) or decision.arm not in decision.arms:
        yield "arms and pmf do not fit together"
    if not all(math.isfinite(p) and 0.0 <= p <= 1.0 for p in pmf) or abs(math.fsum(pmf) - 1.0) > 1e-9:
        yield f"pmf is no distribution: {pmf}"
    if min(pmf) < min(decision.floor, 1.0 / len(pmf)) - 1e-12:
        yield f"pmf falls below the floor {decision.floor}"
    index = choose(pmf, seed=decision.seed)
    if decision.arms[index] != decision.arm:
        yield f"the draw gives {decision.arms[index]}, the row says {decision.arm}"
    if pmf[index] != decision.propensity:
        yield f"propensity {decision.propensity} is not the pmf's {pmf[index]}"


def update_faults(update: Update, *, decision: Decision) -> Iterator[str]:
    """Disagreements between a ledger row, its decision and its own parts."""
    if update.arm != decision.arm:
        yield f"arm {update.arm}, the decision drew {decision.arm}"
    if update.propensity != decision.propensity:
        yield f"propensity {update.propensity}, the decision logged {decision.propensity}"
    reward = update.reward
    if reward.value != min(max(reward.quality - reward.weight * reward.cost, reward.minimum), reward.maximum):
        yield "the reward is not quality - weight * cost within its bounds"


def mixture_fault(decision: Decision) -> str | None:
    """The fault of a pmf that is not the mixture in its facts; None if it is, or if no canary had a share."""
    facts = _mixture_of(decision)
    if facts is None:
        return None
    try:
        weight, champion, candidate = float(facts["weight"]), tuple(facts["champion"]), tuple(facts["pmf"])
        pmf = mixed(champion, candidate, weight=weight)
        added = decision.arms[len(decision.arms) - len(facts.get("added", ())) :]
        given = math.fsum(p for arm, p in zip(decision.arms, champion, strict=True) if arm in added)
        far = max(abs(p - q) for p, q in zip(pmf, decision.pmf, strict=True))
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        return f"its canary's parts cannot be read: {error!r}"
    if not 0.0 < weight < 1.0:
        return f"its canary has the weight {weight!r}"
    if given:
        return f"the champion gives {given!r} to arms that it does not offer"
    return f"the mixture of champion and candidate is {pmf}, not its pmf" if far > _ROUNDING else None


def champion_part(decision: Decision) -> Decision:
    """The decision as the champion alone would have had it; itself where no canary had a share.

    Its facts must have passed `mixture_fault`.
    """
    facts = _mixture_of(decision)
    if facts is None:
        return decision
    own = len(decision.arms) - len(facts.get("added", ()))
    pmf = tuple(float(p) for p in facts["champion"][:own])
    return replace(decision, arms=decision.arms[:own], pmf=pmf, floor=float(facts["floor"]), scores=None)


def _mixture_of(decision: Decision) -> Mapping[str, Any] | None:
    """The facts of the canary that had a share of the row's pmf; None if no canary had."""
    facts = decision.facts.get(CANDIDATE)
    if not isinstance(facts, Mapping) or facts.get("state") != "canary" or facts.get("pmf") is None:
        return None
    return facts


#: counters of what did not agree
Counter = Literal[
    "counter_mismatches",
    "damages",
    "deep_mismatches",
    "ledger_mismatches",
    "propensity_mismatches",
]

#: mismatches that are described; all are counted
MOST_NAMED: Final = 20


@dataclass(kw_only=True, slots=True)
class Verdict:
    """Counts of what was checked and of what did not agree. `ok` is the exit code's question."""

    decisions: int = 0
    #: decisions that were drawn elsewhere, so that their draws cannot be repeated
    made_elsewhere: int = 0
    #: decisions that were drawn by their ids without the secret after the store had one
    seeded_by_id: int = 0
    #: seed, drawn arm, logged propensity, sum or floor of the pmf
    propensity_mismatches: int = 0
    updates: int = 0
    #: gaps in seq, rewards that do not follow from their parts
    ledger_mismatches: int = 0
    #: updates that the policy refuses, live as in replay
    refused: int = 0
    replay_sha256: str = ""
    live_sha256: str = ""
    live_version: str = ""
    #: where the two sha256 differ by no more than rounding: the largest relative difference of the policies' arrays
    within_rounding: float | None = None
    #: with deep: decisions whose pmf was made again by the policy version that made it
    deep_decisions: int = 0
    deep_mismatches: int = 0
    #: with deep: decisions of ours that were imported, by versions whose snapshots are in another store
    not_checkable: int = 0
    #: with deep: versions whose arrays are not kept any more, so that only their decisions' pmfs are compared
    not_compared: int = 0
    #: decisions whose texts, or texts and features, were erased on request
    erased: int = 0
    #: updates of the live policy that cannot be learned again, since what they were learned from was erased
    not_relearnable: int = 0
    #: updates whose rows left the store, by `retention` or an earlier release's archive: they cannot be checked
    archived: int = 0
    #: counters that differ from what is in the tables
    counter_mismatches: int = 0
    #: places of the file that SQLite finds damaged; then nothing else is checked
    damages: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if the only differences are rounding, and rows that were erased or left the store."""
        differences = sum(getattr(self, counter) for counter in get_args(Counter))
        same = self.replay_sha256 == self.live_sha256 or self.within_rounding is not None
        same = same or self.not_relearnable > 0 or (self.archived > 0 and not self.replay_sha256)
        return differences == 0 and same and not self.broken

    @property
    def broken(self) -> bool:
        """A snapshot that is needed could not be read."""
        return self.live_version != "" and self.live_sha256 == ""

    def fail(self, counter: Counter, text: str) -> None:
        """Count a mismatch, and name it."""
        setattr(self, counter, getattr(self, counter) + 1)
        self.note(text)

    def note(self, text: str) -> None:
        """Name something, up to a number that a person reads."""
        if len(self.notes) < MOST_NAMED:
            self.notes.append(text)


PAGE: Final = 500
#: Releases and processors add up a pmf in other orders: a pmf that was logged and one that is made again may differ by
#: this much. The draw is from the logged one, which is checked to the last bit.
PMF_ROUNDING: Final = 1e-9
#: most that a policy's tolerance allows a probability to differ
_MOST_APART: Final = 1e-6
#: params that are recorded only if they are set
_OPTIONAL: Final = frozenset({PARAM, FACTS})
#: last update, as a version's name ends
_NAMED: Final = re.compile(r"(\d{1,18})-[0-9a-f]{12}")


def pages(ledger: Ledger, *where: Any, unreadable: Any = lambda _: None) -> Iterator[Decision]:
    """The decisions, in the order of their times; what cannot be read is handed to `unreadable` as a text instead."""
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


def sha256_after(policy: Policy, *, info: SnapshotInfo) -> str:
    """The sha256 that this policy has as the version that `info` describes."""
    return policy_sha256(policy, label=info.policy, last_seq=info.last_seq, encoder_hash=info.encoder_hash)


def difference(policy: Policy, *, files: SnapshotFiles, info: SnapshotInfo) -> float | None:
    """The largest relative difference of a policy that was learned again from its snapshot, 0 for the same sha256.

    None where the snapshot's files are not kept any more. Raises SnapshotError where they cannot be read.
    """
    if sha256_after(policy, info=info) == info.sha256:
        return 0.0
    if not files.exists(info.version):
        return None
    stored, _ = files.load(info)
    return largest_difference(policy.state(), stored.state())


def largest_difference(one: Any, other: Any) -> float:
    """The largest relative difference of two results of `Policy.state`; infinity if rounding cannot explain it.

    For every entry of an array's first axis (the whole array if it has one axis): the Euclidean length of the
    difference over that of the longer one, so that a small part is not hidden by a large one. Floats among the facts
    differ relative to the larger one if that is above 1. Names, shapes, types and other values must be equal.
    """
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return _apart(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return max((largest_difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        return max((largest_difference(first, second) for first, second in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, float) and isinstance(other, float) and one != other:
        return abs(one - other) / max(1.0, abs(one), abs(other))
    return 0.0 if one == other else math.inf


def _apart(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    if one.shape != other.shape or one.dtype != other.dtype or not np.issubdtype(one.dtype, np.floating):
        return 0.0 if one.dtype == other.dtype and np.array_equal(one, other) else math.inf
    if not one.size:
        return 0.0
    rows = len(one) if one.ndim > 1 else 1
    first, second = (array.astype(np.float64).reshape(rows, -1) for array in (one, other))
    length = np.maximum(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    worst = float((np.linalg.norm(first - second, axis=1) / np.where(length > 0.0, length, 1.0)).max(initial=0.0))
    return worst if math.isfinite(worst) else math.inf


class DeepCheck:
    """The deep check of one ledger: walks it once per (algorithm, params), and checks every version on the way.

    If a version's snapshot row was pruned, only its last update is known, from its name: one of the ledger's policies
    must then reproduce all its decisions.
    """

    def __init__(self, ledger: Ledger, *, files: SnapshotFiles, verdict: Verdict) -> None:
        self.ledger, self.files, self.verdict = ledger, files, verdict
        mine = select(snapshots).where(snapshots.c.policy == ledger.label)
        oldest = mine.order_by(snapshots.c.last_seq.desc()).offset(SNAPSHOT_ROWS - 1).limit(1)
        at = decisions.c.made_at
        spans = select(decisions.c.version, func.min(at).label("first"), func.max(at).label("last"))
        spans = spans.where(decisions.c.policy == ledger.label).group_by(decisions.c.version)
        with ledger.database.read() as connection:
            #: versions with a row; when the first and the last decision of each version were made
            self.known = {row["version"]: snapshot_value(row) for row in connection.execute(mine).mappings()}
            self.used = {row.version: (row.first, row.last) for row in connection.execute(spans)}
            last = connection.execute(oldest).mappings().first()
        #: rows of snapshots up to this update may have been pruned; -1 if none was
        self.pruned_upto = -1 if last is None else last["last_seq"]
        #: version without a snapshot row -> faults of the policy that fits best
        self.unlike: dict[str, list[str]] = {}

    def run(self) -> None:
        """Check every version that has decided something."""
        replaced = replaced_encoders(self.ledger.database)
        policies = {(i.algorithm, json.dumps(dict(i.params), sort_keys=True)) for i in self.known.values()}
        walks: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        for version in sorted(self.used):
            info, upto = self.known.get(version), self._named(version)
            if info is not None and info.encoder_hash in replaced:
                self._leave_out([version], why="the features that their policies learned from were made again")
            elif info is not None:
                key = (info.algorithm, json.dumps(dict(info.params), sort_keys=True))
                walks[key].append((info.last_seq, version))
            elif upto is not None and policies:
                for key in policies:
                    walks[key].append((upto, version))
            else:
                self._check_missing(version)
        for (algorithm, params), versions in walks.items():
            self._walk(algorithm, params=json.loads(params), versions=sorted(versions))
        for version, faults in sorted(self.unlike.items()):
            self.verdict.deep_decisions += len(list(self._decisions(version)))
            for fault in faults:
                self.verdict.fail("deep_mismatches", fault)

    def _named(self, version: str) -> int | None:
        """The last update of a version whose row may have been pruned, by its name; None for any other name."""
        named = _NAMED.fullmatch(version.removeprefix(f"{self.ledger.label}-"))
        return int(named[1]) if named is not None and int(named[1]) <= self.pruned_upto else None

    def _decisions(self, version: str) -> Iterator[Decision]:
        mine = pages(self.ledger, *self._made_by(version))
        return (decision for decision in mine if IMPORTED not in decision.facts)

    def _made_by(self, version: str) -> list[ColumnElement[bool]]:
        """The decisions of a version: a range of the index of times."""
        at = decisions.c.made_at.between(*self.used[version])
        return [at, decisions.c.version == version, decisions.c.policy == self.ledger.label]

    def _leave_out(self, versions: Sequence[str], *, why: str) -> None:
        """Count what was decided by versions that cannot be made again."""
        left = sum(1 for one in versions for _ in self._decisions(one))
        self.verdict.deep_decisions += left
        self.verdict.not_checkable += left
        if left:
            self.verdict.note(f"{left} decisions are not made again: {why}; their draws are checked by the logged pmf")

    def _walk(self, algorithm: str, *, params: Mapping[str, Json], versions: Sequence[tuple[int, str]]) -> None:
        """Let a fresh policy learn the ledger up to each of these versions, and compare it there."""
        if is_of_another_release(algorithm, params=params):
            known = [version for _, version in versions if version in self.known]
            self.verdict.not_compared += len(known)
            self._leave_out(known, why=f"{algorithm} had other params in the release that made them")
            return
        try:
            policy = make_policy(algorithm, params=params)
        except RagBanditError as error:  # a table, a package or a param of a former policy that is gone
            self.verdict.fail("deep_mismatches", f"{algorithm} cannot be made again: {error}")
            return
        if not policy.deterministic:
            self.verdict.note(f"{algorithm} does not give the same pmf twice: its decisions are not made again")
            return
        position, erased = 0, self._first_erased(policy) if self.verdict.erased else None
        for upto, version in versions:
            if erased is not None and upto >= erased:
                left = "pmfs of its versions from there on stay as logged"
                self.verdict.note(f"update {erased} was erased for {policy.algorithm}: {left}")
                return
            try:
                for update in lessons(self.ledger, policy=policy, after=position, upto=upto):
                    apply(policy, update)
            except (StoreError, ValueError, TypeError, KeyError) as error:
                self.verdict.fail("deep_mismatches", f"the ledger cannot be read up to {upto}: {error}")
                return
            position = max(position, upto)
            self._compare(policy, version=version)

    def _first_erased(self, policy: Policy) -> int | None:
        """The first update that this policy cannot learn again; None if there is none."""
        pairs = self.ledger.read_with_decisions(after=0)
        return next((update.seq for update, decision in pairs if is_erased_for(policy, decision)), None)

    def _compare(self, policy: Policy, *, version: str) -> None:
        """The policy with a version that it has come to, and its pmfs with those that were logged."""
        info = self.known.get(version)
        if info is None:
            faults = [fault for one in self._decisions(version) if (fault := self._pmf_fault(one, policy=policy))]
            self.unlike[version] = min(self.unlike.get(version, faults), faults, key=len)
            return
        self._check_state(policy, info=info)
        for decision in self._decisions(version):
            self.verdict.deep_decisions += 1
            if is_erased_for(policy, decision):
                self.verdict.not_checkable += 1
            elif fault := self._pmf_fault(decision, policy=policy):
                self.verdict.fail("deep_mismatches", fault)

    def _check_state(self, policy: Policy, *, info: SnapshotInfo) -> None:
        """The sha256 of a version; where it differs and the policy is rounded, its arrays, while they are kept."""
        text = f"replaying to {info.last_seq} does not give {info.version}"
        try:
            apart = difference(policy, files=self.files, info=info)
        except SnapshotError as error:
            self.verdict.fail("deep_mismatches", f"{text}: {error}")
            return
        if apart is None and tolerance_of(policy) > 0.0:
            self.verdict.not_compared += 1
        elif apart is None or apart > tolerance_of(policy):
            self.verdict.fail("deep_mismatches", text if apart is None else f"{text}: it differs by {apart:.2g}")

    def _pmf_fault(self, decision: Decision, *, policy: Policy) -> str | None:
        """The fault if this policy does not reproduce the logged pmf; None if it does, or if that cannot be checked."""
        if decision.fault is not None or is_erased_for(policy, decision):
            return None  # the pmf was the fallback's, which the draw check covers, or nothing can make it again
        fault = mixture_fault(decision)
        if fault is None:
            alone = champion_part(decision)
            redrawn = _made_again(alone, policy=policy)
            if redrawn.fault is None and agrees(redrawn, decision=alone, tolerance=tolerance_of(policy)):
                return None
            fault = redrawn.fault or f"{decision.version} gives another pmf"
        return f"decision {decision.id}: {fault}"

    def _check_missing(self, version: str) -> None:
        """A version that no row describes, and whose row was not pruned: a mismatch, unless all was imported.

        What was imported tells its outcome: that row came in with the decision, in one transaction, and callers cannot
        write `made_by`. A decision that was here already, and was imported into one more ledger, has its own outcome.
        """
        query = select(outcomes.c.decision_id, outcomes.c.made_by)
        query = query.join_from(outcomes, decisions, decisions.c.id == outcomes.c.decision_id)
        with self.ledger.database.read() as connection:
            marks = connection.execute(query.where(outcomes.c.stop_reason == IMPORTED, *self._made_by(version)))
            came_in = {mark.decision_id for mark in marks if IMPORTED in json.loads(mark.made_by)}
        ours = [one.id for one in self._decisions(version)]
        self.verdict.not_checkable += len(came_in.intersection(ours))
        if not came_in.issuperset(ours):
            text = f"decisions were made by {version}, which no snapshot row describes"
            self.verdict.fail("deep_mismatches", text)


def is_of_another_release(algorithm: str, *, params: Mapping[str, Json]) -> bool:
    """Whether the policy, or the one that it wraps, had other params in an earlier release, and so learned otherwise.

    False for a policy that cannot be made without params.
    """
    inner = params.get("params")
    required: dict[str, Json] = {}
    if isinstance(inner, Mapping):
        if is_of_another_release(str(params["policy"]), params=inner):
            return True
        required = {name: params[name] for name in ("incumbent", "target") if name in params}
    try:
        now = make_policy(algorithm, params=required).params
    except RagBanditError:
        return False
    is_of_now = params.keys() - _OPTIONAL == now.keys() - _OPTIONAL
    return not is_of_now or params.get("revision") != now.get("revision")


def agrees(redrawn: Drawn, *, decision: Decision, tolerance: float) -> bool:
    """Whether a pmf equals the logged one within rounding; tied arms may exchange their probabilities."""
    if len(redrawn.pmf) != len(decision.pmf):
        return False
    least = max(PMF_ROUNDING, min(tolerance, _MOST_APART))

    def near(one: Sequence[float], other: Sequence[float]) -> bool:
        return all(abs(p - q) <= least for p, q in zip(one, other, strict=True))

    if near(redrawn.pmf, decision.pmf):
        return True
    if tolerance == 0.0 or redrawn.scores is None or not near(sorted(redrawn.pmf), sorted(decision.pmf)):
        return False
    moved = [score for score, p, q in zip(redrawn.scores, redrawn.pmf, decision.pmf, strict=True) if p != q]
    return max(moved) - min(moved) <= 2.0 * tolerance * max(map(abs, redrawn.scores))


def _made_again(decision: Decision, *, policy: Policy) -> Drawn:
    """The draw of this policy for the decision's question, over the arms and with the floor that were in force."""
    output: PolicyOutput | Exception
    try:
        output = pmf_of_one(policy, decision.served, features=decision.features, arms=decision.arms)
    except RagBanditError as error:
        output = error
    return draw(
        output,
        arms=decision.arms,
        floor=configured_floor(decision),
        fallback=decision.arm,
        seed=decision.seed,
        raised=raised_floors(decision.facts),
        holdback=holdback_of(decision.facts),
    )
