"""Audit of a store: repeats every draw, and learns the policy again from the ledger.

The relearned policy must have the sha256 of the live policy. If a policy has a `tolerance`, its state depends on the
rounding of the processor: then the arrays of both policies may differ by the tolerance.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import and_, func, or_, select

from ragbandit.router.learning.audit.checks import (
    MOST_NAMED,
    PAGE,
    AuditResult,
    DeepCheck,
    draw_fault,
    is_of_another_release,
    read_decisions,
    seed_fault,
)
from ragbandit.router.learning.audit.differences import snapshot_difference
from ragbandit.router.learning.audit.stored_rows import RowCheck
from ragbandit.router.learning.examples import is_erased_for
from ragbandit.router.learning.snapshots import SnapshotFiles, snapshot_sha256
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, apply_update, tolerance_of
from ragbandit.router.storage.access.shared_secrets import DRAWS, stored_secret
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts, or_unfilled
from ragbandit.router.storage.sql.counters import GONE, row_counts, stored_counts
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import RESTORE, SnapshotError, StoreError
from ragbandit.shared.types import (
    ERASED,
    IMPORTED,
    Decision,
    DecisionId,
    SnapshotInfo,
    StickyTurn,
    Update,
)


def verify(
    ledger: Ledger,
    *,
    files: SnapshotFiles,
    serving: Policy | None,
    deep: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> AuditResult:
    """Check the decisions and replay the ledger. Changes nothing.

    serving: a policy with the algorithm and params of the routers. None for an imported ledger without a policy: then
        rows are checked, and nothing is replayed
    deep: compute every pmf again, and compare the stored rows with each other
    progress: called with (checked decisions, all decisions)
    """
    verdict = AuditResult()
    for place in ledger.database.damages(most=MOST_NAMED - 1):
        verdict.fail("damages", f"the database is damaged: {place}")
    if verdict.damages:
        verdict.note(f"nothing else was checked; {RESTORE}")
        return verdict
    _check_counters(ledger, verdict=verdict)
    live = _live_snapshot(ledger, files=files, serving=serving, verdict=verdict)
    _check_draws(ledger, verdict=verdict, progress=progress)
    registered = ledger.policy_row()
    newest = ledger.latest_snapshots(limit=1)
    if live is not None or (registered is not None and registered["algorithm"] == IMPORTED):
        _replay(ledger, files=files, live=live, verdict=verdict)
    elif any(is_of_another_release(info.algorithm, params=info.params) for info in newest):
        text = "an earlier release learned it, and no learner has learned it again yet: start one; nothing to replay"
        verdict.note(text)
    elif ledger.last_seq() > 0:
        text = "the ledger has updates, but there is no snapshot of a policy that learned them"
        verdict.fail("ledger_mismatches", text)
    else:
        verdict.note("there is no snapshot yet")
    if deep and verdict.archived:
        verdict.note("the probabilities of decisions are not made again, since this needs every update")
    elif deep:
        DeepCheck(ledger, files=files, verdict=verdict).run()
    if deep:
        RowCheck(ledger, verdict=verdict, now=time.time()).run()
    return verdict


def _check_counters(ledger: Ledger, *, verdict: AuditResult) -> None:
    with ledger.database.read() as connection:  # one transaction, because other processes write
        counts, stored = row_counts(connection, label=ledger.label), stored_counts(connection, label=ledger.label)
    for name, count in counts.items():
        if stored[name] != count:
            text = f"the counter {name} is {stored[name]}, the tables have {count}: run `ragbandit verify --recount`"
            verdict.fail("counter_mismatches", text)


def _live_snapshot(
    ledger: Ledger, *, files: SnapshotFiles, serving: Policy | None, verdict: AuditResult
) -> SnapshotInfo | None:
    """The newest snapshot of the live policy, or None. Stores the sha256 of the snapshot's files in the verdict."""
    maker: dict[str, Any] = {}
    if serving is not None:
        maker = {"algorithm": serving.algorithm, "params": serving.params, "encoder_hash": ledger.encoder_hash()}
    newest = ledger.latest_snapshots(limit=1, **maker)
    if not newest:
        return None
    info = newest[0]
    verdict.live_version = info.version
    try:
        policy, _ = files.load(info)
    except SnapshotError as error:
        verdict.note(str(error))
        return info
    verdict.live_sha256 = snapshot_sha256(policy, info=info)
    return info


