"""`popularity`: Adaptive Retrieval (Mallen et al. 2023, arXiv 2212.10511, section 5): retrieve for rare entities.

The popularity of a question is the popularity of its least popular entity. From the threshold on, the arm `popular`
answers, because language models remember popular entities; else the arm `rare`. Intended differences to the paper:

- Popularity is the number of passages that mention the entity, which `ragbandit index counts` counts, not the page
  views of its article in Wikipedia. A file of your own may have page views.
- There is one threshold, not one per relation, because the relation in a question is not known.

Entities are, from left to right, the longest keys of the counts that begin at a capitalised word or a number; in a
question without capitals, at any word. An unknown capitalised word has popularity 0, unless it begins a sentence or is
a function word. The popularity of a question without entities is 0.
"""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field, ValidationError

from ragbandit.additions.popularity.entity_words import FUNCTION_WORDS, LONGEST, EntityWord, runs_of
from ragbandit.router.policies.base import (
    NO_RETRIEVAL,
    PARAMS_KEY,
    SINGLE_STEP,
    ArmParam,
    Arrays,
    Facts,
    Number,
    PerQuestionPolicy,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    Text,
    read_params,
)
from ragbandit.shared.errors import ConfigError, InvalidInput, SnapshotError
from ragbandit.shared.files import atomic_folder, free_folder, read_file, read_text, text_of_file
from ragbandit.shared.json_lines import DECODER
from ragbandit.shared.types import ArmName, Features, Json, Query, TableRow

#: number of entities in a decision's facts
_SHOWN: Final = 10
#: largest file of counts, bytes: about ten million entities
_MOST_COUNTS: Final = 512 << 20
#: number of characters of a question that are read
_MAX_READ: Final = 4000
_FACTS: Final = "ragbandit.json"
_COUNTS: Final = f"{PARAMS_KEY}.counts"
_TRAINED: Final = f"{PARAMS_KEY}.trained"


class MentionCountsFile(BaseModel, frozen=True, strict=True):
    format: Literal[1]
    passages: Annotated[int, Field(ge=0)] = 0
    #: key of an entity -> its popularity
    mentions: dict[str, Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]]
    sha256: str = ""

    def entities(self, text: str) -> dict[str, float]:
        """Entity -> its popularity, 0 if the counts lack it. Reads the first 4,000 characters."""
        words = list(chain.from_iterable(runs_of(text[:_MAX_READ])))
        anywhere = not any(word.has_capital for word in words)
        popularity: dict[str, float] = {}
        start = 0
        while start < len(words):
            first, length = words[start], 0
            if anywhere or first.has_capital or first.is_number:
                length = self._longest(words[start : start + LONGEST])
            if length:
                key = _key(words[start : start + length])
                popularity[key] = self.mentions[key]
            elif first.has_capital and not first.may_begin_sentence and first.key not in FUNCTION_WORDS:
                popularity[first.key] = 0.0
            start += length or 1
        return popularity

    def _longest(self, words: Sequence[EntityWord]) -> int:
        """Number of words of the longest key at the beginning of these words; 0 if there is none."""
        return next((end for end in range(len(words), 0, -1) if _key(words[:end]) in self.mentions), 0)


def _key(words: Sequence[EntityWord]) -> str:
    return " ".join(word.key for word in words)


@dataclass(frozen=True, kw_only=True, slots=True)
class PopularityParams(PolicyParams):
    #: file of `ragbandit index counts`; every router and learner reads it
    counts: Text
    #: smallest popularity with which `popular` answers; None for the trained threshold
    threshold: Number | None = None
    #: folder of a trained threshold; None if it is not trained
    trained: Text | None = None
    popular: ArmParam = NO_RETRIEVAL
    rare: ArmParam = SINGLE_STEP

    arms_named: ClassVar[tuple[str, ...]] = ("popular", "rare")


