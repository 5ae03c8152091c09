"""Projection from pooled states to features: a few hundred numbers that a learner with few rows can use.

Nothing is learned from traffic. The projection is fitted on reference questions, written and labelled one by one
(reference_questions.jsonl: number of facts to join, kind of answer, how well known the subject is, wording):

1. Directions. Ridge regression from the standardised states to each label gives one direction per label. The product of
   a question's states with it is the reading of that label: "needs two facts", "asks for a choice", and so on.
2. Kinds. Readings and lexical counts are coordinates of a small space in which near questions are of one kind. A
   Gaussian kernel against the first reference questions (the anchors), whitened (Nystrom: Williams and Seeger 2000),
   spans smooth functions on this space; inner products of these features are the kernel.
3. Sketch. A signed random projection (count sketch: Charikar et al. 2002) of all standardised states keeps, in fewer
   numbers, the information that no label names.

The scales are a learner's prior: `KINDS` of a question's squared length is in the kinds, the rest in the sketch.
Every step is a continuous function of the states, so machines that round differently get nearly equal features.
"""

import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

#: words; a feature each: whether the question contains it as a whole word, in any case
CUES: Final = (
    *("who", "what", "when", "where", "which", "how", "why", "whose", "is", "are", "did", "does", "was"),
    *("first", "both", "same", "or", "older", "earlier", "more", "born", "director", "film", "of the", "that"),
)
#: names of the features, in order
LEXICAL_COUNTS: Final = (
    *("log words", "log characters", "capitalised words", "share capitalised", "digits", "question mark"),
    *("capital first", "commas", "apostrophes", "quotes", "letters per word"),
    *(f"says {cue}" for cue in CUES),
)

#: cue of one word -> its column among the cues
_PLACES: Final = {cue: place for place, cue in enumerate(CUES) if " " not in cue}
#: (column, cue, pattern) of the cues of several words
_PHRASES: Final = tuple(
    (place, cue, re.compile(rf"\b{re.escape(cue)}\b")) for place, cue in enumerate(CUES) if " " in cue
)
#: a maximal run of word characters; equals a cue of one word exactly if the question contains it as a whole word
WORDS: Final = re.compile(r"\w+")
_DIGIT: Final = re.compile(r"[0-9]")
#: columns that are log(1 + count)
_LOGARITHMIC: Final = [0, 1, 2, 7, 8, 9]
_OTHERS: Final = 11


def lexical_counts(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """The counts of n questions, shape (n, len(LEXICAL_COUNTS)); finite for any text, also an empty one."""
    features = np.zeros((len(texts), len(LEXICAL_COUNTS)))
    if not texts:
        return features
    counts = np.array([_counted(text) for text in texts], dtype=np.float64)  # (n, 11)
    words = np.maximum(1.0, counts[:, 0])
    counts[:, 3] /= words
    counts[:, 10] /= words
    counts[:, _LOGARITHMIC] = np.log1p(counts[:, _LOGARITHMIC])
    features[:, :_OTHERS] = counts
    ones = [(row, _OTHERS + place) for row, text in enumerate(texts) for place in _cue_columns(text.lower())]
    if ones:
        rows, places = zip(*ones, strict=True)
        features[list(rows), list(places)] = 1.0
    return features


def _counted(text: str) -> tuple[int, ...]:
    """The counts before the cues. Shares are still sums, logarithms are still counts."""
    words = text.split()
    capitalised = sum([word[0].isupper() for word in words[1:]])  # any first word may have a capital
    return (
        len(words),
        len(text),
        capitalised,
        capitalised,
        _has_digit(text),
        text.rstrip().endswith("?"),
        text[:1].isupper(),
        text.count(","),
        text.count("'") + text.count("\u2019"),
        text.count('"') + text.count("\u201c") + text.count("\u201d"),
        sum(map(len, words)),
    )


def _has_digit(text: str) -> bool:
    if _DIGIT.search(text) is not None:
        return True
    return not text.isascii() and any(letter.isdigit() for letter in text)


def _cue_columns(lower: str) -> list[int]:
    """Columns of the cues that a lower-case question contains."""
    columns = [_PLACES[word] for word in _PLACES.keys() & WORDS.findall(lower)]
    for column, phrase, whole in _PHRASES:
        if phrase in lower and whole.search(lower) is not None:
            columns.append(column)
    return columns


#: group -> its words, in lower case
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
    "code": ("function python code list string array return returns program class integer element elements variable"),
    "writing": (
        "write explain describe summarize summarise translate list give create generate compare tell find compute "
        "calculate choose"
    ),
    "choice": "answer option options choice choices true false following statement correct",
    "science": "energy cell cells water temperature process species gas blood force chemical body",
}
#: names of the counts, in order: the lexical counts come first
STYLE_COUNTS: Final = (*LEXICAL_COUNTS, *(f"log words of {group}" for group in WORD_GROUPS))