def _replay(ledger: Ledger, *, files: SnapshotFiles, live: SnapshotInfo | None, verdict: AuditResult) -> None:
    end, policy = _relearn(ledger, files=files, live=live, verdict=verdict)
    if end is None:
        return
    if live is None:
        verdict.note("the ledger was imported and no policy has learned it: there is nothing to replay")
        return
    if verdict.archived:
        effect = "is not compared with its ledger" if policy is None else "is learned again from a snapshot after them"
        verdict.note(f"{verdict.archived} updates left the store (docs/store.md#retention): the policy {effect}")
    if end < live.last_seq:
        verdict.fail("ledger_mismatches", f"the ledger ends at {end}, the live policy has {live.last_seq}")
    if policy is None:
        return
    verdict.replay_sha256 = snapshot_sha256(policy, info=live)
    if not verdict.live_sha256 or verdict.live_sha256 == verdict.replay_sha256:
        return
    if verdict.not_relearnable:
        reason = f"{verdict.not_relearnable} updates cannot be learned again, since what they learned from was erased"
        verdict.note(f"{reason}: the policy is not compared with its ledger; its snapshots stay in use")
        return
    distance = snapshot_difference(policy, files=files, info=live) if verdict.live_sha256 == live.sha256 else None
    if distance is None:
        verdict.note(f"the replay of the ledger does not give the live policy {live.version}")
    elif distance <= tolerance_of(policy):
        verdict.within_rounding = distance
        reason = "rounding, as by a release that computes in another order, another processor or number of threads"
        verdict.note(f"{live.version}: the replay differs by {distance:.2g}: {reason}")
    else:
        limit = tolerance_of(policy)
        verdict.note(f"{live.version}: the replay differs by {distance:.2g}, more than rounding ({limit:.2g})")


def _relearn(
    ledger: Ledger, *, files: SnapshotFiles, live: SnapshotInfo | None, verdict: AuditResult
) -> tuple[int | None, Policy | None]:
    """Check every update, and let an untrained copy of the live policy learn it.

    Returns (last update, policy). The last update is None if the ledger cannot be read. The policy is None if there is
    no live policy. If rows were removed, learning starts at a later snapshot; without one, the policy is None too.
    """
    policy, starts = None, dict[int, SnapshotInfo]()
    if live is not None:
        same = {"algorithm": live.algorithm, "params": live.params, "encoder_hash": live.encoder_hash}
        policy = make_policy(live.algorithm, params=live.params)
        starts = {info.last_seq: info for info in ledger.snapshots_to_try(**same)}
    seq, removed = 0, _removed_updates(ledger)
    try:
        for update, decision in ledger.read_with_decisions(after=0):
            verdict.updates += 1
            expected, seq = seq + 1, update.seq
            missing = seq - expected
            if 0 < missing <= removed - verdict.archived:
                verdict.archived += missing
                policy = None
            elif missing:
                verdict.fail("ledger_mismatches", f"the ledger has seq {seq} instead of {expected}")
            for fault in _update_faults(update, decision=decision):
                verdict.fail("ledger_mismatches", f"update {seq}: {fault}")
            if policy is None and seq in starts:
                with contextlib.suppress(SnapshotError):  # the files of this snapshot were deleted
                    policy, _ = files.load(starts[seq])
            elif policy is not None and live is not None and seq <= live.last_seq:
                if is_erased_for(policy, decision):
                    verdict.not_relearnable += 1
                else:
                    verdict.refused += not apply_update(policy, update)
    except (StoreError, ValueError, TypeError, KeyError) as error:
        verdict.fail("ledger_mismatches", f"the ledger cannot be read after update {seq}: {error}")
        return None, policy
    return seq, policy