class Popularity(PerQuestionPolicy):
    """Gives all probability to the arm for the question's popularity; if it is not offered, to the other arm.

    Uniform if neither is offered, or if there is no threshold. The counts are a part of the policy: a snapshot that was
    made with other counts is refused.
    """

    algorithm: ClassVar[str] = "popularity"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"text"})
    deterministic: ClassVar[bool] = True
    needs_every_arm: ClassVar[bool] = False
    example: ClassVar[Mapping[str, Json]] = {"popular": "multi_step", "rare": "no_retrieval"}

    def __init__(self, **params: Json) -> None:
        settings = read_params(PopularityParams, given=params)
        super().__init__(settings)
        self.popular, self.rare = settings.popular, settings.rare
        if self.popular == self.rare:
            message, remedy = f"{self.rare!r} is also the arm `popular`", "name two different arms"
            raise ConfigError(message, field=f"{PARAMS_KEY}.rare", remedy=remedy)
        self.counts = read_counts(settings.counts)
        #: smallest popularity with which `popular` answers; None before a training
        self.threshold = settings.threshold
        self.report: Mapping[str, Json] | None = None
        if settings.trained is not None:
            trained = self._read_threshold(Path(settings.trained).expanduser())
            self.threshold = trained if settings.threshold is None else settings.threshold

    @property
    def trained_arms(self) -> tuple[ArmName, ...]:
        return () if self.threshold is None else (self.popular, self.rare)

    def popularity(self, text: str) -> float:
        """Popularity of the least popular entity of a question; 0 without entities."""
        return min(self.counts.entities(text).values(), default=0.0)

    def output(self, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
        del features
        uniform = (1.0 / len(arms),) * len(arms)
        if self.threshold is None:
            return PolicyOutput(pmf=uniform, facts={"untrained": True})
        entities = self.counts.entities(query.text)
        popularity = min(entities.values(), default=0.0)
        order = (self.popular, self.rare) if popularity >= self.threshold else (self.rare, self.popular)
        chosen = next((arm for arm in order if arm in arms), None)
        pmf = uniform if chosen is None else tuple(float(arm == chosen) for arm in arms)
        # A long question may have many entities. The least popular ones are logged.
        shown = sorted(entities.items(), key=lambda pair: (pair[1], pair[0]))[:_SHOWN]
        # Pairs, since words of a question must not become keys of facts.
        facts: dict[str, Json] = {"entities": [[*pair] for pair in shown]}
        facts |= {"popularity": popularity, "threshold": self.threshold}
        return PolicyOutput(pmf=pmf, facts=facts)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        arrays, facts = super().state()
        return arrays, {**facts, "counts": self.counts.sha256, "threshold": self.threshold}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Load saved counts of updates. Raises SnapshotError if they belong to another threshold or file of counts."""
        remedy = "put the old file back, or let the learner replay the ledger with this one"
        if arrays or facts.get("counts") != self.counts.sha256:
            raise SnapshotError("the snapshot was made with another file of counts", field=_COUNTS, remedy=remedy)
        if facts.get("threshold") != self.threshold:
            raise SnapshotError("the snapshot was made with another threshold", field=_TRAINED, remedy=remedy)
        super().restore(arrays, facts)

    def fit(
        self, rows: Sequence[TableRow], *, progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> dict[str, Json]:
        """Choose the threshold with the highest mean quality; of equals the one with fewest steps, then the lowest.

        The threshold is a popularity of these questions, or above every entity's. Returns a report: the numbers of all
        and used rows, the threshold, the share of `popular` and the mean quality. Raises InvalidInput if no row has
        outcomes of both arms.
        """
        pair = (self.popular, self.rare)
        used = [row for row in rows if all(arm in row.correct for arm in pair)]
        if not used:
            message = f"no row has the outcomes of both {self.popular!r} and {self.rare!r}"
            raise InvalidInput(
                message, field="rows", remedy=f"give them, or set {PARAMS_KEY}.popular and {PARAMS_KEY}.rare"
            )
        ordered = sorted(((self.popularity(row.question), row) for row in used), key=lambda each: each[0])
        qualities = [[row.correct[arm] for _, row in ordered] for arm in pair]
        steps = [[row.steps.get(arm, 0.0) for _, row in ordered] for arm in pair]
        edges = [place for place in range(len(used)) if not place or ordered[place - 1][0] < ordered[place][0]]

        def mean(values: Sequence[Sequence[float]], edge: int) -> float:
            """Mean if `rare` answers the rows before this edge, and `popular` the other rows."""
            return math.fsum((*values[1][:edge], *values[0][edge:])) / len(used)

        merits = {edge: (mean(qualities, edge), -mean(steps, edge), -edge) for edge in (*edges, len(used))}
        best = max(merits, key=lambda edge: merits[edge])
        highest = max(self.counts.mentions.values(), default=0.0)
        self.threshold = ordered[best][0] if best < len(used) else highest + 1.0
        progress(1, 1)
        self.report = {
            "rows": len(rows),
            "used": len(used),
            "threshold": self.threshold,
            "popular_share": (len(used) - best) / len(used),
            "quality": merits[best][0],
        }
        return dict(self.report)

    def save(self, folder: str | Path) -> str:
        """Write the folder for the param `trained`. Returns the sha256 of ragbandit.json.

        Raises InvalidInput if the policy is untrained, and ConfigError if the folder cannot be written.
        """
        if self.report is None:
            raise InvalidInput("the policy is not trained", field="policy", remedy="call `fit` before `save`")
        target = free_folder(folder)
        described = {"format": 1, "algorithm": self.algorithm, "counts": self.counts.sha256, "report": self.report}
        text = json.dumps(described, indent=1, sort_keys=True)
        try:
            with atomic_folder(target, private=False) as work:
                (work / _FACTS).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            remedy = "give another folder"
            raise ConfigError(f"{target} cannot be written: {error}", field="out", remedy=remedy) from error
        return hashlib.sha256(text.encode()).hexdigest()

    def _read_threshold(self, folder: Path) -> float:
        """The threshold of a trained folder. Raises ConfigError."""
        train = "`ragbandit policy train --policy popularity --table T.jsonl --out FOLDER`"
        remedy = f"give a folder that was trained with these counts: {train}"
        try:
            described = json.loads(read_text(folder / _FACTS))
            if (described["algorithm"], described["format"]) != (self.algorithm, 1):
                raise ValueError(f"it has {described['algorithm']!r} in format {described['format']!r}")
            if described["counts"] != self.counts.sha256:
                raise ValueError("it was trained with another file of counts")
            threshold = described["report"]["threshold"]
            if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0.0 <= threshold < math.inf:
                raise ValueError(f"its threshold is {threshold!r}")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{folder} is not usable: {error}", field=_TRAINED, remedy=remedy) from error
        self.report = described["report"]
        return float(threshold)


def read_counts(path: str) -> MentionCountsFile:
    """Read a file of counts; cached until the file changes. Raises ConfigError."""
    remedy = "`ragbandit index counts --corpus CORPUS.jsonl --out FILE` writes it"
    try:
        file = Path(path).expanduser()
        stamp = file.stat()
        return _read_file(file, stamp.st_mtime_ns, stamp.st_size)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", field=_COUNTS, remedy=remedy) from error
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        fault = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    except (ValueError, RecursionError) as error:
        fault = f"Invalid JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
    raise ConfigError(f"{path} is not a file of counts: {fault}", field=_COUNTS, remedy=remedy)


@functools.lru_cache(maxsize=2)  # a policy is made for every snapshot, and reads the file
def _read_file(path: Path, changed: int, size: int) -> MentionCountsFile:  # noqa: ARG001 - the key of the cache
    data = read_file(path, most=_MOST_COUNTS)
    counts = MentionCountsFile.model_validate(DECODER.decode(text_of_file(data)))
    return counts.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
