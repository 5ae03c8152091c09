"""Tokenizer of an encoder: texts to token ids, truncated and never padded; shared by all that read a DistilBERT."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

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
