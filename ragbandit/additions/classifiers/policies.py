"""`adaptive_rag` and `multi_label`: choose the arm with a classifier that was trained on a table (docs/training.md).

`fit` trains DistilBERT with one output per arm (AdamW without weight decay) and keeps the epoch that is best on
held-out rows. `save` writes a folder for the param `trained`:

    config.json  model.safetensors  tokenizer.json    the fine-tuned encoder, as AutoModel loads it
    layers.safetensors                                "pre" (d, d + 1), "heads" (K, d + 1): width d, K arms, bias last
    ragbandit.json                                    arms, costs, report, and the sha256 of the other four files

Intended differences: Adaptive-RAG (arXiv 2403.14403, section 3.2) fine-tunes a T5-large, which writes a letter. Its
paper gives the inductive labels to rows that no arm solved, as we do; the authors' code gives them to other questions.
The multi-label classifier of MBA-RAG (arXiv 2412.01572, appendix A.3; its numbers are in tables 3 and 4) fine-tunes a
T5-large too. It takes the most likely label, which is nearly always the most expensive arm; the param `choice` also has
two rules that include the cost.
"""

import functools
import hashlib
import json
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from safetensors.numpy import load_file, save

from ragbandit.router.encoders.weights import file_sha256
from ragbandit.router.policies.base import (
    MULTI_STEP,
    SINGLE_STEP,
    ArmParam,
    Arrays,
    Count,
    Facts,
    Number,
    PerQuestionPolicy,
    PolicyNeed,
    PolicyOutput,
    Share,
    Text,
    epsilon_greedy,
    read_params,
)
from ragbandit.router.policies.finetuned.params import EXAMPLE, HEAD, RIGHT, ReadingParams
from ragbandit.router.policies.finetuned.reading import load_reader
from ragbandit.shared.caches import cache_root
from ragbandit.shared.errors import ConfigError, InvalidInput, SnapshotError
from ragbandit.shared.files import atomic_folder, free_folder, read_text
from ragbandit.shared.types import ArmName, Features, Json, Query, TableRow

if TYPE_CHECKING:
    from torch import Tensor

    from ragbandit.router.policies.finetuned.network import Network

#: called with (finished batches, all batches)
BatchProgress = Callable[[int, int], None]

FORMAT: Final = 1
_FACTS: Final = "ragbandit.json"
_FIELD: Final = "policy.params.trained"
_REMEDY: Final = "give a folder that `ragbandit policy train --policy POLICY --table T.jsonl --out FOLDER` wrote"
_EXAMPLE: Final[dict[str, Json]] = EXAMPLE | {"batch": 4, "epochs": 2, "validation": 0.3}


@dataclass(frozen=True, kw_only=True, slots=True)
class FittingParams(ReadingParams):
    #: initial learning rate, which falls linearly to 0 during the training
    learning_rate: Number = 3e-5
    batch: Count = 32
    epochs: Count = 10
    #: share of the rows that are held out to choose the best epoch; 0 to keep the last epoch
    validation: Annotated[float, Field(ge=0.0, le=0.9, allow_inf_nan=False)] = 0.1
    #: folder of a trained policy; None for an untrained policy
    trained: Text | None = None


