"""Pmfs made again: every policy version is learned again from the ledger, and decides its decisions once more."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, func, select, tuple_

from ragbandit.router.learning.audit.rounding import compared, sha256_after
from ragbandit.router.learning.audit.rules import (
    Verdict,
    champion_part,
    draw_fault,
    is_pruned,
    mixture_fault,
    seed_fault,
    versions_of,
)
from ragbandit.router.learning.examples import is_erased_for, lessons
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, PolicyOutput, apply, pmf_of_one, tolerance_of
from ragbandit.router.policies.context import PARAM
from ragbandit.router.policies.draw import Drawn, draw, raised_floors, seed_of
from ragbandit.router.policies.mixing import configured_floor, holdback_of
from ragbandit.router.storage.access.spending import DRAWS, Secret, known_secret
from ragbandit.router.storage.ledgers.inheritance import replaced_encoders
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import decision_value
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.errors import RagBanditError, StoreError
from ragbandit.shared.types import ERASED, IMPORTED, STICKY, Decision, Json, SnapshotInfo

PAGE = 500


def check_draws(ledger: Ledger, *, verdict: Verdict, progress: Callable[[int, int], None]) -> None:
    """Draw every decision again."""
    with ledger.database.read() as connection:
        total = int(connection.execute(select(func.count()).select_from(decisions)).scalar_one())

    def unreadable(text: str) -> None:
        verdict.decisions += 1
        verdict.fail("propensity_mismatches", text)

    stayed: list[Decision] = []
    secret = known_secret(ledger.database, name=DRAWS)
    for decision in pages(ledger, unreadable=unreadable):
        _check(decision, secret=secret, verdict=verdict)
        if STICKY in decision.facts and IMPORTED not in decision.facts:
            stayed.append(decision)
        if len(stayed) == PAGE:
            _check_stays(ledger, stayed, verdict=verdict)
            stayed = []
        if verdict.decisions % PAGE == 0 or verdict.decisions == total:
            progress(verdict.decisions, total)
    _check_stays(ledger, stayed, verdict=verdict)


def _check_stays(ledger: Ledger, stayed: Sequence[Decision], *, verdict: Verdict) -> None:
    """Hold turns that stayed against the draws that they name, where these are in the database still."""
    firsts = {decision.id: _first_of(decision) for decision in stayed}
    known = select(decisions.c.id, decisions.c.arm).where(decisions.c.id.in_({*firsts.values()} - {None}))
    with ledger.database.read() as connection:
        arms = {row.id: row.arm for row in connection.execute(known)}
    for decision in stayed:
        arm = arms.get(firsts[decision.id] or "")
        if arm is not None and arm != decision.arm:
            stayed_on = f"it stayed on {decision.arm}, and {firsts[decision.id]} drew {arm}"
            verdict.fail("propensity_mismatches", f"decision {decision.id}: {stayed_on}")


def _first_of(decision: Decision) -> str | None:
    """The decision that drew the arm on which this one stayed."""
    facts = decision.facts[STICKY]
    first = facts.get("first") if isinstance(facts, dict) else None
    return first if isinstance(first, str) else None


def _check(decision: Decision, *, secret: Secret | None, verdict: Verdict) -> None:
    verdict.decisions += 1
    elsewhere = IMPORTED in decision.facts
    verdict.made_elsewhere += elsewhere
    verdict.erased += ERASED in decision.facts
    if elsewhere:
        return
    # A release before this one that still runs beside it draws so.
    verdict.seeded_by_id += (
        secret is not None and decision.made_at >= secret.made_at and decision.seed == seed_of(decision.id)
    )
    fault = seed_fault(decision, secret=None if secret is None else secret.value) or draw_fault(decision)
    if fault:
        verdict.fail("propensity_mismatches", f"decision {decision.id}: {fault}")


def pages(
    ledger: Ledger, *where: Any, by_time: bool = False, unreadable: Callable[[str], None] = lambda _: None
) -> Iterator[Decision]:
    """The decisions, in the order of ids; what cannot be read is handed to `unreadable` instead.

    by_time: in the order of their time, where the condition is about it: an index gives just these.
    """
    order = (decisions.c.made_at, decisions.c.id) if by_time else (decisions.c.id,)
    last: list[Any] = []
    while True:
        query = select(decisions).where(*where).order_by(*order).limit(PAGE)
        if last:
            query = query.where(tuple_(*order) > tuple_(*last) if by_time else decisions.c.id > last[0])
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


#: Releases add up a pmf in other orders (widths of many arms): a pmf that was logged and one
#: that is made again may differ by this much. The draw is from the logged one, which is checked to the last bit.
PMF_ROUNDING: Final = 1e-9
#: tolerance up to which a policy that was learned again makes the decisions again too; beyond it snapshots do
_AS_LEARNED: Final = 1e-6


def check_deep(ledger: Ledger, *, files: SnapshotFiles, verdict: Verdict) -> None:
    """Walk the ledger once per (algorithm, params), and at every version make its decisions' pmfs again."""
    _DeepCheck(ledger, files=files, verdict=verdict).run()


