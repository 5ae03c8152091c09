"""Texts to vectors whose inner product is their likeness: any folder in the layout of sentence-transformers."""

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.torch_models import device_of, without_bar

#: tokens read of a text where the folder does not say
_TOKENS = 256


class SentenceEncoder:
    """Reads the folder's model once and encodes texts with it.

    The folder is a Hugging Face model with a tokenizer. Its `modules.json`, where there is one, says how the vectors
    of tokens become one: mean over the tokens, which is also taken where nothing is said, or that of the first token.
    Vectors are always of length 1, so that their inner product is the cosine.
    name: kept in the index and compared when it is opened; threads: of torch, None leaves them alone.
    Source: Reimers and Gurevych 2019, "Sentence-BERT".
    Raises ConfigError if the folder holds no model, or a kind of pooling that is not known here.
    """

    def __init__(
        self, folder: Path | str, *, name: str | None = None, device: str = "auto", threads: int | None = None
    ) -> None:
        self._folder = Path(folder)
        self._first_token = _takes_first_token(self._folder)
        self._tokens = int(_read(self._folder / "sentence_bert_config.json").get("max_seq_length") or _TOKENS)
        self._device = device_of(device, field="device")
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(self._folder), local_files_only=True)
            with without_bar():
                model = AutoModel.from_pretrained(str(self._folder), local_files_only=True)
            self._model: Any = model.float().eval().to(self._device)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ConfigError(
                f"{folder} cannot be loaded: {error}", field="retriever.model", remedy="give another model"
            ) from error
        if threads is not None:
            torch.set_num_threads(threads)
        self._lock = threading.Lock()
        self._tokens = min(self._tokens, int(getattr(model.config, "max_position_embeddings", self._tokens)))
        self.width: int = int(model.config.hidden_size)
        self.name = f"{name or self._folder.name}:{weights_sha256(self._folder)[:12]}"

    def encode(self, texts: Sequence[str], *, batch: int = 32) -> npt.NDArray[np.float32]:
        """(texts, width), each row of length 1. Tokens beyond the model's are not read, as when it was trained.

        Texts of like length share a batch, so that little padding is computed. Safe from several threads, one at a
        time inside.
        """
        vectors = np.zeros((len(texts), self.width), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        with self._lock, torch.inference_mode():
            for start in range(0, len(order), batch):
                indices = order[start : start + batch]
                vectors[indices] = self._encode_batch([clean(texts[index]) for index in indices])
        return vectors

    def _encode_batch(self, texts: list[str]) -> npt.NDArray[np.float32]:
        read = self._tokenizer(texts, padding=True, truncation=True, max_length=self._tokens, return_tensors="pt")
        read = {key: value.to(self._device) for key, value in read.items() if key != "token_type_ids"}
        hidden = self._model(**read).last_hidden_state  # (B, T, width)
        if self._first_token:
            pooled = hidden[:, 0]
        else:
            mask = read["attention_mask"].unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
            pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        unit: npt.NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
        return unit


def weights_sha256(folder: Path) -> str:
    """Over the folder's safetensors files, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def clean(text: str) -> str:
    """Half a surrogate pair cannot be tokenised. What no model reads to its end is not tokenised whole either."""
    return text[:100_000].encode("utf-8", "replace").decode()


def _takes_first_token(folder: Path) -> bool:
    """True if the folder's pooling takes the first token, False if it takes the mean of the tokens."""
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
    raise ConfigError(
        f"{folder} pools by {sorted(chosen)}",
        field="retriever.model",
        remedy="give a model that takes the mean of the tokens, or the first one",
    )


def _read(file: Path) -> Any:
    if not file.is_file():
        return {}
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", field="retriever.model") from error
