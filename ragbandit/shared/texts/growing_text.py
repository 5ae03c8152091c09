"""Texts that come in pieces. A later attempt may only continue a text that a reader has already got."""


class GrowingText:
    """A text that grows by pieces. The pieces are joined when the text is read, so that they are rarely copied."""

    __slots__ = ("_pieces", "size")

    def __init__(self, text: str = "") -> None:
        self._pieces, self.size = [text], len(text)

    def add(self, text: str) -> None:
        """Add the next piece."""
        self._pieces.append(text)
        self.size += len(text)

    def tail(self, size: int) -> str:
        """The last `size` characters, or the whole text if it has fewer."""
        parts, missing = list[str](), size
        for piece in reversed(self._pieces):
            if missing <= 0:
                break
            parts.append(piece[-missing:])
            missing -= len(piece)
        return "".join(reversed(parts))

    def __str__(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


class AnswerText(GrowingText):
    """The part of an answer that a reader has got. This text cannot be withdrawn, so a later attempt (the second run of
    an arm, the whole answer) must begin with it.
    """

    __slots__ = ("_at",)

    def __init__(self) -> None:
        super().__init__()
        #: position of the present attempt in this text: its end, except while a later attempt repeats the text
        self._at = 0

    def restart(self) -> None:
        """Begin a later attempt: its first pieces repeat this text."""
        self._at = 0

    def take(self, piece: str) -> str | None:
        """Add the next piece of this attempt. Returns its new part; None if it contradicts an earlier attempt."""
        begin, self._at = self._at, self._at + len(piece)
        known = str(self)[begin : self._at] if begin < self.size else ""
        if not piece.startswith(known):
            return None
        new = piece[len(known) :]
        if new:
            self.add(new)
        return new

    def continue_to(self, whole: str) -> str | None:
        """Extend this text to a longer text. Returns the addition; None if the longer text begins differently."""
        before = str(self)
        if not whole.startswith(before):
            return None
        new, self._at = whole[len(before) :], len(whole)
        self._pieces, self.size = [whole], len(whole)  # not added, since the pieces would be joined at the next call
        return new
