"""Loads the encoder of the fine-tuned policies, which is trained together with their heads.

Importing this module and the policies does not import torch. Making a policy imports it.
"""

from typing import TYPE_CHECKING

from ragbandit.router.encoders.weights import resolve
from ragbandit.router.policies.finetuned.params import MODEL, ReadingParams
from ragbandit.shared.errors import required_module
from ragbandit.shared.torch_models import device_of

if TYPE_CHECKING:
    from ragbandit.router.policies.finetuned.network import Reader


def load_reader(reading: ReadingParams) -> "Reader":
    """Load the encoder, once per process and settings, because policies are made often.

    Raises ConfigError if weights, packages or device are missing, or if the model reads fewer than `max_tokens`.
    """
    required_module("torch", extra="models", field=MODEL)
    from ragbandit.router.policies.finetuned.network import cached_reader

    device = device_of(reading.device, field="policy.params.device")
    weights = resolve(reading.model, setting=MODEL)
    shared = ReadingParams(max_tokens=reading.max_tokens, precision=reading.precision, threads=reading.threads)
    return cached_reader(weights.folder, sha256=weights.sha256, device=device, reading=shared)
