"""Classifiers that are trained on a full-information table before they serve.

`fit` fine-tunes DistilBERT with one output per arm (AdamW at 3e-5 without weight decay, linear decay without warm-up,
batches of 32) and keeps the epoch that does best on a held-out share of the rows it was given. The weights then lie in
the policy's state, or in a folder that `save` writes and the param `trained` names; then the state names the folder by
its sha256. Ledger rows are counted and not learned. A folder holds

    config.json  model.safetensors  tokenizer.json    the fine-tuned encoder, as AutoModel loads it
    layers.safetensors                                "pre" (d, d + 1) and "heads" (K, d + 1), biases last
    ragbandit.json                                    arms, costs, report, and the sha256 of the other four
"""

import functools
import hashlib
import json
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import numpy as np
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
from ragbandit.router.policies.finetuned.network import HEAD, Network, Numbers, ReadingParams, load_reader, sha256_of
from ragbandit.router.policies.kinds.fixed import CountingPolicy
from ragbandit.shared.errors import ConfigError, InvalidInput, SnapshotError
from ragbandit.shared.files import whole_folder
from ragbandit.shared.types import ArmName, FeatureRows, Json, Matrix, Query, TableRow

if TYPE_CHECKING:
    from torch import Tensor

#: batches done, batches in all
BatchProgress = Callable[[int, int], None]

#: of the folder
FORMAT: Final = 1
_FACTS: Final = "ragbandit.json"
_FIELD: Final = "policy.params.trained"
_REMEDY: Final = "give a folder that `ragbandit policy train` wrote"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trained:
    """A classifier after training."""

    network: Network
    arms: tuple[ArmName, ...]
    #: mean steps of every arm in the training rows
    costs: tuple[float, ...]
    report: Mapping[str, Json]
    #: of the folder's contents; empty where it was trained in this process
    identity: str = ""


