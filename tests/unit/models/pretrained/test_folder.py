"""Folders that are not, or not completely, pretrained models: refused with the name of what is wrong."""

import copy
import itertools
import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import open_registry
from models.errors import InputError
from models.language_model import pad_sequences, score_sequences
from models.pretrained.folder import quantise_layers
from models.pretrained.model import PretrainedModel
from models.pretrained.tokenizer import PretrainedTokenizer, check_tokenizer
from models.tensor_files import PackedWeightCache
from tests.support.pretrained import TEXTS, pretrained, write_folder
from training.commands import run_train
from training.publish import run_import_hf

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module", autouse=True)
def equal_tokenizers_are_read_once():
    """Skip the reading of a tokenizer that passed it in an earlier test: it takes a second."""
    passed = set()

    def check_once(folder):
        config = json.loads((folder / "config.json").read_text())
        ends = [config.get(f"{name}_token_id") for name in ("unk", "bos", "eos")]
        content = ((folder / "tokenizer.json").read_bytes(), *ends)
        if content not in passed:
            check_tokenizer(folder)
            passed.add(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.pretrained.tokenizer.check_tokenizer", check_once)
        yield


@pytest.fixture
def folder(tmp_path):
    write_folder("gpt2", tmp_path / "model")
    return tmp_path / "model"


def without(name):
    def damage(folder):
        (folder / name).unlink()

    return damage


def config_with(**values):
    def damage(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def lost_weight(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, path, {"format": "pt"})


def listed_shard(*names):
    def damage(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": dict(zip("ab", names, strict=False))})
        )

    return damage


def nested(value, depth=700):
    for _ in range(depth):
        value = [value]
    return value


def replaced(name, make):
    def damage(folder):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return damage


def endless(path):
    path.symlink_to("/dev/zero")


def enormous(path):
    with path.open("wb") as file:
        file.truncate(300_000_000)


def another_tokenizer(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {f"x{number}": 4_000_000_000 + number for number in range(3)}
    (folder / "tokenizer.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without("config.json"), r"config\.json is missing: not a folder of a pretrained model"),
        (without("model.safetensors"), r"has no weights: neither model\.safetensors nor"),
        (without("tokenizer.json"), r"tokenizer\.json is missing"),
        (
            lambda folder: (folder / "tokenizer.json").rename(folder / "vocab.json"),
            r"tokenizer\.json is missing; transformers makes it from vocab\.json and merges\.txt: AutoTokenizer",
        ),
        (config_with(model_type="t5"), r"model_type is 't5'; supported are gpt2, gpt_neox, llama"),
        (config_with(model_type="mistral", sliding_window=8), "sliding window, which is not supported"),
        (cut_short, r"model\.safetensors is damaged or cut short"),
        (lost_weight, r"1 weights are missing, such as transformer\.h\.1\.mlp\.c_fc\.weight"),
        (config_with(n_embd=32, n_head=4), "not a model of the type gpt2"),
        (config_with(layer_types=5), "not a model of the type gpt2"),
        (config_with(n_head=0), "not a model of the type gpt2: .*zero"),
        (config_with(n_head=-4), "negative dimension -4"),
        (config_with(layer_norm_epsilon="a"), "not a model of the type gpt2: Validation error"),
        (config_with(layer_norm_epsilon=-1e9), "numbers that are not finite"),
        (
            config_with(layer_norm_epsilon=float("nan")),
            r"config\.json: layer_norm_epsilon is nan; it must be from",
        ),
        (
            config_with(n_layer=10**18),
            r"config\.json: n_layer is 1000000000000000000; .* from -1,000 to 1,000",
        ),
        (config_with(n_head=10**18), "n_head is 1000000000000000000; .* to 4,096"),
        (config_with(n_embd=10**18), "n_embd is 1000000000000000000; .* to 1,048,576"),
        (config_with(n_inner=10**18), "n_inner is 1000000000000000000; .* to 1,048,576"),
        (config_with(n_positions=10**18), "n_positions is 1000000000000000000; .* to 67,108,864"),
        (config_with(vocab_size=10**18), "vocab_size is 1000000000000000000; .* to 67,108,864"),
        (config_with(num_labels=10**9), "num_labels is 1000000000; .* to 1,000"),
        (
            config_with(rope_scaling={"factors": [1, -1e300]}),
            "factors is -1e\\+300; it must be from -1,000,000",
        ),
        (config_with(n_layer=900), "weights are described, but the files have [0-9,]+ bytes"),
        (config_with(n_inner=1 << 20), "weights are described, but the files have [0-9,]+ bytes"),
        (config_with(eos_token_id=-1), "names a token for the end of a text"),
        (config_with(quantization_config={"quant_method": "gptq"}), "weights are quantized, which is not"),
        (config_with(rope_scaling={"rope_type": "longrope"}), "positions depend on the length of the text"),
        (listed_shard("a.safetensors"), r"a\.safetensors is missing"),
        (listed_shard("../a"), r"index\.json does not list files of weights"),
        (listed_shard([]), r"index\.json does not list files of weights"),
        (replaced("tokenizer_config.json", os.mkfifo), r"tokenizer_config\.json is not a regular file"),
        (replaced("tokenizer_config.json", endless), r"tokenizer_config\.json is not a regular file"),
        (replaced("generation_config.json", os.mkfifo), r"generation_config\.json is not a regular file"),
        (replaced("config.json", os.mkfifo), r"config\.json is not a regular file"),
        (replaced("config.json", endless), r"config\.json is not a regular file"),
        (replaced("tokenizer.json", os.mkfifo), r"tokenizer\.json is not a regular file"),
        (replaced("model.safetensors", os.mkfifo), r"model\.safetensors is not a regular file"),
        (replaced("tokenizer.json", enormous), r"tokenizer\.json has 300,000,000 bytes, over 268,435"),
        (config_with(nested=nested(10**18)), "nested is 1000000000000000000; it must be from"),
        (
            replaced("tokenizer_config.json", enormous),
            r"tokenizer_config\.json has 300,000,000 bytes, over 16,777",
        ),
        (another_tokenizer, r"it has the token 4000000002, but the model predicts \d+ tokens"),
    ],
)
def test_an_incomplete_folder_is_refused_and_nothing_is_published(folder, tmp_path, damage, said):
    damage(folder)
    with pytest.raises(InputError, match=said):
        run_import_hf(folder, name="m", registry=tmp_path / "registry")
    assert open_registry(tmp_path / "registry").models() == []


def test_a_published_model_is_the_folders_and_keeps_what_it_needs_only(folder, tmp_path):
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXTS[:9]) + "\n")
    result = run_import_hf(folder, name="m", registry=tmp_path / "registry", corpus=[text])
    assert result["test"]["tokens"] > 9
    registry = open_registry(tmp_path / "registry")
    loaded = load_checkpoint(registry.fetch(registry.resolve("m")))
    assert sorted(path.name for path in (loaded.path / "pretrained").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    _, model, tokenizer = pretrained("gpt2")
    assert loaded.manifest.family == "pretrained"
    assert loaded.tokenizer.fingerprint == tokenizer.fingerprint
    assert loaded.model.num_parameters == model.num_parameters
    card = (loaded.path / "MODEL_CARD.md").read_text()
    assert "type gpt2, window 48, bos_token <|endoftext|>, eos_token <|endoftext|>" in card


def split_by(expression):
    """Split texts by an expression before the tokenizer's own step."""
    return lambda content: {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": expression},
                    "behavior": "Isolated",
                    "invert": False,
                },
                content["pre_tokenizer"],
            ],
        }
    }


