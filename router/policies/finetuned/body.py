"""A transformer with one linear head per arm, all of its weights open to training: what the fine-tuned policies share.

The net is Hugging Face's DistilBertForSequenceClassification: the first token's last state, a square linear layer
("pre") with ReLU and dropout, one row of weights per arm. Any other encoder that AutoModel loads can stand in for
DistilBERT. What is trained lies in a few float32 tensors outside of the module, so that a policy's state is these
tensors and many policies of one process share one module. Importing this file imports no torch; `load_body` does.

Every question runs alone when it is decided on: in a batch it would get other rounding than by itself.
"""

import contextlib
import functools
import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ragbandit.router.encoders.forward import TruncatingTokenizer, load_module
from ragbandit.router.encoders.weights import DEFAULT_ENCODER, resolve
from ragbandit.router.policies.base import Count, PolicyParams, Text
from ragbandit.shared.errors import ConfigError, required_module
from ragbandit.shared.torch_models import device_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DEFAULT_ENCODER", "RIGHT", "EncoderBody", "ReadingParams", "Vector32", "load_body", "score"]

Vector32 = npt.NDArray[np.float32]

#: the setting of the model, for messages
_MODEL_FIELD: Final = "policy.params.model"
#: quality from which an answer counts as right: the papers know 0 and 1 only
RIGHT: Final = 0.5
#: the rounding of one number
_UNIT: Final = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
# The modules lend their arithmetic to whoever calls, one at a time: their weights are swapped for the caller's, and
# the seed of the dropout is the whole process's.
_WORK: Final = threading.RLock()


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


def load_body(reading: ReadingParams, *, folder: str | None = None) -> "EncoderBody":
    """The model, loaded once per process and settings: policies are made often, and share it.

    folder: in the place of `model`. Raises ConfigError if the weights, the packages or the device are missing.
    """
    required_module("torch", extra="models", field=_MODEL_FIELD)
    model = reading.model if folder is None else folder
    device, stamp = device_of(reading.device, field="policy.params.device"), _stamp(Path(model).expanduser())
    return _loaded(model, reading.max_tokens, device, reading.precision, reading.threads, stamp)


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of a local model's files: equal while it is the one that was loaded."""
    if not folder.is_dir():
        return ()
    files = [(file, file.stat()) for file in sorted(folder.iterdir()) if file.suffix in (".safetensors", ".json")]
    return tuple((file.name, stat.st_size, stat.st_mtime_ns) for file, stat in files)


@functools.lru_cache(maxsize=4)
def _loaded(
    model: str, max_tokens: int, device: str, precision: str, threads: int | None, _stamp: tuple[object, ...]
) -> "EncoderBody":
    weights = resolve(model, setting=_MODEL_FIELD)
    return EncoderBody(
        weights.folder,
        sha256=weights.sha256,
        max_tokens=max_tokens,
        device=device,
        precision=precision,
        threads=threads,
    )


