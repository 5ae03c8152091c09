"""Models of sentence-transformers: a text encoder, and an index of vectors in a folder."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import open_file, read_text
from ragbandit.shared.torch_models import device_of, load_model
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.corpus import PassageReader, clean_text, model_text
from ragbandit.strategies.retrievers.folders import FolderRetriever, new_index, store_passages, write_meta


class SentenceEncoder:
    """Encodes texts with the Hugging Face model and the tokenizer in a folder.

    The vector of a text is the mean over its tokens, or the vector of the first token, according to the folder's
    `modules.json`. It has length 1, so the inner product of two vectors is their cosine. name: stored in indexes, and
    compared when an index is opened. Source: Reimers and Gurevych 2019, "Sentence-BERT". Raises ConfigError if there is
    no model, or if the model has another kind of pooling.
    """

    def __init__(self, folder: Path | str, *, name: str | None = None) -> None:
        self._folder = Path(folder)
        self._first_token = _takes_first_token(self._folder)
        self._tokens = int(_read(self._folder / "sentence_bert_config.json").get("max_seq_length") or 256)
        self._device = device_of("auto", field="device")
        self._tokenizer: Any = load_model("AutoTokenizer", self._folder, field="retriever.model")
        model = load_model("AutoModel", self._folder, field="retriever.model")
        self._model: Any = model.float().eval().to(self._device)
        self._lock = threading.Lock()
        self._tokens = min(self._tokens, int(getattr(model.config, "max_position_embeddings", self._tokens)))
        self.width: int = int(model.config.hidden_size)
        self.name = f"{name or self._folder.name}:{weights_sha256(self._folder)[:12]}"

    def encode(self, texts: Sequence[str], *, batch: int = 32) -> npt.NDArray[np.float32]:
        """Vectors of length 1, shape (texts, width). Thread-safe."""
        vectors = np.zeros((len(texts), self.width), dtype=np.float32)
        with self._lock, torch.inference_mode():
            for indices in batches_by_length(texts, batch=batch):
                vectors[indices] = self._encode_batch([clean_text(texts[index]) for index in indices])
        return vectors

    def _encode_batch(self, texts: list[str]) -> npt.NDArray[np.float32]:
        tokens = self._tokenizer(texts, padding=True, truncation=True, max_length=self._tokens, return_tensors="pt")
        inputs = {key: value.to(self._device) for key, value in tokens.items() if key != "token_type_ids"}
        hidden = self._model(**inputs).last_hidden_state  # (B, T, width)
        if self._first_token:
            pooled = hidden[:, 0]
        else:
            mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
            pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        unit: npt.NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
        return unit


def batches_by_length(texts: Sequence[str], *, batch: int) -> Iterator[list[int]]:
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    return (order[start : start + batch] for start in range(0, len(order), batch))


def weights_sha256(folder: Path) -> str:
    """sha256 over the hashes of the folder's safetensors files, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with open_file(file) as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _takes_first_token(folder: Path) -> bool:
    """True if the vector of a text is the vector of its first token, False if it is the mean. Raises ConfigError."""
    modules = _read(folder / "modules.json")
    pooling = [module for module in modules or [] if str(module.get("type", "")).endswith("Pooling")]
    if not pooling:
        return False
    settings = _read(folder / pooling[0].get("path", "") / "config.json")
    chosen = {key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True}
    if chosen == {"pooling_mode_cls_token"}:
        return True
    if chosen == {"pooling_mode_mean_tokens"}:
        return False
    remedy = "give a model that takes the mean of the tokens, or the first one"
    raise ConfigError(f"the model in {folder} has the pooling {sorted(chosen)}", field="retriever.model", remedy=remedy)


def _read(file: Path) -> Any:
    if not file.is_file():
        return {}
    try:
        return json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", field="retriever.model") from error


FORMAT = "dense-1"

_VECTORS = "vectors.float16"
_BATCH = 256  #: passages per batch of a build
#: number of vectors in one product. Their float32 copy fits in the processor's cache, so the product is 10 times faster
_BLOCK = 2_048


def build_sentence_index(
    rows: Iterable[Passage],
    folder: Path | str,
    *,
    encoder: SentenceEncoder,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Json]:
    """Build an index, which replaces the folder when the index is complete. Returns its metadata.

    progress: called with the number of passages done. Raises InvalidInput if there are no passages or two with the same
    id, ConfigError if the folder has other files than an index.
    """
    reader = PassageReader(rows, progress=progress)
    with new_index(Path(folder)) as building:
        with (building / _VECTORS).open("wb") as vectors:
            for passages in store_passages(reader, building, size=_BATCH):
                texts = [model_text(passage.text, title=passage.title) for passage in passages]
                vectors.write(encoder.encode(texts).astype(np.float16).tobytes())
        model: dict[str, Json] = {"model": encoder.name, "width": encoder.width}
        return write_meta(building, {"format": FORMAT, **reader.facts(), **model})


class DenseRetriever(FolderRetriever):
    """Searches the index in a folder with the encoder that built it.

    Every vector is compared, so the result is exact. That is fast enough for about a million passages. Scores are
    cosines. A query without a letter or digit has no hits. Raises ConfigError as FolderRetriever does, and for an index
    of another model.
    """

    kind = "dense"
    format = FORMAT

    def __init__(self, folder: Path | str, *, encoder: SentenceEncoder) -> None:
        super().__init__(folder)
        self._encoder = encoder
        if self.meta.get("model") != encoder.name:
            fault = f"{self._folder} has vectors of {self.meta.get('model')!r}, not of {encoder.name!r}"
            raise self._fault(fault, folder=self._folder)
        with self._report_damage():
            vectors = np.memmap(self._folder / _VECTORS, dtype=np.float16, mode="c")
            self._vectors = vectors.reshape(-1, encoder.width)  # (passages, width)
            self._check_build(len(self) == len(self._vectors))

    def _scores(self, query: str) -> npt.NDArray[np.float32]:
        scores = np.full(len(self), -np.inf, dtype=np.float32)  # (passages,)
        if not any(character.isalnum() for character in query):
            return scores
        query_vector = torch.from_numpy(self._encoder.encode([query])[0])  # (width,)
        with torch.inference_mode():
            for start in range(0, len(self), _BLOCK):
                block = torch.from_numpy(self._vectors[start : start + _BLOCK]).float()  # (block, width)
                scores[start : start + len(block)] = (block @ query_vector).numpy()
        return scores
