"""Scores by a cross-encoder of sentence-transformers, which transformers loads: no other package is needed."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.torch_models import device_of, load_model
from ragbandit.strategies.retrievers.corpus import clean_text
from ragbandit.strategies.retrievers.rerankers.reranked import Price, Reranker, ScoredAmounts, book_price, no_price
from ragbandit.strategies.retrievers.sentences import batches_by_length, weights_sha256

_FIELD: Final = "retriever.rerank.model"
_PAIRS = 16  #: number of texts that the model scores in one forward pass


class CrossEncoder(Reranker):
    """Scores each text together with the question, with the Hugging Face model and tokenizer in a folder.

    The model has one output for a pair of texts. The score is this output after the activation that the model's config
    names, or after a sigmoid if it names none, as in `sentence_transformers.CrossEncoder.predict`. If a pair is too
    long, the longer text is cut. price: price of the scored texts, with estimated tokens. Source: Nogueira and Cho
    2019, "Passage Re-ranking with BERT". Raises ConfigError if there is no such model.
    """

    def __init__(
        self, folder: Path | str, *, name: str | None = None, device: str = "auto", price: Price = no_price
    ) -> None:
        path = Path(folder)
        self._device = device_of(device, field="retriever.rerank.device")
        self._price = price
        try:
            self._tokenizer, model = _load_tokenizer_and_model(path)
            self._activate = _activation(model.config, folder=path)
            self._model: Any = model.float().eval().to(self._device)
            self._tokens = _max_pair_tokens(self._tokenizer, model)
            self._lock = threading.Lock()
            # The reranker has its own thread, because the event loop's threads also have to resolve host names.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="ragbandit-rerank")
            self.score("a", ["b", "b b"])  # this trial fails if the model has no padding token, or not one output
        except ConfigError:
            raise
        except Exception as error:  # errors of tokenizers and safetensors have no more specific base class
            raise _model_error(f"{path} cannot be used: {error}") from error
        self.name = f"{name or path.name}:{weights_sha256(path)[:12]}"

    async def scores(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        abandoned = threading.Event()
        score = partial(self.score, query, texts, abandoned=abandoned)
        try:
            scores = await asyncio.get_running_loop().run_in_executor(self._thread, score)
        except (OSError, ValueError, LookupError, RuntimeError) as error:
            raise ArmFailed(f"it cannot score: {error}") from error
        finally:
            abandoned.set()
            book_price(ScoredAmounts.estimate(query, texts), price=self._price)
        return [float(score) for score in scores]

    def score(
        self, query: str, texts: Sequence[str], *, abandoned: threading.Event | None = None
    ) -> npt.NDArray[np.float64]:
        """Scores of the texts, shape (texts,). Thread-safe. abandoned: once it is set, no further text is scored."""
        outputs = torch.zeros(len(texts), dtype=torch.float64)  # float64: a sigmoid of high outputs stays below 1.0
        with self._lock, torch.inference_mode():
            for indices in batches_by_length(texts, batch=_PAIRS):
                if abandoned is not None and abandoned.is_set():
                    break
                outputs[indices] = self._outputs(query, [texts[index] for index in indices])
            scores: npt.NDArray[np.float64] = self._activate(outputs).numpy()
        return scores

    def _outputs(self, query: str, texts: Sequence[str]) -> torch.Tensor:
        size = self._tokens * 32  # maximum characters of a text; shorter texts save time in the tokenizer
        # The longer text is cut. If only the passage were cut, a long question would leave nothing of the passage.
        queries, passages = [clean_text(query)[:size]] * len(texts), [clean_text(text)[:size] for text in texts]
        options = {"truncation": "longest_first", "max_length": self._tokens, "padding": True, "return_tensors": "pt"}
        inputs = self._tokenizer(queries, passages, **options).to(self._device)
        outputs: torch.Tensor = self._model(**inputs).logits.view(len(texts)).double().cpu()
        return outputs


def _load_tokenizer_and_model(folder: Path) -> tuple[Any, Any]:
    kind = "AutoModelForSequenceClassification"
    model, loading = load_model(kind, folder, field=_FIELD, output_loading_info=True)
    if model.config.num_labels != 1:
        raise _model_error(f"{folder} has {model.config.num_labels} outputs, and a cross-encoder that ranks has one")
    missing = sorted(loading["missing_keys"])
    if missing:
        raise _model_error(f"{folder} has no weights for {missing[0]}, which would be random")
    return load_model("AutoTokenizer", folder, field=_FIELD), model


def _activation(config: Any, *, folder: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """The activation of torch that the model's config names; a sigmoid if it names none."""
    newer = getattr(config, "sentence_transformers", None)
    named = newer.get("activation_fn") if isinstance(newer, dict) else None
    named = str(named or getattr(config, "sbert_ce_default_activation_function", None) or "torch.nn.Sigmoid")
    kind = getattr(torch.nn, named.rpartition(".")[2], None) if named.startswith("torch.") else None
    if kind is None:
        raise _model_error(f"{folder} names the activation {named!r}, which torch does not have")
    activation: Callable[[torch.Tensor], torch.Tensor] = kind()
    return activation


def _max_pair_tokens(tokenizer: Any, model: Any) -> int:
    """Maximum tokens of a pair. RoBERTa's positions begin after the id of the padding token: 512 of 514 are usable."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or 0]
    for name, layer in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, torch.nn.Embedding):
            limits.append(layer.num_embeddings - (0 if layer.padding_idx is None else layer.padding_idx + 1))
    # A tokenizer without a limit has the limit 10^30, which does not count.
    return min((int(limit) for limit in limits if 0 < limit < 1_000_000), default=512)


def _model_error(fault: str) -> ConfigError:
    remedy = "give a cross-encoder with one output, for example BAAI/bge-reranker-base"
    return ConfigError(fault, field=_FIELD, remedy=remedy)
