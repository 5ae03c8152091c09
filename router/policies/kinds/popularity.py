"""Adaptive Retrieval: retrieve for what is rarely spoken of (Mallen et al. 2023, arXiv 2212.10511, section 5).

Language models know popular things by heart. The question's entities are looked up in a table of popularity; under a
threshold the arm `below` answers (by retrieval), over it the arm `above` (from the model's memory). As in the paper
the threshold is the edge, among ten bins of log popularity, that would have earned most so far.

Different from the paper, on purpose:

- Popularity is the number of passages in your index that mention the entity, not its page views: the table comes with
  the index (`ragbandit index build` writes `popularity.json`), and any other numbers can be put in its place.
- One threshold, not one per relation type: a question does not say its relation.
- The paper fits on questions that every arm has answered. Here one arm answered each, so an edge is judged by the
  mean reward of either arm in every bin; `epsilon` and the floor see to it that both are tried. Within a bin the
  draw does not look at the question, so these means are not biased. A row that counts as w rows (its reward's sample
  weight) is w rows in sums and counts.
- Reward, not accuracy: what retrieval costs counts too.

Entities are found by lookup, without a model: the longest keys of the table, from left to right, among capitalised
words, and strings in double quotes as a whole. A capitalised word that the table does not know is an entity nobody
speaks of (popularity 0), unless it begins the sentence or is a common word. A question without any capital is
searched for keys everywhere. No entity at all counts as popularity 0; of several the least popular decides. Of a long
question the first READ characters are read, and no entity behind them counts.
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
    HasParams,
    Number,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    Share,
    Text,
    checked_arrays,
    counted_state,
    read_params,
    restored_counts,
    rows_of,
    tally,
)
from ragbandit.shared.errors import ConfigError, PolicyFault, SnapshotError
from ragbandit.shared.types import ArmName, FeatureRows, Json, Query, Update

#: of the table's file, and how many bins its popularities are put in
FORMAT: Final = 1
BINS = 10
#: entities that are logged, at most
SHOWN = 10
#: characters of a question that are read, at most
READ = 4000

# What a word is stands in strategies/retrievers/mention_counts.py, with the rest of the file's format: whoever changes
# one, changes both, and FORMAT.
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_POSSESSIVE = re.compile(r"['\u2019]s$", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“”«]([^\"“”«»]+)[\"“”»]")
_SENTENCE_ENDS = ".!?:\u3002\uff01\uff1f"


class PopularityTable(BaseModel, frozen=True, strict=True):
    """Popularity of every entity, and the words that are no entities."""

    format: Literal[1]
    #: key -> popularity (> 0)
    mentions: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    #: words that are no name although a question may write them with a capital
    common: frozenset[str]
    #: longest key, in words
    words: Annotated[int, Field(ge=1)]
    #: of the file
    sha256: str = ""

    @property
    def top(self) -> float:
        """The upper edge of the last bin, in log10(popularity + 1): just above the most popular entry."""
        return math.log10(max(self.mentions.values(), default=0.0) + 2.0)

    def entities(self, text: str) -> dict[str, float]:
        """The entities of a question's first READ characters with their popularity, 0 for those not in the table."""
        text = unicodedata.normalize("NFC", _beginning(text))
        popularity: dict[str, float] = {}
        for quoted in _QUOTED.findall(text):
            key = " ".join(_key_word(word) for word in _WORD.findall(quoted))
            if key:
                popularity[key] = self.mentions.get(key, 0.0)
        rest = _QUOTED.sub(" , ", text)
        words = list(_WORD.finditer(rest))
        anywhere = not any(character.isupper() for character in rest)
        index, end = 0, 0  # of the next word, and where the last one ended
        while index < len(words):
            raw = words[index].group()
            named = any(character.isupper() for character in raw)
            length = self._longest(words[index : index + self.words]) if named or anywhere or raw[0].isdigit() else 0
            if length:
                key = " ".join(_key_word(match.group()) for match in words[index : index + length])
                popularity[key] = self.mentions[key]
            elif named and not self._ignored(_key_word(raw), before=rest[end : words[index].start()], first=not index):
                popularity[_key_word(raw)] = 0.0
            index += length or 1
            end = words[index - 1].end()
        return popularity

    def _longest(self, words: Sequence[re.Match[str]]) -> int:
        """Length in words of the longest key that begins with the first of these words; 0 if none does."""
        keys = [_key_word(match.group()) for match in words]
        return next((end for end in range(len(keys), 0, -1) if " ".join(keys[:end]) in self.mentions), 0)

    def _ignored(self, word: str, *, before: str, first: bool) -> bool:
        """No name: a common word, or one that begins a sentence. before: what stands between it and the last word."""
        mark = before.rstrip()[-1:]
        return word in self.common or (mark in _SENTENCE_ENDS if mark else first)


