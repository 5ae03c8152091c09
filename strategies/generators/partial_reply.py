"""The reply of a model server to a prompt, while it is read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ragbandit.shared.dialects.chat.replies import ModelReply
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.model_servers.openai_client import READ, UNREAD, Pace, ReplyReader
from ragbandit.shared.model_servers.repeated_events import RepeatedEvents
from ragbandit.shared.texts.growing_text import GrowingText
from ragbandit.shared.types import MAX_MEDIA
from ragbandit.strategies.answer_stream import first_stop
from ragbandit.strategies.base import Request, seconds_until
from ragbandit.strategies.failures import AnswerBlocked

#: time before the deadline in which pieces are read at once, seconds, since the answer ends at the deadline
_LAST_S: Final = 0.2
#: a piece of a reply: length of the text up to its end, and its fields except the text
Piece: TypeAlias = tuple[int, Mapping[str, Any]]


class PartialReply(ModelReply, ReplyReader[Piece]):
    """The reply to a prompt so far. dropped: the prompt's prefix, which is removed if the answer repeats it."""

    #: whether a piece of the answer has arrived; read only after a value has arrived
    has_begun = True

    def __init__(
        self, request: Request, *, dropped: str = "", max_media: int = MAX_MEDIA, uses_functions: bool = False
    ) -> None:
        super().__init__(uses_functions=uses_functions, max_media=max_media)
        self.request, self.dropped = request, dropped
        if "logprobs" in request.want or request.prompt.prefix:
            self.tagged.stop()  # logprobs belong to the whole text, and a text after a prefix begins with no tag
        self._has_reader = request.sink is not None or request.delta_sink is not None
        self.parts = 0  #: number of values with text
        #: most parts and characters: for each token of max_tokens, a server may send 4 parts of a stream and 128
        #: characters
        self._most, self._longest = 4 * (request.max_tokens + 4), 128 * request.max_tokens
        self.first_s: float | None = None
        self.has_enough = False  #: True if the rest of the stream must not be read

    def read(self, value: Any) -> Iterable[Piece]:
        """Read a value, or RepeatedEvents, unless the answer has ended. Returns its pieces if there is a reader."""
        if self.has_enough:
            return ()
        size = self.text_size
        if not isinstance(value, RepeatedEvents):
            self.take(value)
            if self.text_size > size:
                self.parts += 1
                self._end_early(known=size)
        elif self._has_room(value.texts) and self.take_texts(value):
            self.parts += len(value.texts)
        else:
            # A generator, not a list, so that the pieces before an unreadable event are sent.
            return (piece for event in value.values() for piece in self.read(event))
        has_piece = self._has_reader and (self.delta or self.text_size != size)
        return ((self.text_size, self.delta),) if has_piece else ()

    def pace(self) -> Pace | None:
        """How to read the rest of the reply; None to read each piece at once, before the first and near the end."""
        left_s = seconds_until(self.request.deadline)
        is_near_end = self.finish is not None or (left_s is not None and left_s < _LAST_S)
        if is_near_end or not (self.text_size or self.message.has_fields):
            return None
        return READ if self._has_reader else UNREAD

    def end(self) -> None:
        """Complete the message. Raises BrokenReply without an answer, and the errors of `check`."""
        super().end()
        if self.is_cut_off(max_tokens=self.request.max_tokens):
            self.finish = "length"
        self.check()

    def check(self) -> None:
        """Raises AnswerBlocked for an answer that the server blocked, ArmFailed for missing requested details."""
        if self.finish == "content_filter":
            raise AnswerBlocked("the server's content filter blocked the answer")
        if "logprobs" in self.request.want and self.text and (self.has_broken_logprobs or not self.tokens):
            broken = "log-probabilities that are not numbers" if self.has_broken_logprobs else "no log-probabilities"
            remedy = "set generator.openai.logprobs to false"
            raise ArmFailed(f"the server sent {broken}", field="generator.openai.logprobs", remedy=remedy)

    def text_without_prefix(self, end: int) -> str:
        """The first `end` characters of the text without the prefix; "" while the text may be the prefix."""
        text = self.text if end == self.text_size else self.text[:end]
        begin, size = text.lstrip(), len(self.dropped)
        return begin[size:] if size and self.dropped.startswith(begin[:size]) else text

    def drop_prefix(self) -> None:
        if not self.dropped or not self.text.lstrip().startswith(self.dropped):
            return
        dropped = self.text.index(self.dropped) + len(self.dropped)
        self._text = GrowingText(self.text[dropped:])
        while self.tokens and dropped >= len(self.tokens[0][0]):
            dropped -= len(self.tokens.pop(0)[0])
        if self.tokens and dropped:
            text, logprob = self.tokens[0]
            self.tokens[0] = text[dropped:], logprob

    def _has_room(self, texts: Sequence[str]) -> bool:
        """Whether the text cannot end within these texts. If it may, each event is read alone, so that the text ends at
        the same place, however the events arrive.
        """
        stops, new = self.request.stop, "".join(texts)
        if self.parts + len(texts) > self._most or self.text_size + len(new) > self._longest:
            return False
        before = self._text.tail(max(map(len, stops), default=0))
        return not stops or first_stop(before + new, stops, searched=len(before)) is None

    def _end_early(self, *, known: int) -> None:
        """End the text at a stop string, or if it is much too long, because some servers ignore max_tokens.

        known: length of the text before its last part
        """
        stops = self.request.stop
        begin = max(0, known + 1 - max(map(len, stops), default=0))
        end = first_stop(self._text.tail(self.text_size - begin), stops, searched=known - begin) if stops else None
        if end is not None:
            self._text, self.finish = GrowingText(self.text[: begin + end]), "stop"
            self.has_enough = True
        elif self.parts > self._most or self.text_size > self._longest:
            self._text, self.finish = GrowingText(self.text[: self._longest]), "length"
            self.has_enough = True
