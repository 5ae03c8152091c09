"""The network of the fine-tuned policies: DistilBERT with one linear head per arm. All weights are trained.

The architecture is Hugging Face's DistilBertForSequenceClassification: the last state of the first token, a square
linear layer ("pre") with ReLU and dropout, and a row of weights per arm. Other encoders are used in the same way. T5's
encoder has no first token that stands for the text, so the mean of its last states takes that state's place, as in
Sentence-T5 (Ni et al. 2022, section 3.1).
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
from ragbandit.router.policies.finetuned.params import HEAD, MODEL, ReadingParams
from ragbandit.shared.errors import ConfigError, PolicyFault
from ragbandit.shared.torch_models import has_first_token, load_encoder
from ragbandit.shared.types import Features

#: precision -> relative rounding error of one number
_UNIT: Final = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
#: standard deviation of new weights, BERT's initializer_range
_SPREAD: Final = 0.02
#: maximum number of texts of one forward pass, except in training
_BATCH: Final = 32
#: lock of the dropout's seed and of torch's number of threads, which belong to the whole process
_WORK: Final = threading.RLock()


class Reader:
    """A loaded encoder with its tokenizer. Networks train copies of its weights."""

    def __init__(self, folder: Path, *, sha256: str, device: str, reading: ReadingParams) -> None:
        self.folder, self.device = folder, device
        self.reading = reading
        with self.lock_torch(seed=0):  # layers that the checkpoint lacks must be equal in all processes
            module = load_encoder(folder, field=MODEL, attn_implementation="eager")
            self.module = module.float().to(device).eval()
        config = self.module.config
        #: whether the last state of the first token stands for a text; else the mean of the last states of all tokens
        self.reads_first = has_first_token(self.module)
        self.width = int(config.hidden_size)
        longest = int(getattr(config, "max_position_embeddings", 512))
        if reading.max_tokens > longest:
            fault, remedy = f"the model reads {longest} at most", f"give 3 to {longest}"
            raise ConfigError(fault, field="policy.params.max_tokens", remedy=remedy)
        self.tokens = TruncatingTokenizer(folder, max_tokens=reading.max_tokens, field=MODEL)
        self.pad = int(getattr(config, "pad_token_id", None) or 0)
        self.dropout = float(getattr(config, "seq_classif_dropout", 0.1))
        #: relative rounding error of one gradient. Forward and backward pass have about 14 sums per layer and 4 more,
        #: each of `width` products. Independent rounding errors grow with the square root of their number
        self.rounding = _UNIT[reading.precision] * math.sqrt(
            2.0 * (14 * int(config.num_hidden_layers) + 4) * self.width
        )
        self.identity = hashlib.sha256(f"{sha256} {self.tokens.sha256}".encode()).hexdigest()

    def network(self, *, seed: int) -> "Network":
        return Network(self, seed=seed)

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.tensor(array, device=self.device)

    def batch(self, texts: Sequence[str]) -> dict[str, Tensor]:
        rows = [torch.tensor(row, device=self.device) for row in self.tokens.batch(texts)]
        padded = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
        ids, mask = padded(rows, padding_value=self.pad), padded([torch.ones_like(row) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}

    @contextlib.contextmanager
    def lock_torch(self, *, seed: int | None) -> Iterator[None]:
        """Lock torch, and set threads and precision. seed: seed of torch's generator; None to keep its state."""
        with _WORK, contextlib.ExitStack() as stack:
            before, threads = torch.get_num_threads(), self.reading.threads
            if threads not in (None, before):
                torch.set_num_threads(threads)
                stack.callback(torch.set_num_threads, before)
            if seed is not None:
                stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
                torch.manual_seed(seed)
            if self.reading.precision == "bfloat16":
                stack.enter_context(torch.autocast(self.device, dtype=torch.bfloat16))
            yield


cached_reader = functools.lru_cache(maxsize=4)(Reader)


