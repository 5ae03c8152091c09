"""Pmfs made again: every policy version is learned again from the ledger, and decides its decisions once more."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import ColumnElement, select

from ragbandit.router.learning.audit.draw_check import pages
from ragbandit.router.learning.audit.rounding import compared, sha256_after
from ragbandit.router.learning.audit.rules import champion_part, mixture_fault
from ragbandit.router.learning.audit.verdict import Verdict
from ragbandit.router.learning.audit.versions import Span, Versions, is_pruned, versions_of
from ragbandit.router.learning.lessons import is_erased_for, lessons
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, PolicyOutput, apply, pmf_of_one, tolerance_of
from ragbandit.router.policies.draw import Drawn, draw, raised_floors
from ragbandit.router.policies.restraint import configured_floor
from ragbandit.router.storage.archive.segments import Segment
from ragbandit.router.storage.decisions.store import readable
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.errors import RagBanditError, StoreError
from ragbandit.shared.types import IMPORTED, Decision, Json, SnapshotInfo

#: Releases add up a pmf in other orders (widths of many arms, the integral of lints): a pmf that was logged and one
#: that is made again may differ by this much. The draw is from the logged one, which is checked to the last bit.
PMF_ROUNDING: Final = 1e-9


def check_deep(ledger: Ledger, *, files: SnapshotFiles, verdict: Verdict) -> None:
    """Walk the ledger once per (algorithm, params), and at every version make its decisions' pmfs again."""
    archived = ledger.archived.versions()
    versions = versions_of(ledger)
    walks: dict[tuple[str, str], list[SnapshotInfo]] = defaultdict(list)
    pruned: set[str] = set()
    for version in sorted(versions.used.keys() | archived.keys()):
        known = versions.known.get(version)
        found = [known] if known else list(versions.could_be(version, label=ledger.label))
        if known is None and found:
            pruned.add(version)
        for info in found:
            walks[info.algorithm, json.dumps(dict(info.params), sort_keys=True)].append(info)
        if not found:
            _check_missing(ledger, version=version, versions=versions, archived=archived, verdict=verdict)
    checked: set[str] = set()
    exact = True
    for (algorithm, params), infos in walks.items():
        walk = _Walk(ledger, files=files, used=versions.used, archived=archived, verdict=verdict)
        exact &= walk.run(algorithm, params=json.loads(params), infos=infos)
        checked |= walk.checked
    for version in sorted(pruned - checked):
        if exact:
            _check_missing(ledger, version=version, versions=versions, archived=archived, verdict=verdict)
        else:
            verdict.not_compared += 1


def _check_missing(
    ledger: Ledger, *, version: str, versions: Versions, archived: Mapping[str, Sequence[Segment]], verdict: Verdict
) -> None:
    """A version that no row describes, and that no policy of the ledger gives."""
    if version in versions.used:
        _check_unknown(ledger, version=version, made=versions.used[version], verdict=verdict)
    if version in archived:
        _check_unknown_archived(ledger, version=version, among=archived[version], verdict=verdict)


