"""A ledger of the store as pieces, read anew for every pass: for candidates that read no questions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.bandit_log import BY_TEXT
from ragbandit.router.offline.logs.ledger_arrays import LedgerReader
from ragbandit.router.offline.replay.candidates import CandidateSpec, array_pmf
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.offline.replay.sources.parquet import ahead
from ragbandit.router.offline.replay.sources.pieces import PIECE, UNMIXED, Piece
from ragbandit.router.offline.types import Choices, Keys
from ragbandit.router.types import ArmName

__all__ = ["LedgerPieces"]


@dataclass(kw_only=True)
class LedgerPieces:
    """Pieces of a ledger, `Pieces` to the judge; every row is checked in the first pass."""

    reader: LedgerReader
    candidates: Sequence[CandidateSpec]
    plan: Plan
    #: read the features too; iterating raises UnevenFeatures where they are not of one kind
    features: bool
    #: candidate -> rows that did not offer its arm
    missing: dict[str, int] = field(default_factory=dict, init=False)
    #: of every page, from the first pass: key of each row's question, and by what it is known
    _questions: list[tuple[Keys, Choices]] = field(default_factory=list, init=False)
    _checked: bool = field(default=False, init=False)

    def __iter__(self) -> Iterator[Piece]:
        return ahead(self._pieces())

    @property
    def questions(self) -> tuple[int, int]:
        """How many different texts there are, and how many rows have one; after the first pass."""
        texts = [keys[known_by == BY_TEXT] for keys, known_by in self._questions]
        found = np.concatenate([np.zeros(0, dtype=np.uint64), *texts])
        return len(np.unique(found)), len(found)

    def _pieces(self) -> Iterator[Piece]:
        summary = not self._checked
        fields = [*dict.fromkeys(["version", *self.plan.segments])] if summary else [*self.plan.segments]
        pages = self.reader.pages(rows=PIECE, fields=fields, features=self.features, summary=summary, unmixed=UNMIXED)
        for number, page in enumerate(pages):
            log = page.log
            if summary:
                _check(page.log.faults(), ids=page.ids)
                self._questions.append((log.questions, log.known_by))
                self._count_missing(log.offered.sum(axis=0), rows=len(log))
            else:
                questions, known_by = self._questions[number]
                log = replace(log, questions=questions, known_by=known_by)
            if self.plan.weight is not None:
                log = log.weighted(self.plan.weight)
            pmfs = [array_pmf(spec, log=log, columns={}) for spec in self.candidates]
            yield Piece(log=log, candidates=pmfs)
        self._checked = True

    def _count_missing(self, offered: "np.ndarray[tuple[int], np.dtype[np.intp]]", *, rows: int) -> None:
        for spec in self.candidates:
            if spec.kind == "fixed" and spec.what in self.reader.arms:
                place = self.reader.arms.index(ArmName(spec.what))
                self.missing[spec.name] = self.missing.get(spec.name, 0) + rows - int(offered[place])


def _check(faults: dict[int, tuple[str, str, str]], *, ids: Sequence[str]) -> None:
    """Raises InvalidInput for the first row that cannot be true."""
    if faults:
        row = min(faults)
        name, message, remedy = faults[row]
        raise InvalidInput(message, field=f"decision {ids[row]} {name}", remedy=remedy)
