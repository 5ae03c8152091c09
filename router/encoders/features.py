"""Projects pooled states to features: a few hundred numbers that a learner with few rows can use.

Nothing is learned from traffic. The projection is fitted on labelled reference questions of our own
(reference_questions.jsonl: number of facts to join, kind of answer, how well known the subject is, wording):

1. Directions. Ridge regression from the standardised states to each label ("needs two facts", "asks for a choice")
   gives one direction per label. The product of a question's states with this direction is the label's prediction.
2. Kinds. Predictions and lexical counts are coordinates of a small space in which near questions are of one kind. A
   Gaussian kernel against the first reference questions (the anchors), whitened (Nystrom: Williams and Seeger 2000),
   spans smooth functions on this space; inner products of these features are the kernel.
3. Sketch. A signed random projection (count sketch: Charikar et al. 2002) of all standardised states keeps, in fewer
   numbers, the information that no label names.

The scales act as a learner's prior: the share KINDS of the features' squared length is in the kinds, the rest in the
sketch. All steps are continuous functions of the states, so machines that round differently get nearly equal features.
"""

import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_CUES: Final = (
    "who what when where which how why whose is are did does was first both same or older earlier more born director "
    "film of_the that"
)
#: words and phrases with one lexical count each: 1 if the question contains the words in any case of letters, else 0
CUES: Final = tuple(cue.replace("_", " ") for cue in _CUES.split())
_FIRST_COUNTS: Final = (
    "log words, log characters, capitalised words, share capitalised, digits, question mark, capital first, commas, "
    "apostrophes, quotes, letters per word"
)
LEXICAL_COUNTS: Final = tuple(_FIRST_COUNTS.split(", ")) + tuple(f"says {cue}" for cue in CUES)
#: number of lexical counts before the counts of `CUES`
_FIRST_CUE: Final = len(LEXICAL_COUNTS) - len(CUES)

_CUE_INDEX: Final = {cue: place for place, cue in enumerate(CUES) if " " not in cue}
_PHRASES: Final = tuple(
    (place, cue, re.compile(rf"\b{re.escape(cue)}\b")) for place, cue in enumerate(CUES) if " " in cue
)
WORDS: Final = re.compile(r"\w+")
_DIGIT: Final = re.compile(r"[0-9]")
#: indices of the lexical counts that become log(1 + count)
_LOGARITHMIC: Final = [0, 1, 2, 7, 8, 9]


