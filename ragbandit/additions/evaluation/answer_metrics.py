"""Metrics of answers that papers report, like the published code of each family of data sets.

The families differ in details that change the numbers. Each difference is a field of `FamilyRules`.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final, Literal

from ragbandit.router.learning.reward import Words, containment, exact_match, words_f1
from ragbandit.shared.errors import InvalidInput, required_module
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.texts.text_forms import answer_words, is_blank

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ANNOUNCED = re.compile(r".* answer is:? (.*)")
#: deletes quotes and brackets from the text of a list
_LISTING = str.maketrans("", "", '"[]')
_CITATION = re.compile(r"(?<!\s)\s*+\[\d+\]")
#: words of answers that HotpotQA and 2WikiMultihopQA compare as a whole
_WHOLE_ANSWERS = (["yes"], ["no"], ["noanswer"])


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, with single spaces, as in SQuAD's evaluation."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def squad_words(text: str) -> list[str]:
    return normalise(text).split()


def text_after_answer_is(text: str) -> str:
    """Adaptive-RAG's rule: the text after the last " answer is" in the first line, without a final full stop.

    The whole text if the line has no " answer is".
    """
    announced = _ANNOUNCED.match(text)
    return announced.group(1).removesuffix(".") if announced else text


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyRules:
    """How a family of data sets computes exact_match, f1 and accuracy."""

    #: True if the best of all gold answers counts, False if only the first gold answer counts
    aliases: bool = True
    #: whether yes, no and noanswer count as a whole: F1 is 0 if one text is such a word and the other differs
    yes_no: bool = False
    #: F1 if the prediction or the gold answer has no words: "zero" gives 0, "equal" gives 1 if both have none, else 0
    empty: Literal["equal", "zero"] = "equal"
    #: how a gold answer is found: as whole "words", as "substring" of the normalised, or of the "raw" lower-case text
    accuracy: Literal["words", "substring", "raw"] = "substring"
    #: whether only the text after "answer is" counts (see `text_after_answer_is`)
    extract: bool = False
    #: whether only the text before the first comma counts in a prediction that begins with "[" or ends with "]"
    first_item: bool = False
    #: whether ftfy repairs wrongly decoded characters of both texts first
    repaired: bool = False
    words: Words = squad_words

    def measure(self, prediction: str, *, gold: Sequence[str]) -> Mapping[str, float]:
        golds = gold if self.aliases else gold[:1]
        if self.repaired:
            prediction, *golds = map(required_module("ftfy", extra="families").fix_text, [prediction, *golds])
        answer = self._cut(prediction)
        return {
            "exact_match": exact_match(answer, gold=golds, words=self.words),
            "f1": max(self._f1(self.words(answer), gold=self.words(text)) for text in golds),
            "accuracy": self._accuracy(answer, gold=golds),
        }

    def _cut(self, text: str) -> str:
        text = text_after_answer_is(text) if self.extract else text
        text = text.strip() if self.first_item else text
        is_list = self.first_item and (text.startswith("[") or text.endswith("]"))
        return text.translate(_LISTING).partition(",")[0].strip() if is_list else text

    def _f1(self, prediction: list[str], *, gold: list[str]) -> float:
        if self.yes_no and prediction != gold and (prediction in _WHOLE_ANSWERS or gold in _WHOLE_ANSWERS):
            return 0.0
        if self.empty == "zero" and not (prediction and gold):
            return 0.0
        return words_f1(prediction, gold)

    def _accuracy(self, prediction: str, *, gold: Sequence[str]) -> float:
        if self.accuracy == "words":
            return containment(prediction, gold=gold, words=self.words)
        clean = str.lower if self.accuracy == "raw" else normalise
        return float(any(clean(answer) in clean(prediction) for answer in gold))


@dataclass(frozen=True, kw_only=True, slots=True)
class AsqaRules:
    """How str_em and str_hit of ASQA are computed. gold: a list of short answers for each meaning of the question."""

    #: whether only the first line of the prediction counts (as in the benchmark ALCE), or all (as in Adaptive-Note)
    first_line: bool = True
    #: whether citation marks such as [1] are removed first
    citations: bool = True

    def measure(self, prediction: str, *, gold: Sequence[Sequence[str]]) -> Mapping[str, float]:
        """str_em: share of meanings with a short answer in the prediction. str_hit: 1.0 if str_em is 1, else 0.0."""
        text = prediction.strip().partition("\n")[0] if self.first_line else prediction
        text = normalise(_CITATION.sub("", text) if self.citations else text)
        hits = [any(normalise(answer) in text for answer in answers) for answers in gold]
        return {"str_em": sum(hits) / len(hits), "str_hit": float(all(hits))}


@dataclass(frozen=True, kw_only=True, slots=True)
class CharacterRules:
    """Measures of CRUD-RAG's long Chinese answers that need no model. The best gold text counts.

    The units are characters of Chinese and words of other scripts, in the form of `answer_words`, without punctuation.
    """

    def measure(self, prediction: str, *, gold: Sequence[str]) -> Mapping[str, float]:
        """character_f1: F1 of the characters. bleu: BLEU of sequences of 1 to 4 characters, not smoothed."""
        predicted, golds = answer_words(prediction), [answer_words(text) for text in gold]
        return {
            "character_f1": max(words_f1(predicted, right) for right in golds),
            "bleu": max(_bleu(predicted, gold=right) for right in golds),
        }


def _bleu(prediction: Sequence[str], *, gold: Sequence[str]) -> float:
    """BLEU (Papineni et al. 2002) with one gold text; sequences are no longer than the gold text."""
    logs = []
    for size in range(1, min(4, len(gold)) + 1):
        predicted, right = _sequences(prediction, size=size), _sequences(gold, size=size)
        same = sum((predicted & right).values())
        if same == 0:
            return 0.0
        logs.append(math.log(same / predicted.total()))
    if not logs:
        return float(not prediction)
    return math.exp(fmean(logs) + min(0.0, 1.0 - len(gold) / len(prediction)))


def _sequences(words: Sequence[str], *, size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + size]) for start in range(len(words) - size + 1))


_ONE_HOP = FamilyRules(extract=True, first_item=True, repaired=True)

#: family -> its rules, as published. "ours" has the rules of rewards, "ours_ascii" the same with SQuAD's words
FAMILIES: Mapping[str, FamilyRules | AsqaRules | CharacterRules] = MappingProxyType(
    {
        "2wiki": FamilyRules(yes_no=True, empty="zero"),
        "adaptive_note": FamilyRules(empty="zero", accuracy="raw"),
        "asqa": AsqaRules(),
        "asqa_adaptive_note": AsqaRules(first_line=False, citations=False),
        "crud": CharacterRules(),
        "hotpotqa": FamilyRules(aliases=False, yes_no=True, empty="zero"),
        "musique": FamilyRules(),
        "nq": _ONE_HOP,
        "ours": FamilyRules(accuracy="words", words=answer_words),
        "ours_ascii": FamilyRules(accuracy="words"),
        "squad": _ONE_HOP,
        "triviaqa": _ONE_HOP,
    }
)
#: families that are not of a published data set
OWN_FAMILIES: Final = ("ours", "ours_ascii")


def metric_values(
    prediction: str | None, *, gold: Sequence[str] | Sequence[Sequence[str]], family: str = "ours"
) -> Mapping[str, float]:
    """Name of a metric -> its value for one answer, in [0, 1]. All are 0.0 if the answer is None or blank.

    gold: at least one right answer; a list of lists for the families of ASQA, see `AsqaRules`. Raises InvalidInput.
    """
    if family not in FAMILIES:
        remedy = known_choices(sorted(FAMILIES), given=family)
        raise InvalidInput(f"{family!r} is unknown", field="family", remedy=remedy)
    rules = FAMILIES[family]
    _check_gold(gold, pairs=isinstance(rules, AsqaRules))
    measures = rules.measure(prediction or "", gold=gold)  # type: ignore[arg-type] # its shape was checked
    return dict.fromkeys(measures, 0.0) if is_blank(prediction) else measures


def _check_gold(gold: Any, *, pairs: bool) -> None:
    lists = gold if pairs else [gold]
    is_nested = _is_list(lists) and all(map(_is_list, lists))
    if not is_nested or not all(isinstance(text, str) and not is_blank(text) for answers in lists for text in answers):
        shape = "a list of lists of texts, one per reading" if pairs else "a list of texts"
        raise InvalidInput("these are not gold answers", field="answers", remedy=f"give {shape}, none of them empty")


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value)
