"""Audit of a store by replay: every draw is made again, and the ledger is learned again (promises 2 and 4).

Nothing of the running system is trusted: seeds come from the ids and the store's secret, arms from pmf and seed, the
policy from the ledger alone.

Policies are compared by sha256. One that says a `tolerance` (it runs on torch) is rounded by the processor that learned
it: where only its sha256 differs, its arrays are compared.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import func, select

from ragbandit.router.config.named_sections import value_at
from ragbandit.router.learning.audit.checks import (
    MOST_NAMED,
    PAGE,
    DeepCheck,
    Verdict,
    difference,
    draw_fault,
    is_of_another_release,
    pages,
    seed_fault,
    sha256_after,
    update_faults,
)
from ragbandit.router.learning.examples import is_erased_for
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, apply, tolerance_of
from ragbandit.router.policies.draw import seed_of
from ragbandit.router.storage.access.audit_log import ARCHIVED, last_entry
from ragbandit.router.storage.access.spending import DRAWS, Secret, known_secret
from ragbandit.router.storage.ledgers.inheritance import replaced_encoders
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.counters import counted, gone, kept
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import RESTORE, SnapshotError, StoreError
from ragbandit.shared.types import ERASED, IMPORTED, STICKY, Decision, SnapshotInfo


def verify(
    ledger: Ledger,
    *,
    files: SnapshotFiles,
    serving: Policy | None,
    deep: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verdict:
    """Check the decisions and replay the ledger. Reads only.

    serving: an instance of the ledger's policy, whose newest snapshot the routers run; None for an imported ledger that
    no router has opened: only its rows are checked. deep: every pmf is computed again.
    """
    verdict = Verdict()
    for place in ledger.database.damages(most=MOST_NAMED - 1):
        verdict.fail("damages", f"the database is damaged: {place}")
    if verdict.damages:
        verdict.note(f"nothing else was checked; {RESTORE}")
        return verdict
    _check_counters(ledger, verdict=verdict)
    live = _live(ledger, files=files, serving=serving, verdict=verdict)
    _check_draws(ledger, verdict=verdict, progress=progress)
    if verdict.seeded_by_id:
        verdict.note(
            f"{verdict.seeded_by_id} decisions have seeds of their ids alone: an earlier release made them beside this "
            "one, or they were imported without their seeds; callers who name ids could foresee such draws"
        )
    registered = ledger.registered()
    if live is not None or (registered is not None and registered["algorithm"] == IMPORTED):
        _replay(ledger, files=files, live=live, verdict=verdict)
    elif any(one.encoder_hash in replaced_encoders(ledger.database) for one in ledger.latest_snapshots(limit=1)):
        verdict.note("its features were made again, and no learner has learned the ledger again yet: nothing to replay")
    elif any(is_of_another_release(one.algorithm, params=one.params) for one in ledger.latest_snapshots(limit=1)):
        verdict.note(
            "an earlier release learned it, and no learner has learned it again yet: start one; nothing to replay"
        )
    elif ledger.last_seq() > 0:
        lost = "the ledger has updates, but no snapshot is known of any policy that learned them"
        verdict.fail("ledger_mismatches", lost)
    else:
        verdict.note("there is no snapshot yet")
    if deep and verdict.archived:
        verdict.note("the probabilities of decisions are not made again, since that takes every update")
    elif deep:
        DeepCheck(ledger, files=files, verdict=verdict).run()
    return verdict


def _check_counters(ledger: Ledger, *, verdict: Verdict) -> None:
    with ledger.database.read() as connection:  # one state, since writers go on
        right, stored = counted(connection, label=ledger.label), kept(connection, label=ledger.label)
    for name, count in right.items():
        if stored[name] != count:
            text = f"the counter {name} is {stored[name]}, the tables have {count}: run `ragbandit verify --recount`"
            verdict.fail("counter_mismatches", text)


def _live(ledger: Ledger, *, files: SnapshotFiles, serving: Policy | None, verdict: Verdict) -> SnapshotInfo | None:
    """The newest snapshot, its sha256 taken from the policy that its files restore."""
    of: dict[str, Any] = {}
    if serving is not None:
        of = {"algorithm": serving.algorithm, "params": serving.params, "encoder_hash": ledger.encoder_hash()}
    newest = ledger.latest_snapshots(limit=1, **of)
    if not newest:
        return None
    info = newest[0]
    verdict.live_version = info.version
    try:
        policy, _ = files.load(info)
    except SnapshotError as error:
        verdict.note(str(error))
        return info
    verdict.live_sha256 = sha256_after(policy, info=info)
    return info


def _replay(ledger: Ledger, *, files: SnapshotFiles, live: SnapshotInfo | None, verdict: Verdict) -> None:
    """Check the updates, learn those of the live policy again, if there is one, and compare it."""
    end, policy = _learned(ledger, files=files, live=live, verdict=verdict)
    if end is None:
        return
    if live is None:
        verdict.note("the ledger was imported and no policy has learned it: there is nothing to replay")
        return
    if verdict.archived:
        compared = (
            "is not compared with its ledger" if policy is None else "is learned again from a snapshot after them"
        )
        verdict.note(f"{verdict.archived} updates left the store (docs/store.md#retention): the policy {compared}")
    if end < live.last_seq:
        verdict.fail("ledger_mismatches", f"the ledger ends at {end}, the live policy has {live.last_seq}")
    if policy is None:
        return
    verdict.replay_sha256 = sha256_after(policy, info=live)
    if not verdict.live_sha256 or verdict.live_sha256 == verdict.replay_sha256:
        return
    if verdict.not_relearnable:
        lost = f"{verdict.not_relearnable} updates cannot be learned again, since what they learned from was erased"
        verdict.note(f"{lost}: the policy is not compared with its ledger; its snapshots stay in use")
        return
    apart = difference(policy, files=files, info=live) if verdict.live_sha256 == live.sha256 else None
    if apart is None:
        verdict.note(f"the replay of the ledger does not give the live policy {live.version}")
    elif apart <= tolerance_of(policy):
        verdict.within_rounding = apart
        why = "rounding by another processor or number of threads explains it"
        verdict.note(f"{live.version}: the replay differs by {apart:.2g}: {why}")
    else:
        allowed = tolerance_of(policy)
        verdict.note(f"{live.version}: the replay differs by {apart:.2g}, more than rounding ({allowed:.2g})")


def _learned(
    ledger: Ledger, *, files: SnapshotFiles, live: SnapshotInfo | None, verdict: Verdict
) -> tuple[int | None, Policy | None]:
    """Check every update, and learn those of the live policy again.

    Returns the ledger's end, None if it cannot be read; and the policy, None if rows left the store and there is no
    snapshot from after them to start from.
    """
    policy, starts = None, dict[int, SnapshotInfo]()
    if live is not None:
        same = {"algorithm": live.algorithm, "params": live.params, "encoder_hash": live.encoder_hash}
        policy = make_policy(live.algorithm, params=live.params)
        starts = {one.last_seq: one for one in ledger.snapshots_to_try(**same)}
    seq, absent = 0, _absent(ledger)
    try:
        for update, decision in ledger.read_with_decisions(after=0):
            verdict.updates += 1
            missing, expected, seq = update.seq - seq - 1, seq + 1, update.seq
            if 0 < missing <= absent - verdict.archived:
                verdict.archived += missing
                policy = None
            elif missing:
                verdict.fail("ledger_mismatches", f"the ledger has seq {seq} where {expected} belongs")
            for fault in update_faults(update, decision=decision):
                verdict.fail("ledger_mismatches", f"update {seq}: {fault}")
            if policy is None and seq in starts:
                policy = _restored(starts[seq], files=files)
            elif policy is not None and live is not None and seq <= live.last_seq:
                if is_erased_for(policy, decision):
                    verdict.not_relearnable += 1
                else:
                    verdict.refused += not apply(policy, update)
    except (StoreError, ValueError, TypeError, KeyError) as error:
        verdict.fail("ledger_mismatches", f"the ledger cannot be read after update {seq}: {error}")
        return None, policy
    return seq, policy


def _restored(info: SnapshotInfo, *, files: SnapshotFiles) -> Policy | None:
    try:
        return files.load(info)[0]
    except SnapshotError:  # its files are not kept
        return None


def _absent(ledger: Ledger) -> int:
    """How many updates left the store: by `retention`, or moved into files by an earlier release."""
    with ledger.database.read() as connection:
        entry, left = last_entry(connection, action=ARCHIVED, target="store"), gone(connection, label=ledger.label)
    spans: Any = {} if entry is None else entry.facts["spans"]
    archived = sum(last - first + 1 for first, last in spans.get(ledger.label, []))
    return left["learned"] + left["defaulted"] + int(archived)


def _check_draws(ledger: Ledger, *, verdict: Verdict, progress: Callable[[int, int], None]) -> None:
    """Draw every decision again."""
    with ledger.database.read() as connection:
        total = int(connection.execute(select(func.count()).select_from(decisions)).scalar_one())

    def unreadable(text: str) -> None:
        verdict.decisions += 1
        verdict.fail("propensity_mismatches", text)

    stayed: list[Decision] = []
    secret = known_secret(ledger.database, name=DRAWS)
    for decision in pages(ledger, unreadable=unreadable):
        _check_draw(decision, secret=secret, verdict=verdict)
        if STICKY in decision.facts and IMPORTED not in decision.facts:
            stayed.append(decision)
        if verdict.decisions % PAGE == 0 or verdict.decisions == total:
            _check_stays(ledger, stayed, verdict=verdict)
            stayed = []
            progress(verdict.decisions, total)
    _check_stays(ledger, stayed, verdict=verdict)


def _check_draw(decision: Decision, *, secret: Secret | None, verdict: Verdict) -> None:
    verdict.decisions += 1
    elsewhere = IMPORTED in decision.facts
    verdict.made_elsewhere += elsewhere
    verdict.erased += ERASED in decision.facts
    if elsewhere:
        return
    # An earlier release that runs at the same time draws so.
    verdict.seeded_by_id += (
        secret is not None and decision.made_at >= secret.made_at and decision.seed == seed_of(decision.id)
    )
    fault = seed_fault(decision, secret=None if secret is None else secret.value) or draw_fault(decision)
    if fault:
        verdict.fail("propensity_mismatches", f"decision {decision.id}: {fault}")


def _check_stays(ledger: Ledger, stayed: Sequence[Decision], *, verdict: Verdict) -> None:
    """Compare turns that stayed on an arm with the draws that they name, if these are still stored."""
    firsts = [(one, value_at(one.facts, (STICKY, "first"))) for one in stayed]
    pairs = [(one, first) for one, first in firsts if isinstance(first, str)]
    known = select(decisions.c.id, decisions.c.arm).where(decisions.c.id.in_({first for _, first in pairs}))
    with ledger.database.read() as connection:
        arms = {row.id: row.arm for row in connection.execute(known)}
    for decision, first in pairs:
        if arms.get(first, decision.arm) != decision.arm:
            stayed_on = f"it stayed on {decision.arm}, and {first} drew {arms[first]}"
            verdict.fail("propensity_mismatches", f"decision {decision.id}: {stayed_on}")
