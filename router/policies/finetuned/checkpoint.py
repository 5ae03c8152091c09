"""A trained classifier as a folder: written by `ragbandit policy train`, named by the param `trained`.

config.json  model.safetensors  tokenizer.json    the fine-tuned encoder, as AutoModel loads it
layers.safetensors                                "pre" (d, d + 1) and "heads" (K, d + 1), biases last
ragbandit.json                                    arms, costs, report, and the sha256 of the other four
"""

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.policies.finetuned.body import EncoderBody
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import whole_folder
from ragbandit.shared.types import ArmName, Json

if TYPE_CHECKING:
    from torch import Tensor

FORMAT: Final = 1
_FACTS: Final = "ragbandit.json"
_FIELD: Final = "policy.params.trained"
_REMEDY: Final = "give a folder that `ragbandit policy train` wrote"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A classifier after training: P weights of the encoder, the layer before the heads, K heads."""

    body: EncoderBody
    #: shape (P,)
    encoder: "Tensor"
    #: shape (d, d + 1)
    pre: "Tensor"
    #: shape (K, d + 1), float32, a row per arm
    heads: npt.NDArray[np.float32]
    facts: "CheckpointFacts"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFacts:
    """Facts of a trained classifier, without its weights."""

    algorithm: str
    arms: tuple[ArmName, ...]
    #: mean steps of every arm in the training rows
    costs: tuple[float, ...]
    report: Mapping[str, Json]
    #: of the folder's contents; empty where it was trained in this process
    identity: str = ""


def free_folder(folder: str | Path) -> Path:
    """The path, if nothing is there yet. Raises ConfigError: training takes long, and what is there may be in use."""
    path = Path(folder).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is there already", field="out", remedy="give another folder, or empty this one")
    return path


def write_trained(trained: Trained, folder: str | Path) -> str:
    """Write the folder, whole or not at all; its identity. Raises ConfigError if it is there or cannot be written."""
    target = free_folder(folder)
    try:
        with whole_folder(target) as work:
            identity = _fill(work, trained=trained)
            mask = _umask()  # so far it is for its owner alone, and the service may be another user
            work.chmod(0o777 & ~mask)
            for file in work.iterdir():
                file.chmod(0o666 & ~mask)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error}", field="out", remedy="give another folder") from error
    return identity


def _fill(work: Path, *, trained: Trained) -> str:
    from safetensors.numpy import save_file

    body, facts = trained.body, trained.facts
    weights = {name: view.cpu().contiguous().numpy() for name, view in body.views(trained.encoder).items()}
    save_file(weights, work / "model.safetensors", metadata={"format": "pt"})
    save_file({"pre": trained.pre.cpu().numpy(), "heads": trained.heads}, work / "layers.safetensors")
    shutil.copyfile(body.folder / "config.json", work / "config.json")
    (work / "tokenizer.json").write_text(body.tokenizer.to_str(), encoding="utf-8")
    files = ("config.json", "layers.safetensors", "model.safetensors", "tokenizer.json")
    described = {
        "format": FORMAT,
        "algorithm": facts.algorithm,
        "arms": list(facts.arms),
        "costs": list(facts.costs),
        "report": dict(facts.report),
        "sha256": {name: _sha256(work / name) for name in files},
    }
    text = json.dumps(described, indent=1, sort_keys=True)
    (work / _FACTS).write_text(text + "\n", encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def read_facts(folder: str, *, algorithm: str) -> CheckpointFacts:
    """The facts in a folder, after every file's sha256 was compared. Raises ConfigError."""
    path = Path(folder).expanduser()
    try:
        text = (path / _FACTS).read_text("utf-8")
        described = json.loads(text)
        sums = {str(name): str(wanted) for name, wanted in described["sha256"].items()}
        facts = CheckpointFacts(
            algorithm=str(described["algorithm"]),
            arms=tuple(ArmName(arm) for arm in described["arms"]),
            costs=tuple(float(cost) for cost in described["costs"]),
            report=dict(described["report"]),
            identity=hashlib.sha256(text.strip().encode()).hexdigest(),
        )
        for name, wanted in sums.items():
            stat = (path / name).stat()
            if _known_sha256(path / name, size=stat.st_size, changed=stat.st_mtime_ns) != wanted:
                raise ConfigError(f"{path / name} is damaged: its sha256 does not match", field=_FIELD, remedy=_REMEDY)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no trained policy: {error!r}", field=_FIELD, remedy=_REMEDY) from error
    if described.get("format") != FORMAT or facts.algorithm != algorithm:
        raise ConfigError(
            f"{path} holds {facts.algorithm!r} in format {described.get('format')!r}, "
            f"not {algorithm!r} in format {FORMAT}",
            field=_FIELD,
            remedy=_REMEDY,
        )
    return facts


def read_layers(folder: str, *, body: EncoderBody, facts: CheckpointFacts) -> Trained:
    """The trained classifier; its encoder is the body's own. Raises ConfigError on layers of other shapes."""
    from safetensors.numpy import load_file

    layers: dict[str, Any] = load_file(Path(folder).expanduser() / "layers.safetensors")
    wanted = {"pre": (body.width, body.width + 1), "heads": (len(facts.arms), body.width + 1)}
    shapes = {name: array.shape for name, array in layers.items()}
    if shapes != wanted or len(facts.costs) != len(facts.arms):
        raise ConfigError(f"layers of shapes {shapes}, wanted {wanted}", field=_FIELD, remedy=_REMEDY)
    return Trained(body=body, encoder=body.initial, pre=body.tensor(layers["pre"]), heads=layers["heads"], facts=facts)


@functools.lru_cache(maxsize=64)
def _known_sha256(file: Path, *, size: int, changed: int) -> str:
    """Remembered in this process by path, size and time: policies are made often, and the encoder is 260 MB."""
    del size, changed
    return _sha256(file)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
