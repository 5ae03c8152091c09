"""A language model in this process: small, able to stop at any token, and to tell how sure it was.

For laptops, tests and single machines. One question is written at a time; production runs a serving engine such as
vLLM and talks to it over HTTP.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from router.errors import ArmFailed, ConfigError
from strategies.base import Completion, Generator, Need, Prompt, Request, Sampling
from strategies.telling import Probabilities, dice, looked, picked

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["LocalGenerator"]

#: Prompt tokens read between two looks at the clock.
_CHUNK: Final = 256

Finish = Literal["stop", "length", "deadline"]


class LocalGenerator(Generator):
    """A Hugging Face causal language model from a local folder with safetensors (router.weights makes one).

    precision "auto" is bfloat16 where the processor multiplies it in hardware, else float32. threads fixes torch's
    thread count while writing; on a busy machine fewer are faster, because OpenMP threads spin while they wait.
    trained_tokens: special tokens that the model was trained to write (Self-RAG's), told of and left in the text where
    a request wants them.
    Raises ConfigError if the folder, a package or the device is missing.
    """

    capabilities: frozenset[Need] = frozenset(
        {"completion", "stop", "logprobs", "entropy", "attention", "hidden_states"}
    )

    def __init__(
        self,
        folder: str | Path,
        *,
        name: str = "local",
        precision: Literal["auto", "float32", "bfloat16"] = "auto",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        threads: int | None = None,
        context_tokens: int = 2048,
        trained_tokens: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._torch, self._device, dtype = _place(precision=precision, device=device)
        if threads is not None and threads < 1:
            raise ConfigError("must be at least 1", field="generator.threads")
        self._set_threads(threads)
        self._tokenizer, self._model = _load(Path(folder).expanduser(), dtype=dtype, device=self._device)
        longest = getattr(self._model.config, "max_position_embeddings", None) or context_tokens
        self.context_tokens = min(context_tokens, longest)
        self._ends = _end_tokens(self._model, self._tokenizer)
        self._trained = _trained(self._tokenizer, trained_tokens)
        if self._trained:
            self.capabilities = self.capabilities | {"trained_tokens"}
        self._tokenizer_lock = threading.Lock()
        # One thread is the queue: calls wait without holding a thread of the event loop's pool.
        self._queue = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="generate", initializer=self._set_threads, initargs=(threads,)
        )

    def count_tokens(self, prompt: Prompt) -> int:
        """Exact: tokens of the prompt as the model will see it, chat template included."""
        return len(self._ids(prompt))

    async def complete(self, request: Request) -> Completion:
        """Greedy continuation; see Generator.

        prompt_tokens counts what was read before the deadline, completion_tokens includes the model's end token.
        Cancelling the task frees the model at the next token. Raises ArmFailed if prompt and max_tokens do not fit
        in context_tokens, the model fails, or the generator was closed.
        """
        ids = self._ids(request.prompt)
        if len(ids) + request.max_tokens > self.context_tokens:
            raise ArmFailed(
                f"a prompt of {len(ids)} tokens with {request.max_tokens} to write exceeds {self.context_tokens}",
                remedy="shorten the prompt or raise the generator's context_tokens",
            )
        writing = _Writing(
            ids=ids,
            max_tokens=request.max_tokens,
            stop=tuple(filter(None, request.stop)),
            deadline=request.deadline,
            want=request.want,
            sampling=request.sampling,
        )
        try:
            work = self._queue.submit(self._write, writing)
        except RuntimeError as error:  # of a pool that was shut down
            raise ArmFailed(f"{self.name} cannot be asked: {error}") from error
        outcome = asyncio.wrap_future(work)
        try:
            done, _ = await asyncio.wait({outcome}, timeout=writing.seconds_left())
            if not done and work.cancel():  # the deadline passed while others were being served
                return Completion(text="", prompt_tokens=0, completion_tokens=0, finish="deadline")
            return await outcome  # a running call sees its deadline at the next token
        finally:
            writing.abandoned.set()

    async def close(self) -> None:
        """End the writing thread; a call under way finishes first, later ones are ArmFailed."""
        self._queue.shutdown(wait=False)

    def _ids(self, prompt: Prompt) -> list[int]:
        """Token ids of the prompt, up to where the model goes on."""
        with self._tokenizer_lock:
            if getattr(self._tokenizer, "chat_template", None):
                messages = [
                    {"role": role, "content": self._plain(text)}
                    for role, text in (("system", prompt.instructions), ("user", prompt.body))
                    if text
                ]
                head = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
                found = self._tokenizer(head + self._plain(prompt.prefix), add_special_tokens=False)
            else:
                parts = (prompt.instructions, prompt.body, prompt.prefix)
                found = self._tokenizer("\n\n".join(self._plain(part) for part in parts if part))
        ids: list[int] = found["input_ids"]
        return ids

    def _plain(self, text: str) -> str:
        """The text without the model's control words: a passage must not be able to end the user's turn."""
        for word in self._tokenizer.all_special_tokens:
            if word not in self._trained:
                text = text.replace(word, " ")
        return text.encode("utf-8", "replace").decode()

    def _text(self, ids: list[int], *, plain: bool = True) -> str:
        with self._tokenizer_lock:
            text: str = self._tokenizer.decode(ids, skip_special_tokens=plain, clean_up_tokenization_spaces=False)
        return text.rstrip("\ufffd")  # the first bytes of a letter that the next token would have finished

    def _write(self, writing: "_Writing") -> Completion:
        """Runs in the queue's thread."""
        try:
            with self._torch.inference_mode():
                read, ids, finish = self._written(writing)
                details = self._told(writing, read=read, ids=ids)
        except RuntimeError as error:  # out of memory, an index out of range, a kernel that is missing
            raise ArmFailed(f"the language model failed: {error}") from error
        text = self._text(self._without_end(ids), plain="trained_tokens" not in writing.want)
        cut = _first_stop(text, writing.stop)
        return Completion(
            text=text if cut is None else text[:cut],
            prompt_tokens=read,
            completion_tokens=len(ids),
            finish=finish,
            details=details,
        )

    def _without_end(self, ids: list[int]) -> list[int]:
        return ids[:-1] if ids and ids[-1] in self._ends else ids

    def _told(self, writing: "_Writing", *, read: int, ids: list[int]) -> dict[str, object]:
        """What the request wants to know of the tokens written, the end token left out."""
        written = self._without_end(ids)
        if not writing.want - {"completion", "stop"} or not written:
            return {}
        plain = "trained_tokens" not in writing.want
        whole = [self._text(written[:count], plain=plain) for count in range(len(written) + 1)]
        texts = [after[len(before) :] for before, after in pairwise(whole)]
        found = writing.probabilities.details(texts=texts, name=lambda place: self._text([place], plain=False))
        if writing.want & {"attention", "hidden_states"}:
            every = writing.ids[:read] + written
            names = [self._text([place], plain=False) for place in writing.ids[:read]] + texts
            found |= looked(self._torch, self._model, ids=every, read=read, want=writing.want, names=names)
        return found

    def _written(self, writing: "_Writing") -> tuple[int, list[int], Finish]:
        """(prompt tokens read, tokens written, why it ended)."""
        from transformers import DynamicCache

        cache = DynamicCache()
        written: list[int] = []
        writing.probabilities = Probabilities(self._torch, want=writing.want, special=self._trained)
        generator = dice(self._torch, writing.sampling, device=self._device)
        for start in range(0, len(writing.ids), _CHUNK):
            if writing.over():
                return start, written, "deadline"
            logits = self._next(writing.ids[start : start + _CHUNK], cache=cache)
        read = len(writing.ids)
        while len(written) < writing.max_tokens:
            token = picked(self._torch, logits, sampling=writing.sampling, generator=generator)
            writing.probabilities.note(logits, token=token)
            written.append(token)
            if token in self._ends or (writing.stop and _first_stop(self._text(written), writing.stop) is not None):
                return read, written, "stop"
            if len(written) == writing.max_tokens:
                break
            if writing.over():
                return read, written, "deadline"
            logits = self._next([token], cache=cache)
        return read, written, "length"

    def _next(self, ids: list[int], *, cache: "Cache") -> "Tensor":
        """Logits of the token after these, shape (vocabulary,); the cache grows by them."""
        tokens = self._torch.tensor([ids], device=self._device)  # (1, T)
        output = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return output.logits[0, -1]  # (1, 1, vocabulary)

    def _set_threads(self, count: int | None) -> None:
        if count is not None:  # OpenMP keeps the number per thread: it is set in every thread that computes
            self._torch.set_num_threads(count)


class _Writing:
    """One call on its way: what was asked, and whether anybody still waits for it."""

    probabilities: Probabilities

    def __init__(
        self,
        *,
        ids: list[int],
        max_tokens: int,
        stop: tuple[str, ...],
        deadline: float | None,
        want: frozenset[Need],
        sampling: Sampling | None,
    ) -> None:
        self.ids, self.max_tokens, self.stop, self.deadline = ids, max_tokens, stop, deadline
        self.want, self.sampling = want, sampling
        self.abandoned = threading.Event()

    def seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def over(self) -> bool:
        return self.abandoned.is_set() or self.seconds_left() == 0.0


def _first_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Where the first stop string begins, or None."""
    return min((at for at in map(text.find, stops) if at >= 0), default=None)


def _place(*, precision: str, device: str) -> tuple[Any, str, Any]:
    """(torch, device, dtype)."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError("the package torch is missing", remedy="pip install 'ragbandit[models]'") from error
    cuda = torch.cuda.is_available()
    if device not in {"auto", "cpu", "cuda"} or (device == "cuda" and not cuda):
        raise ConfigError(f"no device {device!r} here", field="generator.device", remedy='use "auto" or "cpu"')
    if precision not in {"auto", "float32", "bfloat16"}:
        remedy = 'use "auto", "float32" or "bfloat16"'
        raise ConfigError(f"unknown precision {precision!r}", field="generator.precision", remedy=remedy)
    place = "cuda" if cuda and device != "cpu" else "cpu"
    if precision == "auto":
        features = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        in_hardware = features.get("avx512_bf16") or features.get("amx_bf16")
        precision = "bfloat16" if (torch.cuda.is_bf16_supported() if place == "cuda" else in_hardware) else "float32"
    return torch, place, getattr(torch, precision)


def _load(folder: Path, *, dtype: "torch.dtype", device: str) -> tuple["PreTrainedTokenizerBase", "PreTrainedModel"]:
    """(tokenizer, model in evaluation mode)."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"no model in {folder}", field="generator.model", remedy="give a Hugging Face folder")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ConfigError("the package transformers is missing", remedy="pip install 'ragbandit[models]'") from error
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(folder))
            model = AutoModelForCausalLM.from_pretrained(str(folder), use_safetensors=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"cannot load the model in {folder}: {error}", field="generator.model") from error
    model = model.to(device=device, dtype=dtype).eval()
    if device == "cpu":
        _pack(model)
    return tokenizer, model


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars from transformers inside."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _end_tokens(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    declared = model.generation_config.eos_token_id
    listed = declared if isinstance(declared, list) else [declared]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if token is not None)


def _trained(tokenizer: "PreTrainedTokenizerBase", names: Sequence[str]) -> dict[str, int]:
    """The ids of these tokens. Raises ConfigError for one that the model does not have."""
    known = tokenizer.get_vocab()
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"the model has no token {missing[0]!r}",
            field="generator.trained_tokens",
            remedy="use a model that was trained with these tokens",
        )
    return {name: known[name] for name in names}


def _pack(model: "PreTrainedModel") -> None:
    """Lay the weights of linear layers out once for oneDNN: a third less time per token.

    The operations are those torch's own compiler uses, not a public interface; so one layer of each shape is checked,
    and the ordinary layers stay wherever they are missing or differ. router.transformer does the same.
    """
    import torch

    if not torch.backends.mkldnn.is_available():
        return
    good: dict[object, bool] = {}
    for layer in [module for module in model.modules() if type(module) is torch.nn.Linear]:
        shape = layer.weight.shape
        try:
            with torch.inference_mode():
                packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), 1)  # noqa: SLF001 - see above
                fast = _PackedForward(torch.ops.mkldnn._linear_pointwise, packed, layer.bias)  # noqa: SLF001
                if shape not in good:
                    probe = torch.linspace(-1, 1, 2 * shape[1]).view(2, -1).to(layer.weight.dtype)  # (2, inputs)
                    good[shape] = torch.allclose(fast(probe).float(), layer(probe).float(), rtol=0.02, atol=0.02)
        except (AttributeError, RuntimeError, TypeError):
            return
        if good[shape]:
            layer.forward = fast


class _PackedForward:
    """x -> x @ weight.T + bias over a packed weight."""

    def __init__(self, run: "Callable[..., Tensor]", packed: "Tensor", bias: "Tensor | None") -> None:
        self._run, self._packed, self._bias = run, packed, bias

    def __call__(self, x: "Tensor") -> "Tensor":
        return self._run(x, self._packed, self._bias, "none", [], "")