class Network:
    """An encoder, the square layer, and a head per arm, trained by `descend`.

    `values` is the state of a network with an encoder of P parameters and width d: "encoder" (3, P), missing before the
    first step; "pre" (3, d, d + 1) and "head/<arm>" (3, d + 1), with the bias last. Row 0 contains the weights, rows 1
    and 2 contain AdamW's moments. The folder of a trained classifier has only row 0.
    """

    def __init__(self, reader: Reader, *, seed: int) -> None:
        self.reader, self.seed = reader, seed
        self.encoder = reader.module
        self.values = {"pre": self._with_moments(reader.tensor(fresh_pre(reader.width, seed=seed)))}

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
        """Make one step of AdamW (Loshchilov and Hutter 2019) on a batch. Returns the loss before the step.

        loss: function of the outputs, with a row per text and a column per arm. Other arms' heads get the gradient 0
        step: number of the step, from 1; also the seed of the dropout

        Raises PolicyFault if the loss or a gradient is not finite or too large to be squared, and then changes nothing.
        """
        if "encoder" not in self.values:
            vector = torch.nn.utils.parameters_to_vector(self.encoder.parameters())
            self._take_encoder(self._with_moments(vector.detach()))
        values = {HEAD + arm: self.head(arm) for arm in arms}
        values |= {name: value for name, value in self.values.items() if name not in values}
        weights, *moments = (self._split(values, row=row) for row in range(3))
        leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        leaves |= self.encoder.named_parameters()
        optimizer = torch.optim.AdamW(leaves.values(), lr=rate, weight_decay=decay, fused=True)
        optimizer.zero_grad()
        for name, leaf in leaves.items():
            steps = torch.tensor(step - 1.0, device=leaf.device)
            optimizer.state[leaf] = {"step": steps, "exp_avg": moments[0][name], "exp_avg_sq": moments[1][name]}
        with self.reader.lock_torch(seed=dropout_seed(self.seed, step=step)), torch.enable_grad():
            rows = torch.stack([leaf for name, leaf in leaves.items() if name.startswith(HEAD)])[: len(arms)]
            hidden = self._hidden(texts, leaves["pre"], train=True)
            value = loss(torch.nn.functional.linear(hidden, rows[:, :-1], rows[:, -1]))
            value.backward()
            norm = torch.nn.utils.get_total_norm([leaf.grad for leaf in leaves.values() if leaf.grad is not None])
            if not bool((value.detach() + norm * norm).isfinite()):
                raise PolicyFault("the loss or a gradient is not finite, or too large: the weights have diverged")
            optimizer.step()  # changes `values`, of which the leaves are views
        self.values = values
        return float(value.detach())

    def outputs(self, texts: Sequence[str], *, arms: Sequence[str]) -> Tensor:
        """Shape (texts, arms), float64. Each head is a separate product, so outputs do not depend on other arms."""
        with self.reader.lock_torch(seed=None), torch.no_grad():
            batches = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
            pre = self.values["pre"][0]
            hidden = torch.cat([self._hidden(batch, pre, train=False) for batch in batches]).cpu().double()
        heads = [self.head(arm)[0].cpu().double() for arm in arms]
        return torch.stack([hidden @ head[:-1] + head[-1] for head in heads], dim=1)

    def _hidden(self, texts: Sequence[str], pre: Tensor, *, train: bool) -> Tensor:
        """Input of the heads: (texts, width), float32, >= 0. train: whether to apply dropout."""
        batch = self.reader.batch(texts)
        states = self.encoder.train(train)(**batch).last_hidden_state  # (B, T, d)
        pooled = states[:, 0] if self.reader.reads_first else _mean(states, mask=batch["attention_mask"])  # (B, d)
        out = torch.relu(torch.nn.functional.linear(pooled, pre[:, :-1], pre[:, -1]))
        return torch.nn.functional.dropout(out, self.reader.dropout, training=train).float()

    def head(self, arm: str) -> Tensor:
        if HEAD + arm in self.values:
            return self.values[HEAD + arm]
        return self._with_moments(self.reader.tensor(fresh_head(arm, width=self.reader.width, seed=self.seed)))

    def fill(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.values |= {name: self.reader.tensor(array) for name, array in arrays.items()}
        if "encoder" in arrays:
            self._take_encoder(self.values["encoder"])

    def _take_encoder(self, values: Tensor) -> None:
        self.values["encoder"], self.encoder = values, copy.deepcopy(self.reader.module)
        torch.nn.utils.vector_to_parameters(values[0], self.encoder.parameters())

    def arrays(self, *, rows: int) -> Arrays:
        return {name: value[:rows].numpy(force=True).copy() for name, value in self.values.items()}

    def shapes(self, arms: Sequence[str]) -> dict[str, tuple[int, ...]]:
        width, size = self.reader.width, sum(leaf.numel() for leaf in self.reader.module.parameters())
        return {"encoder": (3, size), "pre": (3, width, width + 1), **{HEAD + arm: (3, width + 1) for arm in arms}}

    def _split(self, values: Mapping[str, Tensor], *, row: int) -> dict[str, Tensor]:
        """Row `row` of each array in `values`, as views by name. The encoder's row is split into its parameters."""
        tensors = {name: value[row] for name, value in values.items()}
        if "encoder" in tensors:
            parameters = dict(self.encoder.named_parameters())
            parts = tensors.pop("encoder").split([leaf.numel() for leaf in parameters.values()])
            tensors |= {name: part.view_as(parameters[name]) for name, part in zip(parameters, parts, strict=True)}
        return tensors

    @staticmethod
    def _with_moments(weights: Tensor) -> Tensor:
        return torch.stack([weights, torch.zeros_like(weights), torch.zeros_like(weights)])


def _mean(states: Tensor, *, mask: Tensor) -> Tensor:
    """Mean of the states of real tokens: states (B, T, d), mask (B, T) with 0 for padding -> (B, d), float32."""
    real = mask.unsqueeze(-1).float()  # (B, T, 1)
    return (states.float() * real).sum(1) / real.sum(1).clamp(min=1.0)


def dropout_seed(seed: int, *, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {step}".encode()).digest()[:7], "big")


def fresh_pre(width: int, *, seed: int) -> npt.NDArray[np.float32]:
    """The square layer before training, (width, width + 1), with the bias last."""
    pre = np.zeros((width, width + 1), dtype=np.float32)
    pre[:, :-1] = np.random.default_rng([seed, 0]).normal(0.0, _SPREAD, (width, width))
    return pre


def fresh_head(arm: str, *, width: int, seed: int) -> Features:
    """An arm's head before training, (width + 1,). It does not depend on when the arm was added."""
    number = int.from_bytes(hashlib.sha256(arm.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    head = np.zeros(width + 1, dtype=np.float32)
    head[:-1] = np.random.default_rng([seed, 1, number]).normal(0.0, _SPREAD, width)
    return head
