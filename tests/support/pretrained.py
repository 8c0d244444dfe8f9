"""Small random models of every supported architecture, as transformers writes them, with tokenizers."""

import functools
import itertools
import json
import tempfile
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from models.pretrained.model import PretrainedModel
from models.pretrained.tokenizer import PretrainedTokenizer

TEXTS = [
    f"{subject} {verb} {thing}{end}"
    for subject, verb, thing, end in itertools.product(
        ("The cat", "A dog", "My old friend", "Nobody"),
        ("sat on", "saw", "doesn't like", "wrote about"),
        ("the mat", "a river", "12 apples", "naïve cafés"),
        (".", "!", ""),
    )
]
WINDOW = 48
"""Number of positions of the models."""

_SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "max_position_embeddings": WINDOW,
}
_GROUPED = {"num_key_value_heads": 2, "intermediate_size": 96}
_NO_START = {"bos_token_id": None, "eos_token_id": 0}
CONFIGS = {
    "gpt2": (
        transformers.GPT2Config,
        {"n_positions": WINDOW, "n_embd": 64, "n_layer": 2, "n_head": 4}
        | {"bos_token_id": 0, "eos_token_id": 0},
    ),
    "gpt_neox": (
        transformers.GPTNeoXConfig,
        _SIZES | {"intermediate_size": 96, "bos_token_id": 0, "eos_token_id": 0},
    ),
    "llama": (transformers.LlamaConfig, _SIZES | _GROUPED),
    "mistral": (transformers.MistralConfig, _SIZES | _GROUPED | {"sliding_window": None}),
    "olmo2": (transformers.Olmo2Config, _SIZES | _GROUPED | _NO_START | {"pad_token_id": 0}),
    "qwen2": (transformers.Qwen2Config, _SIZES | _GROUPED | _NO_START),
    "qwen3": (transformers.Qwen3Config, _SIZES | _GROUPED | _NO_START | {"head_dim": 32}),
}
"""Class and settings of each architecture's configuration."""


def byte_level_tokenizer():
    """Learn a byte-level BPE tokenizer, as GPT-2 and Qwen have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def piece_tokenizer():
    """Learn a tokenizer with space marks and byte fallback, as Llama and Mistral have."""
    learnt = Tokenizer(models.BPE(unk_token="<unk>"))  # noqa: S106 - no password
    learnt.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    control = ["<unk>", "<s>", "</s>"]
    learnt.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=80, special_tokens=control, show_progress=False, max_token_length=8),
    )
    content = json.loads(learnt.to_str())
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *list(content["model"]["vocab"])[3:]]
    content["model"] |= {
        "byte_fallback": True,
        "vocab": {token: number for number, token in enumerate(tokens)},
    }
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def write_folder(kind, folder, **changes):
    """Write a random model of an architecture; return transformers' model."""
    tokenizer = piece_tokenizer() if kind in {"llama", "mistral"} else byte_level_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    cls, settings = CONFIGS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        # more outputs than tokens, as in padded vocabularies
        config = cls(**{"vocab_size": tokenizer.get_vocab_size() + 6, **settings, **changes})
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weights in model.parameters():
                if weights.ndim == 2:
                    weights.mul_(4)  # distributions far from uniform
    model.eval().save_pretrained(folder)
    return model


@functools.cache
def pretrained(kind):
    """Return transformers' model, the same as a language model, and its tokenizer."""
    folder = Path(tempfile.mkdtemp()) / kind
    original = write_folder(kind, folder)
    tokenizer = PretrainedTokenizer(folder)
    return original, PretrainedModel(folder, tokenizer.vocabulary), tokenizer