def lexical_features(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """The lexical features of n questions, shape (n, len(LEXICAL_COUNTS)); finite for any text, even an empty one."""
    features = np.zeros((len(texts), len(LEXICAL_COUNTS)))
    if not texts:
        return features
    counts = np.array([_raw_counts(text) for text in texts], dtype=np.float64)  # (n, 11)
    lengths = np.maximum(1.0, counts[:, 0])
    counts[:, 3] /= lengths
    counts[:, 10] /= lengths
    counts[:, _LOGARITHMIC] = np.log1p(counts[:, _LOGARITHMIC])
    features[:, :_FIRST_CUE] = counts
    for row, text in zip(features[:, _FIRST_CUE:], texts, strict=True):
        lower = text.lower()
        places = [_CUE_INDEX[cue] for cue in _CUE_INDEX.keys() & WORDS.findall(lower)]
        places += [place for place, cue, pattern in _PHRASES if cue in lower and pattern.search(lower) is not None]
        row[places] = 1.0
    return features


def _raw_counts(text: str) -> tuple[int, ...]:
    """The lexical counts, without the counts of CUES, before the division by the number of words and the log scale."""
    tokens = text.split()
    capitalised = sum([token[0].isupper() for token in tokens[1:]])  # every sentence begins with a capital
    return (
        len(tokens),
        len(text),
        capitalised,
        capitalised,
        _DIGIT.search(text) is not None or (not text.isascii() and any(letter.isdigit() for letter in text)),
        text.rstrip().endswith("?"),
        text[:1].isupper(),
        text.count(","),
        text.count("'") + text.count("\u2019"),
        text.count('"') + text.count("\u201c") + text.count("\u201d"),
        sum(map(len, tokens)),
    )


WORD_GROUPS: Final = {
    "kin": (
        "father mother son daughter brother sister wife husband spouse grandfather grandmother uncle aunt child "
        "children parent parents married"
    ),
    "films": (
        "film films movie movies director directed actor actress starring starred series show episode cast played plays"
    ),
    "music": "song songs album band singer sang composer music performer performed",
    "books": "book books novel author wrote written writer poem poet magazine published",
    "places": "country city state town village capital river county located border population island nationality",
    "people": (
        "president king queen player politician minister leader founder founded company university school team club"
    ),
    "sport": "game season league cup won win winner championship played teams football",
    "time": (
        "year years date day month century age old long january february march april may june july august september "
        "october november december"
    ),
    "arithmetic": (
        "total sum times twice half double percent average altogether left cost costs price number ratio dollars "
        "minutes hours"
    ),
    "code": "function python code list string array return returns program class integer element elements variable",
    "writing": (
        "write explain describe summarize summarise translate list give create generate compare tell find compute "
        "calculate choose"
    ),
    "choice": "answer option options choice choices true false following statement correct",
    "science": "energy cell cells water temperature process species gas blood force chemical body",
}

#: word -> indices of the groups in WORD_GROUPS that contain the word
_GROUPS: Final[dict[str, list[int]]] = {}
for _index, _group in enumerate(WORD_GROUPS.values()):
    for _member in _group.split():
        _GROUPS.setdefault(_member, []).append(_index)


def style_features(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    groups = np.zeros((len(texts), len(WORD_GROUPS)))
    for row, text in zip(groups, texts, strict=True):
        for token in WORDS.findall(text.lower()):
            for group in _GROUPS.get(token, ()):
                row[group] += 1.0
    return np.concatenate([lexical_features(texts), np.log1p(groups)], axis=1)


Array = npt.NDArray[np.floating[Any]]
Wide = npt.NDArray[np.float64]

#: share of the kinds in the squared length of the features, chosen by cross-validation (docs/mba.md)
KINDS: Final = 0.85
#: number of features at the end that are lexical counts: words and characters. With them, a learner needs few rows if
#: rewards depend only on a question's length
LENGTHS: Final = 2
#: squared length of the vector of these LENGTHS features; the vector of all other features has squared length 1
LENGTH: Final = 0.67
#: number of anchors, one for each kind, as a share of the number of features
_ANCHORS: Final = 0.625
#: smallest number of features with which an encoder includes the sketch of the states
LEAST: Final = 16
#: ridge parameter of the regressions of labels on states of squared length 1
_RIDGE: Final = 1.0
#: scale of the standardised lexical counts; the predictions of labels have the scale 1
_WEIGHT: Final = 0.5
#: lexical counts are clipped at this many standard deviations from their mean
_FAR: Final = 3.0
#: the kernel is exp(-_NARROW * squared distance / median squared distance between reference questions)
_NARROW: Final = 1.5
#: part of the encoder's hash; describes the arithmetic after the states. Raise the version if the arithmetic changes
RECIPE: Final = (
    f"v3: lengths ({LENGTHS}, {LENGTH}), readings (ridge {_RIDGE}) and surface (weight {_WEIGHT}, cut at {_FAR}, "
    f"{', '.join(LEXICAL_COUNTS)}), "
    f"Gaussian kernel ({_NARROW}) at anchors ({_ANCHORS}), share {KINDS}; sketch of states"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    questions: tuple[str, ...]
    labels: tuple[str, ...]
    #: 1 if a question has a label, else 0; shape (n, labels)
    columns: Wide
    #: content of reference_questions.jsonl, for the encoder's hash
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """Turns states, shape (n, size), and lexical counts of the texts into features, shape (n, d)."""

    #: mean of each state over the reference questions, shape (size,)
    mean: Array
    inverse: Array  #: 1 / standard deviation of each component of the states, shape (size,)
    #: predictions = states @ directions + offset, (size, labels) and (labels,); they have variance 1 for new questions
    directions: Array
    offset: Array
    #: mean of each lexical count. Do not rename these fields: cached files contain the names
    surface_mean: Array
    surface_scale: Array  #: `_WEIGHT` / standard deviation of each lexical count
    #: predictions and lexical counts of the m anchors, shape (m, labels + counts)
    anchors: Array
    whiten: Array  #: inverse Cholesky factor of the anchors' kernel matrix, shape (m, m)
    #: factor of squared distances in the kernel's exponent, an array of shape ()
    narrow: Array
    #: permutation of the states for the sketch, shape (size,)
    order: npt.NDArray[np.int64]
    signs: Array  #: random sign of each state, times the scale of the sketch

    def predictions(self, states: Array) -> Array:
        predictions: Array = states @ self.directions + self.offset
        return predictions

    def sketch_size(self, dimension: int) -> int:
        return dimension - len(self.anchors) - LENGTHS

    def linear_map(self, dimension: int) -> tuple[Array, Array]:
        """Returns (matrix (size, k), offset (k,)): states @ matrix + offset gives the predictions, then the sketch."""
        labels, count = self.directions.shape[1], self.sketch_size(dimension)
        matrix = np.zeros((len(self.mean), labels + count), dtype=np.float32)
        matrix[:, :labels] = self.directions
        matrix[self.order, labels + np.arange(len(self.order)) % count] = self.signs * self.inverse[self.order]
        centre = self.mean.astype(np.float64) @ matrix[:, labels:]
        return matrix, np.concatenate([self.offset, -centre.astype(np.float32)])

    def _coordinates(self, predictions: Array, *, counts: Wide) -> Array:
        """Coordinates of n questions in the space of the kinds, shape (n, labels + counts)."""
        counted = (counts - self.surface_mean) * self.surface_scale
        counted = np.minimum(np.maximum(counted, -_FAR * _WEIGHT), _FAR * _WEIGHT)
        return np.concatenate([predictions, counted], axis=1).astype(self.anchors.dtype)

    def features(self, projected: Array, *, counts: Wide, dimension: int) -> npt.NDArray[np.float32]:
        """Features of n questions, shape (n, d). projected: their states after `linear_map`, shape (n, k)."""
        labels = self.directions.shape[1]
        coordinates = self._coordinates(projected[:, :labels], counts=counts)
        kernel = np.exp(-self.narrow * _distances(coordinates, self.anchors))  # (n, m)
        kinds = _products(kernel, self.whiten) * self.whiten.dtype.type(np.sqrt(KINDS * dimension))
        lengths = coordinates[:, labels : labels + LENGTHS]
        lengths = lengths * self.anchors.dtype.type(np.sqrt(LENGTH * dimension / LENGTHS) / _WEIGHT)
        return np.concatenate([kinds, projected[:, labels:], lengths], axis=1).astype(np.float32)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: np.array(getattr(self, name), order="C") for name in self.__dataclass_fields__}

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "Projection":
        return cls(**{name: arrays[name] for name in cls.__dataclass_fields__})


def references() -> References:
    folder = importlib.resources.files("ragbandit.router.encoders")
    text = folder.joinpath("reference_questions.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    columns: dict[str, list[bool]] = {}
    for key in sorted(rows[0].keys() - {"question"}):
        values = sorted({row[key] for row in rows})
        if isinstance(values[0], int):  # labels: whether the number is at least this value
            columns |= {f"{key} >= {value}": [row[key] >= value for row in rows] for value in values[1:]}
        else:
            columns |= {f"{key} = {value}": [row[key] == value for row in rows] for value in values}
    questions = tuple(row["question"] for row in rows)
    table = np.array(list(columns.values()), dtype=np.float64).T
    return References(questions=questions, labels=tuple(columns), columns=table, text=text)


def fit_projection(
    states: Array, *, reference: References, dimension: int, seed: int, dtype: type[np.floating[Any]] = np.float32
) -> Projection:
    """Fit the projection on the states of the reference questions, shape (n, size).

    dimension: number of features, LEAST to size; an encoder that makes the sketch itself may choose another number
    """
    count, size = states.shape
    anchors = min(round(_ANCHORS * dimension), count)
    wide = states.astype(np.float64)
    mean, spread = wide.mean(axis=0), wide.std(axis=0) + 1e-6
    z = (wide - mean) / spread / np.sqrt(size)  # rows of squared length 1 on average
    directions, offset, held_out = _fit_labels(z, columns=reference.columns)
    counts = lexical_features(reference.questions)
    surface_mean, surface_scale = counts.mean(axis=0), _WEIGHT / (counts.std(axis=0) + 1e-9)
    counted = np.clip((counts - surface_mean) * surface_scale, -_FAR * _WEIGHT, _FAR * _WEIGHT)
    # The anchors get held-out predictions, because predictions for new questions have the same distribution.
    positions = np.concatenate([held_out, counted], axis=1)
    distances = _distances(positions, positions)
    narrow = _NARROW / np.median(distances[~np.eye(count, dtype=bool)])
    kernel = np.exp(-narrow * distances[:anchors, :anchors]) + 1e-4 * np.eye(anchors)
    random = np.random.default_rng(seed)
    order = random.permutation(size)
    # z has the squared length 1 on average; with these signs the sketch has the squared length (1 - KINDS) * dimension.
    signs = random.choice(np.array([-1.0, 1.0]), size) * np.sqrt((1.0 - KINDS) * dimension / size)
    scaled = directions / (spread[:, None] * np.sqrt(size))
    arrays = {
        "mean": mean,
        "inverse": 1.0 / spread,
        "directions": scaled,
        "offset": offset - mean @ scaled,
        "surface_mean": surface_mean,
        "surface_scale": surface_scale,
        "anchors": positions[:anchors],
        "whiten": np.linalg.inv(np.linalg.cholesky(kernel)),
        "narrow": np.array(narrow),
        "signs": signs,
    }
    return Projection(order=order, **{name: values.astype(dtype) for name, values in arrays.items()})


def _fit_labels(z: Wide, *, columns: Wide) -> tuple[Wide, Wide, Wide]:
    """Ridge regression of every label on z, scaled so that leave-one-out predictions have mean 0 and variance 1.

    Returns (directions (size, labels), offset (labels,), leave-one-out predictions (n, labels)).
    """
    centred = columns - columns.mean(axis=0)
    count, size = z.shape
    if size < count:  # inverts the smaller matrix (Woodbury)
        inverse: Array = (np.eye(count) - z @ np.linalg.inv(z.T @ z + _RIDGE * np.eye(size)) @ z.T) / _RIDGE
    else:
        inverse = np.linalg.inv(z @ z.T + _RIDGE * np.eye(count))
    dual = inverse @ centred  # (n, labels)
    left_out = centred - dual / np.diag(inverse)[:, None]
    middle, spread = left_out.mean(axis=0), left_out.std(axis=0) + 1e-9
    return z.T @ dual / spread, -middle / spread, (left_out - middle) / spread


def _distances(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Squared distances between rows, shape (len(a), len(b))."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * _products(a, b)
    distances: npt.NDArray[Any] = np.maximum(squares, 0.0)
    return distances


def _products(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Inner products of rows, shape (len(a), len(b)). A single row is multiplied without BLAS, which wakes threads."""
    products: npt.NDArray[Any] = np.einsum("ij,kj->ik", a, b) if len(a) == 1 else a @ b.T
    return products
