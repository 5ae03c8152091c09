"""Classifiers trained on a full-information table, the base of `adaptive_rag` and `multi_label`.

`fit` fine-tunes DistilBERT with one output per arm and keeps the epoch that does best on a held-out share of the
rows it was given (the authors of Adaptive-RAG choose theirs by the labels of the test questions). The weights then
lie in this policy's state, or in a folder that `save` writes and the param `trained` names; then the state names the
folder by its sha256. Ledger rows are counted and not learned.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ragbandit.router.policies.base import (
    Arrays,
    Count,
    Facts,
    Number,
    PolicyNeed,
    PolicyOutput,
    Text,
    Whole,
    checked_arrays,
    restored_counts,
)
from ragbandit.router.policies.finetuned.body import ReadingParams, load_body, score
from ragbandit.router.policies.finetuned.checkpoint import (
    CheckpointFacts,
    Trained,
    read_facts,
    read_layers,
    write_trained,
)
from ragbandit.router.policies.finetuned.optimizer import HEAD, Tuning, dropout_seed
from ragbandit.router.policies.kinds.fixed import CountingPolicy
from ragbandit.shared.errors import InvalidInput, SnapshotError
from ragbandit.shared.types import ArmName, FeatureRows, Json, Query, TableRow

if TYPE_CHECKING:
    from torch import Tensor

#: (n, K) numbers, a column per arm
Numbers = npt.NDArray[np.float64]
#: batches done, batches in all
BatchProgress = Callable[[int, int], None]

# Of Python, elementwise: numpy's own round otherwise on a CPU with AVX512.
exp = np.vectorize(math.exp, otypes=[np.float64])
log = np.vectorize(math.log, otypes=[np.float64])


@dataclass(frozen=True, kw_only=True, slots=True)
class FittingParams(ReadingParams):
    """Settings of how a classifier is trained on tables."""

    #: falls linearly to 0 over `epochs` passes
    learning_rate: Number = 3e-5
    #: questions per step
    batch: Count = 32
    epochs: Count = 10
    #: the share of the rows held out to choose the epoch; 0 keeps the last one
    validation: Annotated[float, Field(ge=0.0, le=0.9, allow_inf_nan=False)] = 0.1
    #: of the fresh layers, the split, the order and the dropout
    seed: Whole = 0
    #: a folder that `save` wrote; None: a policy that has to be fitted
    trained: Text | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FittingExample:
    """One question to learn: what every arm's output should be, NaN where nobody knows."""

    text: str
    target: tuple[float, ...]
    #: the label is the paper's guess from the number of hops, not an outcome
    inductive: bool = False


