"""Training of the policies that learn from labelled tables, before they serve (`ragbandit policy train`).

A full-information table has the result of every arm on each question, which live traffic never shows. These policies
are trained on it once, and serve from the folder that the training writes.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ragbandit.router.offline.logs.tables import LabelledRow, question_rows
from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.router.policies.finetuned.table_classifier import TableClassifier, free_folder
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.types import Json, TableRow


def trainable() -> list[str]:
    """The names of the policies that learn from tables."""
    names = []
    for name, path in sorted(POLICIES.items()):
        module, _, attribute = path.partition(":")
        if issubclass(getattr(import_module(module), attribute), TableClassifier):
            names.append(name)
    return names


def train(
    policy: str,
    *,
    params: Mapping[str, Json],
    rows: Sequence[TableRow],
    out: str | Path,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Json]:
    """Train a policy on these rows and write its folder; the report of `TableClassifier.fit`, with "folder", "sha256".

    params: the policy's; the ones that are used in service as well are given there again, with `trained`.
    progress: batches done, and how many there are.
    Raises ConfigError for a policy that learns otherwise, for wrong params, and for a folder that is in use (before
    the training); InvalidInput if no rows have a label.
    """
    known = trainable()
    if policy not in known:
        raise ConfigError(
            f"{policy!r} is not trained on tables", field="policy", remedy=f"use one of {', '.join(known)}"
        )
    if params.get("trained") is not None:
        raise ConfigError("is the output of this command", field="policy.params.trained", remedy="leave this param out")
    target = free_folder(out)
    classifier = make_policy(policy, params=params)
    assert isinstance(classifier, TableClassifier)
    report = classifier.fit(rows, progress=progress)
    return report | {"folder": str(target), "sha256": classifier.save(target)}


def read_questions(path: str | Path, *, known: Sequence[TableRow] = ()) -> list[TableRow]:
    """Questions without outcomes, one JSON object with "question" and "hops" a line, for labels by inductive bias.

    Questions of `known` rows are left out: what the arms made of them is the better label (as Adaptive-RAG does).
    Raises InvalidInput naming file, line and key.
    """
    known_texts = {row.question for row in known}
    rows = [row for row in question_rows(Path(path), _question, kind="question") if row.question not in known_texts]
    if not rows:
        raise InvalidInput("has no questions that the table lacks", field=str(path), remedy="leave it out")
    return rows


def _question(_found: Mapping[str, Any], row: LabelledRow) -> TableRow:
    if row.hops is None:
        raise InvalidInput("is missing", field="hops", remedy='write {"question": text, "hops": whole number} a line')
    return TableRow(id=row.id, question=row.question, correct={}, steps={}, hops=row.hops)