def _beginning(text: str) -> str:
    """The first READ characters, without a last word that ends behind them: half a name would be nobody's."""
    cut = text[:READ]
    if len(text) <= READ or cut[-1].isspace() or text[READ].isspace():
        return cut
    whole = cut.rsplit(maxsplit=1)
    return whole[0] if len(whole) == 2 else cut


def _key_word(raw: str) -> str:
    return _POSSESSIVE.sub("", raw).replace("\u2019", "'").casefold()


@dataclass(frozen=True, kw_only=True, slots=True)
class PopularityParams(PolicyParams):
    """Settings of popularity."""

    #: path of the table, as every router and learner finds it; a relative one counts from the working directory
    table: Text
    #: the arm for little popularity
    below: ArmParam = SINGLE_STEP
    #: the arm for much popularity
    above: ArmParam = NO_RETRIEVAL
    #: popularity from which on `above` answers; None: learned, and `below` answers everything at first
    threshold: Number | None = None
    #: share of exploration
    epsilon: Share = 0.1

    arms_named: ClassVar[tuple[str, ...]] = ("below", "above")


class Popularity(HasParams):
    """One arm under a threshold of popularity, another over it; epsilon / K of the rest to every arm.

    Where one of the two arms is not offered the other is taken, where both are missing all arms are alike.
    Raises ConfigError if the table is missing or of another format. The file is part of the policy: a snapshot made
    with another one is refused, and replaying the ledger shows the difference.
    """

    algorithm: ClassVar[str] = "popularity"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"text"})
    deterministic: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        settings = read_params(PopularityParams, given=params)
        super().__init__(settings)
        self.below, self.above, self.epsilon = settings.below, settings.above, settings.epsilon
        if self.below == self.above:
            raise ConfigError(
                f"{self.below!r} is the arm above too", field=f"{WHERE}.below", remedy="name two different arms"
            )
        self._given = settings.threshold
        self.table = read_table(settings.table)
        self._path = settings.table
        self.seen: dict[ArmName, int] = {}
        #: questions per bin, whatever their arm; sums of reward and counts, row 0 of `below`, row 1 of `above`
        self._questions = np.zeros(BINS)
        self._sums = np.zeros((2, BINS))
        self._counts = np.zeros((2, BINS))

    @property
    def edge(self) -> int:
        """The learned threshold as an edge of the bins: `below` answers bins 0 to edge - 1, `above` the others.

        The edge with the highest estimated mean reward; of equal ones the highest, which retrieves most. A cell's
        mean leans with the weight of one row on its arm's mean over all bins, which stands for a cell without rows.
        """
        totals = self._counts.sum(axis=1)
        overall = np.where(totals > 0, self._sums.sum(axis=1) / np.where(totals > 0, totals, 1.0), 0.0)  # (2,)
        mean = (self._sums + overall[:, None]) / (self._counts + 1)  # (2, BINS)
        gained = self._questions * (mean[0] - mean[1])  # by answering this bin with `below`
        worth = [math.fsum(gained[:edge].tolist()) for edge in range(BINS + 1)]
        return max(edge for edge in range(BINS + 1) if worth[edge] == max(worth))

    @property
    def threshold(self) -> float:
        """The popularity from which on `above` answers."""
        return self._given if self._given is not None else 10.0 ** (self.edge * self.table.top / BINS) - 1.0

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """1 - epsilon + epsilon/K on the arm of the question's popularity."""
        del features
        edge, threshold = self.edge, self.threshold
        return [self._one(q.text, edge=edge, threshold=threshold, arms=a) for q, a in zip(queries, arms, strict=True)]

    def _one(self, text: str, *, edge: int, threshold: float, arms: Sequence[ArmName]) -> PolicyOutput:
        entities = self.table.entities(text)
        least = min(entities.values(), default=0.0)
        rare = least < threshold if self._given is not None else self._bin(least) < edge
        # What nobody speaks of is looked up, whatever the threshold.
        first, second = (self.below, self.above) if rare or least == 0.0 else (self.above, self.below)
        chosen = first if first in arms else second
        epsilon = self.epsilon if chosen in arms else 1.0
        pmf = tuple(epsilon / len(arms) + (1.0 - epsilon if arm == chosen else 0.0) for arm in arms)
        # A long question has many; the least popular ones have decided.
        shown = dict(sorted(entities.items(), key=lambda pair: (pair[1], pair[0]))[:SHOWN])
        facts = {"entities": shown, "popularity": least, "threshold": threshold, "epsilon": epsilon}
        return PolicyOutput(pmf=pmf, facts=facts)

    def learn(self, update: Update) -> None:
        """Add the reward to its arm's sum in the question's bin; a question without a known entity has no bin."""
        if not math.isfinite(update.reward.value):
            raise PolicyFault(f"the reward is {update.reward.value!r}")
        rows = rows_of(update)
        tally(self.seen, update)
        least = min(self.table.entities(update.query.text).values(), default=0.0)
        if least == 0.0:
            return
        column = self._bin(least)
        self._questions[column] += rows
        if update.arm in (self.below, self.above):
            row = int(update.arm == self.above)
            self._sums[row, column] += rows * update.reward.value
            self._counts[row, column] += rows

    def restart(self, arm: ArmName) -> None:
        """The arm's rewards of before count no more; how often questions are of which bin does."""
        if arm in (self.below, self.above):
            row = int(arm == self.above)
            self._sums[row] = self._counts[row] = 0.0

    def _bin(self, popularity: float) -> int:
        return min(BINS - 1, int(BINS * math.log10(popularity + 1.0) / self.table.top))

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The histogram, and which table it was made with."""
        arrays, facts = counted_state(self.seen)
        arrays |= {"questions": self._questions, "sums": self._sums, "counts": self._counts}
        return arrays, facts | {"table_sha256": self.table.sha256}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a histogram made with the very same table."""
        seen = restored_counts(facts)
        if facts.get("table_sha256") != self.table.sha256:
            message = f"made with another table than {self._path}"
            remedy = "put the old table back, or let the learner replay the ledger with this one"
            raise SnapshotError(message, field="policy.params.table", remedy=remedy)
        own = checked_arrays(arrays, shapes={"questions": (BINS,), "sums": (2, BINS), "counts": (2, BINS)})
        self.seen = seen
        self._questions, self._sums, self._counts = (own[name] for name in ("questions", "sums", "counts"))


def read_table(path: str) -> PopularityTable:
    """The table in a file; kept in memory until the file changes. Raises ConfigError saying what is wrong with it."""
    try:
        stamp = Path(path).stat()
        return _read(path, stamp.st_mtime_ns, stamp.st_size)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}", field=_FIELD, remedy=_REMEDY) from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        fault = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        raise ConfigError(f"{path} is no table of format {FORMAT}: {fault}", field=_FIELD, remedy=_REMEDY) from error


_FIELD = "policy.params.table"
_REMEDY = "ragbandit index build writes popularity.json into the index's folder"


@functools.lru_cache(maxsize=2)  # every snapshot makes a policy anew
def _read(path: str, changed: int, size: int) -> PopularityTable:  # noqa: ARG001 the key of the cache
    data = Path(path).read_bytes()
    return PopularityTable.model_validate_json(data).model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