def replacing(*pairs):
    steps = [
        {"type": "Replace", "pattern": {"String": old}, "content": new}
        for old, new in itertools.pairwise(pairs)
    ]
    return lambda _: {"normalizer": {"type": "Sequence", "normalizers": steps}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (split_by("(a+)+b"), "characters, .* fails: "),
        (split_by("X(q+)+b"), "characters, .* fails: "),
        (split_by(r"(\w|\d)+!"), "characters, .* fails: "),
        (split_by("(日|日)+x"), "characters, .* fails: "),
        (split_by("a+b"), "'aaaaaaaa' … fails: it takes over 0.5 s of processor time"),
        (split_by("(?:xy)+z"), "'xyxyxyxy' … fails: it takes over 0.5 s of processor time"),
        (
            replacing("a", "b" * 1000, "c" * 1000, "d" * 1000, "e" * 1000),
            "1,000 tokens, over 32 for each char",
        ),
        (replacing("a", "a" * 1000), "1,000 tokens, over 32 for each character"),
        (
            replacing("secret", "t" * 10_000),
            "'secretse' … fails: it takes over 0.5 s of processor time, or 4 GiB",
        ),
        (lambda _: {"normalizer": {"type": "Prepend", "prepend": "x" * 10**5}}, "100,001 tokens, over 32"),
    ],
)
def test_a_tokenizer_that_could_stop_a_service_is_not_published(folder, tmp_path, change, said):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | change(content)))
    with pytest.raises(InputError, match=rf"tokenizer\.json: reading .*{said}"):
        run_import_hf(folder, name="m", registry=tmp_path / "registry")
    assert open_registry(tmp_path / "registry").models() == []


QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize("change", [split_by(QWEN), lambda _: {"normalizer": {"type": "NFKC"}}])
def test_tokenizers_in_use_are_published(folder, change):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | change(content)))
    check_tokenizer(folder)


@pytest.mark.parametrize("positions", [-3, 0, 1])
def test_a_text_has_at_least_two_positions(tmp_path, positions):
    write_folder("llama", tmp_path / "model", max_position_embeddings=positions)
    with pytest.raises(InputError, match=f"has {positions} positions, less than 2"):
        run_import_hf(tmp_path / "model", name="m", registry=tmp_path / "registry")


def test_a_configuration_may_ask_for_other_outputs(folder, tmp_path):
    config_with(return_dict=False, output_hidden_states=True, use_cache=True)(folder)
    run_import_hf(folder, name="m", registry=tmp_path / "registry")


def test_an_index_beside_all_weights_in_one_file_is_left_out(folder, tmp_path):
    weights = (folder / "model.safetensors").read_bytes()
    listed_shard("old.safetensors")(folder)
    (folder / "model.safetensors").write_bytes(weights)
    run_import_hf(folder, name="m", registry=tmp_path / "registry")
    published = tmp_path / "registry" / "m" / "versions" / "1" / "pretrained"
    assert sorted(path.name for path in published.glob("model*")) == ["model.safetensors"]


def test_shards_are_read(folder, tmp_path):
    original, _, _ = pretrained("gpt2")
    (folder / "model.safetensors").unlink()
    original.save_pretrained(folder, max_shard_size="100KB")
    run_import_hf(folder, name="m", registry=tmp_path / "registry")
    registry = open_registry(tmp_path / "registry")
    loaded = load_checkpoint(registry.fetch(registry.resolve("m")))
    assert len(list((loaded.path / "pretrained").glob("*.safetensors"))) > 1


def test_small_models_learn_from_a_pretrained_one_and_mix_with_it(folder, tmp_path):
    registry = tmp_path / "registry"
    run_import_hf(folder, name="large", registry=registry)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXTS * 3) + "\n")
    small = [
        "neural.hidden_size=8",
        "neural.embedding_size=8",
        "train.max_steps=4",
        'train.teacher=["large"]',
    ]
    taught = run_train("lstm", name="taught", registry=registry, corpus=[text], assignments=small)
    assert taught["teachers"] == ["large@1"]
    mixed = run_train(
        "mixture",
        name="mixed",
        registry=registry,
        corpus=[text],
        assignments=['mixture.recipes=["ngram"]', 'mixture.models=["large"]', "mixture.drop_unused=false"],
    )
    store = open_registry(registry)
    loaded = load_checkpoint(store.fetch(store.resolve(mixed["model"])))
    assert [part.family for part in loaded.model.parts] == ["ngram", "pretrained"]


