"""KV cache: keys and values of several sequences in one tensor, a row each, and a prefix cache of earlier prompts.

Rows that come and go while other sequences are generated are Orca's idea (Yu et al. 2022); a prefix cache is known from
vLLM and SGLang (Kwon et al. 2023; Zheng et al. 2024). Rows, not pages: sequences here are short, and every attention
kernel of transformers reads rows.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ragbandit.router.errors import ConfigError

__all__ = ["CachedPrefix", "KeyShape", "Prefixes", "RowCache", "TokenIds", "check_rows", "key_shape"]

#: shape (tokens,)
TokenIds = npt.NDArray[np.int64]

#: tokens by which the cache grows, a multiple of those of _ALIGNED
_BLOCK = 256
#: rows by which it grows
_ROWS = 4
#: device -> multiple of keys that a step sees. CUDA's attention reads masks of whole sixteens without a copy, and there
#: a new shape may cost far more than the keys that round it up: a few shapes serve texts that grow by a token a step
_ALIGNED = {"cpu": 16, "cuda": 64}
#: part of the token_budget that is not given back while no text is under way: it would be made anew for the next
_AT_REST = 1 / 8
#: a beginning shared by fewer tokens is read again: most prompts share their template's first words
_LEAST_SHARED = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyShape:
    """Shape of the keys and values that a model keeps of every token."""

    layers: int
    #: of keys and values, which may be fewer than those of queries
    heads: int
    key_width: int
    value_width: int
    #: tokens that the layer with the shortest sight looks back; None: all
    window: int | None

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Memory of one token of one text."""
        numbers = self.layers * self.heads * (self.key_width + self.value_width)
        return numbers * int(dtype.itemsize)


def key_shape(model: PreTrainedModel) -> KeyShape:
    """The shape of the model's keys and values, seen by letting it read two tokens.

    Raises ConfigError for a model that keeps anything but keys and values of one shape: state space models, hybrids;
    and for one that looks back over a window which its cache does not know, as GPT-Neo does.
    """
    try:
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            model(input_ids=torch.ones((1, 2), dtype=torch.long, device=model.device), past_key_values=cache)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise _refused(f"it does not read with a cache: {error}") from error
    layers = [layer for layer in cache.layers if type(layer) in {DynamicLayer, DynamicSlidingWindowLayer}]
    shapes = {(layer.keys.shape, layer.values.shape) for layer in layers if layer.keys is not None}
    if len(layers) != len(cache.layers) or any(layer.keys is None for layer in layers) or len(shapes) != 1:
        kinds = sorted({type(layer).__name__ for layer in cache.layers})
        raise _refused(f"its layers keep {', '.join(kinds)} of {len(shapes)} shapes, not keys and values of one")
    keys, values = shapes.pop()
    if tuple(keys[:1]) + tuple(keys[2:3]) != (1, 2):
        raise _refused(f"its keys have the shape {tuple(keys)}, not (1, heads, 2, d)")
    windows = [layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)]
    hidden = [name for name, value in model.config.to_dict().items() if name.endswith("window_size") and value]
    if hidden and not windows:  # it cuts masks by the number of keys it is given, which are those of the longest text
        raise _refused(f"it looks back over a window ({hidden[0]}) in a way of its own")
    return KeyShape(
        layers=len(layers),
        heads=keys[1],
        key_width=keys[3],
        value_width=values[3],
        window=min(windows, default=None),
    )


