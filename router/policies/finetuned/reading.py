"""The encoder of the fine-tuned policies, which is trained together with their heads.

Importing this module and the policies does not import torch. Making a policy imports it.
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
from ragbandit.shared.types import Json

if TYPE_CHECKING:
    from ragbandit.router.policies.finetuned.network import Reader

#: smallest quality of a right answer; the papers have only the qualities 0 and 1
RIGHT: Final = 0.5
HEAD: Final = "head/"
MODEL: Final = "policy.params.model"
#: params that differ from the defaults of `ReadingParams`, except the model
EXAMPLE: Final[dict[str, Json]] = {
    "max_tokens": 16,
    "device": "cpu",
    "precision": "bfloat16",
    "threads": 1,
    "seed": 3,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingParams(PolicyParams):
    #: folder or hub name of the encoder that training starts from
    model: Text = DEFAULT_ENCODER
    #: largest number of tokens of a question; further tokens are cut off
    max_tokens: Annotated[int, Field(ge=3, le=10**9)] = 256
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: number format of matrix products; weights and gradients are always float32
    precision: Literal["float32", "bfloat16"] = "float32"
    #: number of torch threads, which affects the rounding of sums; None for torch's own setting
    threads: Count | None = None
    #: seed of the new layers and of the dropout; when training on a table, also of the split and order of rows
    seed: Whole = 0


def load_reader(reading: ReadingParams, *, folder: str | None = None) -> "Reader":
    """Load the encoder, once per process and settings, because policies are made often.

    folder: replaces `reading.model`, unless it is None. Raises ConfigError if weights, packages or device are missing.
    """
    required_module("torch", extra="models", field=MODEL)
    from ragbandit.router.policies.finetuned.network import loaded_reader

    device = device_of(reading.device, field="policy.params.device")
    weights = resolve(reading.model if folder is None else folder, setting=MODEL)
    shared = ReadingParams(max_tokens=reading.max_tokens, precision=reading.precision, threads=reading.threads)
    return loaded_reader(weights.folder, sha256=weights.sha256, device=device, reading=shared)


def sha256_of(file: Path) -> str:
    """The sha256 of a file; cached on disk, because policies are made often and the encoder has 260 MB."""
    return file_sha256(file, root=cache_root(None))