class _DeepCheck:
    """The deep check of one ledger."""

    def __init__(self, ledger: Ledger, *, files: SnapshotFiles, verdict: Verdict) -> None:
        self.ledger, self.files, self.verdict = ledger, files, verdict
        self.versions = versions_of(ledger)
        #: encoders whose features an earlier release has made again
        self.replaced = replaced_encoders(ledger.database)
        #: versions whose decisions were checked
        self.checked: set[str] = set()

    def run(self) -> None:
        """Check every version that has decided something."""
        walks: dict[tuple[str, str], list[SnapshotInfo]] = defaultdict(list)
        pruned: set[str] = set()
        left_out: set[str] = set()
        for version in sorted(self.versions.used):
            known = self.versions.known.get(version)
            infos = [known] if known else list(self.versions.could_be(version, label=self.ledger.label))
            if known is None and infos:
                pruned.add(version)
            possible = [info for info in infos if info.encoder_hash not in self.replaced]
            if len(possible) < len(infos):
                left_out.add(version)
            for info in possible:
                walks[info.algorithm, json.dumps(dict(info.params), sort_keys=True)].append(info)
            if not infos:
                self._check_missing(version)
        exact = True
        for (algorithm, params), infos in walks.items():
            exact &= self._walk(algorithm, params=json.loads(params), infos=infos)
        self._leave_out(left_out - self.checked, why="the features that their policies learned from were made again")
        for version in sorted(pruned - left_out - self.checked):
            if exact:
                self._check_missing(version)
            else:
                self.verdict.not_compared += 1

    def _leave_out(self, versions: set[str], *, why: str) -> None:
        """Count what was decided by versions that cannot be made again."""
        used = sorted(versions & self.versions.used.keys())
        mine = (decision for one in used for decision in pages(self.ledger, *self._made_by(one), by_time=True))
        left = sum(IMPORTED not in decision.facts for decision in mine)
        self.verdict.deep_decisions += left
        self.verdict.not_checkable += left
        if left:
            self.verdict.note(f"{left} decisions are not made again: {why}; their draws are checked by the logged pmf")

    def _walk(self, algorithm: str, *, params: Mapping[str, Json], infos: Sequence[SnapshotInfo]) -> bool:
        """Let a fresh policy learn the ledger; whether a version that is not among `checked` is none of its own."""
        if _is_of_another_release(algorithm, params=params):
            versions = {info.version for info in infos}  # this release learns another policy by that name
            self.checked |= versions
            self.verdict.not_compared += len(versions)
            self._leave_out(versions, why=f"{algorithm} had fewer params in the release that made them")
            return False
        try:
            policy = make_policy(algorithm, params=params)
        except RagBanditError as error:  # a table, a package or a param of a former policy that is gone
            self.verdict.fail("deep_mismatches", f"{algorithm} cannot be made again: {error}")
            return False
        if not policy.deterministic:
            self.verdict.note(f"{algorithm} does not give the same pmf twice: its decisions are not made again")
            return False
        return self._learn(policy, infos=infos) and tolerance_of(policy) <= _AS_LEARNED

    def _learn(self, policy: Policy, *, infos: Sequence[SnapshotInfo]) -> bool:
        """Learn up to each version, and compare the policy with it there; False where that broke off."""
        position = 0
        erased = self._first_erased(policy) if self.verdict.erased else None
        for info in sorted(infos, key=lambda one: (one.last_seq, one.version)):
            if erased is not None and info.last_seq >= erased:
                left = "pmfs of its versions from there on stay as logged"
                self.verdict.note(f"update {erased} was erased for {policy.algorithm}: {left}")
                return False
            try:
                for update in lessons(self.ledger, policy=policy, after=position, upto=info.last_seq):
                    apply(policy, update)
            except (StoreError, ValueError, TypeError, KeyError) as error:
                self.verdict.fail("deep_mismatches", f"the ledger cannot be read up to {info.last_seq}: {error}")
                return False
            position = max(position, info.last_seq)
            self._compare(policy, info=info)
        return True

    def _first_erased(self, policy: Policy) -> int | None:
        """The first update that this policy cannot learn again; None if there is none."""
        pairs = self.ledger.read_with_decisions(after=0)
        return next((update.seq for update, decision in pairs if is_erased_for(policy, decision)), None)

    def _compare(self, policy: Policy, *, info: SnapshotInfo) -> None:
        """The policy with a version that it has come to, and its pmfs with those that were logged."""
        if not is_pruned(info):
            self._check_state(policy, info=info)
        elif not sha256_after(policy, info=info).startswith(info.sha256):
            return  # another policy of this ledger
        self.checked.add(info.version)
        if info.version in self.versions.used:
            for decision in pages(self.ledger, *self._made_by(info.version), by_time=True):
                _check_pmf(decision, info=info, policy=policy, verdict=self.verdict)

    def _check_state(self, policy: Policy, *, info: SnapshotInfo) -> None:
        """The sha256 of a version, or for a policy that is rounded by the processor its arrays, while they are kept."""
        comparison = compared(policy, files=self.files, info=info)
        if comparison.result == "pruned":
            self.verdict.not_compared += 1
        elif comparison.result not in ("same", "rounding"):
            why = f": {comparison.text}" if comparison.text else ""
            text = f"replaying to {info.last_seq} does not give {info.version}{why}"
            self.verdict.fail("deep_mismatches", text)

    def _made_by(self, version: str) -> list[ColumnElement[bool]]:
        """The decisions of a version in the database: a range of the index of times."""
        return [
            decisions.c.made_at.between(*self.versions.used[version]),
            decisions.c.version == version,
            decisions.c.policy == self.ledger.label,
        ]

    def _check_missing(self, version: str) -> None:
        """A version that no row describes, and that no policy of the ledger gives: a mismatch, unless all was imported.

        What was imported tells its outcome: that row came in with the decision, in one transaction, and callers cannot
        write `made_by`. A decision that was here already, and was imported into one more ledger, has its own outcome.
        """
        text = f"decisions were made by {version}, which no snapshot row describes"
        if version in self.versions.used:
            mine = self._made_by(version)
            query = select(outcomes.c.decision_id, outcomes.c.made_by)
            query = query.join_from(outcomes, decisions, decisions.c.id == outcomes.c.decision_id)
            with self.ledger.database.read() as connection:
                marks = connection.execute(query.where(outcomes.c.stop_reason == IMPORTED, *mine))
                came_in = {mark.decision_id for mark in marks if IMPORTED in json.loads(mark.made_by)}
            ours = [one.id for one in pages(self.ledger, *mine, by_time=True) if IMPORTED not in one.facts]
            self.verdict.not_checkable += len(came_in.intersection(ours))
            if not came_in.issuperset(ours):
                self.verdict.fail("deep_mismatches", text)


