"""A reranker that reads question and passage together: any cross-encoder in the layout of sentence-transformers."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.torch_models import device_of, without_bar
from ragbandit.strategies.base import Hit
from ragbandit.strategies.retrievers.corpus import model_text
from ragbandit.strategies.retrievers.reranking import Reranker
from ragbandit.strategies.retrievers.sentences import clean, weights_sha256

#: tokens read of a pair where neither tokenizer nor model says
_TOKENS = 512
#: a tokenizer that was not told its model's length says 10^30
_UNTOLD = 1_000_000
#: tokens in one forward pass, padding included: 16 pairs of 512
_AT_ONCE = 8_192
#: pairs given to the tokenizer at once, which takes much memory for what it cuts off
_READ = 8
#: tokens that a text keeps beyond those the model reads, so that a word cut in two at the end is not among these
_SPARE = 256


class CrossEncoder(Reranker):
    """Reads the folder's model once and scores passages with it, each read together with the question.

    The folder is a Hugging Face model with one output for a pair of texts, its weights in safetensors, and a tokenizer.
    A score is that output as it is, with no activation: any real number, higher is better. Of a pair that is too long
    the longer text is cut, which is the passage, or both where each fills more than half of what the model reads.
    `name` is the given name or the folder's, and the first 12 digits of the weights' sha256.
    Source: Nogueira and Cho 2019, "Passage Re-ranking with BERT".
    Raises ConfigError if the folder holds no such model, or not all of its weights.
    """

    def __init__(self, folder: Path | str, *, name: str | None = None, device: str = "auto") -> None:
        path = Path(folder)
        self._device = device_of(device, field="device")
        try:
            self._tokenizer, model = _loaded(path)
            self._model: Any = model.float().eval().to(self._device)
            self._tokens = _longest(self._tokenizer, model)
            self._lock = threading.Lock()
            # Its own: those that wait for their turn would fill the event loop's threads, which look up names as well.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="ragbandit-rerank")
            self.score("a", ["b", "b b"])  # what has no padding token, or not one output, is said now
        except ConfigError:
            raise
        except Exception as error:  # the tokenizer's and the weights' own errors, in Rust, have no other base
            raise _unfit(path, fault=f"cannot be used: {error}") from error
        self.name = f"{name or path.name}:{weights_sha256(path)[:12]}"

    async def __call__(self, query: str, hits: tuple[Hit, ...], /) -> tuple[Hit, ...]:
        """The hits, best first; equal scores in the order given.

        Runs in a thread, which ends at its next forward pass if nobody waits any more. Raises ArmFailed if the model
        fails.
        """
        texts = [model_text(hit.passage.text, title=hit.passage.title) for hit in hits]
        abandoned = threading.Event()
        try:
            scores = await asyncio.get_running_loop().run_in_executor(
                self._thread, partial(self.score, query, texts, abandoned=abandoned)
            )
        except (OSError, ValueError, LookupError, RuntimeError) as error:
            raise ArmFailed(f"{self.name} cannot score: {error}") from error
        finally:
            abandoned.set()
        order = sorted(range(len(hits)), key=lambda index: -float(scores[index]))
        return tuple(Hit(passage=hits[index].passage, score=float(scores[index])) for index in order)

    def score(
        self, query: str, texts: Sequence[str], *, abandoned: threading.Event | None = None
    ) -> npt.NDArray[np.float32]:
        """(texts,): how well each answers the query. Once `abandoned` is set, those left to do stay 0.

        Texts of like length share a batch, so that little padding is computed. Safe from several threads, one at a
        time inside.
        """
        scores = np.zeros(len(texts), dtype=np.float32)
        with self._lock, torch.inference_mode():
            if not texts or (abandoned is not None and abandoned.is_set()):
                return scores
            pairs = self._read(query, texts)
            for indices in _batches([len(ids) for ids in pairs["input_ids"]]):
                if abandoned is not None and abandoned.is_set():
                    break
                scores[indices] = self._forward(
                    {key: [rows[index] for index in indices] for key, rows in pairs.items()}
                )
        return scores

    def _read(self, query: str, texts: Sequence[str]) -> dict[str, list[list[int]]]:
        """The tokenizer's output by name: for each text a list of as many as its pair has tokens."""
        question, pairs = self._beginning(query), dict[str, list[list[int]]]()
        for start in range(0, len(texts), _READ):
            passages = [self._beginning(text) for text in texts[start : start + _READ]]
            # "longest_first" and not "only_second": a question longer than the model would leave no passage to cut.
            read = self._tokenizer(
                [question] * len(passages), passages, truncation="longest_first", max_length=self._tokens
            )
            for key, rows in read.items():
                pairs.setdefault(key, []).extend(rows)
        return pairs

    def _beginning(self, text: str) -> str:
        """As much of a text as fills the model, and some more.

        For a pair of long texts the tokenizer's time and memory grow with the product of their lengths.
        """
        text, enough = clean(text), self._tokens + _SPARE
        size = 2 * enough
        while size < len(text):
            read = self._tokenizer(text[:size], add_special_tokens=False, truncation=True, max_length=enough)
            if len(read["input_ids"]) == enough:
                break
            size *= 2
        return text[:size]

    def _forward(self, rows: dict[str, list[list[int]]]) -> npt.NDArray[np.float32]:
        """(B,): the output for each of the B pairs."""
        padded = {}
        for key, lists in rows.items():
            ids = pad_sequence(
                [torch.tensor(each) for each in lists],
                batch_first=True,
                padding_value=self._tokenizer.pad_token_id if key == "input_ids" else 0,
                padding_side=self._tokenizer.padding_side,
            )  # (B, T)
            padded[key] = ids.to(self._device)
        logits = self._model(**padded).logits  # (B, 1)
        outputs: npt.NDArray[np.float32] = logits.view(len(padded["input_ids"])).cpu().numpy()
        return outputs


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Positions, shortest first, as many at once as make _AT_ONCE tokens when padded to the longest."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > _AT_ONCE:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _loaded(folder: Path) -> tuple[Any, Any]:
    """(tokenizer, model)."""
    given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    outputs = AutoConfig.from_pretrained(str(folder), **given).num_labels
    if outputs != 1:
        raise _unfit(folder, fault=f"has {outputs} outputs, and a cross-encoder that ranks has one")
    with without_bar():
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            str(folder), use_safetensors=True, output_loading_info=True, **given
        )
    if missing := sorted(loading["missing_keys"]):
        raise _unfit(folder, fault=f"has no weights for {missing[0]}, which would be random")
    return AutoTokenizer.from_pretrained(str(folder), **given), model


def _longest(tokenizer: Any, model: Any) -> int:
    """Tokens of a pair that the model has positions for.

    RoBERTa and its like count positions from behind the number of the padding token: of the 514 that their config
    names 512 can be read.
    """
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or 0]
    for name, layer in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, torch.nn.Embedding):
            limits.append(layer.num_embeddings - (0 if layer.padding_idx is None else layer.padding_idx + 1))
    return min((int(limit) for limit in limits if 0 < limit < _UNTOLD), default=_TOKENS)


def _unfit(folder: Path, *, fault: str) -> ConfigError:
    return ConfigError(
        f"{folder} {fault}",
        field="retriever.rerank",
        remedy="give a cross-encoder with one output, for example cross-encoder/ms-marco-MiniLM-L-6-v2",
    )
