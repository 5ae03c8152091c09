"""DistilBERT with one linear head per arm, all of its weights open to training: what the fine-tuned policies share.

The net is Hugging Face's DistilBertForSequenceClassification: the first token's last state, a square linear layer
("pre") with ReLU and dropout, one row of weights per arm. Any other encoder that AutoModel loads can stand in for
DistilBERT.
"""

import contextlib
import copy
import functools
import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ragbandit.router.encoders.forward import TruncatingTokenizer
from ragbandit.router.policies.base import Arrays
from ragbandit.router.policies.finetuned import HEAD, MODEL, ReadingParams
from ragbandit.shared.errors import ConfigError, PolicyFault
from ragbandit.shared.torch_models import load_model
from ragbandit.shared.types import Features

#: the rounding of one number
_UNIT: Final = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
#: standard deviation of fresh weights: the initializer_range of BERT and its children
_SPREAD: Final = 0.02
#: texts that are read at once, where nothing is learned from them
_BATCH: Final = 32
#: the seed of the dropout and torch's thread count are the whole process's
_WORK: Final = threading.RLock()


class Reader:
    """A model as it came, and how it reads questions; d is its width. Nobody trains its weights."""

    def __init__(self, folder: Path, *, sha256: str, device: str, reading: ReadingParams) -> None:
        self.folder, self.device, self.reading = folder, device, reading
        with self.at_work(0):  # layers that the checkpoint lacks and we do not use must not differ by process
            module = load_model("AutoModel", folder, field=MODEL, attn_implementation="eager")
            self.module = module.float().to(device).eval()
        config = self.module.config
        self.width = int(config.hidden_size)
        longest = int(getattr(config, "max_position_embeddings", 512))
        if reading.max_tokens > longest:
            raise ConfigError(
                f"the model reads {longest} at most", field="policy.params.max_tokens", remedy=f"give 3 to {longest}"
            )
        self.tokens = TruncatingTokenizer(folder, max_tokens=reading.max_tokens, field=MODEL)
        self.pad = int(getattr(config, "pad_token_id", None) or 0)
        self.dropout = float(getattr(config, "seq_classif_dropout", 0.1))
        #: relative rounding of one gradient: forward and backward make about 14 sums a layer and 4 beside them, each of
        #: `width` products with the rounding of the format, and independent roundings grow as the root of their number
        self.rounding = _UNIT[reading.precision] * math.sqrt(
            2.0 * (14 * int(config.num_hidden_layers) + 4) * self.width
        )
        #: of weights and tokenizer: two readers with one identity read alike
        self.identity = hashlib.sha256(f"{sha256} {self.tokens.sha256}".encode()).hexdigest()

    def network(self, *, seed: int) -> "Network":
        """A network that begins with this encoder. seed: of the fresh layers."""
        return Network(self, seed=seed)

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """A copy of the array where the module is."""
        return torch.tensor(array, device=self.device)

    def batch(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Token ids and mask, both (B, T)."""
        rows = [torch.tensor(row, device=self.device) for row in self.tokens.batch(texts)]
        padded = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
        ids, mask = padded(rows, padding_value=self.pad), padded([torch.ones_like(row) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}

    @contextlib.contextmanager
    def at_work(self, dropout: int | None) -> Iterator[None]:
        """Torch for one caller, with the thread count, the precision and the dropout's seed that hold here."""
        with _WORK, contextlib.ExitStack() as stack:
            before, threads = torch.get_num_threads(), self.reading.threads
            if threads not in (None, before):
                torch.set_num_threads(threads)
                stack.callback(torch.set_num_threads, before)
            if dropout is not None:
                stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
                torch.manual_seed(dropout)
            if self.reading.precision == "bfloat16":
                stack.enter_context(torch.autocast(self.device, dtype=torch.bfloat16))
            yield


#: policies are made often, and share it
loaded_reader = functools.lru_cache(maxsize=4)(Reader)


class Network:
    """An encoder, the square layer, and a head per arm, of which `descend` takes AdamW's steps.

    `values` is the state, each array with its weights in row 0, AdamW's two moments of them in rows 1 and 2: "encoder"
    (3, P), which is missing while the reader's own encoder is as good; "pre" (3, d, d + 1) and "head/<arm>" (3, d + 1),
    the bias last. Of a network that nobody trains the moments may be missing.
    """

    def __init__(self, reader: Reader, *, seed: int) -> None:
        self.reader, self.seed, self.encoder = reader, seed, reader.module
        self.values = {"pre": self._begun(reader.tensor(fresh_pre(reader.width, seed=seed)))}

    def descend(
        self,
        texts: Sequence[str],
        *,
        arms: Sequence[str],
        loss: Callable[[Tensor], Tensor],
        rate: float,
        decay: float,
        step: int,
    ) -> float:
        """One step of AdamW (Loshchilov and Hutter 2019) on a batch; the loss before it.

        loss: from outputs (B, K), a column per arm of `arms`, to one number. step counts from 1, and seeds the dropout.
        Heads that are not in `arms` move as in one matrix of all heads: with a gradient of zero. Raises PolicyFault,
        with nothing changed, where the loss or a gradient is not finite, or too large for AdamW, which squares it.
        """
        if "encoder" not in self.values:
            own = torch.nn.utils.parameters_to_vector(self.encoder.parameters())
            self._take_encoder(self._begun(own.detach()))
        values = {HEAD + arm: self.head(arm) for arm in arms}
        values |= {name: value for name, value in self.values.items() if name not in values}
        weights, *moments = (self._split(values, row=row) for row in range(3))
        leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        leaves |= self.encoder.named_parameters()
        optimizer = torch.optim.AdamW(leaves.values(), lr=rate, weight_decay=decay, fused=True)
        optimizer.zero_grad()
        for name, leaf in leaves.items():
            done = torch.tensor(step - 1.0, device=leaf.device)
            optimizer.state[leaf] = {"step": done, "exp_avg": moments[0][name], "exp_avg_sq": moments[1][name]}
        with self.reader.at_work(dropout_seed(self.seed, step=step)), torch.enable_grad():
            rows = torch.stack([leaf for name, leaf in leaves.items() if name.startswith(HEAD)])[: len(arms)]
            seen = self._hidden(texts, leaves["pre"], train=True)
            value = loss(torch.nn.functional.linear(seen, rows[:, :-1], rows[:, -1]))
            value.backward()
            norm = torch.nn.utils.get_total_norm([leaf.grad for leaf in leaves.values() if leaf.grad is not None])
            if not bool((value.detach() + norm * norm).isfinite()):
                raise PolicyFault("the loss or a gradient is not finite, or too large: the weights have diverged")
            optimizer.step()  # in place: the leaves are rows of `values`
        self.values = values
        return float(value.detach())

    def outputs(self, texts: Sequence[str], *, arms: Sequence[str]) -> Tensor:
        """(B, K), float64. Each head by itself: no arm's output may depend on which others are offered."""
        with self.reader.at_work(None), torch.no_grad():
            batches, pre = [texts[at : at + _BATCH] for at in range(0, len(texts), _BATCH)], self.values["pre"][0]
            hidden = torch.cat([self._hidden(batch, pre, train=False) for batch in batches]).cpu().double()
        heads = [self.head(arm)[0].cpu().double() for arm in arms]
        return torch.stack([hidden @ head[:-1] + head[-1] for head in heads], dim=1)

    def _hidden(self, texts: Sequence[str], pre: Tensor, *, train: bool) -> Tensor:
        """Input of the heads: (B, d), float32, in [0, inf). train: with dropout."""
        states = self.encoder.train(train)(**self.reader.batch(texts)).last_hidden_state  # (B, T, d)
        out = torch.relu(torch.nn.functional.linear(states[:, 0], pre[:, :-1], pre[:, -1]))
        return torch.nn.functional.dropout(out, self.reader.dropout, training=train).float()

    def head(self, arm: str) -> Tensor:
        """An arm's head with its moments, (3, d + 1); the one that it would begin with where it has none."""
        if HEAD + arm in self.values:
            return self.values[HEAD + arm]
        return self._begun(self.reader.tensor(fresh_head(arm, width=self.reader.width, seed=self.seed)))

    def fill(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over `values`; without "encoder" it keeps its own."""
        self.values |= {name: self.reader.tensor(array) for name, array in arrays.items()}
        if "encoder" in arrays:
            self._take_encoder(self.values["encoder"])

    def _take_encoder(self, values: Tensor) -> None:
        """Read with these weights, which are this network's own: `encoder` is a module of views of them."""
        self.values["encoder"], self.encoder = values, copy.deepcopy(self.reader.module)
        torch.nn.utils.vector_to_parameters(values[0], self.encoder.parameters())

    def arrays(self, *, rows: int) -> Arrays:
        """Copies of the first rows of `values`."""
        return {name: value[:rows].numpy(force=True).copy() for name, value in self.values.items()}

    def shapes(self, arms: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Of `values` once it has learned, with heads for these arms."""
        width, size = self.reader.width, sum(leaf.numel() for leaf in self.reader.module.parameters())
        return {"encoder": (3, size), "pre": (3, width, width + 1), **{HEAD + arm: (3, width + 1) for arm in arms}}

    def _split(self, values: Mapping[str, Tensor], *, row: int) -> dict[str, Tensor]:
        """A row of these by name, the encoder's split into its tensors, which are views."""
        found = {name: value[row] for name, value in values.items()}
        if "encoder" in found:
            own = dict(self.encoder.named_parameters())
            parts = found.pop("encoder").split([leaf.numel() for leaf in own.values()])
            found |= {name: part.view_as(own[name]) for name, part in zip(own, parts, strict=True)}
        return found

    @staticmethod
    def _begun(weights: Tensor) -> Tensor:
        return torch.stack([weights, torch.zeros_like(weights), torch.zeros_like(weights)])


def dropout_seed(seed: int, *, step: int) -> int:
    """The seed of the dropout at a step, so that a replay leaves out the same units."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step}".encode()).digest()[:7], "big")


def fresh_pre(width: int, *, seed: int) -> npt.NDArray[np.float32]:
    """The square layer before training: normal of spread .02, the bias zero and last; shape (d, d + 1)."""
    pre = np.zeros((width, width + 1), dtype=np.float32)
    pre[:, :-1] = np.random.default_rng([seed, 0]).normal(0.0, _SPREAD, (width, width))
    return pre


def fresh_head(arm: str, *, width: int, seed: int) -> Features:
    """An arm's head before training, from its name alone and so the same whenever it joins; shape (d + 1,)."""
    named = int.from_bytes(hashlib.sha256(arm.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    head = np.zeros(width + 1, dtype=np.float32)
    head[:-1] = np.random.default_rng([seed, 1, named]).normal(0.0, _SPREAD, width)
    return head