class TableClassifier(PerQuestionPolicy, ABC):
    """A classifier trained on tables. Subclasses define labels, loss and choice. `learn` only counts ledger rows."""

    algorithm: ClassVar[str]
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"text"})
    deterministic: ClassVar[bool] = True
    #: True, because the policy never chooses an arm that its training table lacks
    needs_every_arm: ClassVar[bool] = True
    #: True to keep the epoch with the smallest loss on held-out rows, False to keep the one with the highest accuracy
    least_loss: ClassVar[bool]

    def __init__(self, fitting: FittingParams) -> None:
        super().__init__(fitting)
        self.fitting = fitting
        #: arms of the training table, the only arms that can be chosen; () if untrained
        self.trained_arms: tuple[ArmName, ...] = ()
        #: rows that the last `fit` held out to choose the epoch
        self.held_out: tuple[TableRow, ...] = ()
        self.report: Mapping[str, Json] | None = None
        #: mean number of steps of each trained arm in the training rows
        self._costs: tuple[float, ...] = ()
        #: sha256 of the text of ragbandit.json without its final newline; None if the training was not saved
        self._identity: str | None = None
        self._network: Network | None = None
        if fitting.trained is not None:
            self._read(Path(fitting.trained).expanduser())

    @abstractmethod
    def _target(self, row: TableRow, *, arms: Sequence[ArmName]) -> tuple[float, ...] | None:
        """Target of each arm's output, NaN if unknown; None for a row without a label."""

    @abstractmethod
    def _measures(self, outputs: "Tensor", targets: "Tensor") -> "tuple[Tensor, Tensor]":
        """Returns (mean loss, as a differentiable tensor; accuracy in [0, 1]). Arguments have a row per question."""

    @abstractmethod
    def _choice(self, outputs: "Tensor", *, arms: Sequence[ArmName]) -> PolicyOutput:
        """Choose among the offered arms. outputs: the network's outputs for one question, shape (trained arms,)."""

    @property
    def tolerance(self) -> float:
        """Rounding of the scores. The state itself is exact, since it contains only counts and a sha256."""
        return 0.0 if self._network is None else self._network.reader.rounding

    def output(self, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
        """All probability for the chosen arm, divided evenly between ties. Uniform if the policy is untrained."""
        del features
        if self._network is None:
            return PolicyOutput(pmf=(1.0 / len(arms),) * len(arms), facts={"untrained": True})
        return self._choice(self._network.outputs([query.text], arms=self.trained_arms)[0], arms=arms)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        arrays, facts = super().state()
        return arrays, facts if self._network is None else {**facts, "trained": self._identity or ""}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Load saved counts. Raises SnapshotError if they belong to another trained folder."""
        if arrays or facts.get("trained") != self._identity:
            raise SnapshotError("the param names another trained folder than the snapshot", field=_FIELD)
        super().restore(arrays, facts)

    def fit(self, rows: Sequence[TableRow], *, progress: BatchProgress = lambda _done, _total: None) -> dict[str, Json]:
        """Train on rows with the outcomes of arms. Replaces an earlier training.

        Returns a report: the numbers of all, used, dropped (without a label), inductive and held-out rows; the number
        of labels of each arm; for each epoch the training loss, and loss and accuracy on held-out rows; and the best
        epoch.
        Raises InvalidInput if fewer than two rows have a label, and ConfigError if a param names an arm that the table
        lacks.
        """
        arms = tuple(dict.fromkeys(arm for row in rows for arm in row.correct))
        targets_of_rows = [self._target(row, arms=arms) if arms else None for row in rows]
        examples = [(row, target) for row, target in zip(rows, targets_of_rows, strict=True) if target is not None]
        if len(examples) < 2:
            message = f"{len(examples)} of {len(rows)} rows have a label: {self.algorithm} cannot be trained"
            remedy = "give a table with questions that some arm answers right"
            raise InvalidInput(message, field="rows", remedy=remedy)
        held_out = min(round(len(examples) * self.fitting.validation), len(examples) - 1)
        network, texts = load_reader(self.fitting).network(seed=self.fitting.seed), [r.question for r, _ in examples]
        targets = np.array([target for _, target in examples], dtype=np.float32)  # (n, K)
        tensor = network.reader.tensor(targets)
        random = np.random.default_rng([self.fitting.seed, 2])
        order = random.permutation(len(texts))
        unseen, learned = order[:held_out], order[held_out:]
        common: dict[str, Any] = {"targets": tensor, "arms": arms, "random": random, "progress": progress}
        epochs, best = self._train(network, texts, unseen=unseen, rows=learned, **common)
        report: dict[str, Json] = {
            "rows": len(rows),
            "used": len(examples),
            "dropped": len(rows) - len(examples),
            "inductive": sum(not _right_arms(row) and 1.0 in target for row, target in examples),
            "labels": dict(zip(arms, (targets == 1.0).sum(axis=0).tolist(), strict=True)),
            "validation_rows": held_out,
            "epochs": epochs,
            "best_epoch": best,
        }
        self._network, self._identity = network, None
        self.trained_arms, self.report = arms, report
        self.held_out = tuple(examples[position][0] for position in unseen)
        costs = []
        for arm in arms:
            steps = [row.steps[arm] for row in rows if arm in row.steps]
            costs.append(math.fsum(steps) / len(steps) if steps else 0.0)
        self._costs = tuple(costs)
        return report

    def _train(
        self,
        network: "Network",
        texts: Sequence[str],
        *,
        targets: "Tensor",
        arms: Sequence[ArmName],
        unseen: npt.NDArray[np.intp],
        rows: npt.NDArray[np.intp],
        random: np.random.Generator,
        progress: BatchProgress,
    ) -> tuple[list[dict[str, Json]], int]:
        """Returns (measures of each epoch, number of the best epoch).

        unseen: positions of the held-out questions in `texts`. rows: positions of the training questions.
        """
        fitting, step = self.fitting, 0
        total = math.ceil(len(rows) / fitting.batch) * fitting.epochs
        best: tuple[tuple[float, ...], int, Arrays] | None = None
        epochs: list[dict[str, Json]] = []
        for number in range(1, fitting.epochs + 1):
            losses, shuffled = [], rows[random.permutation(len(rows))]
            for start in range(0, len(rows), fitting.batch):
                batch = shuffled[start : start + fitting.batch]
                loss = functools.partial(self._loss, targets=targets[batch])
                questions, rate = [texts[index] for index in batch], fitting.learning_rate * (1.0 - step / total)
                step += 1
                mean = network.descend(questions, arms=arms, loss=loss, rate=rate, decay=0.0, step=step)
                losses.append(len(batch) * mean)
                progress(step, total)
            line: dict[str, Json] = {"loss": math.fsum(losses) / len(rows)}
            merit: tuple[float, ...] = (number,)
            if len(unseen):
                outputs = network.outputs([texts[index] for index in unseen], arms=arms).to(targets)
                unseen_loss, accuracy = map(float, self._measures(outputs, targets[unseen]))
                line |= {"validation_loss": unseen_loss, "accuracy": accuracy}
                merit = (-unseen_loss, accuracy) if self.least_loss else (accuracy, -unseen_loss)
            epochs.append(line)
            if best is None or merit > best[0]:
                best = merit, number, network.arrays(rows=1)
        assert best is not None
        network.fill(best[2])
        return epochs, best[1]

    def _loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        return self._measures(outputs, targets)[0]

    def save(self, folder: str | Path) -> str:
        """Write the folder for the param `trained`. Returns the sha256 of ragbandit.json.

        Raises InvalidInput if the policy is untrained, and ConfigError if the folder cannot be written.
        """
        if self._network is None:
            raise InvalidInput("the policy is not trained", field="policy", remedy="call `fit` before `save`")
        target, reader = free_folder(folder), self._network.reader
        encoder = {name: weight.numpy(force=True) for name, weight in self._network.encoder.named_parameters()}
        values = self._network.arrays(rows=1)
        layers = {"pre": values["pre"][0], "heads": np.concatenate([values[HEAD + arm] for arm in self.trained_arms])}
        described = {"format": FORMAT, "algorithm": self.algorithm, "arms": list(self.trained_arms)}
        described |= {"costs": list(self._costs), "report": self.report}
        try:
            with atomic_folder(target, private=False) as work:
                (work / "model.safetensors").write_bytes(save(encoder, metadata={"format": "pt"}))
                (work / "layers.safetensors").write_bytes(save(layers))
                shutil.copyfile(reader.folder / "config.json", work / "config.json")
                (work / "tokenizer.json").write_text(reader.tokens.tokenizer.to_str(), encoding="utf-8")
                described["sha256"] = {file.name: _sha256_of(file) for file in work.iterdir()}
                text = json.dumps(described, indent=1, sort_keys=True)
                (work / _FACTS).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            remedy = "give another folder"
            raise ConfigError(f"{target} cannot be written: {error}", field="out", remedy=remedy) from error
        self._identity = hashlib.sha256(text.encode()).hexdigest()
        return self._identity

    def _read(self, path: Path) -> None:
        fault = functools.partial(ConfigError, field=_FIELD, remedy=_REMEDY)
        try:
            text = read_text(path / _FACTS)
            described = json.loads(text)
            for name, sha256 in described["sha256"].items():
                if _sha256_of(path / name) != sha256:
                    raise fault(f"{path / name} is damaged: its sha256 does not match")
            kind = described["algorithm"], described["format"]
            if kind != (self.algorithm, FORMAT):
                expected = f"not {self.algorithm!r} in format {FORMAT}"
                raise fault(f"{path} has {kind[0]!r} in format {kind[1]!r}, {expected}")
            arms = tuple(ArmName(arm) for arm in described["arms"])
            self._costs, self.report = tuple(float(cost) for cost in described["costs"]), described["report"]
            layers, reader = load_file(path / "layers.safetensors"), load_reader(replace(self.fitting, model=str(path)))
            pairs = zip(arms, self._costs, layers["heads"], strict=True)
            arrays = {"pre": layers["pre"][None]} | {HEAD + arm: head[None] for arm, _, head in pairs}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise fault(f"{path} is not a trained policy: {error!r}") from error
        self.trained_arms, self._identity = arms, hashlib.sha256(text.strip().encode()).hexdigest()
        self._network = reader.network(seed=self.fitting.seed)
        self._network.fill(arrays)


def _sha256_of(file: Path) -> str:
    """The sha256 of a file; cached on disk, because policies are made often and the encoder has 260 MB."""
    return file_sha256(file, root=cache_root(None))


def _right_arms(row: TableRow) -> list[ArmName]:
    return [arm for arm, quality in row.correct.items() if quality >= RIGHT]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveRagParams(FittingParams):
    #: label, in training, of questions with one hop that no arm answered right
    single: ArmParam = SINGLE_STEP
    #: label, in training, of questions with more hops that no arm answered right
    multi: ArmParam = MULTI_STEP


class AdaptiveRag(TableClassifier):
    """Predicts which arm is the cheapest right one, and draws the most probable offered arm."""

    algorithm: ClassVar[str] = "adaptive_rag"
    example: ClassVar[Mapping[str, Json]] = _EXAMPLE | {"single": "one", "multi": "many"}
    least_loss: ClassVar[bool] = False

    def __init__(self, **params: Json) -> None:
        settings = read_params(AdaptiveRagParams, given=params)
        super().__init__(settings)
        # The two arms are only labels: `fit` compares them with the table's arms, so they need not be configured.
        self._by_hops = {1: ("single", settings.single), 2: ("multi", settings.multi)}

    def _target(self, row: TableRow, *, arms: Sequence[ArmName]) -> tuple[float, ...] | None:
        right = _right_arms(row)
        label = min(right, key=lambda arm: row.steps[arm]) if right else self._inductive_label(row, arms=arms)
        return None if label is None else tuple(float(arm == label) for arm in arms)

    def _inductive_label(self, row: TableRow, *, arms: Sequence[ArmName]) -> ArmName | None:
        if not row.hops:
            return None
        name, arm = self._by_hops[min(row.hops, 2)]
        if arm not in arms:
            fault, remedy = f"{arm!r} is not among the table's arms", f"use one of {', '.join(arms)}"
            raise ConfigError(fault, field=f"policy.params.{name}", remedy=remedy)
        return arm

    def _measures(self, outputs: "Tensor", targets: "Tensor") -> "tuple[Tensor, Tensor]":
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets), (outputs.argmax(1) == targets.argmax(1)).float().mean()

    def _choice(self, outputs: "Tensor", *, arms: Sequence[ArmName]) -> PolicyOutput:
        probabilities = dict(zip(self.trained_arms, outputs.softmax(0).tolist(), strict=True))
        offered = [probabilities.get(arm, 0.0) for arm in arms]
        return PolicyOutput(pmf=epsilon_greedy(offered, epsilon=0.0), facts={"probability": offered})


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiLabelParams(FittingParams):
    #: let p be an arm's predicted probability of a right answer: "likeliest", the rule of the paper, takes the arm with
    #: the highest p; "cheapest" takes the cheapest arm with p >= tau (or, if no arm has this, the highest p); "net"
    #: takes the arm with the highest p - weight * mean number of steps
    choice: Literal["likeliest", "cheapest", "net"] = "likeliest"
    #: the choice "cheapest" takes only arms with at least this probability of a right answer, if there are any
    tau: Share = 0.5
    #: the choice "net" multiplies an arm's mean number of steps by this weight
    weight: Number = 0.03


class MultiLabel(TableClassifier):
    """Chooses an arm by its predicted probability of a right answer, and by its mean number of steps in the training if
    `choice` includes the cost.

    An arm that is not in the training table counts as wrong, and as expensive as the most expensive arm.
    """

    algorithm: ClassVar[str] = "multi_label"
    example: ClassVar[Mapping[str, Json]] = _EXAMPLE
    least_loss: ClassVar[bool] = True  # since a choice by cost needs calibrated probabilities

    def __init__(self, **params: Json) -> None:
        self.settings = read_params(MultiLabelParams, given=params)
        super().__init__(self.settings)

    def _target(self, row: TableRow, *, arms: Sequence[ArmName]) -> tuple[float, ...] | None:
        """1.0 for right arms, 0.0 for wrong arms, NaN for arms without an outcome; None for a row without outcomes."""
        if not row.correct:
            return None
        return tuple(float(row.correct[arm] >= RIGHT) if arm in row.correct else math.nan for arm in arms)

    def _measures(self, outputs: "Tensor", targets: "Tensor") -> "tuple[Tensor, Tensor]":
        from torch.nn.functional import binary_cross_entropy_with_logits

        has_target = ~targets.isnan()
        outputs, targets = outputs[has_target], targets[has_target]
        sides = (outputs > 0.0) == (targets > 0.5)
        return binary_cross_entropy_with_logits(outputs, targets), sides.float().mean()

    def _choice(self, outputs: "Tensor", *, arms: Sequence[ArmName]) -> PolicyOutput:
        settings, costliest = self.settings, max(self._costs)
        trained = dict(zip(self.trained_arms, zip(outputs.sigmoid().tolist(), self._costs, strict=True), strict=True))
        offered = [trained.get(arm, (0.0, costliest)) for arm in arms]
        probabilities = [p for p, _ in offered]
        if settings.choice == "net":
            scores = tuple(p - settings.weight * cost for p, cost in offered)
            facts = {"quality": probabilities, "cost": [cost for _, cost in offered], "weight": settings.weight}
            return PolicyOutput(pmf=epsilon_greedy(scores, epsilon=0.0), scores=scores, facts=facts)
        ranks = probabilities
        if settings.choice == "cheapest":
            named = zip(arms, offered, strict=True)
            costs = [-cost if p >= settings.tau and arm in trained else -np.inf for arm, (p, cost) in named]
            ranks = costs if max(costs) > -np.inf else probabilities
        return PolicyOutput(pmf=epsilon_greedy(ranks, epsilon=0.0), facts={"probability": probabilities})
