"""Pmfs made again: every policy version is learned again from the ledger, and decides its decisions once more."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import ColumnElement, func, select

from ragbandit.router.errors import RagBanditError, SnapshotError, StoreError
from ragbandit.router.learning.audit.comparison import apart_from, told
from ragbandit.router.learning.audit.draw_check import pages
from ragbandit.router.learning.audit.verdict import Verdict
from ragbandit.router.learning.lessons import is_erased_for, lessons
from ragbandit.router.learning.snapshots import SnapshotFiles, policy_sha256
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, PolicyOutput, apply, pmf_of_one, tolerance_of
from ragbandit.router.policies.draw import Drawn, draw, raised_floors
from ragbandit.router.storage.archive.segments import Segment
from ragbandit.router.storage.decisions import readable
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import snapshot_value
from ragbandit.router.storage.sql.tables import decisions, outcomes, snapshots
from ragbandit.router.types import IMPORTED, Decision, SnapshotInfo

__all__ = ["check_deep"]

#: Releases add up a pmf in other orders (widths of many arms, the integral of lints): a pmf that was logged and one
#: that is made again may differ by this much. The draw is from the logged one, which is checked to the last bit.
PMF_ROUNDING: Final = 1e-9


#: when the first and the last decision of a version were made
_Span = tuple[float, float]


def check_deep(ledger: Ledger, *, files: SnapshotFiles, verdict: Verdict) -> None:
    """Walk the ledger once per (algorithm, params), and at every version make its decisions' pmfs again."""
    archived = ledger.archived.versions()
    known, used = _versions(ledger)
    for version in sorted(used.keys() - known.keys()):
        _check_unknown(ledger, version=version, made=used[version], verdict=verdict)
    for version in sorted(archived.keys() - known.keys()):
        _check_unknown_archived(ledger, version=version, among=archived[version], verdict=verdict)
    walks: dict[tuple[str, str], list[SnapshotInfo]] = defaultdict(list)
    for version in (used.keys() | archived.keys()) & known.keys():
        info = known[version]
        walks[info.algorithm, json.dumps(dict(info.params), sort_keys=True)].append(info)
    for (algorithm, params), infos in walks.items():
        try:
            policy = make_policy(algorithm, params=json.loads(params))
        except RagBanditError as error:  # a table, a package or a param of a former policy that is gone
            verdict.deep_mismatches += 1
            verdict.note(f"{algorithm} cannot be made again: {error}")
            continue
        if not policy.deterministic:
            verdict.note(f"{algorithm} does not give the same pmf twice: its decisions are not made again")
            continue
        _walk(ledger, files=files, policy=policy, infos=infos, used=used, archived=archived, verdict=verdict)


def _walk(
    ledger: Ledger,
    *,
    files: SnapshotFiles,
    policy: Policy,
    infos: Sequence[SnapshotInfo],
    used: Mapping[str, _Span],
    archived: Mapping[str, Sequence[Segment]],
    verdict: Verdict,
) -> None:
    """Let a fresh policy learn the ledger, and compare it with each of these versions when it gets there."""
    position = 0
    erased = _first_erased(ledger, policy=policy) if verdict.erased else None
    for info in sorted(infos, key=lambda one: (one.last_seq, one.version)):
        if erased is not None and info.last_seq >= erased:
            verdict.note(
                f"update {erased} was erased for {policy.algorithm}: pmfs of its versions from there on stay as logged"
            )
            return
        try:
            for update in lessons(ledger, policy=policy, after=position, upto=info.last_seq):
                apply(policy, update)
        except (StoreError, ValueError, TypeError, KeyError) as error:
            verdict.deep_mismatches += 1
            verdict.note(f"the ledger cannot be read up to {info.last_seq}: {error}")
            return
        position = max(position, info.last_seq)
        _check_state(files=files, info=info, policy=policy, verdict=verdict)
        here, there = used.get(info.version), archived.get(info.version, ())
        for decision in _decided_by(ledger, version=info.version, made=here, archived=there):
            _check_pmf(decision, info=info, policy=policy, verdict=verdict)


def _versions(ledger: Ledger) -> tuple[dict[str, SnapshotInfo], dict[str, _Span]]:
    """The versions that a snapshot row describes; those of decisions in the database, and when they were made."""
    with ledger.database.read() as connection:
        made = connection.execute(select(snapshots).where(snapshots.c.policy == ledger.label)).mappings().all()
        at = decisions.c.made_at
        spans = select(decisions.c.version, func.min(at).label("first"), func.max(at).label("last"))
        spans = spans.where(decisions.c.policy == ledger.label).group_by(decisions.c.version)
        used = {row.version: (row.first, row.last) for row in connection.execute(spans)}
    return {row["version"]: snapshot_value(row) for row in made}, used


