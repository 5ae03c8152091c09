"""Estimates of tokens per script: how many tokens a text has for a model whose tokenizer is not known.

Tokenizers learn from mostly English text, so a character of another script is a larger part of a token. The ratios are
about those of the less efficient of two tokenizers in use (Qwen's, which comes from OpenAI's cl100k, and Mistral's
Tekken), since a prompt that is estimated too short is refused by its server. Random letters, such as base64, have up to
three times as many tokens as estimated.
"""

import functools
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: tokens of an ASCII letter or space, of a punctuation mark (so code and JSON have more than prose), of a digit, of a
#: character of a script that is not in `RATIOS` (Chinese, Japanese, Korean, Greek, scripts of India, many others), and
#: of a character beyond U+FFFF (emoji, rare characters)
LETTER, MARK, DIGIT, OTHER, RARE = 0.25, 0.5, 0.75, 1.0, 2.0
#: (first code point, code point after the last, tokens of a character); multiples of _BLOCK
RATIOS: Final = (
    (0x0080, 0x0380, 0.5),  # Latin letters with accents, and their marks
    (0x0400, 0x0780, 0.5),  # Cyrillic, Hebrew, Arabic
    (0x0E00, 0x0E80, 0.75),  # Thai
    (0x1E00, 0x1F00, 0.5),  # Vietnamese
)
_BLOCK: Final = 128
_DIGITS: Final = b"0123456789"
_MARKS: Final = bytes(code for code in range(0x21, 0x7F) if not chr(code).isalnum())


def estimated_tokens(text: str) -> int:
    """Approximate number of tokens of a text in any script: for prose, at least as many as common tokenizers make."""
    plain = text.encode("ascii", "ignore")
    without_digits = plain.translate(None, _DIGITS)
    letters, digits = len(without_digits.translate(None, _MARKS)), len(plain) - len(without_digits)
    tokens = LETTER * letters + MARK * (len(without_digits) - letters) + DIGIT * digits
    if len(plain) == len(text):
        return math.ceil(tokens)
    import numpy as np

    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")  # (characters,)
    return math.ceil(tokens + float(_ratios()[codes // _BLOCK].sum()))


@functools.cache
def _ratios() -> "npt.NDArray[np.float64]":
    """Tokens of a character by its block, (blocks,); 0 for ASCII, which is counted apart."""
    import numpy as np

    ratios = np.full(0x110000 // _BLOCK, OTHER)
    ratios[0x10000 // _BLOCK :] = RARE
    for begin, end, ratio in RATIOS:
        ratios[begin // _BLOCK : end // _BLOCK] = ratio
    ratios[0] = 0.0
    return ratios