class TableClassifier(CountingPolicy, ABC):
    """Fine-tuned on tables; a subclass says what the labels, the loss and the choice are."""

    algorithm: ClassVar[str]
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"text"})
    deterministic: ClassVar[bool] = True

    def __init__(self, fitting: FittingParams) -> None:
        super().__init__(fitting)
        self.fitting = fitting
        self._trained: Trained | None = None
        if fitting.trained is not None:
            facts = read_facts(fitting.trained, algorithm=self.algorithm)
            body = load_body(fitting, folder=fitting.trained)
            self._trained = read_layers(fitting.trained, body=body, facts=facts)

    # -------------------------------------------------------------------------------- what a subclass says

    @abstractmethod
    def _examples(self, rows: Sequence[TableRow], *, arms: Sequence[ArmName]) -> list[FittingExample]:
        """The questions to learn from; rows that teach nothing are left out."""

    @abstractmethod
    def _loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """The mean loss of a batch, both (B, K); differentiable."""

    @abstractmethod
    def _judged(self, outputs: Numbers, targets: Numbers) -> tuple[float, float]:
        """(accuracy in [0, 1], mean loss) on held-out rows."""

    @abstractmethod
    def _merit(self, accuracy: float, loss: float) -> tuple[float, ...]:
        """The merit of an epoch: the one with the most is kept, the first of equal ones."""

    @abstractmethod
    def _probabilities(self, outputs: Numbers) -> Numbers:
        """From the K outputs of a question to its K probabilities."""

    @abstractmethod
    def _word(self, known: Mapping[ArmName, tuple[float, float]], *, arms: Sequence[ArmName]) -> PolicyOutput:
        """The choice; known: arm -> (probability, mean steps) of the arms that were trained."""

    # -------------------------------------------------------------------------------- the policy

    @property
    def report(self) -> Mapping[str, Json] | None:
        """The report of the training; None for a policy that is not trained."""
        return None if self._trained is None else self._trained.facts.report

    @property
    def trained_arms(self) -> tuple[ArmName, ...]:
        """The arms that it can choose, those of the table it was trained on; none if it is not trained."""
        return () if self._trained is None else self._trained.facts.arms

    @property
    def tolerance(self) -> float:
        """Rounding of scores: the state is the folder's sha256 and counts, which no processor rounds."""
        return 0.0 if self._trained is None else self._trained.body.rounding

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """The chosen arm has all the probability, ties share it; an untrained policy gives every arm the same."""
        del features
        return [self._one(query.text, arms=offered) for query, offered in zip(queries, arms, strict=True)]

    def _one(self, text: str, *, arms: Sequence[ArmName]) -> PolicyOutput:
        import torch

        trained = self._trained
        if trained is None:
            return PolicyOutput(pmf=(1.0 / len(arms),) * len(arms), facts={"untrained": True})
        body = trained.body
        with torch.no_grad():
            views = body.views(trained.encoder)
            hidden = body.hidden([text], encoder=views, pre=trained.pre, dropout=None)[0].cpu().numpy()  # (d,)
        outputs = np.array([score(hidden, head=head) for head in trained.heads])  # (K,)
        pairs = zip(self._probabilities(outputs).tolist(), trained.facts.costs, strict=True)
        return self._word(dict(zip(trained.facts.arms, pairs, strict=True)), arms=arms)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Counts, and the trained folder's sha256; or, after `fit`, all weights as float32."""
        arrays, facts = super().state()
        trained = self._trained
        if trained is None:
            return arrays, facts
        if trained.facts.identity:
            return arrays, facts | {"trained": trained.facts.identity}
        arrays = {"encoder": trained.encoder.cpu().numpy(), "pre": trained.pre.cpu().numpy(), "heads": trained.heads}
        known = {"arms": list(trained.facts.arms), "costs": list(trained.facts.costs)}
        return arrays, facts | known | {"report": dict(trained.facts.report), "model": trained.body.identity}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state; it must be of this trained folder, or carry whole weights of this model."""
        seen = restored_counts(facts)
        if "model" in facts:
            self._trained = self._restored(arrays, facts)
        else:
            ours = self._trained.facts.identity if self._trained is not None else None
            if arrays or facts.get("trained") != ours:
                raise SnapshotError("made with another trained folder", field="policy.params.trained")
        self.seen = seen

    def _restored(self, arrays: Arrays, facts: Facts) -> Trained:
        body = load_body(self.fitting)
        if facts["model"] != body.identity:
            raise SnapshotError("made with another model or tokenizer", field="policy.params.model")
        arms, width = tuple(facts["arms"]), body.width
        shapes = {"encoder": (body.size,), "pre": (width, width + 1), "heads": (len(arms), width + 1)}
        checked_arrays(arrays, shapes=shapes, float32=shapes)
        known = CheckpointFacts(
            algorithm=self.algorithm, arms=arms, costs=tuple(facts["costs"]), report=facts["report"]
        )
        return Trained(
            body=body,
            encoder=body.tensor(arrays["encoder"]),
            pre=body.tensor(arrays["pre"]),
            heads=np.array(arrays["heads"], dtype=np.float32),
            facts=known,
        )

    # -------------------------------------------------------------------------------- training

    def fit(self, rows: Sequence[TableRow], *, progress: BatchProgress | None = None) -> dict[str, Json]:
        """Train on full-information rows, from the encoder `model` on; what was found.

        The report: rows given, used, dropped (no label) and inductive; labels per arm; per epoch the training loss
        and, on the held-out rows, loss and accuracy; the epoch kept. Replaces what was trained before.
        Raises InvalidInput if fewer than two rows have a label.
        """
        arms = tuple(dict.fromkeys(arm for row in rows for arm in row.correct))
        examples = self._examples(rows, arms=arms) if arms else []
        if len(examples) < 2:
            raise InvalidInput(
                f"{len(examples)} of {len(rows)} rows have a label: {self.algorithm} cannot be trained",
                field="rows",
                remedy="give a table with questions that some arm answers right",
            )
        fit = _Fit(self, examples=examples, arms=arms)
        report: dict[str, Json] = {
            "rows": len(rows),
            "used": len(examples),
            "dropped": len(rows) - len(examples),
            "inductive": sum(example.inductive for example in examples),
            "labels": {arm: sum(example.target[i] == 1.0 for example in examples) for i, arm in enumerate(arms)},
        }
        report |= fit.run(progress or (lambda _done, _total: None))
        facts = CheckpointFacts(algorithm=self.algorithm, arms=arms, costs=_costs(rows, arms=arms), report=report)
        self._trained = fit.trained(facts)
        return report

    def save(self, folder: str | Path) -> str:
        """Write a trained policy's folder; its identity. Raises InvalidInput before `fit`, ConfigError if it exists."""
        if self._trained is None:
            raise InvalidInput("is not trained", field="policy", remedy="fit it first")
        return write_trained(self._trained, folder)