def _check_unknown_archived(ledger: Ledger, *, version: str, among: Sequence[Segment], verdict: Verdict) -> None:
    """The seal has shown that these are the rows that were moved; who made them cannot be checked any more."""
    rows = ledger.archived.decided_by(version, among=among)
    ours = sum(IMPORTED not in json.loads(row["facts"]) for row in rows)
    verdict.not_checkable += ours
    if ours:
        verdict.note(f"{ours} decisions in the archive were made by {version}, which no snapshot row describes")


def _first_erased(ledger: Ledger, *, policy: Policy) -> int | None:
    """The first update that this policy cannot learn again; None if there is none."""
    pairs = ledger.read_with_decisions(after=0)
    return next((update.seq for update, decision in pairs if is_erased_for(policy, decision)), None)


def _of_version(ledger: Ledger, version: str, *, made: tuple[float, float]) -> list[ColumnElement[bool]]:
    """The decisions of a version. made: when the first and the last were, which is a range of an index."""
    return [
        decisions.c.made_at.between(*made),
        decisions.c.version == version,
        decisions.c.policy == ledger.label,
    ]


def _check_unknown(ledger: Ledger, *, version: str, made: tuple[float, float], verdict: Verdict) -> None:
    """A version that this store has no snapshot of is a mismatch, unless all that it decided was imported.

    What was imported tells its outcome: that row came in with the decision, in one transaction, and callers cannot
    write `made_by`. A decision that was here already, and was imported into one more ledger, has its own outcome.
    """
    mine = _of_version(ledger, version, made=made)
    query = select(outcomes.c.decision_id, outcomes.c.made_by).join(decisions, decisions.c.id == outcomes.c.decision_id)
    with ledger.database.read() as connection:
        marks = connection.execute(query.where(outcomes.c.stop_reason == IMPORTED, *mine))
        came_in = {mark.decision_id for mark in marks if IMPORTED in json.loads(mark.made_by)}
    ours = [decision.id for decision in pages(ledger, *mine, by_time=True) if IMPORTED not in decision.facts]
    verdict.not_checkable += len(came_in.intersection(ours))
    if not came_in.issuperset(ours):
        verdict.deep_mismatches += 1
        verdict.note(f"decisions were made by {version}, which no snapshot row describes")


def _decided_by(ledger: Ledger, *, version: str, made: _Span | None, archived: Sequence[Segment]) -> Iterator[Decision]:
    """The decisions that a policy version made, archived or not."""
    if made is not None:
        yield from pages(ledger, *_of_version(ledger, version, made=made), by_time=True)
    for row in ledger.archived.decided_by(version, among=archived):
        decision = readable(row)
        if isinstance(decision, Decision):  # the check of the draws has named what cannot be read
            yield decision


def _check_pmf(decision: Decision, *, info: SnapshotInfo, policy: Policy, verdict: Verdict) -> None:
    if IMPORTED in decision.facts:
        return
    verdict.deep_decisions += 1
    if is_erased_for(policy, decision):
        verdict.not_checkable += 1
        return
    if decision.fault is not None:
        return  # the pmf was the fallback's: the draw check has covered it
    made = _made_again(decision, policy=policy)
    if made.fault is not None:
        verdict.note(f"decision {decision.id}: {made.fault}")
    if made.fault is not None or not _agrees(made, decision=decision, tolerance=tolerance_of(policy)):
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
            apart = apart_from(policy, files=files, info=info)
        except SnapshotError as error:
            why = f": {error}"
        else:
            if apart <= tolerance_of(policy):
                return
            why = f": {told(policy, apart=apart)}"
    verdict.deep_mismatches += 1
    verdict.note(f"replaying to {info.last_seq} does not give {info.version}{why}")


def _agrees(made: Drawn, *, decision: Decision, tolerance: float) -> bool:
    """Whether a pmf is the logged one but for PMF_ROUNDING.

    Of a rounded policy, arms whose scores are a tie within rounding may trade.
    """
    if all(abs(p - q) <= PMF_ROUNDING for p, q in zip(made.pmf, decision.pmf, strict=True)):
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
