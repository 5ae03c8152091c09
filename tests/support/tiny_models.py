"""A DistilBERT of two layers, classifiers trained on it, pair models and language models, as folders, in milliseconds.

The encoders are written without torch and in plain view of the formats, at a place that their bytes alone decide: the
params of a policy name it, so it must be known before any test runs and be the same in every process.
"""

import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

WIDTH, HIDDEN, LAYERS, HEADS, LONGEST = 32, 64, 2, 2, 40
ARMS = ["no_retrieval", "single_step", "multi_step"]
COSTS = [0.0, 1.0, 4.5]
COUNTS = b'{"format": 1, "passages": 20, "mentions": {"dracula": 3, "paris": 9, "film director": 4}}'
_SENTENCE = (
    "who what when where which wrote dracula born city river before after both film director paris of the is capital "
    "a in how many ?"
)


@functools.cache
def tiny_encoder(seed: int = 0) -> str:
    """The path of a Hugging Face folder of a random DistilBERT: width 32, two layers, a few words."""
    return str(_placed(_encoder_files(seed)))


@functools.cache
def tiny_trained(algorithm: str, *, seed: int = 1) -> str:
    """The path of a folder as `ragbandit policy train` writes it, with random weights."""
    files = _encoder_files(seed)
    random = np.random.default_rng([seed, 7])
    layers = {"pre": random.normal(0, 0.4, (WIDTH, WIDTH + 1)), "heads": random.normal(0, 0.8, (3, WIDTH + 1))}
    files["layers.safetensors"] = save({name: array.astype(np.float32) for name, array in layers.items()})
    described = {
        "format": 1,
        "algorithm": algorithm,
        "arms": ARMS,
        "costs": COSTS,
        "report": {"rows": 12},
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    files["ragbandit.json"] = json.dumps(described).encode()
    return str(_placed(files))


@functools.cache
def tiny_counts() -> str:
    """The path of a file of mention counts, as `ragbandit index counts` writes it."""
    return str(_placed({"counts.json": COUNTS}) / "counts.json")


@functools.cache
def tiny_threshold() -> str:
    """The path of a folder with a threshold of `popularity`, as `ragbandit policy train` writes it."""
    report = {"rows": 12, "used": 12, "threshold": 4.0, "popular_share": 0.5, "quality": 0.7}
    counts = hashlib.sha256(COUNTS).hexdigest()
    described = {"format": 1, "algorithm": "popularity", "counts": counts, "report": report}
    return str(_placed({"ragbandit.json": json.dumps(described).encode()}))


#: architecture -> its config: four that only decode, of which the last cannot write in rows; two with an encoder
WRITERS = {
    "llama": {"num_key_value_heads": 2},
    "gpt2": {},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 64},
    "mamba": {},
    "t5": {
        "d_kv": 8,
        "d_ff": 48,
        "num_decoder_layers": 2,
        "feed_forward_proj": "gated-gelu",
        "decoder_start_token_id": 0,
    },
    "bart": {
        **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")},
        "decoder_start_token_id": 0,
        "forced_eos_token_id": None,
    },
}
_WORDS = 80


@functools.cache
def tiny_writer(architecture: str, *, seed: int = 0, positions: int = 512, words: tuple[str, ...] = ()) -> str:
    """The path of a Hugging Face folder of a random language model that writes the words w0 to w79, and </s>.

    words: further words of its vocabulary. positions: the longest text, in tokens
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    names = ["</s>", "<unk>", *(f"w{number}" for number in range(_WORDS)), *words]
    vocabulary = {name: number for number, name in enumerate(names)}
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=positions,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **WRITERS[architecture],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config)
        for weight in model.parameters():
            if weight.dim() == 2:
                torch.nn.init.normal_(weight, std=0.3)
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    if config.is_encoder_decoder:
        tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    return _whole(model, config=config, tokenizer=tokenizer, settings={"eos_token": "</s>", "unk_token": "<unk>"})


def tiny_t5() -> str:
    """The path of a Hugging Face folder of a random T5 with encoder and decoder, which reads the encoders' words."""
    return tiny_writer("t5", words=tuple(dict.fromkeys(_SENTENCE.split())))


