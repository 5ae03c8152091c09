"""Audit of a store by replay: every draw is made again, and the whole ledger is learned again (promises 2 and 4).

Nothing of the running system is trusted: seeds come from the ids, arms from pmf and seed, the policy from the ledger
alone.

Policies are compared by sha256. One that says a `tolerance` (it runs on torch) is rounded by the processor that learned
it: where only its sha256 differs, its arrays are compared.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select

from ragbandit.router.errors import RagBanditError, SnapshotError, StoreError
from ragbandit.router.learning.rounding import largest_difference
from ragbandit.router.learning.snapshots import SnapshotFiles, policy_sha256
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, PolicyOutput, apply, pmf_of_one, tolerance_of
from ragbandit.router.policies.draw import Drawn, choose, draw, raised_floors, seed_of
from ragbandit.router.storage.counters import counted, kept
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.storage.rows import decision_value, snapshot_value
from ragbandit.router.storage.tables import decisions, outcomes, snapshots
from ragbandit.router.types import IMPORTED, Decision, SnapshotInfo, Update

__all__ = ["Verdict", "draw_fault", "verify"]

#: mismatches that are described; all are counted
MOST_NAMED = 20
PAGE = 500


@dataclass(kw_only=True, slots=True)
class Verdict:
    """Counts of what was checked and of what did not agree. `ok` is the exit code's question."""

    decisions: int = 0
    #: of these, the ones that were not drawn by us: their draws cannot be made again
    made_elsewhere: int = 0
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
    #: with deep: versions of a rounded policy with another sha256, whose files are pruned, so that nothing can be
    #: compared but their decisions' pmfs
    not_compared: int = 0
    #: counters that differ from what is in the tables
    counter_mismatches: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No difference anywhere, but for rounding."""
        differences = self.propensity_mismatches + self.ledger_mismatches + self.deep_mismatches
        differences += self.counter_mismatches
        same = self.replay_sha256 == self.live_sha256 or self.within_rounding is not None
        return differences == 0 and same and not self.broken

    @property
    def broken(self) -> bool:
        """A snapshot that is needed could not be read."""
        return self.live_version != "" and self.live_sha256 == ""

    def note(self, text: str) -> None:
        """Name a mismatch, up to a number that a person reads."""
        if len(self.notes) < MOST_NAMED:
            self.notes.append(text)


def verify(
    ledger: Ledger,
    *,
    files: SnapshotFiles,
    serving: Policy | None,
    deep: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verdict:
    """Check every decision and replay the ledger; deep also makes every pmf again. Reads only.

    serving: any instance of the ledger's policy, whose newest snapshot is what the routers run; None where it has
    none. A ledger that was imported and that no router has opened has nothing to replay: its rows alone are checked.
    """
    verdict = Verdict()
    _check_counters(ledger, verdict=verdict)
    _check_draws(ledger, verdict=verdict, progress=progress)
    live = _live(ledger, files=files, serving=serving, verdict=verdict)
    registered = ledger.registered()
    if live is not None or (registered is not None and registered["algorithm"] == IMPORTED):
        _replay(ledger, files=files, live=live, verdict=verdict)
    elif ledger.last_seq() > 0:
        verdict.ledger_mismatches += 1
        verdict.note("the ledger has updates, but no snapshot is known of any policy that learned them")
    else:
        verdict.note("there is no snapshot yet")
    if deep:
        _check_deep(ledger, files=files, verdict=verdict)
    return verdict


def _pages(ledger: Ledger, *where: Any, unreadable: Callable[[str], None] = lambda _: None) -> Iterator[Decision]:
    """The decisions, in the order of ids; what cannot be read is handed to `unreadable` instead."""
    after = ""
    while True:
        with ledger.database.read() as connection:
            rows = (
                connection.execute(
                    select(decisions).where(decisions.c.id > after, *where).order_by(decisions.c.id).limit(PAGE)
                )
                .mappings()
                .all()
            )
        if not rows:
            return
        for row in rows:
            try:
                decision = decision_value(row)
            except (ValueError, TypeError, KeyError) as error:
                unreadable(f"decision {row['id']}: cannot be read: {error}")
                continue
            yield decision
        after = rows[-1]["id"]


def _check_counters(ledger: Ledger, *, verdict: Verdict) -> None:
    with ledger.database.read() as connection:  # one state: writers go on beside it
        right, found = counted(connection, label=ledger.label), kept(connection, label=ledger.label)
    for name, count in right.items():
        if found[name] != count:
            verdict.counter_mismatches += 1
            verdict.note(f"the counter {name} is {found[name]}, the tables have {count}: run `ragbandit recount`")


def _check_draws(ledger: Ledger, *, verdict: Verdict, progress: Callable[[int, int], None]) -> None:
    with ledger.database.read() as connection:
        total = int(connection.execute(select(func.count()).select_from(decisions)).scalar_one())

    def unreadable(text: str) -> None:
        verdict.decisions += 1
        verdict.propensity_mismatches += 1
        verdict.note(text)

    for decision in _pages(ledger, unreadable=unreadable):
        verdict.decisions += 1
        elsewhere = IMPORTED in decision.facts
        verdict.made_elsewhere += elsewhere
        wrong = None if elsewhere else draw_fault(decision)
        if wrong:
            verdict.propensity_mismatches += 1
            verdict.note(f"decision {decision.id}: {wrong}")
        if verdict.decisions % PAGE == 0 or verdict.decisions == total:
            progress(verdict.decisions, total)


def draw_fault(decision: Decision) -> str | None:
    """The first disagreement in one row, or None."""
    pmf = decision.pmf
    if len(pmf) != len(decision.arms) or decision.arm not in decision.arms:
        return "arms and pmf do not fit together"
    if not all(math.isfinite(p) and 0.0 <= p <= 1.0 for p in pmf) or abs(math.fsum(pmf) - 1.0) > 1e-9:
        return f"pmf is no distribution: {pmf}"
    if min(pmf) < min(decision.floor, 1.0 / len(pmf)) - 1e-12:
        return f"pmf falls below the floor {decision.floor}"
    if decision.seed != seed_of(decision.id):
        return "the seed does not follow from the id"
    index = choose(pmf, seed=decision.seed)
    if decision.arms[index] != decision.arm:
        return f"the draw gives {decision.arms[index]}, the row says {decision.arm}"
    if pmf[index] != decision.propensity:
        return f"propensity {decision.propensity} is not the pmf's {pmf[index]}"
    return None


def _live(ledger: Ledger, *, files: SnapshotFiles, serving: Policy | None, verdict: Verdict) -> SnapshotInfo | None:
    """The newest snapshot, its sha256 taken from the policy that its files restore."""
    newest = ledger.latest_snapshots(
        limit=1,
        algorithm=None if serving is None else serving.algorithm,
        params=None if serving is None else serving.params,
    )
    if not newest:
        return None
    info = newest[0]
    verdict.live_version = info.version
    try:
        policy, _ = files.load(info)
    except SnapshotError as error:
        verdict.note(str(error))
        return info
    verdict.live_sha256 = policy_sha256(
        policy, label=info.policy, last_seq=info.last_seq, encoder_hash=info.encoder_hash
    )
    return info


def _replay(ledger: Ledger, *, files: SnapshotFiles, live: SnapshotInfo | None, verdict: Verdict) -> None:
    """Check every update, and learn those of the live policy again, if there is one."""
    policy = None if live is None else make_policy(live.algorithm, params=live.params)
    try:
        _learn_again(ledger, policy=policy, upto=0 if live is None else live.last_seq, verdict=verdict)
    except (StoreError, ValueError, TypeError, KeyError) as error:
        verdict.ledger_mismatches += 1
        verdict.note(f"the ledger cannot be read after update {verdict.updates}: {error}")
        return
    if live is None or policy is None:
        verdict.note("the ledger was imported and no policy has learned it: there is nothing to replay")
        return
    if verdict.updates < live.last_seq:
        verdict.ledger_mismatches += 1
        verdict.note(f"the ledger ends at {verdict.updates}, the live policy has {live.last_seq}")
    verdict.replay_sha256 = policy_sha256(
        policy, label=live.policy, last_seq=live.last_seq, encoder_hash=live.encoder_hash
    )
    if not verdict.live_sha256 or verdict.live_sha256 == verdict.replay_sha256:
        return
    if verdict.live_sha256 == live.sha256 and tolerance_of(policy) > 0.0:
        apart = _apart(policy, files=files, info=live)
        if apart <= tolerance_of(policy):
            verdict.within_rounding = apart
            verdict.note(f"{live.version}: {_told(policy, apart=apart)}: rounding by another processor explains it")
            return
        verdict.note(f"{live.version}: {_told(policy, apart=apart)}: more than rounding")
    verdict.note(f"the replay of the ledger does not give the live policy {live.version}")


def _apart(policy: Policy, *, files: SnapshotFiles, info: SnapshotInfo) -> float:
    """The largest relative difference between a replayed policy and its snapshot. Raises SnapshotError."""
    stored, _ = files.load(info)
    return largest_difference(policy.state(), stored.state())


def _told(policy: Policy, *, apart: float) -> str:
    return f"the replay differs by {apart:.2g} of an array, {tolerance_of(policy):.2g} is allowed"


def _learn_again(ledger: Ledger, *, policy: Policy | None, upto: int, verdict: Verdict) -> None:
    for update, decision in ledger.read_with_decisions(after=0):
        verdict.updates += 1
        if update.seq != verdict.updates:
            verdict.ledger_mismatches += 1
            verdict.note(f"the ledger has seq {update.seq} where {verdict.updates} belongs")
            verdict.updates = update.seq
        for wrong in _update_faults(update, decision=decision):
            verdict.ledger_mismatches += 1
            verdict.note(f"update {update.seq}: {wrong}")
        if policy is not None and update.seq <= upto:
            verdict.refused += not apply(policy, update)


def _update_faults(update: Update, *, decision: Decision) -> Iterator[str]:
    """Disagreements between a ledger row, its decision and its own parts."""
    if update.arm != decision.arm:
        yield f"arm {update.arm}, the decision drew {decision.arm}"
    if update.propensity != decision.propensity:
        yield f"propensity {update.propensity}, the decision logged {decision.propensity}"
    reward = update.reward
    if reward.value != min(max(reward.quality - reward.weight * reward.cost, reward.minimum), reward.maximum):
        yield "the reward is not quality - weight * cost within its bounds"


def _check_deep(ledger: Ledger, *, files: SnapshotFiles, verdict: Verdict) -> None:
    """Walk the ledger once per (algorithm, params), and at every version make its decisions' pmfs again."""
    with ledger.database.read() as connection:
        made = connection.execute(select(snapshots).where(snapshots.c.policy == ledger.label)).mappings().all()
        versions = connection.execute(
            select(decisions.c.version).where(decisions.c.policy == ledger.label).distinct()
        ).scalars()
        used = set(versions)
    known = {row["version"]: snapshot_value(row) for row in made}
    for version in sorted(used - set(known)):
        _check_unknown(ledger, version=version, verdict=verdict)
    walks: dict[tuple[str, str], list[SnapshotInfo]] = defaultdict(list)
    for version in used & set(known):
        info = known[version]
        walks[info.algorithm, json.dumps(dict(info.params), sort_keys=True)].append(info)
    for (algorithm, params), infos in walks.items():
        try:
            policy, position = make_policy(algorithm, params=json.loads(params)), 0
        except RagBanditError as error:  # a table, a package or a param of a former policy that is gone
            verdict.deep_mismatches += 1
            verdict.note(f"{algorithm} cannot be made again: {error}")
            continue
        if not policy.deterministic:
            verdict.note(f"{algorithm} does not give the same pmf twice: its decisions are not made again")
            continue
        for info in sorted(infos, key=lambda one: (one.last_seq, one.version)):
            try:
                for update in ledger.read(after=position, upto=info.last_seq):
                    apply(policy, update)
            except (StoreError, ValueError, TypeError, KeyError) as error:
                verdict.deep_mismatches += 1
                verdict.note(f"the ledger cannot be read up to {info.last_seq}: {error}")
                break
            position = max(position, info.last_seq)
            _check_version(ledger, files=files, info=info, policy=policy, verdict=verdict)


