"""The language of a question, told by its commonest words. No model: the same answer on every machine, at once.

A question in another script, or without any of these words, has none.
"""

import re
from typing import Final

# Function words that questions are full of; one that two languages share counts for both.
_WORDS: Final = {
    "de": "der die das ein eine ist sind war wer was wie wo wann warum welche welcher welches und von im den dem des "
    "für mit auf nicht hat haben wird wurde zu zum zur ich sie es kann oder bei",
    "en": "the a an is are was were who what how where when why which and of in on for with not has have did does do "
    "to i it can or at by from that this you my",
    "es": "el la los las un una es son fue quién qué cómo dónde cuándo cuál cuáles por y de del en con no ha han se a "
    "al lo para que o su está",
    "fr": "le la les un une est sont était qui que quoi comment où quand pourquoi quel quelle quels quelles et de du "
    "des en avec ne pas a ont se à au aux pour dans il elle je ou sur",
    "it": "il lo la i gli le un una è sono era chi che cosa come dove quando perché quale quali e di del della in con "
    "non ha hanno si a al per nel o da",
    "nl": "de het een is zijn was wie wat hoe waar wanneer waarom welke en van in op voor met niet heeft hebben te ik "
    "kan of bij door",
    "pt": "o a os as um uma é são foi quem que como onde quando qual quais por e de do da em no na com não tem se ao "
    "para ou seu está",
}
_KNOWN: Final[dict[str, tuple[str, ...]]] = {}
for _language, _listed in _WORDS.items():
    for _word in _listed.split():
        _KNOWN[_word] = (*_KNOWN.get(_word, ()), _language)
#: words of a question that are looked at
_READ: Final = 200


def language_of(text: str) -> str | None:
    """The language with the most of the text's words among its commonest; None where there is none, or two have."""
    counts: dict[str, int] = {}
    for word in re.findall(r"[^\W\d_]+", text[: 20 * _READ].casefold())[:_READ]:
        for language in _KNOWN.get(word, ()):
            counts[language] = counts.get(language, 0) + 1
    ranked = sorted(counts.values(), reverse=True)
    if not ranked or (len(ranked) > 1 and ranked[0] == ranked[1]):
        return None
    return max(counts, key=lambda language: counts[language])
