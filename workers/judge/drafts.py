"""Finds the parts of a judge's reply that are not its verdict: thoughts, drafts, quotations, code, another scale."""

import re
from bisect import bisect
from typing import Final

#: thoughts before the first object, even without a closing tag; or text before a closing tag without an opening one
_THOUGHTS: Final = re.compile(
    r"\A[^{]*?<(think|thinking|thought|reasoning)>.*?(?:</\1>|\Z)|\A.*</(?:think|thinking|thought|reasoning)>",
    re.DOTALL | re.IGNORECASE,
)
_FENCE: Final = re.compile(r"```+[ \t]*([\w+#-]*)")
#: languages of fences whose objects may be a verdict
_NO_CODE: Final = frozenset({"", "json", "jsonc", "json5", "jsonl", "text", "txt", "plaintext", "markdown", "md"})
#: number of characters before an object that are searched
_BEFORE: Final = 120
#: the end of the words before an object that is a draft or an example, a quotation, or a value in code
_NO_VERDICT: Final = re.compile(
    r"(?:\b(?:draft|tentative\w*|preliminary|examples?|for instance|e\.g\.|(?:first|initial)\s+"
    r"(?:scores?|thoughts?|impressions?|guess|pass|try|attempt|grades?|ratings?))[^.!?{}]{0,40}"
    r"|\b(?:answer|question|passages?|text|author|user|it|they)\b[^.!?{}\n]{0,30}"
    r"\b(?:says?|said|states?|claims?|contains?|(?:ends?|begins?) with|includes?|reads?|writes?|quotes?|demands?)"
    r"(?:\s+(?:this|that|the|following|an?|object|json|line|text)){0,3}[\s:,\"'`\u201c]*"
    r"|(?:\A|\n)[ \t]*>[^\n]*|\w\(\s*|\breturn\s+)\Z",
    re.IGNORECASE,
)
#: words after the scores that take them back, or refuse to score
_TAKEN_BACK: Final = re.compile(
    r"\b(?:can\s?not|can['\u2019]?t|won['\u2019]?t|will not|unable|not able|refuse|decline|impossible)\b[^.!?\n]{0,60}"
    r"\b(?:scor|judg|rat(?:e|ing)|grad|evaluat|assess|verdict)"
    r"|\b(?:wait|on (?:second thought|reflection)|let me (?:re|think|check)|re-?(?:consider|evaluat|think)\w*"
    r"|correction|a draft|only a guess|tentative\w*|preliminary)\b",
    re.IGNORECASE,
)
#: a number that words after the scores call a score
_NAMED_NUMBER: Final = re.compile(
    r"\b(?:supported|answers?|right|scor\w+|grades?|ratings?|verdict)\b[\"'*:=\s]*"
    r"(?:(?:is|are|to|of|should be|would be|must be|becomes?)\b[\"'*:=\s]*)?"
    r"([01](?:[.,][0-9]+)?|\.[0-9]+)(?![\w%/]|[.,][0-9])",
    re.IGNORECASE,
)
_HIGHEST: Final = r"(?:[2-9]|10|20|100|five|ten|hundred)\b"
#: words of a scale on which 1 is not the best
_OTHER_SCALE: Final = re.compile(
    rf"\b(?:scales?|skala|scor\w*|rat(?:ed?|ings?)|grad\w*|marks?|points?|stars?)\b[^.!?\n]{{0,40}}?"
    rf"\b[01]\s*(?:to|through|bis|\.\.|-|\u2013|\u2014)\s*{_HIGHEST}"
    rf"|\b1(?:[.,]0+)?\s*(?:/|out of|of|von|sur|su)\s*{_HIGHEST}"
    r"|\b1(?:[.,]0+)?\s?(?:%|(?:percent|per cent)\b)"
    rf"|\b(?:scales?|skala|max(?:imum)?(?:[ _]score)?|(?:best|highest|top) (?:score|mark|grade)|out_of)\W{{1,6}}"
    rf"(?:of |is |= )?{_HIGHEST}"
    rf"|\b(?:scor\w*|rated?|ratings?|grad\w*|marks?)\b\W{{1,3}}(?:(?:is|are|was|were)\s)?"
    rf"(?:out of\s{_HIGHEST}|in\s(?:%|percent))"
    r"|\b(?:[2-9]|10|20|100|five|ten|hundred)[- ]points?\b[^.!?\n]{0,20}\bscale|\bpercent(?:age)?\s+(?:scale|score)",
    re.IGNORECASE,
)


def after_thoughts(reply: str) -> str:
    """The reply after its thoughts; empty if the thoughts have no end, since scores in thoughts are drafts."""
    while match := _THOUGHTS.match(reply):
        reply = reply[match.end() :]
    return reply


class Drafts:
    """Finds objects of a text that are drafts, examples, quotations or code, by the words and fences before them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._fences = [(match.start(), match[1].casefold()) for match in _FENCE.finditer(text)]

    def has(self, index: int) -> bool:
        """Whether the object that begins at this index is a draft, an example, a quotation or code."""
        fences = bisect(self._fences, (index, ""))
        if fences % 2 and self._fences[fences - 1][1] not in _NO_CODE:
            return True
        return _NO_VERDICT.search(self._text[max(0, index - _BEFORE) : index]) is not None


def is_taken_back(words: str, *, scores: frozenset[float]) -> bool:
    """Whether words after the scores take them back, refuse to score, or have other numbers as scores."""
    if _TAKEN_BACK.search(words):
        return True
    return any(float(match[1].replace(",", ".")) not in scores for match in _NAMED_NUMBER.finditer(words))


def has_other_scale(text: str) -> bool:
    """Whether a text speaks of a scale on which 1 is not the best, for example of 5, of 10, or percent."""
    return _OTHER_SCALE.search(text) is not None
