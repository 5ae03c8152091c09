import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ragbandit.shared.errors import ArmFailed, ConfigError, encodable, required_module
from ragbandit.shared.torch_models import device_of, load_model, packed_linear, precision_of
from ragbandit.shared.types import Cost
from ragbandit.strategies.answer_stream import first_stop
from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request, seconds_until
from ragbandit.strategies.generators.parts import Attention, chat_turns, plain_parts

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ragbandit.additions.local_models.static_batches import SequenceState

#: capabilities that only models without an encoder have
DECODER_ONLY: Final[frozenset[Need]] = frozenset({"attention", "hidden_states"})
_TAIL: Final = 8  #: number of tokens that are decoded in addition to a stop string


class LocalGenerator(Generator):
    """A Hugging Face language model in this process, from a folder with safetensors.

    A model with an encoder and a decoder (T5, FLAN-T5, BART) reads the whole prompt with its encoder, the prefix
    included, and writes the text with its decoder. It offers no attention and no hidden states.
    precision: "auto" is bfloat16 if the processor multiplies it in hardware, otherwise float32.
    threads: number of torch threads. On a busy machine fewer are faster, because OpenMP threads spin while they wait.
    trained_tokens: special tokens that the model was trained to write (as in Self-RAG). They stay in the text, and
    their probabilities are returned, if `Request.want` has "trained_tokens".
    max_batch: maximum number of texts that are written concurrently; None for the device's default. Their attention
    keys and values for context_tokens tokens each must fit in memory. In bfloat16 a text may depend on its batch.
    Raises ConfigError if the folder, a package or the device is missing, or if the model has state other than keys and
    values (Mamba).
    """

    max_batch: int
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
        max_batch: int | None = None,
    ) -> None:
        self.name = name
        self._torch = required_module("torch", extra="models", field="generator.name")
        self._device = device_of(device, field="generator.device")
        dtype = getattr(self._torch, precision_of(precision, device=self._device, field="generator.precision"))
        for field, value in (("threads", threads), ("max_batch", max_batch)):
            if value is not None and value < 1:
                raise ConfigError(f"{value} is below 1", field=f"generator.{field}", remedy="give at least 1")
        self._set_threads(threads)
        self._tokenizer, self._model = _load_tokenizer_and_model(
            Path(folder).expanduser(), dtype=dtype, device=self._device
        )
        self.max_batch = max_batch or {"cpu": 8, "cuda": 64}[self._device]
        self._ends = _end_tokens(self._model, self._tokenizer)
        # `generate` decodes greedily, because `sample_next` applies the sampling of a request.
        self._model.generation_config = type(self._model.generation_config)(**_decoder_start(self._model))
        if self._model.config.is_encoder_decoder:
            self.capabilities = self.capabilities - DECODER_ONLY
        self._trained = _token_ids(self._tokenizer, trained_tokens)
        if self._trained:
            self.capabilities = self.capabilities | {"trained_tokens"}
        added = self._tokenizer.added_tokens_decoder.values()
        self._control_tokens = sorted({token.content for token in added if token.special} - self._trained.keys())
        self._tokenizer_lock = threading.Lock()
        self._ids = lru_cache(maxsize=256)(self._tokenize)  # a prompt is tokenized twice: to be counted, and to be sent
        self._token_text = cache(lambda token: self._text([token], plain=False))
        from ragbandit.additions.local_models.static_batches import Batches

        self._batches = Batches(
            self._model,
            max_batch=self.max_batch,
            is_finished=self._is_finished,
            start=lambda: self._set_threads(threads),
        )
        longest = getattr(self._model.config, "max_position_embeddings", None)
        self.context_tokens = min(context_tokens, longest or context_tokens)

    def count_tokens(self, prompt: Prompt) -> int:
        return len(self._ids(prompt))

    async def complete(self, request: Request) -> Completion:
        """Write one text, see `Generator.complete`. `completion_tokens` includes the model's end token."""
        if request.max_tokens < 1:
            return Completion(text="", prompt_tokens=0, completion_tokens=0, finish="length")
        sequence = self._new_sequence(request)
        self._batches.submit(sequence)
        outcome = asyncio.wrap_future(sequence.future)
        # Reads the exception: otherwise asyncio warns about it if the caller was cancelled at the same moment.
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(seconds_until(request.deadline)) as limit:
                if request.sink is not None:
                    await self._stream(sequence, outcome, sink=request.sink)
                await outcome
                completion = self._completion(sequence)
        except TimeoutError:
            if not limit.expired():
                raise
            completion = self._late_completion(sequence)
        except BaseException:
            if not sequence.future.cancel():  # the model has begun to read
                request.lost.cost += Cost(
                    prompt_tokens=len(sequence.ids), completion_tokens=len(sequence.tokens_without_end())
                )
            raise
        finally:
            sequence.cancelled.set()
        return replace(completion, first_s=sequence.first_s)

    def _new_sequence(self, request: Request) -> "SequenceState":
        from ragbandit.additions.local_models.static_batches import SequenceState

        ids = self._ids(request.prompt)
        if not ids:
            raise ArmFailed("the prompt is empty")
        if len(ids) + request.max_tokens > self.context_tokens:
            sizes = f"{len(ids)} prompt tokens with {request.max_tokens} to write"
            remedy = "shorten the prompt or raise the generator's context_tokens"
            raise ArmFailed(f"{sizes} exceed the limit {self.context_tokens}", remedy=remedy)
        return SequenceState(request, ids=ids, special=self._trained, ends=self._ends)

    async def _stream(
        self, sequence: "SequenceState", outcome: asyncio.Future[None], *, sink: Callable[[str], Awaitable[None]]
    ) -> None:
        """Send the growing text to the reader. A slow reader does not stop the model, since other texts would wait."""
        loop, grown, began = asyncio.get_running_loop(), asyncio.Event(), time.monotonic()

        def note() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(grown.set)

        sequence.on_token = note
        outcome.add_done_callback(lambda _: grown.set())
        while await grown.wait() and not outcome.done():
            grown.clear()
            text = self._cut_text(sequence, sequence.tokens_without_end())
            if len(text) > len(sequence.shown):
                sequence.shown = text
            if text and sequence.first_s is None:
                sequence.first_s = time.monotonic() - began
            await sink(text)
            await asyncio.sleep(0.01)  # decoding takes the whole text each time, so it must not be too frequent

    async def close(self) -> None:
        self._batches.close()

    def _tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        with self._tokenizer_lock:
            if getattr(self._tokenizer, "chat_template", None):
                messages = [
                    {"role": role, "content": self._without_control_tokens(text)}
                    for role, text in chat_turns(prompt)
                    if text
                ]
                head = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
                encoded = self._tokenizer(head + self._without_control_tokens(prompt.prefix), add_special_tokens=False)
            else:
                encoded = self._tokenizer(
                    "\n\n".join(self._without_control_tokens(part) for part in plain_parts(prompt) if part)
                )
        return tuple(encoded["input_ids"])

    def _without_control_tokens(self, text: str) -> str:
        """Remove the model's control tokens: a passage must not end the user's turn."""
        for token in self._control_tokens:
            text = text.replace(token, " ")
        return encodable(text)

    def _text(self, ids: Sequence[int], *, plain: bool = True) -> str:
        with self._tokenizer_lock:
            text = self._decoded(ids, plain=plain)
        return text.rstrip("\ufffd")  # U+FFFD stands for a character that the next token would complete

    def _decoded(self, ids: Sequence[int], *, plain: bool) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=plain, clean_up_tokenization_spaces=False))

    def _is_finished(self, sequence: "SequenceState") -> bool:
        """Whether the last token is an end token of the model, or completes a stop string."""
        if sequence.has_ended or not sequence.stop:
            return sequence.has_ended
        # A token has at least one byte, so a stop string that ends in the last token lies within this number of tokens.
        tail = max(len(stop.encode()) for stop in sequence.stop) + _TAIL
        return first_stop(self._text(sequence.tokens[-tail:], plain=sequence.plain), sequence.stop) is not None

    def _completion(self, sequence: "SequenceState") -> Completion:
        return Completion(
            text=self._cut_text(sequence, sequence.tokens_without_end()),
            prompt_tokens=len(sequence.ids),
            completion_tokens=len(sequence.tokens),
            finish=sequence.finish,
            details=self._details(sequence),
        )

    def _late_completion(self, sequence: "SequenceState") -> Completion:
        """The completion of a text that the deadline ended."""
        has_begun, written, shown = not sequence.future.cancel(), sequence.tokens_without_end(), sequence.shown
        text = self._cut_text(sequence, written)
        return Completion(
            text=shown if shown.startswith(text) else text,  # a second attempt may be shorter than the first
            prompt_tokens=len(sequence.ids) if has_begun else 0,
            completion_tokens=len(written),
            finish="deadline",
        )

    def _cut_text(self, sequence: "SequenceState", tokens: Sequence[int]) -> str:
        text = self._text(tokens, plain=sequence.plain)
        return text[: first_stop(text, sequence.stop)]

    def _details(self, sequence: "SequenceState") -> Mapping[str, object]:
        written = sequence.tokens_without_end()
        if not sequence.request.want - {"completion", "stop"} or not written:
            return {}
        with self._tokenizer_lock:
            texts = token_texts(written, text=partial(self._decoded, plain=sequence.plain))
        values = {**sequence.probabilities(texts=texts), **sequence.details}
        if "attention" in values:
            keys = tuple(map(self._token_text, sequence.ids)) + tuple(texts)
            values["attention"] = Attention(weights=sequence.details["attention"], keys=keys)
        return values

    def _set_threads(self, count: int | None) -> None:
        if count is not None:  # OpenMP has a setting for each thread, so every thread that computes must call this
            self._torch.set_num_threads(count)