def _check_unknown(ledger: Ledger, *, version: str, verdict: Verdict) -> None:
    """A version that this store has no snapshot of is a mismatch, unless all that it decided was imported.

    What was imported tells its outcome: that row came in with the decision, in one transaction, and callers cannot
    write `made_by`. A decision that was here already, and was imported into one more ledger, has its own outcome.
    """
    mine = decisions.c.version == version, decisions.c.policy == ledger.label
    query = select(outcomes.c.decision_id, outcomes.c.made_by).join(decisions, decisions.c.id == outcomes.c.decision_id)
    with ledger.database.read() as connection:
        marks = connection.execute(query.where(outcomes.c.stop_reason == IMPORTED, *mine))
        came_in = {mark.decision_id for mark in marks if IMPORTED in json.loads(mark.made_by)}
    ours = [decision.id for decision in _pages(ledger, *mine) if IMPORTED not in decision.facts]
    verdict.not_checkable += len(came_in.intersection(ours))
    if not came_in.issuperset(ours):
        verdict.deep_mismatches += 1
        verdict.note(f"decisions were made by {version}, which no snapshot row describes")


def _check_version(
    ledger: Ledger, *, files: SnapshotFiles, info: SnapshotInfo, policy: Policy, verdict: Verdict
) -> None:
    _check_state(files=files, info=info, policy=policy, verdict=verdict)
    tolerance = tolerance_of(policy)
    for decision in _pages(ledger, decisions.c.version == info.version, decisions.c.policy == ledger.label):
        if IMPORTED in decision.facts:
            continue
        verdict.deep_decisions += 1
        if decision.fault is not None:
            continue  # the pmf was the fallback's: the draw check has covered it
        made = _made_again(decision, policy=policy)
        if made.fault is not None:
            verdict.note(f"decision {decision.id}: {made.fault}")
        if made.fault is not None or not _agrees(made, decision=decision, tolerance=tolerance):
            verdict.deep_mismatches += 1
            verdict.note(f"decision {decision.id}: {info.version} gives another pmf")


