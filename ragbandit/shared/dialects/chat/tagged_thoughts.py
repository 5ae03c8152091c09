"""Thoughts in tags at the beginning of an answer, from servers without a parser for them (`<think>...</think>`)."""

from dataclasses import dataclass
from typing import Final, Literal

#: names of the tags: DeepSeek, Qwen and most others; Gemini and Gemma
_NAMES: Final = ("think", "thought")
_OPENING: Final = {f"<{name}>": f"</{name}>" for name in _NAMES}
#: number of characters of white space before a tag, after which the text is the answer
_MOST_BLANK: Final = 64


@dataclass(slots=True)
class TaggedThoughts:
    """Separates the thoughts at the beginning of a growing text from the answer.

    The text is held back while it may still be part of a tag. White space around the thoughts is left out. Without a
    closing tag, the whole text is thoughts: most often the limit of tokens ended it. Later tags belong to the answer.
    """

    _state: Literal["begin", "thoughts", "blank", "answer"] = "begin"
    _held: str = ""
    _closing: str = ""
    #: whether the thoughts have only white space so far
    _is_blank: bool = True

    @property
    def is_over(self) -> bool:
        """Whether the answer has begun, so that all further text belongs to it."""
        return self._state == "answer"

    @property
    def has_thoughts(self) -> bool:
        """Whether the text begins with an opening tag."""
        return bool(self._closing)

    def stop(self) -> None:
        """Treat all text as the answer."""
        self._state = "answer"

    def split(self, text: str) -> tuple[str, str]:
        """Returns (further thoughts, further text of the answer) for the next piece of the text."""
        if self._state == "answer" or not text:
            return "", text
        text, self._held = self._held + text, ""
        if self._state == "begin":
            text = self._after_opening_tag(text)
        if self._state == "thoughts":
            return self._split_at_closing_tag(text)
        return "", self._trim_answer(text)

    def rest(self) -> tuple[str, str]:
        """Returns (thoughts, text of the answer) that were held back, at the end of the text."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "thoughts" else ("", held if self._state == "begin" else "")

    def _after_opening_tag(self, text: str) -> str:
        """The text after an opening tag; "" if the text is held back."""
        begin = text.lstrip()
        for tag, closing in _OPENING.items() if len(text) - len(begin) <= _MOST_BLANK else ():
            if begin.startswith(tag):
                self._state, self._closing = "thoughts", closing
                return begin[len(tag) :]
            if tag.startswith(begin):
                self._held = text
                return ""
        self._state = "answer"
        return text

    def _split_at_closing_tag(self, text: str) -> tuple[str, str]:
        at = text.find(self._closing)
        if at >= 0:
            self._state = "blank"
            return self._trim_thoughts(text[:at]).rstrip(), self._trim_answer(text[at + len(self._closing) :])
        held = next((n for n in range(len(self._closing) - 1, 0, -1) if text.endswith(self._closing[:n])), 0)
        self._held = text[len(text) - held :]
        return self._trim_thoughts(text[: len(text) - held]), ""

    def _trim_thoughts(self, text: str) -> str:
        text = text.lstrip() if self._is_blank else text
        self._is_blank = self._is_blank and not text
        return text

    def _trim_answer(self, text: str) -> str:
        if self._state == "blank":
            text = text.lstrip()
            self._state = "answer" if text else "blank"
        return text