#: word -> the columns of its groups, among the groups
_COLUMNS: Final[dict[str, list[int]]] = {}
for _column, _words in enumerate(WORD_GROUPS.values()):
    for _word in _words.split():
        _COLUMNS.setdefault(_word, []).append(_column)


def style_counts(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """The counts of n questions, shape (n, len(STYLE_COUNTS)); finite for any text, also an empty one."""
    groups = np.zeros((len(texts), len(WORD_GROUPS)))
    for row, text in zip(groups, texts, strict=True):
        for word in WORDS.findall(text.lower()):
            for column in _COLUMNS.get(word, ()):
                row[column] += 1.0
    return np.concatenate([lexical_counts(texts), np.log1p(groups)], axis=1)


Array = npt.NDArray[np.floating[Any]]
Wide = npt.NDArray[np.float64]

#: share of the kinds in the squared length of the features, chosen by cross-validation (docs/mba.md)
KINDS: Final = 0.85
#: lexical counts that are features of their own, the last ones: numbers of words and characters. A learner needs few
#: rows for rewards that depend only on length
LENGTHS: Final = 2
#: squared length of these features; the other features together have 1
LENGTH: Final = 0.67
#: share of the features that are kinds
_ANCHORS: Final = 0.625
#: fewest features
LEAST: Final = 16
#: ridge parameter of the readings; states have squared length 1
_RIDGE: Final = 1.0
#: weight of a lexical count relative to a reading; both have variance 1
_WEIGHT: Final = 0.5
#: counts are clipped at this many standard deviations from the mean
_FAR: Final = 3.0
#: width of the kernel: squared distances in units of the median over the reference questions
_NARROW: Final = 1.5
#: part of the encoder's hash: everything in the features except the states; raise the version with the arithmetic
RECIPE: Final = (
    f"v3: lengths ({LENGTHS}, {LENGTH}), readings (ridge {_RIDGE}) and surface (weight {_WEIGHT}, cut at {_FAR}, "
    f"{', '.join(LEXICAL_COUNTS)}), "
    f"Gaussian kernel ({_NARROW}) at anchors ({_ANCHORS}), share {KINDS}; sketch of states"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """The reference questions and their labels."""

    questions: tuple[str, ...]
    labels: tuple[str, ...]
    #: 1 if a question has a label, else 0; shape (n, labels)
    columns: Wide
    #: content of the file, for the hash
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """States of shape (n, size) and lexical counts of the texts -> features of shape (n, d)."""

    #: mean and 1/deviation of each entry of the states over the reference questions, shape (size,)
    mean: Array
    inverse: Array
    #: readings = states @ directions + offset; shapes (size, labels) and (labels,); variance 1 out of sample
    directions: Array
    offset: Array
    #: mean and weight/deviation of every lexical count; do not rename, cached files contain these names
    surface_mean: Array
    surface_scale: Array
    #: anchors in the space of readings and counts, shape (m, labels + counts), and L^-1 of their kernel, (m, m)
    anchors: Array
    whiten: Array
    #: factor of squared distances in the kernel's exponent, shape ()
    narrow: Array
    #: for the sketch: order of the states' entries, and their signs times a scale, shape (size,)
    order: npt.NDArray[np.int64]
    signs: Array

    def readings(self, states: Array) -> Array:
        """Readings of the labels for these states, (n, labels)."""
        readings: Array = states @ self.directions + self.offset
        return readings

    def sketched(self, dimension: int) -> int:
        """Number of features that are the sketch."""
        return dimension - len(self.anchors) - LENGTHS

    def product(self, dimension: int) -> tuple[Array, Array]:
        """Returns (matrix, offset), shapes (size, k) and (k,): states @ matrix + offset are readings and sketch."""
        labels, count = self.directions.shape[1], self.sketched(dimension)
        matrix = np.zeros((len(self.mean), labels + count), dtype=np.float32)
        matrix[:, :labels] = self.directions
        matrix[self.order, labels + np.arange(len(self.order)) % count] = self.signs * self.inverse[self.order]
        centre = self.mean.astype(np.float64) @ matrix[:, labels:]
        return matrix, np.concatenate([self.offset, -centre.astype(np.float32)])

    def from_product(self, product: Array, *, counts: Wide, dimension: int) -> Array:
        """The features of questions from their `product`, (n, k), and their lexical counts."""
        labels = self.directions.shape[1]
        return self.features(product[:, :labels], product[:, labels:], counts=counts, dimension=dimension)

    def _placed(self, readings: Array, *, counts: Wide) -> Array:
        counted = np.clip((counts - self.surface_mean) * self.surface_scale, -_FAR * _WEIGHT, _FAR * _WEIGHT)
        return np.concatenate([readings, counted], axis=1).astype(self.anchors.dtype)

    def features(self, readings: Array, sketch: Array, *, counts: Wide, dimension: int) -> npt.NDArray[np.float32]:
        """The features of questions from their readings, (n, labels), their sketch and their lexical counts."""
        place = self._placed(readings, counts=counts)
        kernel = np.exp(-self.narrow * _distances(place, self.anchors))  # (n, m)
        kinds = _products(kernel, self.whiten) * self.whiten.dtype.type(np.sqrt(KINDS * dimension))
        lengths = place[:, readings.shape[1] : readings.shape[1] + LENGTHS]
        lengths = lengths * self.anchors.dtype.type(np.sqrt(LENGTH * dimension / LENGTHS) / _WEIGHT)
        return np.concatenate([kinds, sketch, lengths], axis=1).astype(np.float32)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The fields by name, for safetensors."""
        return {name: np.array(getattr(self, name), order="C") for name in self.__dataclass_fields__}

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "Projection":
        """The projection with these `arrays`. Raises KeyError if an array is missing."""
        return cls(**{name: arrays[name] for name in cls.__dataclass_fields__})


def references() -> References:
    """Read the reference questions of the package."""
    text = (
        importlib.resources.files("ragbandit.router.encoders").joinpath("reference_questions.jsonl").read_text("utf-8")
    )
    rows = [json.loads(line) for line in text.splitlines()]
    names, columns = [], []
    for key in sorted(key for key in rows[0] if key != "question"):
        values = sorted({row[key] for row in rows})
        for value in values[1:] if isinstance(values[0], int) else values:
            # Labels of numbers mean "at least this much", labels of words mean equality.
            ordered = isinstance(value, int)
            names.append(f"{key} >= {value}" if ordered else f"{key} = {value}")
            columns.append([float(row[key] >= value if ordered else row[key] == value) for row in rows])
    return References(
        questions=tuple(row["question"] for row in rows), labels=tuple(names), columns=np.array(columns).T, text=text
    )


def fitted(
    states: Array, *, known: References, dimension: int, seed: int, dtype: type[np.floating[Any]] = np.float32
) -> Projection:
    """Fit the projection on the states of the reference questions, shape (n, size).

    known: the reference questions. dimension: number of features, LEAST to size; may be smaller if the encoder has its
    own sketch. seed: of the sketch. dtype: type of the arrays.
    """
    count, size = states.shape
    anchors = min(round(_ANCHORS * dimension), count)
    wide = states.astype(np.float64)
    mean, spread = wide.mean(axis=0), wide.std(axis=0) + 1e-6
    z = (wide - mean) / spread / np.sqrt(size)  # rows of squared length 1 on average
    directions, offset, held_out = _readings(z, columns=known.columns)
    counts = lexical_counts(known.questions)
    surface_mean, surface_scale = counts.mean(axis=0), _WEIGHT / (counts.std(axis=0) + 1e-9)
    counted = np.clip((counts - surface_mean) * surface_scale, -_FAR * _WEIGHT, _FAR * _WEIGHT)
    # Held-out readings, so that new questions have the same distribution as the anchors.
    positions = np.concatenate([held_out, counted], axis=1)
    distances = _distances(positions, positions)
    narrow = _NARROW / np.median(distances[~np.eye(count, dtype=bool)])
    kernel = np.exp(-narrow * distances[:anchors, :anchors]) + 1e-4 * np.eye(anchors)
    random = np.random.default_rng(seed)
    order = random.permutation(size)
    # The squared length of z is 1 on average; the sketch's is (1 - KINDS) * d.
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


def _readings(z: Wide, *, columns: Wide) -> tuple[Wide, Wide, Wide]:
    """Ridge regression of every label on z, scaled so that held-out readings have mean 0 and variance 1.

    Returns (directions (size, labels), offset (labels,), held-out readings of the rows (n, labels)). Every row is left
    out once, in closed form.
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
    """Inner products of rows, shape (len(a), len(b)). One row does not use BLAS, which would wake its threads."""
    products: npt.NDArray[Any] = np.einsum("ij,kj->ik", a, b) if len(a) == 1 else a @ b.T
    return products
