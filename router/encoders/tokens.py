"""Tokenizer of an encoder: texts to token ids, truncated and never padded; shared by all that read a DistilBERT."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import missing_package

# A token is rarely longer than this many characters; more text than that is cut before the tokenizer reads it.
_CHARACTERS_PER_TOKEN: Final = 32


class TruncatingTokenizer:
    """The tokenizer in a model's folder, which keeps at most max_tokens of a text.

    field: the setting that names the model, for messages. Raises ConfigError without the package tokenizers.
    """

    def __init__(self, folder: Path, *, max_tokens: int, field: str) -> None:
        #: a tokenizers.Tokenizer
        self.tokenizer = _load(folder, field=field)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(max_length=max_tokens)
        self._characters = max_tokens * _CHARACTERS_PER_TOKEN
        #: of its definition, the truncation included
        self.sha256 = hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    def ids(self, text: str) -> list[int]:
        """The token ids of a text, special tokens included; any str can be read."""
        return self.batch([text])[0]

    def batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`ids` of every text. Other Python threads run meanwhile, and several cores read many texts."""
        # A lone surrogate, which JSON can carry, has no UTF-8 and would raise in the tokenizer.
        cut = [text[: self._characters] for text in texts]
        clean = [text if text.isascii() else text.encode("utf-8", "replace").decode() for text in cut]
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(clean)]


def _load(folder: Path, *, field: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_package("tokenizers", extra="models", field=field) from error
    file = folder / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    # Older models bring a vocabulary only, which transformers knows how to turn into a tokenizer.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer


#: lengths are padded to a multiple of it: few shapes, whose kernels are loaded once, and aligned masks
_MULTIPLE: Final = 8
#: what one more forward pass costs on a card, in padded tokens that take as long (98,000 questions/s on an H200)
_WORTH: Final = 2048

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBatch:
    """Questions that are read together, the shortest first."""

    #: the tokens of all questions, one question after another, shape (N,)
    ids: Integers
    #: tokens of each question, ascending, each at least 1, shape (n,)
    lengths: Integers

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "TokenBatch":
        """A batch of questions that are in order of length already."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        return cls(
            ids=np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum())), lengths=lengths
        )

    @property
    def groups(self) -> list[tuple[int, int]]:
        """(questions, tokens of each) of every length that occurs, in order."""
        values, counts = np.unique(self.lengths, return_counts=True)
        return list(zip(counts.tolist(), values.tolist(), strict=True))

    @property
    def places(self) -> Integers:
        """Place of every token in its question, shape (N,)."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.ids)) - np.repeat(starts, self.lengths)


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddedGroup:
    """Neighbours in a batch, padded to one length."""

    #: token ids, 0 where there is none, shape (B, T)
    ids: Integers
    #: tokens of each question, shape (B,)
    lengths: Integers


def token_batches(
    rows: Sequence[Sequence[int]], *, most_questions: int, most_tokens: int
) -> Iterator[tuple[list[int], TokenBatch]]:
    """Token ids of questions as batches, each with the places of its questions in `rows`.

    No batch has more than most_questions questions, nor, padded to its longest, more than most_tokens tokens, unless a
    single question has.
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


def buckets(batch: TokenBatch, *, longest: int) -> list[PaddedGroup]:
    """The batch in a few padded pieces, in order: cut where it saves more padding than another pass costs.

    longest: what the model can read; nothing is padded beyond it.
    """
    edges = [0, *_cuts(_padded(batch.lengths), at=0), len(batch.lengths)]
    ends = np.concatenate([[0], np.cumsum(batch.lengths)])
    pieces = []
    for start, end in pairwise(edges):
        lengths = batch.lengths[start:end]
        width = min(int(_padded(lengths)[-1]), longest)
        ids = np.zeros((end - start, width), dtype=np.int64)
        ids[np.arange(width) < lengths[:, None]] = batch.ids[ends[start] : ends[end]]
        pieces.append(PaddedGroup(ids=ids, lengths=lengths))
    return pieces


def _padded(lengths: Integers) -> Integers:
    return -(-lengths // _MULTIPLE) * _MULTIPLE


def _cuts(padded: Integers, *, at: int) -> list[int]:
    """Where to cut questions of these padded, ascending lengths; `at` is the place of the first."""
    # A cut in front of question k pads the k before it to padded[k - 1] instead of to the longest of all.
    saved = np.arange(1, len(padded)) * (padded[-1] - padded[:-1])
    if not saved.size or saved.max() <= _WORTH:
        return []
    cut = int(saved.argmax()) + 1
    return [*_cuts(padded[:cut], at=at), at + cut, *_cuts(padded[cut:], at=at + cut)]