#: tokens of a pair in a tiny cross-encoder: BERT gives each text half of them, after three special tokens
PAIR_TOKENS = 49
#: architecture -> its config, how a pair is laid out, its tokenizer's settings: the texts are marked, or are not, or
#: positions count from behind the padding's number, or the length is any, and the padding on the left
PAIR_MODELS = {
    "bert": (
        {"type_vocab_size": 2, "max_position_embeddings": PAIR_TOKENS},
        "[CLS] $A [SEP] $B:1 [SEP]:1",
        {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
    ),
    "distilbert": (
        {"max_position_embeddings": PAIR_TOKENS},
        "[CLS] $A [SEP] $B [SEP]",
        {"model_input_names": ["input_ids", "attention_mask"]},
    ),
    "roberta": (
        {"type_vocab_size": 1, "max_position_embeddings": PAIR_TOKENS + 2},
        "[CLS] $A [SEP] [SEP] $B [SEP]",
        {"model_input_names": ["input_ids", "attention_mask"]},
    ),
    "xlnet": (
        {"d_inner": HIDDEN, "d_head": WIDTH // HEADS},
        "$A [SEP] $B:1 [SEP]:1 [CLS]:2",
        {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"], "padding_side": "left"},
    ),
}


@functools.cache
def tiny_cross_encoder(architecture: str = "bert", *, outputs: int = 1, told: bool = True, seed: int = 0) -> str:
    """The path of a Hugging Face folder of a random model that scores pairs of texts.

    Words are letters, some of them whole, and four Chinese characters. told: the tokenizer knows PAIR_TOKENS, and not
    only the model, if at all.
    """
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    own, pair, settings = PAIR_MODELS[architecture]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    whole = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", *_SENTENCE.split(), *"北京上海.,-'"]
    vocabulary = dict.fromkeys([*whole, *letters, *(f"##{each}" for each in letters)])
    vocabulary = {word: number for number, word in enumerate(vocabulary)}
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        pad_token_id=vocabulary["[PAD]"],
        num_labels=outputs,
        **own,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(config)
        for weight in model.parameters():
            if weight.dim() >= 2:
                torch.nn.init.normal_(weight, std=0.4)
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    )
    described = {
        **{f"{name}_token": f"[{name.upper()}]" for name in ("cls", "pad", "sep", "unk")},
        **settings,
        **({"model_max_length": PAIR_TOKENS} if told else {}),
    }
    return _whole(model, config=config, tokenizer=tokenizer, settings=described)


def _whole(model: Any, *, config: Any, tokenizer: Tokenizer, settings: dict[str, object]) -> str:
    """The path of a folder with this model and its tokenizer."""
    from safetensors.torch import save as saved

    config.architectures = [type(model).__name__]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    files = {
        "config.json": config.to_json_string(use_diff=False).encode(),
        "model.safetensors": saved(weights, metadata={"format": "pt"}),
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(described).encode(),
    }
    return str(_placed(files))


def _encoder_files(seed: int) -> dict[str, bytes]:
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *_SENTENCE.split()])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    config = {
        "architectures": ["DistilBertModel"],
        "model_type": "distilbert",
        "activation": "gelu",
        "dim": WIDTH,
        "hidden_dim": HIDDEN,
        "max_position_embeddings": LONGEST,
        "n_heads": HEADS,
        "n_layers": LAYERS,
        "pad_token_id": 0,
        "vocab_size": len(vocabulary),
    }
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": save(_weights(len(vocabulary), seed=seed), metadata={"format": "pt"}),
        "tokenizer.json": tokenizer.to_str().encode(),
    }


def _weights(words: int, *, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def made(*shape: int) -> np.ndarray:
        return random.normal(0, 0.3, shape).astype(np.float32)

    tables = {"word": words, "position": LONGEST}
    found = {f"embeddings.{name}_embeddings.weight": made(rows, WIDTH) for name, rows in tables.items()}
    sizes = {f"attention.{name}_lin": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    sizes |= {"ffn.lin1": (HIDDEN, WIDTH), "ffn.lin2": (WIDTH, HIDDEN)}
    norms = ["embeddings.LayerNorm"]
    for layer in (f"transformer.layer.{number}." for number in range(LAYERS)):
        for name, (rows, columns) in sizes.items():
            found |= {f"{layer}{name}.weight": made(rows, columns), f"{layer}{name}.bias": made(rows)}
        norms += [f"{layer}sa_layer_norm", f"{layer}output_layer_norm"]
    for norm in norms:
        found |= {f"{norm}.weight": np.ones(WIDTH, dtype=np.float32), f"{norm}.bias": np.zeros(WIDTH, dtype=np.float32)}
    return found


def _placed(files: dict[str, bytes]) -> Path:
    """The folder of these files: made once, found again by every process and every run."""
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(name.encode() + hashlib.sha256(content).digest())
    target = Path(tempfile.gettempdir()) / f"ragbandit-tiny-{os.getuid()}" / total.hexdigest()[:16]
    if not target.is_dir():
        target.parent.mkdir(exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent))
        for name, content in files.items():
            (work / name).write_bytes(content)
        try:
            work.rename(target)
        except OSError:  # another process was first
            assert target.is_dir()
    return target