def test_bfloat16_is_close_and_half_the_size(folder, tmp_path):
    run_import_hf(folder, name="m", registry=tmp_path / "registry")
    registry = open_registry(tmp_path / "registry")
    path = registry.fetch(registry.resolve("m"))
    full, half, recommended = (load_checkpoint(path, precision=p) for p in ("float32", "bfloat16", "auto"))
    assert [one.precision for one in (full, half, recommended)] == ["float32", "bfloat16", "float32"]
    assert half.model.memory().own < 0.6 * full.model.memory().own
    tokens, lengths = pad_sequences(full.tokenizer.encode_all(TEXTS[:8]))
    one, other = (score_sequences(m.model, m.model.initial_state(8), tokens, lengths) for m in (full, half))
    assert 1e-4 < np.abs(one - other).max() < 0.5
    state = half.model.initial_state(1)
    assert np.exp(half.model.next_log_probs(state), dtype=np.float64).sum() == pytest.approx(1, abs=1e-5)


def test_int8_is_close_small_and_the_default_only_where_its_cost_was_measured(folder, tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXTS) + "\n")
    run_import_hf(folder, name="m", registry=tmp_path / "registry")
    run_import_hf(folder, name="measured", registry=tmp_path / "registry", corpus=[text])
    registry = open_registry(tmp_path / "registry")
    path, measured = (registry.fetch(registry.resolve(name)) for name in ("m", "measured"))
    full, rounded, default = (load_checkpoint(path, precision=p) for p in ("float32", "int8", "auto"))
    assert [one.precision for one in (full, rounded, default)] == ["float32", "int8", "float32"]
    facts = load_checkpoint(measured).metrics["int8"]
    assert facts["cost"] == facts["perplexity"] / facts["perplexity_float32"] - 1
    assert load_checkpoint(measured).precision == ("int8" if facts["default"] else "float32")
    tokens, lengths = pad_sequences(full.tokenizer.encode_all(TEXTS[:8]))
    one, other = (
        score_sequences(m.model, m.model.initial_state(8), tokens, lengths) for m in (full, rounded)
    )
    assert 1e-5 < np.abs(one - other).max() < 0.05
    state = rounded.model.initial_state(1)
    assert np.exp(rounded.model.next_log_probs(state), dtype=np.float64).sum() == pytest.approx(1, abs=1e-5)
    assert rounded.model.num_parameters == full.model.num_parameters
    monkeypatch.setattr("models.checkpoint.load._resolve_device_name", lambda *_: "cuda")
    with pytest.raises(InputError, match="int8, which requires the CPU"):
        load_checkpoint(path, precision="int8", device="cuda")


@pytest.mark.parametrize("options", [{"bfloat16": True}, {"int8_weights": PackedWeightCache()}])
def test_an_amount_that_all_logits_share_costs_no_digits(tmp_path, options):
    original = write_folder("gpt2", tmp_path)
    with torch.no_grad():
        shared = torch.ones(64) / 8
        original.transformer.wte.weight.add_(2 * shared)
        original.transformer.ln_f.bias.sub_(50 * shared)  # logits of about -100, as GPT-2 has
    original.save_pretrained(tmp_path)
    tokenizer = PretrainedTokenizer(tmp_path)
    tokens, lengths = pad_sequences(tokenizer.encode_all(TEXTS[:8]))
    full, rounded = (
        score_sequences(model, model.initial_state(8), tokens, lengths)
        for model in (PretrainedModel(tmp_path, tokenizer.vocabulary, **given) for given in ({}, options))
    )
    assert np.abs(full - rounded).sum() / lengths.sum() < 0.04  # 0.12 and 0.06 with these logits


def test_linear_layers_in_int8_are_near_those_in_float32():
    torch.manual_seed(1)
    wide = torch.randn(80, 96)
    for module in (nn.Linear(96, 70), nn.Linear(96, 70, bias=False), Conv1D(70, 96)):
        exact = module(wide).detach()
        network = nn.Sequential(copy.deepcopy(module).requires_grad_(requires_grad=False))
        [layer] = quantise_layers(network, PackedWeightCache())
        assert network[0] is layer
        with torch.inference_mode():
            whole, shaped, none = network(wide), network(wide.view(2, 40, 96)), network(wide[:0])
        assert torch.equal(shaped.view(80, 70), whole)
        assert all(
            torch.equal(network(row[None])[0], expected) for row, expected in zip(wide, whole, strict=True)
        )
        assert none.shape == (0, 70)
        assert 0 < (whole - exact).abs().max() < 0.02 * exact.abs().max()