def _check_state(*, files: SnapshotFiles, info: SnapshotInfo, policy: Policy, verdict: Verdict) -> None:
    """The sha256 of a version, or for a policy that is rounded by the processor its arrays, while they are kept."""
    sha256 = policy_sha256(policy, label=info.policy, last_seq=info.last_seq, encoder_hash=info.encoder_hash)
    if sha256 == info.sha256:
        return
    why = ""
    if tolerance_of(policy) > 0.0:
        if not files.exists(info.version):
            verdict.not_compared += 1
            return
        try:
            apart = _apart(policy, files=files, info=info)
        except SnapshotError as error:
            why = f": {error}"
        else:
            if apart <= tolerance_of(policy):
                return
            why = f": {_told(policy, apart=apart)}"
    verdict.deep_mismatches += 1
    verdict.note(f"replaying to {info.last_seq} does not give {info.version}{why}")


def _agrees(made: Drawn, *, decision: Decision, tolerance: float) -> bool:
    """Whether a pmf is the logged one; of a rounded policy, arms whose scores are a tie within rounding may trade."""
    if made.pmf == decision.pmf:
        return True
    if tolerance == 0.0 or made.scores is None:
        return False
    moved = [score for score, p, q in zip(made.scores, made.pmf, decision.pmf, strict=True) if p != q]
    return max(moved) - min(moved) <= 2.0 * tolerance * max(map(abs, made.scores))


def _made_again(decision: Decision, *, policy: Policy) -> Drawn:
    """The draw of this policy for the decision's question, over the arms and with the floor that were in force."""
    output: PolicyOutput | Exception
    try:
        output = pmf_of_one(policy, decision.query, features=decision.features, arms=decision.arms)
    except RagBanditError as error:
        output = error
    return draw(
        output,
        arms=decision.arms,
        floor=decision.floor,
        fallback=decision.arm,
        seed=decision.seed,
        raised=raised_floors(decision.facts),
    )
