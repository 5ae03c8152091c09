"""Made worlds: questions of a few kinds, and the chance of every arm to answer each kind right, which is known.

A world is a full-information table like any other. Its purpose is in a comment in WORLDS. The words of a question show
its kind, since each kind has its own sentences.

A long world (LONG) has passes of up to 100,000 questions. To save encoding, 2,453 texts repeat; every outcome is a
separate draw. The chance of an arm is .5, plus the difficulty of the question, which all arms share, plus effects of
the arm: a constant, an effect on each kind of question (sentence), and a linear function of the features of the text.
Difficulty also has a part by kind and a linear part. The features contain the kind. Therefore the best arm of every
question is the best choice that the features allow, and a linear regression on the chances finds this choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.offline.logs.tables import LabelledTable
from ragbandit.shared.types import ArmName, FeatureRows, Json, Matrix, TableRow

#: questions of a world
ROWS: Final = 1500
#: questions of a long world before equal texts are counted once
LONG_ROWS: Final = 3000

_LOOKUP: Final = (
    "What is the {noun} of the {thing} in {place}?",
    "Which {noun} does the {thing} number {number} have?",
    "When does the {thing} in {place} open?",
    "Who signs for the {thing} in {place}?",
)
_REASON: Final = (
    "Explain why the {thing} in {place} and the {other} differ in {noun}, and which of the two a new branch needs.",
    "If the {thing} fails while the {other} is repaired, how does the {noun} change, and what follows for {place}?",
    "Compare how the {thing} and the {other} were run in {place}, and say what that means for the {noun} next year.",
    "Suppose that {place} gives up its {thing}: which steps lead from there to a higher {noun} of the {other}?",
)
_WORDS: Final = {
    kind: words.split()
    for kind, words in {
        "noun": "price deadline colour weight limit owner address warranty capacity permit",
        "thing": "kiln ferry archive orchard turbine bakery lighthouse sawmill tramway reservoir quarry printing-press",
        "other": "depot windmill harbour laboratory greenhouse foundry signal-box weaving-mill pump-house dairy",
        "place": "Aarhus Bilbao Coimbra Dundee Esbjerg Faro Ghent Haarlem Izmir Jena Kaunas Lviv",
    }.items()
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """Definition of a world."""

    #: steps of every arm
    cost: Mapping[str, float]
    #: the chance of every arm, in the order of `cost`, to be right on a question to look up and on one to reason about
    lookup: Sequence[float]
    reason: Sequence[float]
    #: share of the questions to look up
    lookups: float = 0.5
    #: context that the world declares
    context: Mapping[str, Json] = field(default_factory=dict)


_THREE: Final = {"cheap": 0.1, "standard": 0.5, "premium": 5.0}
_ELEVEN: Final = {f"arm{number:02d}": 0.2 * number for number in range(11)}

WORLDS: Final[Mapping[str, Made]] = {
    # one question in seven, for which the cheap arm is as good as the expensive one
    "needle": Made(cost={"cheap": 0.2, "premium": 5.0}, lookup=(0.95, 0.95), reason=(0.03, 0.95), lookups=0.15),
    # half of the questions need the expensive arm, half need no retrieval
    "two kinds": Made(cost=_THREE, lookup=(0.95, 0.95, 0.95), reason=(0.1, 0.55, 0.95)),
    # nothing to choose
    "null": Made(cost=dict.fromkeys(("a", "b", "c"), 1.0), lookup=(0.55, 0.55, 0.55), reason=(0.55, 0.55, 0.55)),
    # an expensive arm that is nearly the best fixed one, and a declared context that separates the kinds
    "stuck": Made(
        cost={"cheap": 0.08, "standard": 0.4, "premium": 4.0},
        lookup=(0.9, 0.91, 0.93),
        reason=(0.35, 0.6, 0.9),
        context={
            "tier": {"type": "category", "values": ["free", "pro"]},
            "length": {"type": "number"},
        },
    ),
    # the middle arm is simply best
    "one best": Made(cost=_THREE, lookup=(0.6, 0.85, 0.87), reason=(0.5, 0.75, 0.77)),
    # the expensive arm never pays
    "cheap equal": Made(cost={"cheap": 0.2, "premium": 5.0}, lookup=(0.8, 0.8), reason=(0.7, 0.7)),
    # many arms of which one is best and some are close
    "eleven arms": Made(
        cost=_ELEVEN,
        lookup=(0.5, 0.52, 0.48, 0.55, 0.6, 0.58, 0.78, 0.7, 0.66, 0.62, 0.72),
        reason=(0.3, 0.36, 0.28, 0.4, 0.35, 0.45, 0.58, 0.5, 0.48, 0.46, 0.6),
    ),
    # a rival of the expensive arm is the best fixed one, and the expensive arm pays on half of the questions
    "dear incumbent": Made(cost={"cheap": 0.2, "premium": 5.0}, lookup=(0.9, 0.92), reason=(0.55, 0.9)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Long:
    """Definition of a long world, by effects on the chance to be right."""

    arms: int
    #: the largest effect of an arm on all questions: the others' are at equal distances down to its opposite
    own: float
    #: standard deviations over questions of an arm's effects by kind and along a direction of the features
    by_kind: float
    smooth: float
    #: steps of the first and of the last arm
    steps: tuple[float, float]


LONG: Final[Mapping[str, Long]] = {
    # retrievers before the same generator: means within a few hundredths, and small effects of the question
    "similar 7": Long(arms=7, own=0.03, by_kind=0.02, smooth=0.02, steps=(0.8, 1.2)),
    "similar 26": Long(arms=26, own=0.03, by_kind=0.02, smooth=0.02, steps=(0.8, 1.2)),
    # models of very different strength
    "different 26": Long(arms=26, own=0.2, by_kind=0.06, smooth=0.04, steps=(0.1, 3.0)),
}
#: standard deviations over questions of difficulty, which all arms share: by kind, and along a direction
_HARD_KIND, _HARD_SMOOTH = 0.12, 0.08


def questions_of(rows: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """`count` fixed questions, and the number (0 to 7) of the sentence that each is made from."""
    random, sentences = np.random.default_rng(3), (*_LOOKUP, *_REASON)
    which = random.integers(len(sentences), size=rows)
    texts = []
    for one in which:
        words = {key: values[int(random.integers(len(values)))] for key, values in _WORDS.items()}
        texts.append(sentences[one].format(**words, number=random.integers(10, 1000)))
    return texts, which


def made_world(name: str, *, rows: int = ROWS, seed: int = 0) -> tuple[LabelledTable, Matrix]:
    """The table of this world, and the chance of every arm to be right on every row, shape (rows, arms)."""
    world = WORLDS[name]
    random = np.random.default_rng([seed, *name.encode()])
    is_lookup = random.random(rows) < world.lookups
    chances = np.where(is_lookup[:, None], np.array(world.lookup), np.array(world.reason))
    right = random.random(chances.shape) < chances
    steps = {ArmName(arm): cost for arm, cost in world.cost.items()}

    def row(number: int) -> TableRow:
        sentences = _LOOKUP if is_lookup[number] else _REASON
        words = {key: values[int(random.integers(len(values)))] for key, values in _WORDS.items()}
        text = sentences[random.integers(len(sentences))].format(**words, number=random.integers(10, 1000))
        context: dict[str, Json] = {}
        if world.context:
            context = {"tier": ("free", "pro")[random.integers(2)], "length": len(text)}
        correct = dict(zip(steps, map(float, right[number]), strict=True))
        return TableRow(id=f"{name}-{number}", question=text, correct=correct, steps=steps, context=context)

    table = tuple(row(number) for number in range(rows))
    return LabelledTable(rows=table, arms=tuple(steps)), chances


def long_questions() -> dict[str, int]:
    """The texts of long worlds, and the number (0 to 7) of the sentence that each is made from."""
    texts, sentences = questions_of(LONG_ROWS)
    return dict(zip(texts, sentences.tolist(), strict=True))


def long_world(name: str, *, features: FeatureRows) -> LabelledTable:
    """The table of this world; `correct` is the chance of every arm. features: of `long_questions`, shape (n, d)."""
    world, questions = LONG[name], long_questions()
    random = np.random.default_rng([*name.encode()])
    kinds = np.eye(len(_LOOKUP + _REASON))[list(questions.values())]
    own = random.permutation(np.linspace(-world.own, world.own, world.arms))
    # the first column is difficulty, the others are the arms'
    by_kind = kinds @ random.normal(size=(kinds.shape[1], 1 + world.arms))
    # without the kinds' means, which most of the features' variance is between
    within = features - kinds @ ((kinds.T @ features) / kinds.sum(axis=0)[:, None])
    smooth = within @ random.normal(size=(features.shape[1], 1 + world.arms))
    effects = np.zeros_like(by_kind)
    for values, hard, of_arms in ((by_kind, _HARD_KIND, world.by_kind), (smooth, _HARD_SMOOTH, world.smooth)):
        values = (values - values.mean(axis=0)) / values.std(axis=0)
        effects += values * np.array([hard] + world.arms * [of_arms])
    chances = np.clip(0.5 + own + effects[:, :1] + effects[:, 1:], 0.02, 0.98)
    arms = tuple(ArmName(f"arm{number:02d}") for number in range(world.arms))
    steps = dict(zip(arms, np.linspace(*world.steps, world.arms).tolist(), strict=True))
    rows = tuple(
        TableRow(id=f"{name}-{number}", question=text, correct=dict(zip(arms, of_row, strict=True)), steps=steps)
        for number, (text, of_row) in enumerate(zip(questions, chances.tolist(), strict=True))
    )
    return LabelledTable(rows=rows, arms=arms)