def _update_faults(update: Update, *, decision: Decision) -> Iterator[str]:
    if update.arm != decision.arm:
        yield f"arm {update.arm}, the decision drew {decision.arm}"
    if update.propensity != decision.propensity:
        yield f"propensity {update.propensity}, the decision logged {decision.propensity}"
    reward = update.reward
    if reward.value != min(max(reward.quality - reward.weight * reward.cost, reward.minimum), reward.maximum):
        yield "the reward is not quality - weight * cost within its bounds"


def _removed_updates(ledger: Ledger) -> int:
    """Number of updates that `retention` deleted."""
    with ledger.database.read() as connection:
        deleted = stored_counts(connection, label=ledger.label, prefix=GONE)
    return deleted["learned"] + deleted["defaulted"]


def _check_draws(ledger: Ledger, *, verdict: AuditResult, progress: Callable[[int, int], None]) -> None:
    with ledger.database.read() as connection:
        total = int(connection.execute(select(func.count()).select_from(decisions)).scalar_one())

    def unreadable(text: str) -> None:
        verdict.decisions += 1
        verdict.fail("propensity_mismatches", text)

    turns: list[Decision] = []
    secret = stored_secret(ledger.database, name=DRAWS)
    for decision in read_decisions(ledger, unreadable=unreadable):
        _check_draw(decision, secret=secret, verdict=verdict)
        if _first_turn_of(decision) is not None:
            turns.append(decision)
        if verdict.decisions % PAGE == 0 or verdict.decisions == total:
            _check_turns(ledger, turns, verdict=verdict)
            turns = []
            progress(verdict.decisions, total)
    _check_turns(ledger, turns, verdict=verdict)


def _check_draw(decision: Decision, *, secret: bytes | None, verdict: AuditResult) -> None:
    verdict.decisions += 1
    verdict.erased += ERASED in decision.facts
    if IMPORTED in decision.facts:
        verdict.made_elsewhere += 1
        return
    fault = seed_fault(decision, secret=secret) or draw_fault(decision)
    if fault:
        verdict.fail("propensity_mismatches", f"decision {decision.id}: {fault}")


def _first_turn_of(decision: Decision) -> DecisionId | None:
    """Id of the decision whose arm this turn should have; None for a first or imported turn, or after a failed turn."""
    if IMPORTED in decision.facts or decision.query.continues.failed is not None:
        return None
    stay = StickyTurn.of(decision.facts)
    return decision.turn_of if stay is None else stay.first


def _check_turns(ledger: Ledger, turns: Sequence[Decision], *, verdict: AuditResult) -> None:
    """Count a mismatch for each turn with another arm than its decision, if the decision is still stored. If an earlier
    turn was moved to another arm, or another arm answered it after a failure, a turn may have any of these arms.
    """
    if not turns:
        return
    firsts = {str(_first_turn_of(decision)) for decision in turns}
    moved = and_(decisions.c.turn_of.in_(firsts), or_unfilled(decisions.c.is_moved))
    query = select(*decisions.c["id", "arm", "turn_of"], *FACT_COLUMNS).where(or_(decisions.c.id.in_(firsts), moved))
    arms = defaultdict[str, set[str]](set)
    with ledger.database.read() as connection:
        for row in connection.execute(query).mappings():
            if row["id"] in firsts or QueriedFacts.of_row(row).is_moved:
                arms[row["turn_of"] or row["id"]].add(row["arm"])
    for decision in turns:
        first = str(_first_turn_of(decision))
        if first in arms and decision.arm not in arms[first]:
            fault = f"the turn has the arm {decision.arm}, and {first} drew {', '.join(sorted(arms[first]))}"
            verdict.fail("propensity_mismatches", f"decision {decision.id}: {fault}")
