"""Forward pass of the encoder: from the token ids of questions to hidden states, pooled per layer.

DistilBERT is implemented here because for one short question the general code of transformers takes most of the time.
On a CPU the tokens of all questions form one matrix without padding. On a GPU, where a call costs more than padding,
questions of similar length are padded. Importing this module does not import torch.
"""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.encoders.int8 import Int8Linear, Ranges, round_outwards
from ragbandit.shared.errors import ConfigError, encodable, missing_package, required_module
from ragbandit.shared.processes.this_process import cores
from ragbandit.shared.torch_models import device_of, load_encoder, packed_linear, precision_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# A token is rarely longer than this many characters; longer texts are cut before the tokenizer reads them.
_CHARACTERS_PER_TOKEN: Final = 32


class TruncatingTokenizer:
    """The tokenizer in a model's folder, limited to max_tokens tokens of a text.

    field: the setting that names the model, for messages. Raises ConfigError without the package tokenizers.
    """

    def __init__(self, folder: Path, *, max_tokens: int, field: str) -> None:
        self.tokenizer = _load_tokenizer(folder, field=field)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(max_length=max_tokens)
        self._characters = max_tokens * _CHARACTERS_PER_TOKEN
        #: hash of the tokenizer's definition, truncation included
        self.sha256 = hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    def batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of every text, special tokens included. Accepts any str; releases the GIL."""
        # A lone surrogate, which JSON allows, has no UTF-8 and would raise in the tokenizer.
        clean = [encodable(text[: self._characters]) for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(clean)]


def _load_tokenizer(folder: Path, *, field: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_package("tokenizers", extra="models", field=field) from error
    file = folder / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    # Older models have only a vocabulary, from which transformers builds a tokenizer.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer


#: padded lengths are multiples of this number, so that there are few shapes and masks are aligned
_MULTIPLE: Final = 8

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBatch:
    """The questions of one forward pass, the shortest first."""

    #: the tokens of all questions, one question after another, shape (N,)
    ids: Integers
    #: number of tokens of each question, ascending, each at least 1, shape (n,)
    lengths: Integers

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "TokenBatch":
        """A batch of questions that are already sorted by length."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        return cls(
            ids=np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum())), lengths=lengths
        )

    @property
    def groups(self) -> list[tuple[int, int]]:
        """(number of questions, their length) for every length in the batch, in order."""
        values, counts = np.unique(self.lengths, return_counts=True)
        return list(zip(counts.tolist(), values.tolist(), strict=True))

    @property
    def positions(self) -> Integers:
        """Position of every token in its question, shape (N,)."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.ids)) - np.repeat(starts, self.lengths)


def token_batches(
    rows: Sequence[Sequence[int]], *, most_questions: int, most_tokens: int
) -> Iterator[tuple[list[int], TokenBatch]]:
    """Split questions into batches. Yields (indices of the questions in `rows`, batch).

    rows: token ids of every question
    most_tokens: limit of a batch, padding included; a question with more tokens is a batch of its own
    """
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    start = 0
    while start < len(order):
        end = start + 1
        while end < min(len(order), start + most_questions):
            if (end + 1 - start) * len(rows[order[end]]) > most_tokens:
                break
            end += 1
        places = order[start:end]
        yield places, TokenBatch.of([rows[place] for place in places])
        start = end


Array = npt.NDArray[np.float32]

#: largest GOMP_SPINCOUNT for which `default_threads` is above 1; GNU OpenMP's default is 300,000
_SHORT_SPIN: Final = 10_000
#: largest result of `default_threads`: more threads do not help with a short question
_MOST_THREADS: Final = 4


class Forward(ABC):
    layers: int
    width: int
    #: largest number of tokens that the model can read
    max_tokens: int

    def __init__(self, *, precision: str, device: str, threads: int | None) -> None:
        import torch

        self._torch = torch
        self.precision, self.device = precision, device
        if threads is not None and threads < 1:
            raise ConfigError("must be at least 1", field="encoder.threads")
        self._threads = default_threads(os.environ, cores=cores()) if threads is None else threads
        self._fix_threads()
        self._projection: tuple[Tensor, Tensor] | None = None
        #: linear layers that compute in 8 bits; empty for other precisions
        self.int8_layers: list[Int8Linear] = []

    def pool_states(self, batch: TokenBatch) -> Array:
        """State of the first token and mean state of all tokens, of every layer: (questions, layers * 2 * width)."""
        self._fix_threads()
        with self._torch.inference_mode():
            return _numpy(self._run(batch))

    def measure_ranges(self, batches: Sequence[TokenBatch]) -> Ranges:
        """Measure the ranges of the layers' inputs in these batches, for `set_ranges`. Only for int8."""
        for batch in batches:
            self.pool_states(batch)
        return np.array([round_outwards(layer.lowest, layer.highest) for layer in self.int8_layers])

    def set_ranges(self, ranges: Ranges) -> None:
        """Compute in 8 bits from now on. ranges: result of `measure_ranges`. Only for int8."""
        for layer, (lowest, highest) in zip(self.int8_layers, ranges.tolist(), strict=True):
            layer.set_range(lowest, highest)

    def store_projection(self, matrix: Array, offset: Array) -> None:
        """Store the projection's matrix (layers * 2 * width, k) and offset (k,) on the device, for `project`."""
        self._projection = tuple(self._torch.from_numpy(part).to(self.device) for part in (matrix, offset))

    def project(self, batch: TokenBatch) -> Array:
        """Compute pooled states @ matrix + offset on the device: (questions, k). Call `store_projection` first."""
        assert self._projection is not None
        matrix, offset = self._projection
        self._fix_threads()
        with self._torch.inference_mode():
            return _numpy(self._torch.addmm(offset, self._run(batch), matrix))

    def _fix_threads(self) -> None:
        """Set torch's thread count again: OpenMP keeps the count per calling thread, not per process."""
        if self._torch.get_num_threads() != self._threads:
            self._torch.set_num_threads(self._threads)

    def _run(self, batch: TokenBatch) -> "Tensor":
        """Pooled states on the device: (n, layers * 2 * width), float32."""
        width = min(-(-int(batch.lengths[-1]) // _MULTIPLE) * _MULTIPLE, self.max_tokens)
        real = np.arange(width) < batch.lengths[:, None]  # (n, T)
        ids = np.zeros(real.shape, dtype=np.int64)
        ids[real] = batch.ids
        return self._padded(*(self._torch.from_numpy(part).to(self.device) for part in (ids, batch.lengths)))

    @abstractmethod
    def _padded(self, ids: "Tensor", lengths: "Tensor") -> "Tensor":
        """Pool the states of B questions, padded to T tokens: ids (B, T) -> (B, layers * 2 * width), float32."""


def load_transformer(folder: Path, *, precision: str, device: str, threads: int | None) -> Forward:
    """Load the model in `folder` in evaluation mode. Raises ConfigError if it cannot run on this machine."""
    required_module("torch", extra="models", field="encoder.model")
    device = device_of(device, field="encoder.device")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    is_distilbert = config.get("model_type") == "distilbert" and config.get("activation", "gelu") == "gelu"
    supports_int8 = is_distilbert and device == "cpu"
    if precision == "auto" and device == "cpu":
        precision = automatic_precision(processor_features(), supports_int8=supports_int8)
    if precision == "int8" and not supports_int8:
        message, remedy = "int8 needs a DistilBERT model and a processor", 'use "auto" or "float32"'
        raise ConfigError(message, field="encoder.precision", remedy=remedy)
    if precision != "int8":
        precision = precision_of(precision, device=device, field="encoder.precision")
    if is_distilbert:
        return DistilBertForward(folder, config=config, precision=precision, device=device, threads=threads)
    return AnyForward(folder, precision=precision, device=device, threads=threads)


def processor_features() -> Mapping[str, Any]:
    """Name of an instruction set -> whether this processor has it; {} if torch does not report it."""
    import torch

    features: Mapping[str, Any] = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return features


def automatic_precision(features: Mapping[str, Any], *, supports_int8: bool) -> str:
    """The fastest precision on a processor. supports_int8: whether the model supports int8.

    Without VNNI, oneDNN sums products of bytes in 16 bits, which overflow. Without AMX, bfloat16 is slow.
    """
    if features.get("amx_bf16"):
        return "bfloat16"
    return "int8" if supports_int8 and (features.get("avx512_vnni") or features.get("avx_vnni")) else "float32"


class DistilBertForward(Forward):
    """DistilBERT (Sanh et al. 2019) over packed weights, without dropout."""

    def __init__(
        self, folder: Path, *, config: dict[str, Any], precision: str, device: str, threads: int | None
    ) -> None:
        super().__init__(precision=precision, device=device, threads=threads)
        self.layers, self.width = config["n_layers"], config["dim"]
        self.max_tokens = config["max_position_embeddings"]
        self._heads = config["n_heads"]
        dtype = self._torch.float32 if precision == "int8" else getattr(self._torch, precision)
        state = _read_parameters(folder, device=device, dtype=dtype)
        try:
            self._words = state["embeddings.word_embeddings.weight"]  # (vocabulary, width)
            self._positions = state["embeddings.position_embeddings.weight"]  # (max_tokens, width)
            self._first_norm = _norm_parameters(state, "embeddings.LayerNorm")
            self._blocks = [self._block(state, f"transformer.layer.{number}.") for number in range(self.layers)]
        except KeyError as error:
            raise ConfigError(f"{folder} lacks the parameter {error}", field="encoder.model") from error

    def _block(self, state: dict[str, "Tensor"], prefix: str) -> tuple[Any, ...]:
        torch = self._torch
        names = [f"{prefix}attention.{name}_lin" for name in "qkv"]
        weight = torch.cat([state[f"{name}.weight"] for name in names])  # (3 * width, width)
        bias = torch.cat([state[f"{name}.bias"] for name in names])
        outward, up, down = (
            (state[f"{prefix}{name}.weight"], state[f"{prefix}{name}.bias"])
            for name in ("attention.out_lin", "ffn.lin1", "ffn.lin2")
        )
        return (
            self._linear(weight, bias),
            self._linear(*outward),
            self._linear(*up, gelu=True),
            self._linear(*down),
            _norm_parameters(state, f"{prefix}sa_layer_norm"),
            _norm_parameters(state, f"{prefix}output_layer_norm"),
        )

    def _linear(self, weight: "Tensor", bias: "Tensor", *, gelu: bool = False) -> Callable[["Tensor"], "Tensor"]:
        torch = self._torch
        if self.precision == "int8":
            self.int8_layers.append(Int8Linear(weight, bias, gelu=gelu))
            return self.int8_layers[-1]
        product = packed_linear(weight, bias, rows=16) or partial(torch.nn.functional.linear, weight=weight, bias=bias)
        return (lambda x: torch.nn.functional.gelu(product(x))) if gelu else product

    def _run(self, batch: TokenBatch) -> "Tensor":
        """Like `Forward._run`, but a CPU needs no padding: the N tokens of the batch are the rows of one matrix."""
        if self.device != "cpu":
            return super()._run(batch)
        torch = self._torch
        shapes = batch.groups
        tokens = torch.from_numpy(np.stack([batch.ids, batch.positions])).to(self.device)  # (2, N)
        attend = partial(self._attend_in_groups, shapes=shapes)
        states = torch.stack(list(self._states(tokens[0], tokens[1], attend=attend)))  # (layers, N, width)
        groups = zip(states.split([count * length for count, length in shapes], dim=1), shapes, strict=True)
        parts = [_pool(group.view(self.layers, *shape, self.width)) for group, shape in groups]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _padded(self, ids: "Tensor", lengths: "Tensor") -> "Tensor":
        torch = self._torch
        count, longest = ids.shape
        places = torch.arange(longest, device=ids.device)  # (T,)
        real = places < lengths[:, None]  # (B, T)
        attend = partial(self._attend, shape=(count, longest), mask=real[:, None, None, :])
        states = self._states(ids.flatten(), places.repeat(count), attend=attend)
        return torch.cat([_masked_pool(x.view(count, longest, -1), real=real, lengths=lengths) for x in states], dim=1)

    def _states(self, ids: "Tensor", places: "Tensor", *, attend: Callable[["Tensor"], "Tensor"]) -> Iterator["Tensor"]:
        """Hidden states after every layer, each (N, width)."""
        norm = self._torch.nn.functional.layer_norm
        shape = (self.width,)
        x = norm(self._words[ids] + self._positions[places], shape, *self._first_norm)  # (N, width)
        for inward, outward, up, down, attention_norm, output_norm in self._blocks:
            x = norm(x + outward(attend(inward(x))), shape, *attention_norm)
            x = norm(x + down(up(x)), shape, *output_norm)
            yield x

    def _attend_in_groups(self, qkv: "Tensor", *, shapes: list[tuple[int, int]]) -> "Tensor":
        """Attention of each question over its own tokens: (N, 3 * width) -> (N, width). One call per length."""
        groups = zip(qkv.split([count * length for count, length in shapes]), shapes, strict=True)
        parts = [self._attend(group, shape=shape, mask=None) for group, shape in groups]
        return self._torch.cat(parts) if len(parts) > 1 else parts[0]

    def _attend(self, qkv: "Tensor", *, shape: tuple[int, int], mask: "Tensor | None") -> "Tensor":
        """Attention of B questions of T tokens: (B * T, 3 * width) -> (B * T, width). mask: False for padding."""
        attention = self._torch.nn.functional.scaled_dot_product_attention
        split = qkv.view(*shape, 3, self._heads, self.width // self._heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, heads, T, width / heads)
        return attention(query, key, value, attn_mask=mask).transpose(1, 2).reshape(-1, self.width)


class AnyForward(Forward):
    """Any encoder that `load_encoder` loads; every padded batch is one call."""

    def __init__(self, folder: Path, *, precision: str, device: str, threads: int | None) -> None:
        super().__init__(precision=precision, device=device, threads=threads)
        model = load_encoder(folder, field="encoder.model")
        self._model = model.to(device=device, dtype=getattr(self._torch, precision)).eval()
        self.layers, self.width = model.config.num_hidden_layers, model.config.hidden_size
        self.max_tokens = getattr(model.config, "max_position_embeddings", 512)

    def _padded(self, ids: "Tensor", lengths: "Tensor") -> "Tensor":
        torch = self._torch
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]  # (B, T)
        output = self._model(input_ids=ids, attention_mask=real.long(), output_hidden_states=True)
        states = output.hidden_states[1:]  # states after every layer, each (B, T, width)
        return torch.cat([_masked_pool(x, real=real, lengths=lengths) for x in states], dim=1)


def default_threads(environment: Mapping[str, str], *, cores: int) -> int:
    """The default number of encoder threads: up to 4 if OpenMP's waiting threads soon sleep in this process, else 1.

    By default GNU OpenMP's threads spin while they wait for each other. If other work runs on the same cores, a
    question then takes ten times as long. GOMP_SPINCOUNT, which the `ragbandit` command sets, or OMP_WAIT_POLICY
    shorten the wait. Both are read when torch is loaded. docs/machines.md has measurements.

    The number follows from the machine alone and never from a batch: more threads sum in another order, and a
    question's features must not depend on its neighbours.
    """
    spins = environment.get("GOMP_SPINCOUNT", "")
    if spins:
        sleeps_soon = spins.isdecimal() and int(spins) <= _SHORT_SPIN
    else:
        sleeps_soon = environment.get("OMP_WAIT_POLICY", "").lower() == "passive"
    return min(_MOST_THREADS, max(1, cores)) if sleeps_soon else 1


def _pool(states: "Tensor") -> "Tensor":
    """First token and mean of B questions of T tokens: (layers, B, T, width) -> (B, layers * 2 * width), float32."""
    import torch

    real = states.float()
    pooled = torch.stack([real[:, :, 0], real.mean(2)], dim=2)  # (layers, B, 2, width)
    return pooled.transpose(0, 1).flatten(1)


def _masked_pool(states: "Tensor", *, real: "Tensor", lengths: "Tensor") -> "Tensor":
    """`_pool` of one layer with padding: (B, T, width) -> (B, 2 * width), float32. real (B, T): False for padding."""
    import torch

    wide = states.float()
    mean = (wide * real[:, :, None]).sum(1) / lengths[:, None]
    return torch.cat([wide[:, 0], mean], dim=1)


def _numpy(tensor: "Tensor") -> Array:
    array: Array = tensor.cpu().numpy()
    return array


def _read_parameters(folder: Path, *, device: str, dtype: "torch.dtype") -> dict[str, "Tensor"]:
    """Parameters by name, without the prefix `distilbert.` that checkpoints with a classification head have."""
    from safetensors.torch import load_file

    state: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state.update(load_file(str(file), device=device))
    return {name.removeprefix("distilbert."): value.to(dtype) for name, value in state.items()}


def _norm_parameters(state: dict[str, "Tensor"], prefix: str) -> tuple["Tensor", "Tensor", float]:
    return state[f"{prefix}.weight"], state[f"{prefix}.bias"], 1e-12  # DistilBERT's epsilon, which no config contains
