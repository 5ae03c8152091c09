"""Fine-tuned policies: an encoder trained together with its heads, online or ahead on a labelled table.

Importing them imports no torch; making one does (`load_reader`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from ragbandit.router.encoders.weights import DEFAULT_ENCODER, file_sha256, resolve
from ragbandit.router.policies.base import Count, PolicyParams, Text, Whole
from ragbandit.shared.errors import required_module
from ragbandit.shared.files import cache_root
from ragbandit.shared.torch_models import device_of

if TYPE_CHECKING:
    from ragbandit.router.policies.finetuned.network import Reader

#: quality from which an answer counts as right: the papers know 0 and 1 only
RIGHT: Final = 0.5
#: what the names of the heads' arrays begin with
HEAD: Final = "head/"
#: the setting of the model, for messages
MODEL: Final = "policy.params.model"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingParams(PolicyParams):
    """Settings of how a fine-tuned policy reads a question."""

    #: folder or hub name of the encoder, where training starts
    model: Text = DEFAULT_ENCODER
    #: tokens of a question that are read
    max_tokens: Annotated[int, Field(ge=3, le=10**9)] = 256
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: of matrix products; weights and gradients stay float32
    precision: Literal["float32", "bfloat16"] = "float32"
    #: torch's threads while it works; with another count, sums round otherwise. None leaves torch's
    threads: Count | None = None
    #: of the fresh layers, of the dropout, and of the split and the order where it is trained on a table
    seed: Whole = 0


def load_reader(reading: ReadingParams, *, folder: str | None = None) -> "Reader":
    """The model, loaded once per process and settings: policies are made often, and share it.

    folder: in the place of `model`. Raises ConfigError if the weights, the packages or the device are missing.
    """
    required_module("torch", extra="models", field=MODEL)
    from ragbandit.router.policies.finetuned.network import loaded_reader

    device = device_of(reading.device, field="policy.params.device")
    weights = resolve(reading.model if folder is None else folder, setting=MODEL)
    alike = ReadingParams(max_tokens=reading.max_tokens, precision=reading.precision, threads=reading.threads)
    return loaded_reader(weights.folder, sha256=weights.sha256, device=device, reading=alike)


def sha256_of(file: Path) -> str:
    """The sha256 of a file, remembered as `resolve` does: policies are made often, and the encoder is 260 MB."""
    return file_sha256(file, root=cache_root(None))
