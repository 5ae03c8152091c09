"""Dense retrieval: nearest passages by meaning, in a folder on disk.

Every vector is compared, so the result is exact, up to about a million passages; above, a graph beside the vectors
names candidates, and these are compared (faiss, HNSW). The vectors are kept as float16 and
memory-mapped: half the disk, several workers share the pages, and a rounding of 0.001 in a cosine changes no ranking
that a model of this size can justify.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import torch

from ragbandit.shared.errors import ConfigError, required_module
from ragbandit.shared.files import replace_folder
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.corpus import (
    OFFSETS,
    PASSAGES,
    FolderRetriever,
    best_positions,
    check_target,
    model_text,
    numbered,
    write_meta,
)
from ragbandit.strategies.retrievers.sentences import SentenceEncoder

#: every vector, or the graph
SearchBy = Literal["exact", "faiss"]

#: version of the folder's layout; another one cannot be read
FORMAT = "dense-1"

_VECTORS = "vectors.float16"
#: the file of the graph
GRAPH = "nearest.faiss"
#: neighbours that each vector is linked with
_LINKS = 32
#: candidates held while the graph is built, and at least while it is searched: more find more, and take longer
_BUILD_WIDTH, _SEARCH_WIDTH = 100, 128
#: vectors added to the graph at once
_LINKED = 16_384
_SETTINGS = "building.json"
#: passages encoded between two points from which a build that was cut off goes on
_BATCH = 256
#: vectors compared at once: few enough that their float32 copy stays in the processor's cache, ten times as quick
_BLOCK = 2_048


def build_index(
    rows: Iterable[Passage],
    folder: Path | str,
    *,
    encoder: SentenceEncoder,
    search_by: SearchBy = "exact",
    progress: Callable[[int], None] | None = None,
) -> dict[str, Json]:
    """Encode passages into a folder, replacing the index that is there; returns what `index.json` says.

    search_by "faiss" adds the graph, with which the index can be searched either way.
    Built beside the folder and renamed into place when complete. A build that was cut off goes on where it ended, as
    far as the passages are the same; the rest is encoded anew. `progress` is called with the number of passages done.
    Raises InvalidInput for an id seen twice or no passage, ConfigError if the folder holds something else, another
    process builds the same index, or faiss is wanted and missing.
    """
    if search_by == "faiss":
        faiss_module()  # not after hours of encoding
    target = Path(folder)
    check_target(target, family="dense")
    building = target.with_name(f".{target.name}.building")
    building.mkdir(parents=True, exist_ok=True)
    with _alone(building):
        _forget_other_encoder(building, encoder=encoder)
        meta = _write(rows, folder=building, encoder=encoder, progress=progress or (lambda _: None))
        (building / GRAPH).unlink(missing_ok=True)  # of a build that was cut off
        if search_by == "faiss":
            write_graph(_vectors(building, width=encoder.width), building / GRAPH)
        meta = {**meta, "search_by": search_by}
        write_meta(building, meta)
        (building / _SETTINGS).unlink()
        replace_folder(target, by=building)
    return meta


@contextmanager
def _alone(building: Path) -> Iterator[None]:
    """A lock that the system takes back from a process that was killed."""
    from filelock import FileLock, Timeout

    lock = FileLock(f"{building}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(f"another process builds {building}", remedy="wait until that build has ended") from error
    try:
        yield
    finally:
        lock.release()


def _forget_other_encoder(building: Path, *, encoder: SentenceEncoder) -> None:
    note = building / _SETTINGS
    settings = json.dumps({"format": FORMAT, "model": encoder.name, "width": encoder.width})
    if not note.is_file() or note.read_text(encoding="utf-8") != settings:
        for name in (PASSAGES, _VECTORS):
            (building / name).unlink(missing_ok=True)
        note.write_text(settings, encoding="utf-8")


def _write(
    rows: Iterable[Passage], *, folder: Path, encoder: SentenceEncoder, progress: Callable[[int], None]
) -> dict[str, Json]:
    seen, digest, offsets = set[str](), hashlib.sha256(), [0]
    source = ((passage, line) for _, passage, line in numbered(rows, seen=seen))
    with _opened(folder / PASSAGES) as lines, _opened(folder / _VECTORS) as vectors:
        rest: Iterable[tuple[Passage, bytes]] = source
        whole = vectors.seek(0, os.SEEK_END) // (2 * encoder.width)
        lines.seek(0)
        for passage, line in source:  # as far as an earlier build came, with the same passages
            if len(offsets) > whole or lines.read(len(line)) != line:
                rest = chain([(passage, line)], source)
                break
            digest.update(line)
            offsets.append(offsets[-1] + len(line))
        lines.truncate(offsets[-1])
        vectors.truncate(2 * encoder.width * (len(offsets) - 1))
        lines.seek(0, os.SEEK_END)
        vectors.seek(0, os.SEEK_END)
        rest = iter(rest)
        while batch := list(islice(rest, _BATCH)):
            vectors_of_batch = encoder.encode([model_text(passage.text, title=passage.title) for passage, _ in batch])
            for _, line in batch:
                digest.update(line)
                lines.write(line)
                offsets.append(offsets[-1] + len(line))
            lines.flush()  # first: a vector without its line would be taken for the next passage's
            vectors.write(vectors_of_batch.astype(np.float16).tobytes())
            vectors.flush()
            progress(len(seen))
    np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))
    progress(len(seen))
    return {
        "format": FORMAT,
        "passages": len(seen),
        "sha256": digest.hexdigest(),
        "created_at": time.time(),
        "model": encoder.name,
        "width": encoder.width,
    }


def _vectors(folder: Path, *, width: int) -> npt.NDArray[np.float16]:
    """Shape (passages, width), memory-mapped."""
    vectors: npt.NDArray[np.float16] = np.memmap(folder / _VECTORS, dtype=np.float16, mode="c").reshape(-1, width)
    return vectors


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """For reading and writing, made if need be and kept if there."""
    file.touch()
    with file.open("r+b") as stream:
        yield stream


def faiss_module() -> Any:
    """The package. Raises ConfigError, naming the extra, where it is not installed."""
    return required_module("faiss", extra="faiss")


def write_graph(vectors: npt.NDArray[np.float16], file: Path) -> None:
    """Link vectors (passages, width), each of length 1, in the order of their positions.

    Source: Malkov and Yashunin 2016, "Efficient and robust approximate nearest neighbor search using HNSW graphs".
    Raises ConfigError where faiss is missing.
    """
    faiss = faiss_module()
    # Rounded to float16 like the vectors themselves: nothing more is lost, and workers share half the pages.
    half = faiss.ScalarQuantizer.QT_fp16
    graph = faiss.IndexHNSWSQ(vectors.shape[1], half, _LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = _BUILD_WIDTH
    graph.train(np.asarray(vectors[:1], dtype=np.float32))  # asked for by faiss; this rounding learns nothing
    for start in range(0, len(vectors), _LINKED):
        graph.add(np.ascontiguousarray(vectors[start : start + _LINKED], dtype=np.float32))
    faiss.write_index(graph, str(file))


class NearGraph:
    """The graph in a file, memory-mapped, of so many vectors of this width.

    Raises ConfigError where faiss is missing, OSError or ValueError where the file cannot be read or belongs to others.
    """

    def __init__(self, file: Path, *, passages: int, width: int) -> None:
        faiss = faiss_module()
        try:
            self._graph = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise ValueError(f"{file.name} cannot be read") from error
        if (self._graph.ntotal, self._graph.d) != (passages, width):
            raise ValueError("its files do not belong together")
        self._settings = faiss.SearchParametersHNSW

    def near(self, query: npt.NDArray[np.float32], *, k: int) -> npt.NDArray[np.int64]:
        """Positions of about the k nearest to the query (width,) and more, in rising order: for exact scores to choose.

        Safe from several threads.
        """
        count = max(k, _SEARCH_WIDTH)
        _, neighbours = self._graph.search(query[None], count, params=self._settings(efSearch=count))  # (1, count)
        positions: npt.NDArray[np.int64] = np.sort(neighbours[0][neighbours[0] >= 0])
        return positions


class DenseRetriever(FolderRetriever):
    """Searches the index in a folder with the encoder that it was built with.

    `meta` has format, number of passages, sha256 of the passages as stored, created_at, model, width and search_by;
    `name` begins with "dense-faiss:" where the graph is searched. Every query with a letter or digit in it finds
    something, for some passages are always the nearest; scores are cosines, from -1 to 1. Of a long query the model
    reads its first tokens, 256 for most.
    Raises what FolderRetriever raises, and ConfigError for an index of another model, or without a graph if it is to be
    searched by one; or if faiss is missing.
    """

    kind = "dense"
    format = FORMAT

    def __init__(self, folder: Path | str, *, encoder: SentenceEncoder, search_by: SearchBy = "exact") -> None:
        super().__init__(folder)
        self._encoder = encoder
        if self.meta.get("model") != encoder.name:
            raise self._unusable(f"holds vectors of {self.meta.get('model')!r}, not of {encoder.name!r}")
        if search_by == "faiss" and self.meta.get("search_by") != "faiss":
            raise self._unusable("has no graph of faiss")
        with self._whole():
            self._vectors = _vectors(self._folder, width=encoder.width)
            if len(self) != len(self._vectors):
                raise ValueError("its files do not belong together")
            self._graph = None
            if search_by == "faiss":
                self.name = self.name.replace("dense:", "dense-faiss:")
                self._graph = NearGraph(self._folder / GRAPH, passages=len(self), width=encoder.width)

    def _best(self, query: str, *, k: int) -> Iterable[tuple[int, float]]:
        if not any(character.isalnum() for character in query):
            return ()
        positions, scores = self._scored(self._encoder.encode([query])[0], k=k)
        return [(int(positions[each]), float(scores[each])) for each in best_positions(scores, k=k)]

    def _scored(
        self, query: npt.NDArray[np.float32], *, k: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """(positions in rising order, their cosines): of all passages, or of those that the graph names."""
        if self._graph is None:
            return np.arange(len(self)), self._score(query)
        positions = self._graph.near(query, k=k)
        return positions, self._vectors[positions].astype(np.float32) @ query

    def _score(self, query: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        scores = np.empty(len(self), dtype=np.float32)  # (passages,)
        wanted = torch.from_numpy(query)  # (width,)
        with torch.inference_mode():
            for start in range(0, len(self), _BLOCK):
                block = torch.from_numpy(self._vectors[start : start + _BLOCK]).float()  # (block, width)
                scores[start : start + len(block)] = (block @ wanted).numpy()
        return scores
