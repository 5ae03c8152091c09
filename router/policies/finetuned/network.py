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
from ragbandit.shared.types import Features, Matrix

#: the rounding of one number
_UNIT: Final = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
#: standard deviation of fresh weights: the initializer_range of BERT and its children
_SPREAD: Final = 0.02
#: AdamW's two moments, as torch names them
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
#: the seed of the dropout and torch's thread count are the whole process's
_WORK: Final = threading.RLock()


class Reader:
    """A model as it came, and how it reads questions; d is its width. Nobody trains its weights."""

    def __init__(self, folder: Path, *, sha256: str, device: str, reading: ReadingParams) -> None:
        self.folder, self.device, self.reading = folder, device, reading
        with _seeded(0):  # layers that the checkpoint lacks and we do not use must not differ by process
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
                stack.enter_context(_seeded(dropout))
            if self.reading.precision == "bfloat16":
                stack.enter_context(torch.autocast(self.device, dtype=torch.bfloat16))
            yield


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's random numbers by this seed, and afterwards as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


class Network:
    """An encoder, the square layer and a head per arm, and AdamW (Loshchilov and Hutter 2019) from the first step on.

    Until then it reads with the reader's own encoder, of which it trains a copy.
    """

    def __init__(self, reader: Reader, *, seed: int) -> None:
        self.reader, self.seed, self.encoder = reader, seed, reader.module
        #: (d, d + 1), the bias last
        self.pre = reader.tensor(fresh_pre(reader.width, seed=seed)).requires_grad_()
        #: arm -> (d + 1,), the bias last
        self.heads: dict[str, Tensor] = {}
        self._optimizer: torch.optim.AdamW | None = None

    def _trained(self) -> torch.optim.AdamW:
        """What trains the weights, which are this network's own from now on."""
        if self._optimizer is None:
            self.encoder = copy.deepcopy(self.reader.module)
            self._optimizer = torch.optim.AdamW([*self.encoder.parameters(), self.pre], fused=True)
            self._begin([*self.encoder.parameters(), self.pre], step=0)
        return self._optimizer

    def _begin(self, leaves: Sequence[Tensor], *, step: int) -> None:
        """Give AdamW's state of these to the optimizer, which would else make it at their first gradients."""
        for leaf in leaves:
            moments = {name: torch.zeros_like(leaf) for name in _MOMENTS}
            self._trained().state[leaf] = {"step": torch.tensor(float(step), device=leaf.device), **moments}

    def head(self, arm: str) -> Tensor:
        """An arm's weights and bias: (d + 1,); those that it would begin with where it has none."""
        known = self.heads.get(arm)
        if known is None:
            known = self.reader.tensor(fresh_head(arm, width=self.reader.width, seed=self.seed)).requires_grad_()
        return known

    def add(self, arm: str, *, step: int, head: Tensor | None = None) -> None:
        """Give an arm its head, if it has none. step: those that AdamW has taken, as in one matrix of all heads."""
        if arm not in self.heads:
            self.heads[arm] = self.head(arm) if head is None else head
            if self._optimizer is not None:
                self._optimizer.add_param_group({"params": [self.heads[arm]]})
                self._begin([self.heads[arm]], step=step)

    def hidden(self, texts: Sequence[str], *, dropout: int | None = None) -> Tensor:
        """Input of the heads: (B, d), float32, in [0, inf). dropout: the seed of the units left out; None: none is."""
        with self.reader.at_work(dropout):
            self.encoder.train(dropout is not None)
            states = self.encoder(**self.reader.batch(texts)).last_hidden_state  # (B, T, d)
            out = torch.relu(torch.nn.functional.linear(states[:, 0], self.pre[:, :-1], self.pre[:, -1]))
            return torch.nn.functional.dropout(out, self.reader.dropout, training=dropout is not None).float()

    def outputs(self, texts: Sequence[str], *, arms: Sequence[str]) -> Matrix:
        """(B, K), float64. Each head by itself: no arm's output may depend on which others are offered."""
        with torch.no_grad():
            hidden = self.hidden(texts).cpu().double().numpy()
            heads = [self.head(arm).cpu().double().numpy() for arm in arms]
        return np.stack([hidden @ head[:-1] + head[-1] for head in heads], axis=1)

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
        """One step of AdamW on a batch; the loss before it.

        loss: from outputs (B, K), a column per arm of `arms`, to one number. step counts from 1, and seeds the dropout.
        Heads that are not in `arms` move as in one matrix of all heads: with a gradient of zero. Raises PolicyFault,
        with nothing changed, where the loss or a gradient is not finite, or too large for AdamW, which squares it.
        """
        optimizer = self._trained()
        optimizer.zero_grad()
        heads = {arm: self.head(arm) for arm in dict.fromkeys([*arms, *self.heads])}
        with self.reader.at_work(None), torch.enable_grad():
            rows = torch.stack(list(heads.values()))[: len(arms)]  # (K, d + 1)
            seen = self.hidden(texts, dropout=dropout_seed(self.seed, step=step))
            value = loss(torch.nn.functional.linear(seen, rows[:, :-1], rows[:, -1]))
            value.backward()
            leaves = [*self.encoder.parameters(), self.pre, *heads.values()]
            norm = torch.nn.utils.get_total_norm([leaf.grad for leaf in leaves if leaf.grad is not None])
            if not bool((value.detach() + norm * norm).isfinite()):
                raise PolicyFault("the loss or a gradient is not finite, or too large: the weights have diverged")
            for arm, head in heads.items():
                self.add(arm, step=step - 1, head=head)
            for group in optimizer.param_groups:
                group.update(lr=rate, weight_decay=decay)
            optimizer.step()
        return float(value.detach())

    def arrays(self, *, moments: bool) -> Arrays:
        """Values: "encoder" (1, P), "pre" (1, d, d + 1), "head/<arm>" (1, d + 1) each; with both moments 3 of each."""
        found: Arrays = {}
        for key, leaves in self._leaves().items():
            rows = list(zip(*map(self._slots, leaves), strict=True))[: 3 if moments else 1]
            flat = torch.stack([torch.nn.utils.parameters_to_vector(row) for row in rows]).detach().cpu()
            found[key] = (flat if key == "encoder" else flat.view(len(rows), *leaves[0].shape)).numpy()
        return found

    def fill(self, arrays: Mapping[str, npt.NDArray[Any]], *, step: int = 0) -> None:
        """Take over `arrays`; without "encoder" it keeps its own. step: those that AdamW took until then."""
        if "encoder" in arrays:  # before the heads, which join the optimizer that is there
            self._trained()
        for key in arrays:
            if key.startswith(HEAD):
                self.add(key.removeprefix(HEAD), step=step)
        known = self._leaves()
        for key, array in arrays.items():
            slots = zip(*map(self._slots, known[key]), strict=True)  # the weights, then each moment where there are any
            for row, own in zip(self.reader.tensor(array).flatten(1), slots, strict=False):
                torch.nn.utils.vector_to_parameters(row, own)
        for state in self._optimizer.state.values() if self._optimizer is not None else ():
            state["step"].fill_(step)

    def shapes(self, arms: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """What `arrays` has, with both moments, and heads for these arms."""
        width, size = self.reader.width, sum(leaf.numel() for leaf in self.encoder.parameters())
        return {"encoder": (3, size), "pre": (3, width, width + 1), **{HEAD + arm: (3, width + 1) for arm in arms}}

    def _leaves(self) -> dict[str, list[Tensor]]:
        heads = {HEAD + arm: [self.heads[arm]] for arm in sorted(self.heads)}
        return {"encoder": list(self.encoder.parameters()), "pre": [self.pre], **heads}

    def _slots(self, leaf: Tensor) -> list[Tensor]:
        """The weights and, where they are trained, their moments."""
        return [leaf, *(self._optimizer.state[leaf][name] for name in _MOMENTS)] if self._optimizer else [leaf]


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
