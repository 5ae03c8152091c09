"""Approximate nearest neighbours: a graph of faiss (HNSW) beside the vectors of `dense`."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import required_module

#: the file in the index's folder
GRAPH = "nearest.faiss"
#: neighbours that each vector is linked with
_LINKS = 32
#: candidates held while the graph is built, and at least while it is searched: more find more, and take longer
_BUILD_WIDTH, _SEARCH_WIDTH = 100, 128
#: vectors added at once
_BLOCK = 16_384


def check_faiss() -> None:
    """Raises ConfigError, naming the extra, where faiss is not installed."""
    required_module("faiss", extra="faiss")


def write_graph(vectors: npt.NDArray[np.float16], file: Path) -> None:
    """Link vectors (passages, width), each of length 1, in the order of their positions.

    Source: Malkov and Yashunin 2016, "Efficient and robust approximate nearest neighbor search using HNSW graphs".
    Raises ConfigError where faiss is missing.
    """
    faiss = required_module("faiss", extra="faiss")
    # Rounded to float16 like the vectors themselves: nothing more is lost, and workers share half the pages.
    half = faiss.ScalarQuantizer.QT_fp16
    graph = faiss.IndexHNSWSQ(vectors.shape[1], half, _LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = _BUILD_WIDTH
    graph.train(np.asarray(vectors[:1], dtype=np.float32))  # asked for by faiss; this rounding learns nothing
    for start in range(0, len(vectors), _BLOCK):
        graph.add(np.ascontiguousarray(vectors[start : start + _BLOCK], dtype=np.float32))
    faiss.write_index(graph, str(file))


class NearGraph:
    """The graph in a file, memory-mapped, of so many vectors of this width.

    Raises ConfigError where faiss is missing, OSError or ValueError where the file cannot be read or belongs to others.
    """

    def __init__(self, file: Path, *, passages: int, width: int) -> None:
        faiss = required_module("faiss", extra="faiss")
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
        places: npt.NDArray[np.int64] = np.sort(neighbours[0][neighbours[0] >= 0])
        return places
