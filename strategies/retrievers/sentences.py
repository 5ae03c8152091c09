"""Models of sentence-transformers: a text encoder, an index of vectors in a folder, and a reranker."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ragbandit.shared.errors import ArmFailed, ConfigError, encodable
from ragbandit.shared.torch_models import device_of, load_model
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit, Passage
from ragbandit.strategies.retrievers.corpus import PassageReader, model_text
from ragbandit.strategies.retrievers.folders import FolderRetriever, new_index, stored, write_meta
from ragbandit.strategies.retrievers.reranking import Reranker


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
            for indices in _by_length(texts, batch=batch):
                vectors[indices] = self._encode_batch([clean(texts[index]) for index in indices])
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


def _by_length(texts: Sequence[str], *, batch: int) -> Iterator[list[int]]:
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    return (order[start : start + batch] for start in range(0, len(order), batch))


def weights_sha256(folder: Path) -> str:
    """sha256 over the hashes of the folder's safetensors files, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def clean(text: str) -> str:
    """Cut the text to 100,000 characters, and replace halves of surrogate pairs, which tokenizers refuse."""
    return encodable(text[:100_000])


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
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", field="retriever.model") from error


_PAIRS = 16  #: number of passages that the model scores in one forward pass


class CrossEncoder(Reranker):
    """Scores each passage together with the question, with the model in a folder.

    The folder has a Hugging Face model with one output for a pair of texts, in safetensors, and a tokenizer. The score
    is this output without an activation: any real number, higher is better. If a pair is too long, the longer text is
    cut. Source: Nogueira and Cho 2019, "Passage Re-ranking with BERT". Raises ConfigError if there is no such model.
    """

    def __init__(self, folder: Path | str, *, name: str | None = None) -> None:
        path = Path(folder)
        self._device = device_of("auto", field="device")
        try:
            self._tokenizer, model = _loaded(path)
            self._model: Any = model.float().eval().to(self._device)
            self._tokens = _longest(self._tokenizer, model)
            self._lock = threading.Lock()
            # The reranker has its own thread, because the event loop's threads also have to resolve host names.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="ragbandit-rerank")
            self.score("a", ["b", "b b"])  # this trial fails if the model has no padding token, or not one output
        except ConfigError:
            raise
        except Exception as error:  # errors of tokenizers and safetensors have no more specific base class
            raise _unusable(f"{path} cannot be used: {error}") from error
        self.name = f"{name or path.name}:{weights_sha256(path)[:12]}"

    async def __call__(self, query: str, hits: tuple[Hit, ...], /) -> tuple[Hit, ...]:
        texts = [model_text(hit.passage.text, title=hit.passage.title) for hit in hits]
        abandoned = threading.Event()
        score = partial(self.score, query, texts, abandoned=abandoned)
        try:
            scores = await asyncio.get_running_loop().run_in_executor(self._thread, score)
        except (OSError, ValueError, LookupError, RuntimeError) as error:
            raise ArmFailed(f"{self.name} cannot score: {error}") from error
        finally:
            abandoned.set()
        order = sorted(range(len(hits)), key=lambda index: -float(scores[index]))
        return tuple(Hit(passage=hits[index].passage, score=float(scores[index])) for index in order)

    def score(
        self, query: str, texts: Sequence[str], *, abandoned: threading.Event | None = None
    ) -> npt.NDArray[np.float32]:
        """Scores of the texts, shape (texts,). Thread-safe. abandoned: set it to stop; texts without a score get 0."""
        scores = np.zeros(len(texts), dtype=np.float32)
        with self._lock, torch.inference_mode():
            for indices in _by_length(texts, batch=_PAIRS):
                if abandoned is not None and abandoned.is_set():
                    break
                scores[indices] = self._forward(query, [texts[index] for index in indices])
        return scores

    def _forward(self, query: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        size = self._tokens * 32  # texts are cut to so many characters, which saves time in the tokenizer
        # The longer text is cut. If only the passage were cut, a long question would leave nothing of the passage.
        queries, passages = [clean(query)[:size]] * len(texts), [clean(text)[:size] for text in texts]
        options = {"truncation": "longest_first", "max_length": self._tokens, "padding": True, "return_tensors": "pt"}
        inputs = self._tokenizer(queries, passages, **options).to(self._device)
        outputs: npt.NDArray[np.float32] = self._model(**inputs).logits.view(len(texts)).cpu().numpy()
        return outputs


def _loaded(folder: Path) -> tuple[Any, Any]:
    kind = "AutoModelForSequenceClassification"
    model, loading = load_model(kind, folder, field="retriever.rerank", output_loading_info=True)
    if model.config.num_labels != 1:
        raise _unusable(f"{folder} has {model.config.num_labels} outputs, and a cross-encoder that ranks has one")
    missing = sorted(loading["missing_keys"])
    if missing:
        raise _unusable(f"{folder} has no weights for {missing[0]}, which would be random")
    return load_model("AutoTokenizer", folder, field="retriever.rerank"), model


def _longest(tokenizer: Any, model: Any) -> int:
    """Maximum tokens of a pair. RoBERTa's positions begin after the id of the padding token: 512 of 514 are usable."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or 0]
    for name, layer in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, torch.nn.Embedding):
            limits.append(layer.num_embeddings - (0 if layer.padding_idx is None else layer.padding_idx + 1))
    # A tokenizer without a limit has the limit 10^30, which does not count.
    return min((int(limit) for limit in limits if 0 < limit < 1_000_000), default=512)


def _unusable(fault: str) -> ConfigError:
    remedy = "give a cross-encoder with one output, for example cross-encoder/ms-marco-MiniLM-L-6-v2"
    return ConfigError(fault, field="retriever.rerank", remedy=remedy)


FORMAT = "dense-1"

_VECTORS = "vectors.float16"
_BATCH = 256  #: passages per batch of a build
#: number of vectors in one product. Their float32 copy fits in the processor's cache, so the product is 10 times faster
_BLOCK = 2_048


def build_index(
    rows: Iterable[Passage],
    folder: Path | str,
    *,
    encoder: SentenceEncoder,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Json]:
    """Build an index, which replaces the folder when the index is complete. Returns its metadata.

    progress: called with the number of passages done. Raises InvalidInput if there are no passages or two with the same
    id, ConfigError if the folder exists and is not an index.
    """
    reader = PassageReader(rows, progress=progress)
    with new_index(Path(folder)) as building:
        with (building / _VECTORS).open("wb") as vectors:
            for passages in stored(reader, building, size=_BATCH):
                texts = [model_text(passage.text, title=passage.title) for passage in passages]
                vectors.write(encoder.encode(texts).astype(np.float16).tobytes())
        model: dict[str, Json] = {"model": encoder.name, "width": encoder.width}
        return write_meta(building, {"format": FORMAT, **reader.facts(), **model})


class DenseRetriever(FolderRetriever):
    """Searches the index in a folder with the encoder that built it.

    Every vector is compared, so the result is exact. That is fast enough for about a million passages. Scores are
    cosines. A query without a letter or digit has no hits. Raises as FolderRetriever, and ConfigError for an index of
    another model.
    """

    kind = "dense"
    format = FORMAT

    def __init__(self, folder: Path | str, *, encoder: SentenceEncoder) -> None:
        super().__init__(folder)
        self._encoder = encoder
        if self.meta.get("model") != encoder.name:
            fault = f"{self._folder} has vectors of {self.meta.get('model')!r}, not of {encoder.name!r}"
            raise self._fault(fault, folder=self._folder)
        with self._whole():
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