class EncoderBody:
    """An encoder as a function of its weights, laid end to end in one vector of P numbers; d is its width.

    threads fixes torch's thread count while it works, and puts it back: with another count, sums round otherwise.
    precision "bfloat16" multiplies matrices in that format (torch.autocast); weights and gradients stay float32.
    """

    def __init__(
        self, folder: Path, *, sha256: str, max_tokens: int, device: str, precision: str, threads: int | None
    ) -> None:
        self.folder, self.device = folder, device
        self._module = _load_module(folder).to(device)
        config = self._module.config
        self.width = int(config.hidden_size)
        longest = int(getattr(config, "max_position_embeddings", 512))
        if max_tokens > longest:
            raise ConfigError(
                f"the model reads {longest} at most", field="policy.params.max_tokens", remedy=f"give 3 to {longest}"
            )
        reader = TruncatingTokenizer(folder, max_tokens=max_tokens, field=_MODEL_FIELD)
        self.tokenizer, self._ids = reader.tokenizer, reader.ids
        self._pad = int(getattr(config, "pad_token_id", None) or 0)
        self._dropout = float(getattr(config, "seq_classif_dropout", 0.1))
        self._precision, self._threads = precision, threads
        #: relative rounding of one gradient: forward and backward make about 14 sums a layer and 4 beside them, each of
        #: `width` products with the rounding of the format, and independent roundings grow as the root of their number
        self.rounding = _UNIT[precision] * math.sqrt(2.0 * (14 * int(config.num_hidden_layers) + 4) * self.width)
        #: name, start, end and shape of every parameter in the vector of weights
        self._places: list[tuple[str, int, int, tuple[int, ...]]] = []
        end = 0
        for name, parameter in self._module.named_parameters():
            start, end = end, end + parameter.numel()
            self._places.append((name, start, end, tuple(parameter.shape)))
        #: P
        self.size = end
        #: the weights it came with, shape (P,); never written to
        self.initial = self._laid_out()
        #: of weights and tokenizer: two bodies with one identity read alike
        made = f"{sha256} {reader.sha256}"
        self.identity = hashlib.sha256(made.encode()).hexdigest()

    def _laid_out(self) -> "Tensor":
        """All parameters in one vector, which the module then reads them from: they are not kept twice."""
        import torch

        parameters = dict(self._module.named_parameters())
        with torch.no_grad():
            flat = torch.cat([parameter.detach().flatten() for parameter in parameters.values()])
            for name, view in self.views(flat).items():
                parameters[name].data = view
        return flat

    def views(self, flat: "Tensor") -> "dict[str, Tensor]":
        """The parameters by name, as windows on the vector; flat has shape (P,)."""
        return {name: flat[start:end].view(shape) for name, start, end, shape in self._places}

    def tensor(self, array: npt.NDArray[Any]) -> "Tensor":
        """A copy of the array where the module is."""
        import torch

        return torch.tensor(array, device=self.device)

    def hidden(
        self, texts: Sequence[str], *, encoder: "dict[str, Tensor]", pre: "Tensor", dropout: int | None
    ) -> "Tensor":
        """Input of the heads: (B, d), float32, in [0, inf). pre has shape (d, d + 1), the bias last.

        dropout: the seed of the units that are left out; None leaves none out.
        """
        import torch

        with self._at_work(dropout):
            ids, mask = self._tokens(texts)  # both (B, T)
            states = torch.func.functional_call(
                self._module, encoder, args=(), kwargs={"input_ids": ids, "attention_mask": mask}
            ).last_hidden_state  # (B, T, d)
            out = torch.relu(torch.nn.functional.linear(states[:, 0], pre[:, :-1], pre[:, -1]))
            return torch.nn.functional.dropout(out, self._dropout, training=dropout is not None).float()

    @contextlib.contextmanager
    def _at_work(self, dropout: int | None) -> "Iterator[None]":
        """The module for one caller, with the thread count, the precision and the dropout that hold here."""
        import torch

        with _WORK, self.fixed_threads(), contextlib.ExitStack() as stack:
            if dropout is not None:
                stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
                # What torch.manual_seed does, without a milliseconds' look at devices that are not used.
                torch.default_generator.manual_seed(dropout)
                if self.device != "cpu":
                    torch.cuda.manual_seed_all(dropout)
            if self._precision == "bfloat16":
                stack.enter_context(torch.autocast(self.device, dtype=torch.bfloat16))
            if self._module.training != (dropout is not None):  # it visits every module inside
                self._module.train(dropout is not None)
            yield

    @contextlib.contextmanager
    def fixed_threads(self) -> "Iterator[None]":
        """Torch's thread count as set; OpenMP remembers it per calling thread, so it is set at every call."""
        import torch

        before = torch.get_num_threads()
        if self._threads is None or before == self._threads:
            yield
            return
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _tokens(self, texts: Sequence[str]) -> "tuple[Tensor, Tensor]":
        import torch

        rows = [self._ids(text) for text in texts]
        longest = max(map(len, rows))
        ids = [row + [self._pad] * (longest - len(row)) for row in rows]
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        return torch.tensor(ids, device=self.device), torch.tensor(mask, device=self.device)


def score(hidden: Vector32, *, head: Vector32) -> float:
    """One head's output, in float64 and by itself: not in its last bit may it depend on the other arms.

    hidden has shape (d,), head (d + 1,), the bias last.
    """
    return float((head[:-1].astype(np.float64) * hidden).sum() + head[-1])


def _load_module(folder: Path) -> Any:
    """The encoder in float32 with plain attention, whose gradients add up in one order."""
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)  # layers that the checkpoint lacks and we do not use must not differ by process
        return load_module(folder, field=_MODEL_FIELD, attn_implementation="eager").float()
