"""Dense retrieval: nearest passages by meaning, in a folder on disk.

Every vector is compared, so the result is exact, up to about a million passages. The vectors are kept as float16 and
memory-mapped: half the disk, several workers share the pages, and a rounding of 0.001 in a cosine changes no ranking
that a model of this size can justify.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ragbandit.shared.types import Json
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.corpus import PassageReader, model_text
from ragbandit.strategies.retrievers.folders import FolderRetriever, best_positions, new_index, stored, write_meta
from ragbandit.strategies.retrievers.sentences import SentenceEncoder

#: version of the folder's layout; another one cannot be read
FORMAT = "dense-1"

_VECTORS = "vectors.float16"
#: passages encoded at a time
_BATCH = 256
#: vectors compared at once: few enough that their float32 copy stays in the processor's cache, ten times as quick
_BLOCK = 2_048


def build_index(
    rows: Iterable[Passage],
    folder: Path | str,
    *,
    encoder: SentenceEncoder,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Json]:
    """Encode passages into a folder, replacing the index that is there; returns what `index.json` says.

    Built beside the folder and renamed into place when complete. `progress` is called with the number of passages done.
    Raises InvalidInput for an id seen twice or no passage, ConfigError if the folder holds something else.
    """
    reader = PassageReader(rows, progress=progress)
    with new_index(Path(folder)) as building:
        with (building / _VECTORS).open("wb") as vectors:
            for passages in stored(reader, building, size=_BATCH):
                texts = [model_text(passage.text, title=passage.title) for passage in passages]
                vectors.write(encoder.encode(texts).astype(np.float16).tobytes())
        facts: dict[str, Json] = {"model": encoder.name, "width": encoder.width}
        return write_meta(building, {"format": FORMAT, **reader.facts(), **facts})


def _vectors(folder: Path, *, width: int) -> npt.NDArray[np.float16]:
    """Shape (passages, width), memory-mapped."""
    vectors: npt.NDArray[np.float16] = np.memmap(folder / _VECTORS, dtype=np.float16, mode="c").reshape(-1, width)
    return vectors


class DenseRetriever(FolderRetriever):
    """Searches the index in a folder with the encoder that it was built with.

    `meta` has format, number of passages, sha256 of the passages as stored, created_at, model and width. Every query
    with a letter or digit in it finds something, for some passages are always the nearest; scores are cosines, from -1
    to 1. Of a long query the model reads its first tokens, 256 for most.
    Raises what FolderRetriever raises, and ConfigError for an index of another model.
    """

    kind = "dense"
    format = FORMAT

    def __init__(self, folder: Path | str, *, encoder: SentenceEncoder) -> None:
        super().__init__(folder)
        self._encoder = encoder
        if self.meta.get("model") != encoder.name:
            raise self._unusable(f"holds vectors of {self.meta.get('model')!r}, not of {encoder.name!r}")
        with self._whole():
            self._vectors = _vectors(self._folder, width=encoder.width)
            if len(self) != len(self._vectors):
                raise ValueError("its files do not belong together")

    def _best(self, query: str, *, k: int) -> Iterable[tuple[int, float]]:
        if not any(character.isalnum() for character in query):
            return ()
        scores = self._score(self._encoder.encode([query])[0])
        return [(position, float(scores[position])) for position in best_positions(scores, k=k)]

    def _score(self, query: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        scores = np.empty(len(self), dtype=np.float32)  # (passages,)
        wanted = torch.from_numpy(query)  # (width,)
        with torch.inference_mode():
            for start in range(0, len(self), _BLOCK):
                block = torch.from_numpy(self._vectors[start : start + _BLOCK]).float()  # (block, width)
                scores[start : start + len(block)] = (block @ wanted).numpy()
        return scores