class TableClassifier(CountingPolicy, ABC):
    """Fine-tuned on tables; a subclass says what the labels, the loss and the choice are."""

    algorithm: ClassVar[str]
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"text"})
    deterministic: ClassVar[bool] = True
    #: whether the epoch with the least loss on held-out rows is kept; False: the one with the most accuracy
    least_loss: ClassVar[bool]

    def __init__(self, fitting: FittingParams) -> None:
        super().__init__(fitting)
        self.fitting = fitting
        self._trained = None if fitting.trained is None else self._read(Path(fitting.trained).expanduser())

    @abstractmethod
    def _examples(self, rows: Sequence[TableRow], *, arms: Sequence[ArmName]) -> list[FittingExample]:
        """The questions to learn from; rows that teach nothing are left out."""

    @abstractmethod
    def _loss(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """The mean loss of a batch, both (B, K); differentiable."""

    @abstractmethod
    def _accuracy(self, outputs: "Tensor", targets: "Tensor") -> float:
        """In [0, 1], on held-out rows, both (B, K)."""

    @abstractmethod
    def _probabilities(self, outputs: Numbers) -> Numbers:
        """From the K outputs of a question to its K probabilities."""

    @abstractmethod
    def _choice(self, known: Mapping[ArmName, tuple[float, float]], *, arms: Sequence[ArmName]) -> PolicyOutput:
        """The choice; known: arm -> (probability, mean steps) of the arms that were trained."""

    # -------------------------------------------------------------------------------- the policy

    @property
    def report(self) -> Mapping[str, Json] | None:
        """The report of the training; None for a policy that is not trained."""
        return None if self._trained is None else self._trained.report

    @property
    def trained_arms(self) -> tuple[ArmName, ...]:
        """The arms that it can choose, those of the table it was trained on; none if it is not trained."""
        return () if self._trained is None else self._trained.arms

    @property
    def tolerance(self) -> float:
        """Rounding of scores: the state is the folder's sha256 and counts, which no processor rounds."""
        return 0.0 if self._trained is None else self._trained.network.reader.rounding

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """The chosen arm has all the probability, ties share it; an untrained policy gives every arm the same."""
        del features
        return [self._one(query.text, arms=offered) for query, offered in zip(queries, arms, strict=True)]

    def _one(self, text: str, *, arms: Sequence[ArmName]) -> PolicyOutput:
        trained = self._trained
        if trained is None:
            return PolicyOutput(pmf=(1.0 / len(arms),) * len(arms), facts={"untrained": True})
        probabilities = self._probabilities(trained.network.outputs([text], arms=trained.arms)[0])
        pairs = zip(probabilities.tolist(), trained.costs, strict=True)
        return self._choice(dict(zip(trained.arms, pairs, strict=True)), arms=arms)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Counts, and the trained folder's sha256; or, after `fit`, all weights as float32."""
        arrays, facts = super().state()
        trained = self._trained
        if trained is None:
            return arrays, facts
        if trained.identity:
            return arrays, facts | {"trained": trained.identity}
        known = {"arms": list(trained.arms), "costs": list(trained.costs), "report": dict(trained.report)}
        return trained.network.arrays(moments=False), facts | known | {"model": trained.network.reader.identity}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state; it must be of this trained folder, or carry whole weights of this model."""
        seen = restored_counts(facts)
        if "model" in facts:
            network = Network(load_reader(self.fitting), seed=self.fitting.seed, to_train=True)
            if facts["model"] != network.reader.identity:
                raise SnapshotError("made with another model or tokenizer", field="policy.params.model")
            arms, costs = tuple(facts["arms"]), tuple(facts["costs"])
            shapes = network.shapes(arms, rows=1)
            network.fill(checked_arrays(arrays, shapes=shapes, float32=shapes))
            self._trained = _Trained(network=network, arms=arms, costs=costs, report=facts["report"])
        elif arrays or facts.get("trained") != (self._trained.identity if self._trained is not None else None):
            raise SnapshotError("made with another trained folder", field=_FIELD)
        self.seen = seen

    # -------------------------------------------------------------------------------- training

    def fit(self, rows: Sequence[TableRow], *, progress: BatchProgress = lambda _done, _total: None) -> dict[str, Json]:
        """Train on full-information rows, from the encoder `model` on; the report.

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
        random = np.random.default_rng([self.fitting.seed, 2])
        order = [examples[i] for i in random.permutation(len(examples))]
        held = min(round(len(examples) * self.fitting.validation), len(examples) - 1)
        network = Network(load_reader(self.fitting), seed=self.fitting.seed, to_train=True)
        best: tuple[tuple[float, ...], int, Arrays] | None = None
        epochs: list[Json] = []
        for line in self._epochs(network, order[held:], arms=arms, random=random, progress=progress):
            merit: tuple[float, ...] = (float(len(epochs)),)  # without held-out rows the last epoch is the best
            if held:
                loss, accuracy, merit = self._validated(network, order[:held], arms=arms)
                line |= {"validation_loss": loss, "accuracy": accuracy}
            epochs.append(line)
            if best is None or merit > best[0]:
                best = merit, len(epochs), network.arrays(moments=False)
        assert best is not None
        network.fill(best[2])
        report: dict[str, Json] = {
            "rows": len(rows),
            "used": len(examples),
            "dropped": len(rows) - len(examples),
            "inductive": sum(example.inductive for example in examples),
            "labels": {arm: sum(example.target[i] == 1.0 for example in examples) for i, arm in enumerate(arms)},
            "validation_rows": held,
            "epochs": epochs,
            "best_epoch": best[1],
        }
        self._trained = _Trained(network=network, arms=arms, costs=_costs(rows, arms=arms), report=report)
        return report

    def _epochs(
        self,
        network: Network,
        examples: Sequence[FittingExample],
        *,
        arms: Sequence[ArmName],
        random: np.random.Generator,
        progress: BatchProgress,
    ) -> Iterator[dict[str, Json]]:
        """Pass after pass over the training rows; of each the mean loss."""
        fitting, step = self.fitting, 0
        total = math.ceil(len(examples) / fitting.batch) * fitting.epochs
        for _ in range(fitting.epochs):
            losses, order = [], random.permutation(len(examples))
            for start in range(0, len(order), fitting.batch):
                rows = [examples[i] for i in order[start : start + fitting.batch]]
                step += 1
                loss = network.descend(
                    [row.text for row in rows],
                    arms=arms,
                    loss=functools.partial(self._loss, targets=_targets(network, rows)),
                    rate=fitting.learning_rate * (1.0 - (step - 1) / total),
                    decay=0.0,
                    step=step,
                )
                losses.append(loss * len(rows))
                progress(step, total)
            yield {"loss": math.fsum(losses) / len(examples)}

    def _validated(
        self, network: Network, held: Sequence[FittingExample], *, arms: Sequence[ArmName]
    ) -> tuple[float, float, tuple[float, ...]]:
        """(loss, accuracy, merit) on the held-out rows: the epoch with the most merit is kept, the first of equals."""
        batches = [held[at : at + self.fitting.batch] for at in range(0, len(held), self.fitting.batch)]
        outputs = np.concatenate([network.outputs([row.text for row in rows], arms=arms) for rows in batches])
        given, targets = network.reader.tensor(outputs).float(), _targets(network, held)
        loss, accuracy = float(self._loss(given, targets)), self._accuracy(given, targets)
        return loss, accuracy, (-loss, accuracy) if self.least_loss else (accuracy, -loss)

    # -------------------------------------------------------------------------------- the folder

    def save(self, folder: str | Path) -> str:
        """Write a trained policy's folder; its identity. Raises InvalidInput before `fit`, ConfigError if it exists."""
        from safetensors.numpy import save_file

        trained = self._trained
        if trained is None:
            raise InvalidInput("is not trained", field="policy", remedy="fit it first")
        target, reader, values = free_folder(folder), trained.network.reader, trained.network.arrays(moments=False)
        encoder = {name: leaf.detach().cpu().numpy() for name, leaf in trained.network.encoder.named_parameters()}
        try:
            with whole_folder(target) as work:
                save_file(encoder, work / "model.safetensors", metadata={"format": "pt"})
                heads = np.concatenate([values[HEAD + arm] for arm in trained.arms])
                save_file({"pre": values["pre"][0], "heads": heads}, work / "layers.safetensors")
                shutil.copyfile(reader.folder / "config.json", work / "config.json")
                (work / "tokenizer.json").write_text(reader.tokens.tokenizer.to_str(), encoding="utf-8")
                described = {"format": FORMAT, "algorithm": self.algorithm, "arms": list(trained.arms)}
                described |= {"costs": list(trained.costs), "report": dict(trained.report)}
                described |= {"sha256": {file.name: sha256_of(file) for file in work.iterdir()}}
                text = json.dumps(described, indent=1, sort_keys=True)
                (work / _FACTS).write_text(text + "\n", encoding="utf-8")
                _open_to_others(work)
        except OSError as error:
            remedy = "give another folder"
            raise ConfigError(f"{target} cannot be written: {error}", field="out", remedy=remedy) from error
        return hashlib.sha256(text.encode()).hexdigest()

    def _read(self, path: Path) -> _Trained:
        """The classifier in a folder, after every file's sha256 was compared. Raises ConfigError."""
        from safetensors.numpy import load_file

        try:
            text = (path / _FACTS).read_text("utf-8")
            described = json.loads(text)
            arms = tuple(ArmName(arm) for arm in described["arms"])
            costs = tuple(float(cost) for cost in described["costs"])
            damaged = [name for name, wanted in described["sha256"].items() if sha256_of(path / name) != wanted]
            kind = described["algorithm"], described["format"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is no trained policy: {error!r}", field=_FIELD, remedy=_REMEDY) from error
        if damaged:
            message = f"{path / damaged[0]} is damaged: its sha256 does not match"
            raise ConfigError(message, field=_FIELD, remedy=_REMEDY)
        if kind != (self.algorithm, FORMAT):
            message = f"{path} holds {kind[0]!r} in format {kind[1]!r}, not {self.algorithm!r} in format {FORMAT}"
            raise ConfigError(message, field=_FIELD, remedy=_REMEDY)
        network = Network(load_reader(self.fitting, folder=str(path)), seed=self.fitting.seed, to_train=False)
        layers = load_file(path / "layers.safetensors")
        rows = {"pre": layers["pre"][None], **_named(arms, layers["heads"])}
        shapes = {key: shape for key, shape in network.shapes(arms, rows=1).items() if key != "encoder"}
        if {key: array.shape for key, array in rows.items()} != shapes or len(costs) != len(arms):
            raise ConfigError(f"{path} holds layers of other shapes", field=_FIELD, remedy=_REMEDY)
        network.fill(rows)
        identity = hashlib.sha256(text.strip().encode()).hexdigest()
        return _Trained(network=network, arms=arms, costs=costs, report=described["report"], identity=identity)


def free_folder(folder: str | Path) -> Path:
    """The path, if nothing is there yet. Raises ConfigError: training takes long, and what is there may be in use."""
    path = Path(folder).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is there already", field="out", remedy="give another folder, or empty this one")
    return path


def _open_to_others(work: Path) -> None:
    """Files and folder as anybody's: so far they are for their owner alone, and the service may be another user."""
    mask = os.umask(0o022)
    os.umask(mask)
    work.chmod(0o777 & ~mask)
    for file in work.iterdir():
        file.chmod(0o666 & ~mask)


def _named(arms: Sequence[ArmName], heads: Matrix) -> Arrays:
    """Heads (K, d + 1) by the names of a network's arrays; of too few or too many the shapes tell."""
    return {HEAD + arm: head[None] for arm, head in zip(arms, heads, strict=False)}


def _targets(network: Network, rows: Sequence[FittingExample]) -> "Tensor":
    return network.reader.tensor(np.array([row.target for row in rows], dtype=np.float32))  # (B, K)


def _costs(rows: Sequence[TableRow], *, arms: Sequence[ArmName]) -> tuple[float, ...]:
    """Mean steps of every arm over the rows that have them."""
    steps_of = {arm: [row.steps[arm] for row in rows if arm in row.steps] for arm in arms}
    return tuple(math.fsum(steps) / len(steps) if steps else 0.0 for steps in steps_of.values())