def _is_of_another_release(algorithm: str, *, params: Mapping[str, Json]) -> bool:
    """Whether the policy, or the one that it wraps, has params now that it had not then: it learned otherwise then.

    Of one that cannot be made without params nothing is known.
    """
    inner = params.get("params")
    required: dict[str, Json] = {}
    if isinstance(inner, Mapping):
        if _is_of_another_release(str(params["policy"]), params=inner):
            return True
        required = {name: params[name] for name in ("incumbent", "target") if name in params}
    try:
        now = make_policy(algorithm, params=required).params
    except RagBanditError:
        return False
    return params.keys() - {PARAM} < now.keys() - {PARAM}


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
    redrawn = _made_again(decision, policy=policy)
    if redrawn.fault is not None:
        verdict.note(f"decision {decision.id}: {redrawn.fault}")
    if redrawn.fault is not None or not _agrees(redrawn, decision=decision, tolerance=tolerance_of(policy)):
        verdict.fail("deep_mismatches", f"decision {decision.id}: {info.version} gives another pmf")


def _agrees(redrawn: Drawn, *, decision: Decision, tolerance: float) -> bool:
    """Whether a pmf is the logged one but for PMF_ROUNDING.

    Of a rounded policy, arms whose scores are a tie within rounding may trade.
    """
    if len(redrawn.pmf) != len(decision.pmf):
        return False
    least = max(PMF_ROUNDING, min(tolerance, _AS_LEARNED))
    if all(abs(p - q) <= least for p, q in zip(redrawn.pmf, decision.pmf, strict=True)):
        return True
    if tolerance == 0.0 or redrawn.scores is None:
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
