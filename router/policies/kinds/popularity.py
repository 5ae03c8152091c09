"""Adaptive Retrieval: retrieve for rarely mentioned entities (Mallen et al. 2023, arXiv 2212.10511, section 5).

The popularity of a question is that of its least popular entity. Below a threshold the arm `below` answers, which
retrieves; else the arm `above`, because language models remember popular entities. The threshold is the edge of ten
bins of log popularity (between two bins, or at an end) that would have earned most so far. Intended differences to the
paper:

- Popularity is the number of passages in your index that mention the entity, not its page views. `ragbandit index
  build` writes the table (`popularity.json`). You can replace it by a table with other numbers.
- There is one threshold, not one per relation type, because the relation in a question is unknown.
- In the paper every arm has answered each question. Here only one arm has, so an edge is judged by the arms' mean
  rewards per bin. Within a bin the draw does not depend on the question, so these means are unbiased.

Entities are strings in double quotes, and from left to right the longest keys of the table at a capitalised word. A
capitalised word that is not in the table is an entity with popularity 0, unless it begins a sentence or is a common
word. In a question without capitals, keys may begin at any word. A question without entities has popularity 0.
"""

import functools
import hashlib
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from ragbandit.router.policies.base import (
    NO_RETRIEVAL,
    SINGLE_STEP,
    WHERE,
    ArmParam,
    Arrays,
    Facts,
    Number,
    PerQuestionPolicy,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    Share,
    Text,
    checked_arrays,
    read_params,
    rows_of,
)
from ragbandit.shared.errors import ConfigError, PolicyFault, SnapshotError
from ragbandit.shared.types import ArmName, Features, Json, Query, Update

FORMAT: Final = 1
BINS = 10
SHOWN = 10
READ = 4000