def check_rows(model: PreTrainedModel, *, shape: KeyShape) -> None:
    """Let the model read two texts of unequal length together and alone. Raises ConfigError if they differ.

    Some architectures pass over positions or masks that are given to them; nothing but trying tells.
    """
    words = model.get_input_embeddings().weight.shape[0]
    long, short = ([words * place // 13 for place in range(1, last)] for last in (13, 7))
    cache = RowCache(shape, device=model.device, dtype=model.dtype, most_rows=2, token_budget=None)
    cache.lengths = [0, 0]
    try:
        with torch.inference_mode():
            cache.run(model, [long[:-1], short[:-1]])
            together = cache.run(model, [long[-1:], short[-1:]]).logits[:, -1].float()  # (2, vocabulary)
            alone = [model(input_ids=torch.tensor([ids], device=model.device)).logits[:, -1] for ids in (long, short)]
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        raise _refused(f"it does not read several texts at once: {error}") from error
    expected = torch.cat(alone).float()
    # Of the logits' own spread: half of the precision's bits are lost on the way, a wrong position costs .3.
    allowed = (0.15 if model.dtype.itemsize < 4 else 0.001) * float(expected.std())
    if not float((together - expected).square().mean().sqrt()) <= allowed:
        raise _refused("it reads several texts at once differently from one")


def _refused(reason: str) -> ConfigError:
    return ConfigError(
        f"the local generator cannot carry this model: {reason}",
        field="generator.model",
        remedy='use a decoder with plain attention, or serve the model and set generator.name to "openai"',
    )


class RowCache(Cache):  # type: ignore[misc] # transformers is not checked, see pyproject
    """KV cache that transformers' models take as past_key_values: row b holds the first lengths[b] tokens of text b.

    Keys have the shape (layers, rows, heads, tokens, d); one tensor, so that moving a row is one copy.
    most_rows: the tensor never has more. token_budget: rows x tokens that it keeps to, as far as the
    sequences under way allow.
    """

    def __init__(
        self,
        shape: KeyShape,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        most_rows: int,
        token_budget: int | None,
    ) -> None:
        super().__init__(layers=[])
        self.lengths: list[int] = []
        self._shape, self._device, self._dtype = shape, device, dtype
        self._most_rows, self._token_budget = most_rows, token_budget
        self.clear()

    def __len__(self) -> int:
        return self._shape.layers

    def clear(self) -> None:
        """Give the memory back; no text is under way afterwards."""
        self.lengths = []
        self._keys, self._values = self._made(rows=0, tokens=0)

    def rest(self) -> bool:
        """Give the memory back if it is much, while no text is under way; whether it was."""
        much = (
            self._token_budget is not None and self._keys.shape[1] * self._keys.shape[3] > self._token_budget * _AT_REST
        )
        if much:
            self.clear()
        return much

    def run(self, model: PreTrainedModel, tokens: Sequence[Sequence[int]], *, first: int = 0, **options: Any) -> Any:
        """The model's output over tokens[i] appended to row first + i, for rows that follow one another.

        Shorter pieces stand at the right end, so that the last logits, shape (rows, 1, vocabulary), are everybody's.
        A failure leaves lengths as they were.
        """
        starts = self.lengths[first : first + len(tokens)]
        longest = max(start + len(piece) for start, piece in zip(starts, tokens, strict=True))
        self._grow(rows=first + len(tokens), tokens=longest)
        ids, positions, given = _aligned(tokens, starts=starts)
        facts = torch.from_numpy(np.stack([ids, positions])).to(self._device)  # (2, rows, T): one transfer
        aligned = _ALIGNED[self._keys.device.type]
        columns = -(-longest // aligned) * aligned
        self._window = slice(first, first + len(tokens)), columns
        if len(tokens) == 1:
            self._places = None
            self._span = slice(starts[0], longest)
        else:
            rows, places = np.nonzero(given)
            places = np.stack([rows, places, positions[rows, places]])
            self._places = torch.from_numpy(places).to(self._device).unbind()  # three of shape (new tokens,)
        output = model(
            input_ids=facts[0],
            position_ids=facts[1],
            attention_mask=self._mask(facts[1], columns=columns),
            past_key_values=self,
            use_cache=True,
            logits_to_keep=1,
            **options,
        )
        for row, (start, piece) in enumerate(zip(starts, tokens, strict=True), start=first):
            self.lengths[row] = start + len(piece)
        return output

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the model: new keys (rows, heads, T, d) go to their rows; all keys of these rows come back."""
        rows, columns = self._window
        found = []
        for store, states in ((self._keys, key_states), (self._values, value_states)):
            view = store[layer_idx, rows, :, :columns]  # (rows, heads, columns, d)
            if self._places is None:
                view[0, :, self._span] = states[0]
            else:
                row, column, place = self._places
                view[row, :, place] = states[row, :, column]  # (new tokens, heads, d); what pads is left out
            found.append(view)
        return found[0], found[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the longest text."""
        del layer_idx
        return max(self.lengths, default=0)

    def append(self) -> None:
        """A new row without tokens."""
        self.lengths.append(0)

    def empty(self, row: int) -> None:
        """The row without tokens, and nothing of them left beyond: 0 times what is no number is none, masked or not."""
        if row < self._keys.shape[1]:
            for store in (self._keys, self._values):
                store[:, row] = 0
        self.lengths[row] = 0

    def pop(self) -> None:
        """Forget the last row."""
        self.lengths.pop()

    def copy(self, source: int, target: int, *, count: int) -> None:
        """Row target becomes the first `count` tokens of row source."""
        self._grow(rows=target + 1, tokens=count)
        for store in (self._keys, self._values):
            store[:, target, :, :count] = store[:, source, :, :count]
        self.lengths[target] = count

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        count = max(self.lengths[one], self.lengths[other])
        for store in (self._keys, self._values) if count else ():  # an empty row may not have been made yet
            kept = store[:, one, :, :count].clone()
            store[:, one, :, :count] = store[:, other, :, :count]
            store[:, other, :, :count] = kept
        self.lengths[one], self.lengths[other] = self.lengths[other], self.lengths[one]

    def taken(self, row: int) -> tuple[Tensor, Tensor]:
        """Copies of a row's keys and values, shape (layers, heads, length, d)."""
        count = self.lengths[row]
        return self._keys[:, row, :, :count].clone(), self._values[:, row, :, :count].clone()

    def put(self, row: int, *, keys: Tensor, values: Tensor, count: int) -> None:
        """The row becomes the first `count` tokens of what `taken` gave."""
        self._grow(rows=row + 1, tokens=count)
        for store, kept in ((self._keys, keys), (self._values, values)):
            store[:, row, :, :count] = kept[:, :, :count]
        self.lengths[row] = count

    def _mask(self, positions: Tensor, *, columns: int) -> Tensor:
        """Shape (rows, 1, T, columns), to be added to scores: a query sees keys up to its own position.

        What pads stands at position 0 and sees key 0: the softmax of a row that sees nothing is no number.
        """
        places = torch.arange(columns, device=positions.device)
        hidden = places > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=hidden.device)
        return mask.masked_fill_(hidden, torch.finfo(self._dtype).min)

    def _grow(self, *, rows: int, tokens: int) -> None:
        """Make token_budget; what a failure leaves behind is whole."""
        have_rows, have_tokens = self._keys.shape[1], self._keys.shape[3]
        if rows <= have_rows and tokens <= have_tokens:
            return
        rows = max(rows, len(self.lengths))
        rounded = min(self._most_rows, -(-rows // _ROWS) * _ROWS)
        tokens = -(-max(tokens, *self.lengths, 1) // _BLOCK) * _BLOCK
        sizes = [(max(rounded, have_rows), max(tokens, have_tokens)), (rounded, tokens), (rows, tokens)]
        fitting = (size for size in sizes if self._token_budget is None or size[0] * size[1] <= self._token_budget)
        made_rows, made_tokens = next(fitting, sizes[-1])
        keys, values = self._made(rows=made_rows, tokens=made_tokens)
        rows, tokens = min(made_rows, have_rows), min(made_tokens, have_tokens)
        for new, old in ((keys, self._keys), (values, self._values)):
            new[:, :rows, :, :tokens] = old[:, :rows, :, :tokens]
        self._keys, self._values = keys, values

    def _made(self, *, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
        # Zeros, because a masked key still meets a weight of 0, and 0 times garbage may be no number.
        shape = (self._shape.layers, rows, self._shape.heads, tokens)
        return (
            torch.zeros((*shape, self._shape.key_width), dtype=self._dtype, device=self._device),
            torch.zeros((*shape, self._shape.value_width), dtype=self._dtype, device=self._device),
        )


def _aligned(
    tokens: Sequence[Sequence[int]], *, starts: Sequence[int]
) -> tuple[TokenIds, TokenIds, npt.NDArray[np.bool_]]:
    """(ids, positions, whether given), shape (rows, T) each: every piece at the right end, zeros before it."""
    size = (len(tokens), max(map(len, tokens)))
    ids, positions, given = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.bool_)
    for row, (piece, start) in enumerate(zip(tokens, starts, strict=True)):
        at = size[1] - len(piece)
        ids[row, at:], given[row, at:] = piece, True
        positions[row, at:] = np.arange(start, start + len(piece))
    return ids, positions, given


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CachedPrefix:
    """Keys and values of the beginning of an earlier sequence."""

    ids: TokenIds
    #: shape (layers, heads, tokens, d)
    keys: Tensor
    values: Tensor

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.keys.nbytes + self.values.nbytes)


class Prefixes:
    """Texts read before, within `limit` bytes; the one that was not used for longest goes first."""

    def __init__(self, *, limit: int, bytes_per_token: int) -> None:
        self._limit, self._bytes_per_token = limit, bytes_per_token
        self._kept: deque[CachedPrefix] = deque()
        self._size = 0

    def __bool__(self) -> bool:
        return self._limit > 0

    def keep(self, ids: TokenIds, *, cache: RowCache, row: int) -> None:
        """Keep what this row holds: the first lengths[row] of these ids."""
        ids = ids[: cache.lengths[row]]
        count = len(ids)
        if count < _LEAST_SHARED or count * self._bytes_per_token > self._limit:
            return
        shared = [shared_beginning(ids, kept.ids) for kept in self._kept]
        if count in shared:
            return
        for kept in [each for each, same in zip(self._kept, shared, strict=True) if same == len(each.ids)]:
            self._drop(kept)  # the new one begins with all of it
        while self._kept and self._size + count * self._bytes_per_token > self._limit:
            self._drop(self._kept[0])
        keys, values = cache.taken(row)
        kept = CachedPrefix(ids=ids, keys=keys, values=values)
        self._kept.append(kept)
        self._size += kept.size

    def best(self, ids: TokenIds, *, more_than: int = 0) -> tuple[int, CachedPrefix] | None:
        """(tokens shared, the text that begins like these ids for longest), if it is worth its copying.

        Fewer than all ids: the last one has to be read for what comes after it.
        """
        found = [(usable(shared_beginning(ids, kept.ids), of=len(ids)), kept) for kept in self._kept]
        count, kept = max(found, key=lambda each: each[0], default=(0, None))
        if kept is None or count <= more_than:
            return None
        self._kept.remove(kept)
        self._kept.append(kept)
        return count, kept

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self._size = 0

    def _drop(self, kept: CachedPrefix) -> None:
        self._kept.remove(kept)
        self._size -= kept.size


def shared_beginning(one: TokenIds, other: TokenIds) -> int:
    """Number of tokens that two texts have in common before the first that differs."""
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    return int(differs.argmax()) if differs.any() else count


def usable(shared: int, *, of: int) -> int:
    """Number of these shared tokens that a prompt of so many need not read; 0 if it is not worth it."""
    count = min(shared, of - 1)
    return count if count >= _LEAST_SHARED else 0