class _Walk:
    """One policy's way through the ledger, compared with each of its versions when it gets there."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        files: SnapshotFiles,
        used: Mapping[str, Span],
        archived: Mapping[str, Sequence[Segment]],
        verdict: Verdict,
    ) -> None:
        self.ledger = ledger
        self.files = files
        self.used = used
        self.archived = archived
        self.verdict = verdict
        #: versions whose decisions were checked
        self.checked: set[str] = set()

    def run(self, algorithm: str, *, params: Mapping[str, Json], infos: Sequence[SnapshotInfo]) -> bool:
        """Let a fresh policy learn the ledger; whether a version that is not among `checked` is none of its own."""
        try:
            policy = make_policy(algorithm, params=params)
        except RagBanditError as error:  # a table, a package or a param of a former policy that is gone
            self.verdict.fail("deep_mismatches", f"{algorithm} cannot be made again: {error}")
            return False
        if not policy.deterministic:
            self.verdict.note(f"{algorithm} does not give the same pmf twice: its decisions are not made again")
            return False
        return self._learn(policy, infos=infos) and tolerance_of(policy) == 0.0

    def _learn(self, policy: Policy, *, infos: Sequence[SnapshotInfo]) -> bool:
        ledger, verdict, position = self.ledger, self.verdict, 0
        erased = _first_erased(ledger, policy=policy) if verdict.erased else None
        for info in sorted(infos, key=lambda one: (one.last_seq, one.version)):
            if erased is not None and info.last_seq >= erased:
                left = "pmfs of its versions from there on stay as logged"
                verdict.note(f"update {erased} was erased for {policy.algorithm}: {left}")
                return False
            try:
                for update in lessons(ledger, policy=policy, after=position, upto=info.last_seq):
                    apply(policy, update)
            except (StoreError, ValueError, TypeError, KeyError) as error:
                verdict.fail("deep_mismatches", f"the ledger cannot be read up to {info.last_seq}: {error}")
                return False
            position = max(position, info.last_seq)
            self._compare(policy, info=info)
        return True

    def _compare(self, policy: Policy, *, info: SnapshotInfo) -> None:
        """The policy with a version that it has come to, and its pmfs with those that were logged."""
        if not is_pruned(info):
            _check_state(files=self.files, info=info, policy=policy, verdict=self.verdict)
        elif not sha256_after(policy, info=info).startswith(info.sha256):
            return  # another policy of this ledger
        self.checked.add(info.version)
        here, there = self.used.get(info.version), self.archived.get(info.version, ())
        for decision in _decided_by(self.ledger, version=info.version, made=here, archived=there):
            _check_pmf(decision, info=info, policy=policy, verdict=self.verdict)


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
    told = select(outcomes.c.decision_id, outcomes.c.made_by)
    query = told.join_from(outcomes, decisions, decisions.c.id == outcomes.c.decision_id)
    with ledger.database.read() as connection:
        marks = connection.execute(query.where(outcomes.c.stop_reason == IMPORTED, *mine))
        came_in = {mark.decision_id for mark in marks if IMPORTED in json.loads(mark.made_by)}
    ours = [decision.id for decision in pages(ledger, *mine, by_time=True) if IMPORTED not in decision.facts]
    verdict.not_checkable += len(came_in.intersection(ours))
    if not came_in.issuperset(ours):
        verdict.fail("deep_mismatches", f"decisions were made by {version}, which no snapshot row describes")


def _decided_by(ledger: Ledger, *, version: str, made: Span | None, archived: Sequence[Segment]) -> Iterator[Decision]:
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
    fault = mixture_fault(decision)
    if fault is not None:
        verdict.fail("deep_mismatches", f"decision {decision.id}: {fault}")
        return
    decision = champion_part(decision)
    made = _made_again(decision, policy=policy)
    if made.fault is not None:
        verdict.note(f"decision {decision.id}: {made.fault}")
    if made.fault is not None or not _agrees(made, decision=decision, tolerance=tolerance_of(policy)):
        verdict.fail("deep_mismatches", f"decision {decision.id}: {info.version} gives another pmf")


def _check_state(*, files: SnapshotFiles, info: SnapshotInfo, policy: Policy, verdict: Verdict) -> None:
    """The sha256 of a version, or for a policy that is rounded by the processor its arrays, while they are kept."""
    comparison = compared(policy, files=files, info=info)
    if comparison.result == "pruned":
        verdict.not_compared += 1
    elif comparison.result not in ("same", "rounding"):
        why = f": {comparison.text}" if comparison.text else ""
        verdict.fail("deep_mismatches", f"replaying to {info.last_seq} does not give {info.version}{why}")


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
        floor=configured_floor(decision),
        fallback=decision.arm,
        seed=decision.seed,
        raised=raised_floors(decision.facts),
    )
