"""Helpers for torch models: device, precision, quiet loading, and packed linear layers.

Importing this module imports no torch; its functions do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragbandit.shared.errors import ConfigError, required_module

if TYPE_CHECKING:
    from torch import Tensor


def device_of(device: str, *, field: str) -> str:
    """The device that "auto", "cpu" or "cuda" is here. field: the setting, for messages. Raises ConfigError."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no CUDA device here", field=field, remedy='use "auto" or "cpu"')
    if device not in {"auto", "cpu", "cuda"}:
        raise ConfigError(f"unknown device {device!r}", field=field, remedy='use "auto", "cpu" or "cuda"')
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def precision_of(precision: str, *, device: str, field: str) -> str:
    """The precision that "auto", "float32" or "bfloat16" is on this device. Raises ConfigError.

    "auto" is bfloat16 where the processor or the card multiplies it in hardware, else float32.
    """
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
    """What a class of transformers, "AutoModel" say, makes of a folder, quietly. field: the setting that names it.

    Nothing is fetched, no code of the folder is run, and weights are read from safetensors alone. Raises ConfigError.
    """
    transformers = required_module("transformers", extra="models", field=field)
    logging = required_module("transformers.utils.logging", extra="models", field=field)
    if kind.startswith("AutoModel"):
        options["use_safetensors"] = True
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # it would be drawn over ours
    logging.set_verbosity_error()  # it warns of a checkpoint's own head, which is rightly left out
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


def packed_linear(weight: "Tensor", bias: "Tensor | None", *, rows: int) -> "Callable[[Tensor], Tensor] | None":
    """Returns x -> x @ weight.T + bias with the weight packed once for oneDNN, for about `rows` rows; or None. torch
    packs an ordinary weight at every call, which takes most of the time for one question or token. The operations are
    those of torch's compiler, not a public interface, so their result is checked here. None if they are missing or
    differ, or if the weight is on a GPU.
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
            near = torch.allclose(fast(probe).float(), plain.float(), rtol=0.02, atol=0.02)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return fast if near else None
