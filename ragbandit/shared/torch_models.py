"""Loads torch models: device, precision, and packed linear layers. torch is imported inside the functions."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ragbandit.shared.errors import ConfigError, required_module

if TYPE_CHECKING:
    from torch import Tensor

#: model types with an encoder and a decoder whose encoder transformers can load without the decoder
_T5_TYPES: Final = frozenset({"t5", "mt5", "umt5"})


def device_of(device: str, *, field: str) -> str:
    """Resolve "auto", "cpu" or "cuda" to "cpu" or "cuda". field: the setting. Raises ConfigError."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("this machine has no CUDA device", field=field, remedy='use "auto" or "cpu"')
    if device not in {"auto", "cpu", "cuda"}:
        raise ConfigError(f"unknown device {device!r}", field=field, remedy='use "auto", "cpu" or "cuda"')
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def precision_of(precision: str, *, device: str, field: str) -> str:
    """Resolve "auto" to "bfloat16" if the hardware multiplies bfloat16, else to "float32". Raises ConfigError."""
    import torch

    if precision in {"float32", "bfloat16"}:
        return precision
    if precision != "auto":
        remedy = 'use "auto", "float32" or "bfloat16"'
        raise ConfigError(f"unknown precision {precision!r}", field=field, remedy=remedy)
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    features = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "bfloat16" if features.get("avx512_bf16") or features.get("amx_bf16") else "float32"


def load_model(kind: str, folder: Path, *, field: str, **options: object) -> Any:
    """Load a folder with a class of transformers, for example "AutoModel". Raises ConfigError.

    Nothing is downloaded, no code in the folder is run, and weights are read only from safetensors files.
    """
    transformers = required_module("transformers", extra="models", field=field)
    logging = required_module("transformers.utils.logging", extra="models", field=field)
    if kind.startswith("AutoModel"):
        options["use_safetensors"] = True
    shown = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()  # it would overwrite RagBandit's progress bar
    logging.set_verbosity_error()  # hides the warning that the head of a checkpoint is not used, which is intended
    try:
        return getattr(transformers, kind).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"the model in {folder} cannot be used: {error}", field=field) from error
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def load_encoder(folder: Path, *, field: str, **options: object) -> Any:
    """Load a model that reads texts: one without a decoder, or only the encoder of a T5 model (T5, FLAN-T5, mT5, UMT5).

    Raises ConfigError as `load_model`, and for other models with a decoder of their own (BART).
    """
    config = load_model("AutoConfig", folder, field=field)
    if config.model_type in _T5_TYPES:
        return load_model("AutoModelForTextEncoding", folder, field=field, **options)
    if config.is_encoder_decoder:
        fault = f"the model in {folder} has a decoder besides its encoder, and is no T5 model ({config.model_type})"
        remedy = "give an encoder (DistilBERT, BERT, RoBERTa), or a T5 model, whose encoder is used"
        raise ConfigError(fault, field=field, remedy=remedy)
    return load_model("AutoModel", folder, field=field, **options)


def has_first_token(model: Any) -> bool:
    """Whether the state of the first token stands for the text. T5 has no such token: the mean of all states does."""
    return model.config.model_type not in _T5_TYPES


def packed_linear(weight: "Tensor", bias: "Tensor | None", *, rows: int) -> "Callable[[Tensor], Tensor] | None":
    """Returns the function x -> x @ weight.T + bias for about `rows` rows, with the weight packed for oneDNN.

    torch packs an ordinary weight at every call, which takes most of the time for a single question or token. Returns
    None if the weight is on a GPU, or if torch's private operations are missing or return another result.
    """
    import torch

    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    try:
        with torch.inference_mode():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)  # noqa: SLF001 - see the docstring
            run = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
            probe = torch.linspace(-1, 1, 2 * weight.shape[1]).view(2, -1).to(weight.dtype)
            fast: Callable[[Tensor], Tensor] = lambda x: run(x, packed, bias, "none", [], "")  # noqa: E731
            plain = torch.nn.functional.linear(probe, weight, bias)
            is_equal = torch.allclose(fast(probe).float(), plain.float(), rtol=0.02, atol=0.02)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return fast if is_equal else None