# strategies/retrievers/mention_counts.py writes the file, and has the same definition of words. If you change this
# definition, change that one too, and increase FORMAT.
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_POSSESSIVE = re.compile(r"['\u2019]s$", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“”«]([^\"“”«»]+)[\"“”»]")
_SENTENCE_ENDS = ".!?:\u3002\uff01\uff1f"


class PopularityTable(BaseModel, frozen=True, strict=True):
    format: Literal[1]
    #: key of an entity (see `_key_word`) -> its popularity, > 0
    mentions: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    #: words that are not entities although questions may capitalise them
    common: frozenset[str]
    #: number of words of the longest key
    words: Annotated[int, Field(ge=1)]
    sha256: str = ""

    @property
    def top(self) -> float:
        """Upper edge of the last bin, in log10(popularity + 1): just above the most popular entity."""
        return math.log10(max(self.mentions.values(), default=0.0) + 2.0)

    def entities(self, text: str) -> dict[str, float]:
        """Returns entity -> popularity, 0 if it is not in the table. Searches the first READ characters of the text."""
        text = unicodedata.normalize("NFC", _beginning(text))
        popularity: dict[str, float] = {}
        for quoted in _QUOTED.findall(text):
            key = " ".join(map(_key_word, _WORD.findall(quoted)))
            if key:
                popularity[key] = self.mentions.get(key, 0.0)
        unquoted = _QUOTED.sub(" , ", text)
        matches = list(_WORD.finditer(unquoted))
        anywhere = not any(character.isupper() for character in unquoted)
        index, end = 0, 0  # index of the next word, end of the previous word in `unquoted`
        while index < len(matches):
            raw = matches[index].group()
            has_capital = any(character.isupper() for character in raw)
            may_be_key = has_capital or anywhere or raw[0].isdigit()
            length = self._longest(matches[index : index + self.words]) if may_be_key else 0
            before = unquoted[end : matches[index].start()]
            if length:
                key = " ".join(_key_word(match.group()) for match in matches[index : index + length])
                popularity[key] = self.mentions[key]
            elif has_capital and not self._is_ignored(_key_word(raw), before=before, first=not index):
                popularity[_key_word(raw)] = 0.0
            index += length or 1
            end = matches[index - 1].end()
        return popularity

    def _longest(self, matches: Sequence[re.Match[str]]) -> int:
        keys = [_key_word(match.group()) for match in matches]
        return next((end for end in range(len(keys), 0, -1) if " ".join(keys[:end]) in self.mentions), 0)

    def _is_ignored(self, key: str, *, before: str, first: bool) -> bool:
        mark = before.rstrip()[-1:]
        return key in self.common or (mark in _SENTENCE_ENDS if mark else first)


def _beginning(text: str) -> str:
    """The first READ characters, without a last word that would be cut off."""
    cut = text[:READ]
    if len(text) <= READ or cut[-1].isspace() or text[READ].isspace():
        return cut
    return cut.rsplit(maxsplit=1)[0]


def _key_word(raw: str) -> str:
    return _POSSESSIVE.sub("", raw).replace("\u2019", "'").casefold()


@dataclass(frozen=True, kw_only=True, slots=True)
class PopularityParams(PolicyParams):
    #: path of the table on every router and learner; relative paths begin at the working directory
    table: Text
    below: ArmParam = SINGLE_STEP
    above: ArmParam = NO_RETRIEVAL
    #: smallest popularity for which `above` answers. None to learn it; at first `below` then answers all questions
    threshold: Number | None = None
    #: probability that is spread evenly over all arms
    epsilon: Share = 0.1

    arms_named: ClassVar[tuple[str, ...]] = ("below", "above")


class Popularity(PerQuestionPolicy):
    """Puts 1 - epsilon on the arm for the question's popularity, and epsilon / K on each of K arms.

    If only one of the two arms is offered, it is used. If neither is offered, the pmf is uniform. The table is part of
    the policy: a snapshot made with another table is refused.
    """

    algorithm: ClassVar[str] = "popularity"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"text"})
    deterministic: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        settings = read_params(PopularityParams, given=params)
        super().__init__(settings)
        self.below, self.above = settings.below, settings.above
        self.epsilon, self._threshold = settings.epsilon, settings.threshold
        if self.below == self.above:
            message, remedy = f"{self.below!r} is also the arm above", "name two different arms"
            raise ConfigError(message, field=f"{WHERE}.below", remedy=remedy)
        self.table = read_table(settings.table)
        self._path = settings.table
        self._questions = np.zeros(BINS)
        #: sums of rewards in each bin; row 0 for `below`, row 1 for `above`
        self._sums = np.zeros((2, BINS))
        self._counts = np.zeros((2, BINS))  #: numbers of rows, in the same order
        self._edge: int | None = None

    @property
    def edge(self) -> int:
        """The learned threshold: `below` answers the bins before this edge, `above` the other bins.

        It is the edge with the highest estimated reward, or the last of several such edges. An arm's mean in a bin
        includes one virtual row with the arm's mean over all bins.
        """
        if self._edge is None:
            totals = self._counts.sum(axis=1)
            overall = np.where(totals > 0, self._sums.sum(axis=1) / np.where(totals > 0, totals, 1.0), 0.0)  # (2,)
            mean = (self._sums + overall[:, None]) / (self._counts + 1)  # (2, BINS)
            gained = self._questions * (mean[0] - mean[1])  # by `below` instead of `above`
            worth = [math.fsum(gained[:edge].tolist()) for edge in range(BINS + 1)]
            self._edge = max(edge for edge in range(BINS + 1) if worth[edge] == max(worth))
        return self._edge

    @property
    def threshold(self) -> float:
        """Smallest popularity for which `above` answers."""
        return self._threshold if self._threshold is not None else 10.0 ** (self.edge * self.table.top / BINS) - 1.0

    def output(self, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
        del features
        threshold = self.threshold
        entities = self.table.entities(query.text)
        lowest = min(entities.values(), default=0.0)
        is_rare = lowest < threshold if self._threshold is not None else self._bin(lowest) < self.edge
        # Popularity 0 is below every threshold, even a threshold of 0.
        first, second = (self.below, self.above) if is_rare or lowest == 0.0 else (self.above, self.below)
        chosen = first if first in arms else second
        epsilon = self.epsilon if chosen in arms else 1.0
        pmf = tuple(epsilon / len(arms) + (1.0 - epsilon if arm == chosen else 0.0) for arm in arms)
        # A long question may have many entities. The least popular ones are logged.
        shown = dict(sorted(entities.items(), key=lambda pair: (pair[1], pair[0]))[:SHOWN])
        facts = {"entities": shown, "popularity": lowest, "threshold": threshold, "epsilon": epsilon}
        return PolicyOutput(pmf=pmf, facts=facts)

    def learn(self, update: Update) -> None:
        """Add the reward to its arm's sum in the question's bin. A question without known entities has no bin."""
        if not math.isfinite(update.reward.value):
            raise PolicyFault(f"the reward is {update.reward.value!r}, not a finite number")
        rows = rows_of(update)
        super().learn(update)
        lowest = min(self.table.entities(update.query.text).values(), default=0.0)
        if lowest == 0.0:
            return
        column = self._bin(lowest)
        self._edge = None
        self._questions[column] += rows
        if update.arm in (self.below, self.above):
            row = int(update.arm == self.above)
            self._sums[row, column] += rows * update.reward.value
            self._counts[row, column] += rows

    def restart(self, arm: ArmName) -> None:
        """Forget the arm's rewards. The numbers of questions per bin are kept."""
        if arm in (self.below, self.above):
            row = int(arm == self.above)
            self._sums[row] = self._counts[row] = 0.0

    def _bin(self, popularity: float) -> int:
        return min(BINS - 1, int(BINS * math.log10(popularity + 1.0) / self.table.top))

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        arrays, facts = super().state()
        arrays |= {"questions": self._questions, "sums": self._sums, "counts": self._counts}
        return arrays, facts | {"table_sha256": self.table.sha256}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Load a saved state. Raises SnapshotError if it was made with another table."""
        if facts.get("table_sha256") != self.table.sha256:
            message = f"the snapshot was made with another table than {self._path}"
            remedy = "put the old table back, or let the learner replay the ledger with this one"
            raise SnapshotError(message, field="policy.params.table", remedy=remedy)
        checked = checked_arrays(arrays, shapes={"questions": (BINS,), "sums": (2, BINS), "counts": (2, BINS)})
        super().restore(arrays, facts)
        self._questions, self._sums, self._counts = (checked[name] for name in ("questions", "sums", "counts"))
        self._edge = None


def read_table(path: str) -> PopularityTable:
    """Read a table; cached until the file changes. Raises ConfigError."""
    try:
        stamp = Path(path).stat()
        return _read(path, stamp.st_mtime_ns, stamp.st_size)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}", field=_FIELD, remedy=_REMEDY) from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        fault = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        message = f"{path} is not a table of format {FORMAT}: {fault}"
        raise ConfigError(message, field=_FIELD, remedy=_REMEDY) from error


_FIELD = "policy.params.table"
_REMEDY = "ragbandit index build writes popularity.json into the index's folder"


@functools.lru_cache(maxsize=2)  # for each snapshot, a new policy reads the table
def _read(path: str, changed: int, size: int) -> PopularityTable:  # noqa: ARG001 the key of the cache
    data = Path(path).read_bytes()
    return PopularityTable.model_validate_json(data).model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
