"""Made worlds of tasks: what their turns ask and cost, and how likely each arm solves them.

A task has 1 to 40 turns, and short tasks are as frequent as long ones on a logarithmic scale. Each turn sends the whole
prompt again. An arm's provider keeps the newest prompt for five minutes, so a turn reads from the cache what the same
arm has read in the meantime, and writes the rest to it. The chance that a task is solved is the mean of its turns'
chances, which depend on the kind of the question and on the arm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.worlds.made import questions_of
from ragbandit.router.config.sections import EncoderSettings
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.types import ArmName, FeatureRows, Matrix, Vector

ARMS: Final = (ArmName("small"), ArmName("large"))
#: dollars per million tokens: input, output, cached_input, cache_write (Claude Haiku 4.5 and Claude Opus 4.5)
PRICES: Final = ((1.0, 5.0, 0.1, 1.25), (5.0, 25.0, 0.5, 6.25))
#: seconds for which a provider keeps a prompt
CACHE_S: Final = 300.0
MOST_TURNS: Final = 40
#: share of the tasks whose outcome is reported
REPORTED: Final = 0.3
#: tokens of the first prompt; least and most tokens that a turn adds to the prompt, and that it writes
_FIRST, _ADDED, _WRITTEN = 6_000, (500, 2_500), (100, 500)
#: least and most seconds between two turns
_PAUSE: Final = (5.0, 120.0)
#: different questions; sentences from this number on are of the second kind
_QUESTIONS, _SECOND_KIND = 600, 4

Numbers = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """The questions of all worlds."""

    texts: Sequence[str]
    features: FeatureRows  #: shape (questions, d)
    encoder_hash: str
    by_kind: tuple[Numbers, Numbers]  #: numbers of the questions of each kind


@cache
def questions(encoder: str | None) -> Questions:
    """Encode the questions. encoder: another model than the default, such as hashing."""
    loaded = make_encoder(EncoderSettings() if encoder is None else EncoderSettings(model=encoder))
    texts, sentences = questions_of(_QUESTIONS)
    is_second = sentences >= _SECOND_KIND
    batches = [loaded.encode(texts[first : first + 32]) for first in range(0, len(texts), 32)]
    by_kind = np.flatnonzero(~is_second), np.flatnonzero(is_second)
    return Questions(texts=texts, features=np.concatenate(batches), encoder_hash=loaded.hash, by_kind=by_kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The turns of a task. Vectors have shape (turns,)."""

    kind: Numbers
    question: Numbers  #: number of the question in `Questions`
    read: Numbers  #: prompt tokens
    written: Numbers
    at: Vector  #: seconds after the first turn
    luck: float  #: the task is solved if its chance is above this number in [0, 1)
    is_reported: bool

    def dollars(self, arms: Sequence[int]) -> Vector:
        """Dollars of the first turns if these arms answer them, shape (arms,)."""
        spent = np.zeros(len(arms))
        cached, used_at = [0, 0], [-np.inf, -np.inf]
        for turn, (arm, read, at) in enumerate(zip(arms, self.read.tolist(), self.at.tolist(), strict=False)):
            hit = cached[arm] if at - used_at[arm] <= CACHE_S else 0
            tokens = Tokens(read=read, written=int(self.written[turn]), cached=hit, cache_write=read - hit)
            spent[turn] = tokens.dollars(PRICES[arm])
            cached[arm], used_at[arm] = read, at
        return spent


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Tasks that come one after the other."""

    seed: int
    chance: Matrix  #: chance of each arm on each kind, shape (kinds, arms)
    weight: float  #: value of a dollar in solved tasks
    turn_weight: float  #: value of a dollar in answered turns, for the unit `turn`
    tasks: Sequence[Task]


def made_world(seed: int, *, tasks: int, known: Questions, one_kind: bool = True, same_weight: bool = False) -> World:
    """The world of this number.

    one_kind: all turns of a task ask questions of its kind; otherwise each turn has a kind of its own
    same_weight: a turn is worth as much as a task; otherwise a task divided by the mean number of turns
    """
    random = np.random.default_rng([seed, 81])
    small = np.array([random.uniform(0.75, 0.95), random.uniform(0.2, 0.6)])
    large = np.minimum(small + np.array([random.uniform(-0.05, 0.1), random.uniform(0.1, 0.5)]), 0.98)
    second, weight = random.uniform(0.2, 0.8), 1.0 / np.exp(random.uniform(np.log(2.0), np.log(20.0)))
    made = [_task(random, second=second, one_kind=one_kind, known=known) for _ in range(tasks)]
    turns = 1.0 if same_weight else float(np.mean([len(task.kind) for task in made]))
    chance = np.stack([small, large], axis=1)
    return World(seed=seed, chance=chance, weight=float(weight), turn_weight=float(weight) * turns, tasks=made)


def _task(random: np.random.Generator, *, second: float, one_kind: bool, known: Questions) -> Task:
    turns = int(np.exp(random.uniform(0.0, np.log(MOST_TURNS + 1.0))))
    drawn = random.random(turns) < second
    kind = (np.repeat(drawn[:1], turns) if one_kind else drawn).astype(np.intp)
    added = random.integers(*_ADDED, size=turns)
    pauses = random.uniform(*_PAUSE, size=turns)
    return Task(
        kind=kind,
        question=np.array([random.choice(known.by_kind[one]) for one in kind], dtype=np.intp),
        read=_FIRST + np.cumsum(added) - added[0],
        written=random.integers(*_WRITTEN, size=turns),
        at=np.cumsum(pauses) - pauses[0],
        luck=float(random.random()),
        is_reported=bool(random.random() < REPORTED),
    )
