"""Influence: how much of the weight that was learned lately came from one source, and when that is more than its cap.

A window holds the newest judged updates of the ledger, each with its rows (`sample_weight`) split over the feedback
that made it. There are three levels: tenants, API keys, and the raters of a key. A source s with weight w of the
window's total W is held at its next judgement if

    w + v > cap * (W + v),    cap = max(share, 2 / (1 + n)),    n = (sum of w_i)^2 / (sum of w_i^2) over the others,

v the weight of the judgement and n the effective number of other sources: twice an equal part where there are few, so
that nobody is held for being one of three. Where trusted sources make half of the window the cap is the share itself.
Not held are: the first `floor` judgements in the window, trusted sources, who has more than half of the window already
(the one application of a service, from its first day on), and at the levels of tenants and keys who came without a key.

Only what was learned moves the window, so a flood does not push others out of it. What is older than `days` does not
count: who is left alone can be learned from. Weights are whole numbers here: the order of additions does not matter,
and a learner that starts again has the very same window.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ragbandit.router.config.settings import InfluenceSettings
from ragbandit.router.learning.sources.origin import Origin, matches

#: one row as a whole number
_ROW: Final = 1 << 16
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class InfluenceShare:
    """One feedback's part in an update."""

    origin: Origin
    #: rows, >= 0
    weight: float
    #: it came from a process of ours: never held
    own: bool = False


class _Level:
    """The sources of one level in the window: name -> (weight, judgements)."""

    def __init__(self) -> None:
        self.sources: dict[str, tuple[int, int]] = {}
        self.squares = 0

    def move(self, name: str, *, weight: int, count: int) -> None:
        before, judged = self.sources.get(name, (0, 0))
        after = before + weight
        self.squares += after * after - before * before
        if judged + count:
            self.sources[name] = after, judged + count
        else:
            del self.sources[name]


class Influence:
    """The window at the end of a ledger."""

    def __init__(self, settings: InfluenceSettings) -> None:
        self.settings = settings
        self._rows: deque[tuple[float, Sequence[tuple[InfluenceShare, int, bool]]]] = deque()
        self._levels = {"tenant": _Level(), "key": _Level(), "rater": _Level()}
        self._total = self._trusted = 0

    def add(self, parts: Sequence[InfluenceShare], *, at: float) -> None:
        """An update was learned. at: when the last feedback that made it came in, seconds."""
        known = [(part, round(part.weight * _ROW), self._trusts(part)) for part in parts if part.weight > 0.0]
        if known:
            self._move(known, sign=1)
            self._rows.append((at, known))
        while len(self._rows) > self.settings.window:
            self._move(self._rows.popleft()[1], sign=-1)

    def over(self, part: InfluenceShare, *, at: float) -> str | None:
        """The source that has more than its cap with this part, as "key:ID", "tenant:NAME" or "rater:NAME"; or None."""
        while self._rows and self._rows[0][0] < at - self.settings.days * _DAY_S:
            self._move(self._rows.popleft()[1], sign=-1)
        weight = round(part.weight * _ROW)
        if part.own or weight == 0 or self._trusts(part):
            return None
        origin, settings = part.origin, self.settings  # the closest to the person is named
        if origin.rater is not None and self._is_over("rater", _rater(part), weight=weight, share=settings.rater_share):
            return f"rater:{origin.rater}"
        if origin.key is not None and self._is_over("key", _key(part), weight=weight, share=settings.key_share):
            return f"key:{origin.key}"
        if origin.key is not None and self._is_over(
            "tenant", origin.tenant, weight=weight, share=settings.tenant_share
        ):
            return f"tenant:{origin.tenant}"
        return None

    def _is_over(self, level: str, name: str, *, weight: int, share: float) -> bool:
        known = self._levels[level]
        mine, judged = known.sources.get(name, (0, 0))
        if judged < self.settings.floor or 2 * mine > self._total:
            return False
        others, squares = self._total - mine, known.squares - mine * mine
        cap = share
        if 2 * self._trusted < self._total and squares:
            cap = max(share, 2.0 / (1.0 + others * others / squares))
        return mine + weight > cap * (self._total + weight)

    def _trusts(self, part: InfluenceShare) -> bool:
        return any(matches(name, part.origin) for name in self.settings.trusted)

    def _move(self, parts: Sequence[tuple[InfluenceShare, int, bool]], *, sign: int) -> None:
        for part, weight, trusted in parts:
            self._total += sign * weight
            self._trusted += sign * weight * trusted
            for level, name in (("tenant", part.origin.tenant), ("key", _key(part)), ("rater", _rater(part))):
                self._levels[level].move(name, weight=sign * weight, count=sign)


def _key(part: InfluenceShare) -> str:
    return part.origin.key or ("own" if part.own else "")


def _rater(part: InfluenceShare) -> str:
    """A rater is one of its key; those who are not named are one together."""
    return f"{_key(part)} {part.origin.rater or ''}"