class _Fit:
    """One training run."""

    def __init__(self, policy: TableClassifier, *, examples: Sequence[FittingExample], arms: Sequence[ArmName]) -> None:
        self._policy, self._arms = policy, arms
        fitting = self._fitting = policy.fitting
        self._random = np.random.default_rng([fitting.seed, 2])
        order = self._random.permutation(len(examples))
        held = min(round(len(examples) * fitting.validation), len(examples) - 1)
        self._held = [examples[i] for i in order[:held]]
        self._examples = [examples[i] for i in order[held:]]
        self._body = load_body(fitting)
        self._tuning = Tuning.fresh(self._body, seed=fitting.seed)
        for arm in arms:
            self._tuning.add_head(arm, seed=fitting.seed)
        self._steps = 0
        self._best: dict[str, Tensor] = {}

    def run(self, progress: BatchProgress) -> dict[str, Json]:
        """All epochs; the part of the report that tells of them."""
        epochs: list[Json] = []
        best: tuple[float, ...] | None = None
        best_epoch = 0
        for number in range(1, self._fitting.epochs + 1):
            line: dict[str, Json] = {"loss": self._epoch(progress)}
            merit: tuple[float, ...] = (float(number),)  # without held-out rows the last epoch is the best
            if self._held:
                accuracy, loss = self._validate()
                line |= {"validation_loss": loss, "accuracy": accuracy}
                merit = self._policy._merit(accuracy, loss)  # noqa: SLF001 - the two are one piece
            epochs.append(line)
            if best is None or merit > best:
                best, best_epoch = merit, number
                self._best = {key: slot[0].clone() for key, slot in self._tuning.slots.items()}
        return {"validation_rows": len(self._held), "epochs": epochs, "best_epoch": best_epoch}

    def trained(self, facts: CheckpointFacts) -> Trained:
        """The best epoch's weights."""
        heads = np.stack([self._best[HEAD + arm].cpu().numpy() for arm in self._arms])
        return Trained(body=self._body, encoder=self._best["encoder"], pre=self._best["pre"], heads=heads, facts=facts)

    def _epoch(self, progress: BatchProgress) -> float:
        """One pass over the training rows; the mean loss."""
        fitting, losses = self._fitting, []
        per_epoch = math.ceil(len(self._examples) / fitting.batch)
        total = per_epoch * fitting.epochs
        order = self._random.permutation(len(self._examples))
        for start in range(0, len(order), fitting.batch):
            rows = [self._examples[i] for i in order[start : start + fitting.batch]]
            targets = self._body.tensor(np.array([row.target for row in rows], dtype=np.float32))  # (B, K)
            rate = fitting.learning_rate * (1.0 - self._steps / total)
            self._steps += 1
            loss = self._tuning.descend(
                [row.text for row in rows],
                arms=self._arms,
                loss=lambda outputs, targets=targets: self._policy._loss(outputs, targets),  # type: ignore[misc]  # noqa: SLF001
                rate=rate,
                decay=0.0,
                step=self._steps,
                dropout=dropout_seed(fitting.seed, step=self._steps),
            )
            losses.append(loss * len(rows))
            progress(self._steps, total)
        return math.fsum(losses) / len(self._examples)

    def _validate(self) -> tuple[float, float]:
        """(accuracy, loss) on the held-out rows."""
        heads = np.stack([self._tuning.slots[HEAD + arm][0].cpu().numpy() for arm in self._arms])
        outputs: list[Any] = []
        for start in range(0, len(self._held), self._fitting.batch):
            texts = [row.text for row in self._held[start : start + self._fitting.batch]]
            hidden = self._tuning.hidden(texts).cpu().numpy()  # (B, d)
            outputs += [[score(row, head=head) for head in heads] for row in hidden]
        targets = np.array([row.target for row in self._held])
        return self._policy._judged(np.array(outputs), targets)  # noqa: SLF001


def _costs(rows: Sequence[TableRow], *, arms: Sequence[ArmName]) -> tuple[float, ...]:
    """Mean steps of every arm over the rows that have them."""
    steps_of = {arm: [row.steps[arm] for row in rows if arm in row.steps] for arm in arms}
    return tuple(math.fsum(steps) / len(steps) if steps else 0.0 for steps in steps_of.values())