def token_texts(tokens: Sequence[int], *, text: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that each token adds to the text of the earlier tokens; "" for a token that only begins a character.

    text: decodes tokens, with U+FFFD for an incomplete character. Each decoding has few tokens, so the time is linear.
    """
    texts = []
    begin = end = 0
    before = ""
    for count in range(1, len(tokens) + 1):
        whole = text(tokens[begin:count])
        after = whole.rstrip("\ufffd")
        texts.append(after[len(before) :])
        before = after
        if texts[-1] and after == whole:
            begin, end = end, count
            before = text(tokens[begin:end])
    return texts


def _load_tokenizer_and_model(
    folder: Path, *, dtype: "torch.dtype", device: str
) -> tuple["PreTrainedTokenizerBase", "PreTrainedModel"]:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"no model in {folder}", field="generator.model", remedy="give a Hugging Face folder")
    import torch

    tokenizer = load_model("AutoTokenizer", folder, field="generator.model")
    config = load_model("AutoConfig", folder, field="generator.model")
    kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    model = load_model(kind, folder, field="generator.model")
    if model._is_stateful:  # noqa: SLF001 - transformers' own generate reads this flag
        message = "the local generator cannot run this model: its state is more than keys and values"
        remedy = (
            'use a model with plain attention, serve the model and set generator.name to "openai", or run it in a '
            "function or service of your own (arms callable and http)"
        )
        raise ConfigError(message, field="generator.model", remedy=remedy)
    model = model.to(device=device, dtype=dtype).eval()
    if device == "cpu":
        _pack_linear_layers(model)
    else:
        # cuDNN's attention is off: it makes a new plan for every shape, and shapes change with every token.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return tokenizer, model


def _decoder_start(model: "PreTrainedModel") -> dict[str, int | None]:
    """The tokens with which the decoder of a model with an encoder starts; {} for other models. Raises ConfigError."""
    if not model.config.is_encoder_decoder:
        return {}
    declared = model.generation_config
    start = declared.decoder_start_token_id
    if start is None:
        start = getattr(model.config, "decoder_start_token_id", None)
    if start is None:
        message = "the model's config.json has no decoder_start_token_id"
        remedy = "add it to config.json; for T5 it is pad_token_id"
        raise ConfigError(message, field="generator.model", remedy=remedy)
    return {"decoder_start_token_id": start, "forced_bos_token_id": declared.forced_bos_token_id}


def _end_tokens(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    declared = model.generation_config.eos_token_id
    listed = declared if isinstance(declared, list) else [declared]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if token is not None)


def _token_ids(tokenizer: "PreTrainedTokenizerBase", names: Sequence[str]) -> dict[str, int]:
    vocabulary = tokenizer.get_vocab()
    missing = [name for name in names if name not in vocabulary]
    if missing:
        message, remedy = f"the model has no token {missing[0]!r}", "use a model that was trained with these tokens"
        raise ConfigError(message, field="generator.trained_tokens", remedy=remedy)
    return {name: vocabulary[name] for name in names}


def _pack_linear_layers(model: "PreTrainedModel") -> None:
    """Pack the weights of linear layers for oneDNN, which saves a third of the time per token."""
    import torch

    for layer in [module for module in model.modules() if type(module) is torch.nn.Linear]:
        packed = packed_linear(layer.weight.detach(), layer.bias, rows=1)
        if packed is not None:
            layer.forward = packed
