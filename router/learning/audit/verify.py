"""Audit of a store by replay: every draw is made again, and the ledger is learned again (promises 2 and 4).

Nothing of the running system is trusted: seeds come from the ids and the store's secret, arms from pmf and seed, the
policy from the ledger alone. What an earlier audit has found right, up to a checkpoint, is not looked at again unless
the whole is asked for: it begins at that checkpoint, whose sha256 and chain the database has.

Policies are compared by sha256. One that says a `tolerance` (it runs on torch) is rounded by the processor that learned
it: where only its sha256 differs, its arrays are compared.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ragbandit.router.learning.audit.calibration_check import CalibrationCheck
from ragbandit.router.learning.audit.deep_check import check_deep
from ragbandit.router.learning.audit.draw_check import check_archive, check_draws, decided_before
from ragbandit.router.learning.audit.rounding import compared, sha256_after
from ragbandit.router.learning.audit.rules import update_faults
from ragbandit.router.learning.audit.verdict import Verdict
from ragbandit.router.learning.checkpoints import Checkpoints
from ragbandit.router.learning.lessons import is_erased_for
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, apply
from ragbandit.router.storage.ledgers.chain import START, link
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.ledgers.registration import replaced_encoders
from ragbandit.router.storage.sql.counters import counted, kept
from ragbandit.shared.errors import SnapshotError, StoreError
from ragbandit.shared.formats import moment
from ragbandit.shared.types import IMPORTED, Checkpoint, SnapshotInfo

#: A decision counts as one that was there when an audit began if it was made that long before: clocks of hosts differ,
#: and a commit takes its time. Seconds.
SETTLED_S: Final = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Base:
    """Where an audit begins: a verified checkpoint, and the policy that its files hold."""

    policy: Policy
    checkpoint: Checkpoint

    @property
    def seq(self) -> int:
        return self.checkpoint.snapshot.last_seq


def verify(
    ledger: Ledger,
    *,
    files: SnapshotFiles,
    serving: Policy | None,
    checkpoints: Checkpoints | None = None,
    whole: bool = False,
    deep: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verdict:
    """Check the decisions and replay the ledger, from the newest checkpoint that an audit has passed before.

    serving: any instance of the ledger's policy, whose newest snapshot is what the routers run; None where it has
    none. A ledger that was imported and that no router has opened has nothing to replay: its rows alone are checked.
    checkpoints: of the ledger; without them, or where none has been passed, the whole is checked. whole: all of it in
    any case. deep: the whole, and every pmf made again. Reads only, but for a note at a checkpoint that it was passed.
    """
    verdict, settled = Verdict(), time.time() - SETTLED_S
    there = decided_before(ledger, at=settled)
    _check_counters(ledger, verdict=verdict)
    live = _live(ledger, files=files, serving=serving, verdict=verdict)
    base = None
    if checkpoints is not None and live is not None and not (whole or deep):
        base = _base(checkpoints, live=live)
    since = _since(ledger, base=base, verdict=verdict)
    check_draws(ledger, since=since, verdict=verdict, progress=progress)
    if since is None:
        check_archive(ledger, verdict=verdict, progress=progress)
    if verdict.seeded_by_id:
        verdict.note(
            f"{verdict.seeded_by_id} decisions have seeds of their ids alone: an earlier release made them beside this "
            "one, or they were imported without their seeds; callers who name ids could foresee such draws"
        )
    registered = ledger.registered()
    passed: Checkpoint | None = None
    if live is not None or (registered is not None and registered["algorithm"] == IMPORTED):
        passed = _replay(ledger, files=files, live=live, base=base, checkpoints=checkpoints, verdict=verdict)
    elif any(one.encoder_hash in replaced_encoders(ledger.database) for one in ledger.latest_snapshots(limit=1)):
        verdict.note("its features were made again, and no learner has learned the ledger again yet: nothing to replay")
    elif ledger.last_seq() > 0:
        lost = "the ledger has updates, but no snapshot is known of any policy that learned them"
        verdict.fail("ledger_mismatches", lost)
    else:
        verdict.note("there is no snapshot yet")
    if checkpoints is not None:
        _check_chain(checkpoints, base=base, verdict=verdict)
    if deep:
        check_deep(ledger, files=files, verdict=verdict)
    if checkpoints is not None and passed is not None and verdict.ok:
        _remember(checkpoints, passed=passed, settled=settled, there=there, verdict=verdict)
    return verdict


def _base(checkpoints: Checkpoints, *, live: SnapshotInfo) -> _Base | None:
    fresh = make_policy(live.algorithm, params=live.params)
    usable = checkpoints.usable(fresh, encoder_hash=live.encoder_hash, upto=live.last_seq, verified=True)
    return next((_Base(policy=policy, checkpoint=checkpoint) for policy, checkpoint in usable), None)


def _since(ledger: Ledger, *, base: _Base | None, verdict: Verdict) -> float | None:
    """The time from which decisions are checked; None: all. Says what is left out."""
    if base is None:
        return None
    known = base.checkpoint
    assert known.verified_at is not None
    at = moment(known.verified_at)
    verdict.from_checkpoint, verdict.verified_at = known.snapshot.version, known.verified_at
    verdict.skipped_updates = base.seq
    there = 0 if known.decided_before is None else decided_before(ledger, at=known.decided_before)
    if known.decided_before is None or there != known.decisions:
        verdict.note(
            f"not checked again: updates 1 to {base.seq}, which the verify of {at} passed; every decision is, since "
            f"{known.decisions} of that time have become {there} (an import, an archive or a deletion)"
        )
        return None
    verdict.skipped_decisions = there
    verdict.note(
        f"not checked again: {there} decisions and updates 1 to {base.seq}, which the verify of {at} passed; "
        "`ragbandit verify --whole` checks them too"
    )
    return known.decided_before


def _remember(checkpoints: Checkpoints, *, passed: Checkpoint, settled: float, there: int, verdict: Verdict) -> None:
    try:
        checkpoints.rows.mark_verified(passed.snapshot.version, at=time.time(), decided_before=settled, decisions=there)
    except StoreError as error:  # a database that may only be read
        verdict.note(f"the next verify cannot go on from here: {error.message}")


def _check_counters(ledger: Ledger, *, verdict: Verdict) -> None:
    with ledger.database.read() as connection:  # one state: writers go on beside it
        right, stored = counted(connection, label=ledger.label), kept(connection, label=ledger.label)
    for name, count in right.items():
        if stored[name] != count:
            text = f"the counter {name} is {stored[name]}, the tables have {count}: run `ragbandit data recount`"
            verdict.fail("counter_mismatches", text)


def _check_chain(checkpoints: Checkpoints, *, base: _Base | None, verdict: Verdict) -> None:
    """Make the sha256 chain again from the rows, and compare it at every checkpoint and at its end."""
    seq, last = START if base is None else (base.seq, base.checkpoint.chain)
    end, kept_last = checkpoints.chain.end()
    right = {known.snapshot.last_seq: known.chain for known in checkpoints.rows.newest()} | {end: kept_last}
    try:
        for row in checkpoints.chain.rows(after=seq, upto=end):
            seq, last = row["seq"], link(last, row)
            if right.get(seq, last) != last:
                text = f"an update up to {seq} is not the one that was learned: the chain differs there"
                verdict.fail("chain_mismatches", text)
                return
    except (StoreError, ValueError, TypeError, KeyError) as error:
        verdict.fail("chain_mismatches", f"the chain cannot be made again after update {seq}: {error}")
        return
    if seq < end:
        verdict.fail("chain_mismatches", f"the ledger ends at {seq}, its chain at {end}")


def _live(ledger: Ledger, *, files: SnapshotFiles, serving: Policy | None, verdict: Verdict) -> SnapshotInfo | None:
    """The newest snapshot, its sha256 taken from the policy that its files restore."""
    newest = ledger.latest_snapshots(
        limit=1,
        algorithm=None if serving is None else serving.algorithm,
        params=None if serving is None else serving.params,
        encoder_hash=None if serving is None else ledger.encoder_hash(),
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
    verdict.live_sha256 = sha256_after(policy, info=info)
    return info


def _replay(
    ledger: Ledger,
    *,
    files: SnapshotFiles,
    live: SnapshotInfo | None,
    base: _Base | None,
    checkpoints: Checkpoints | None,
    verdict: Verdict,
) -> Checkpoint | None:
    """Check the updates, and learn those of the live policy again, if there is one; the last checkpoint passed."""
    policy = None if live is None else make_policy(live.algorithm, params=live.params) if base is None else base.policy
    replay = _Replay(ledger, policy=policy, live=live, base=base, checkpoints=checkpoints, verdict=verdict)
    try:
        replay.run()
    except (StoreError, ValueError, TypeError, KeyError) as error:
        verdict.fail("ledger_mismatches", f"the ledger cannot be read after update {replay.seq}: {error}")
        return None
    if live is None or policy is None:
        verdict.note("the ledger was imported and no policy has learned it: there is nothing to replay")
        return None
    if replay.seq < live.last_seq:
        verdict.fail("ledger_mismatches", f"the ledger ends at {replay.seq}, the live policy has {live.last_seq}")
    verdict.replay_sha256 = sha256_after(policy, info=live)
    if not verdict.live_sha256 or verdict.live_sha256 == verdict.replay_sha256:
        return replay.passed
    if verdict.not_relearnable:
        lost = f"{verdict.not_relearnable} updates cannot be learned again, since what they learned from was erased"
        verdict.note(f"{lost}: the policy is not compared with its ledger; snapshots and checkpoints go on")
        return None
    if verdict.live_sha256 == live.sha256:
        comparison = compared(policy, files=files, info=live)
        if comparison.result == "rounding":
            verdict.within_rounding = comparison.apart
            verdict.note(f"{live.version}: {comparison.text}: rounding by another processor explains it")
            return replay.passed
        if comparison.text:
            verdict.note(f"{live.version}: {comparison.text}: more than rounding")
    verdict.note(f"the replay of the ledger does not give the live policy {live.version}")
    return None


class _Replay:
    """The updates from a place on, each checked, and learned as far as the live policy has learned."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        policy: Policy | None,
        live: SnapshotInfo | None,
        base: _Base | None,
        checkpoints: Checkpoints | None,
        verdict: Verdict,
    ) -> None:
        self.ledger, self.policy, self.verdict = ledger, policy, verdict
        self.upto = 0 if live is None else live.last_seq
        #: the last seq that was read; the last checkpoint that the replay has given again
        self.seq = 0 if base is None else base.seq
        self.passed = None if base is None else base.checkpoint
        self._files = None if checkpoints is None else checkpoints.files
        self._due: dict[int, Checkpoint] = {}
        if checkpoints is not None and live is not None:
            known = checkpoints.rows.newest(
                algorithm=live.algorithm, params=live.params, encoder_hash=live.encoder_hash
            )
            self._due = {one.snapshot.last_seq: one for one in known}

    def run(self) -> None:
        """Read to the ledger's end. Raises StoreError and others for a row that cannot be read."""
        verdict, calibration = self.verdict, CalibrationCheck(self.ledger, after=self.seq)
        for update, decision in self.ledger.read_with_decisions(after=self.seq):
            verdict.updates += 1
            self.seq += 1
            if update.seq != self.seq:
                verdict.fail("ledger_mismatches", f"the ledger has seq {update.seq} where {self.seq} belongs")
                self.seq = update.seq
            for fault in filter(None, (*update_faults(update, decision=decision), calibration.fault(update))):
                verdict.fail("ledger_mismatches", f"update {update.seq}: {fault}")
            if self.policy is not None and update.seq <= self.upto:
                if is_erased_for(self.policy, decision):
                    verdict.not_relearnable += 1
                    continue
                verdict.refused += not apply(self.policy, update)
                if update.seq in self._due and not verdict.not_relearnable:
                    self._compare(self._due[update.seq], policy=self.policy)

    def _compare(self, checkpoint: Checkpoint, *, policy: Policy) -> None:
        """Whether the replay gives the checkpoint; of a rounded policy its arrays are compared."""
        info = checkpoint.snapshot
        comparison = compared(policy, files=self._files, info=info)
        if comparison.result in ("same", "rounding"):
            self.passed = checkpoint
        elif comparison.result == "unreadable":
            self.verdict.note(comparison.text)
        elif comparison.text:
            self.verdict.fail("ledger_mismatches", f"{info.version}: {comparison.text}: more than rounding")
        elif comparison.result == "different":
            text = f"the replay of the ledger does not give the checkpoint {info.version}"
            self.verdict.fail("ledger_mismatches", text)
