"""Params that the fine-tuned policies share, and the names of their tensors and settings."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from ragbandit.router.encoders.weights import DEFAULT_ENCODER
from ragbandit.router.policies.base import Count, PolicyParams, Text, Whole
from ragbandit.shared.types import Json

#: smallest quality of a right answer; the papers have only the qualities 0 and 1
RIGHT: Final = 0.5
HEAD: Final = "head/"
MODEL: Final = "policy.params.model"
#: example params of the fine-tuned policies: few tokens and fast learning
EXAMPLE: Final[dict[str, Json]] = {"max_tokens": 16, "threads": 1, "learning_rate": 1e-3}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingParams(PolicyParams):
    #: folder or hub name of the encoder that training starts from; of a T5 model the encoder is used
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
