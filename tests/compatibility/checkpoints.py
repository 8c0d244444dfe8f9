"""Stored checkpoints: their training text, and the command that trained each."""

import random
from typing import NamedTuple

TOKENIZERS = {
    "word": {"kind": "word", "min_count": 2},
    "pattern": {
        "kind": "word",
        "min_count": 2,
        "pattern": r"\w+|[^\w\s]",
        "lowercase": True,
        "marked_unknown": "unknown",
    },
    "char": {"kind": "char"},
    "bpe": {"kind": "bpe", "vocab_size": 310},
    "unigram": {"kind": "unigram", "vocab_size": 80, "byte_fallback": False},
    "folded": {"kind": "bpe", "vocab_size": 90, "normalization": "nmt_nfkc_cf", "byte_fallback": False},
}
"""Recipe settings of each tokenizer, by the last part of a checkpoint's name."""

CELLS = ("feed-forward", "elman", "gru", "lstm", "mingru")

_TRAIN = {
    "learning_rate": 0.02,
    "batch_size": 8,
    "bptt_length": 16,
    "max_steps": 120,
    "epochs": 100,
    "validations": 2,
}
_SMALL = {"embedding_size": 8, "hidden_size": 17}
_SMALLER = {"embedding_size": 5, "hidden_size": 10}
"""For vocabularies of a few hundred pieces."""


class Checkpoint(NamedTuple):
    """A stored checkpoint.

    Attributes:
        name: model name in the registry: family and tokenizer.
        recipe: name of a recipe of the package.
        settings: recipe keys set in addition to the tokenizer's, as for `--set`.
        networks: True if it contains a network, so its scores are computed in float32 or int8.
        int8: True if all its networks can compute in int8.
        backward: True if it reads from right to left and predicts no next token.
        keeps: suffixes of the stored pictures and reports of its model card; others are omitted.
    """

    name: str
    recipe: str
    settings: dict[str, object]
    networks: bool = False
    int8: bool = False
    backward: bool = False
    keeps: tuple[str, ...] = ()

    @property
    def tokenizer(self) -> str:
        """Name of its tokenizer."""
        return self.name.rpartition("-")[2]


def _ngram(
    name: str, *, backward: bool = False, keeps: tuple[str, ...] = (), **settings: object
) -> Checkpoint:
    table = {"order": 3, **settings}
    return Checkpoint(name, "ngram", _keys("ngram", table), backward=backward, keeps=keeps)


def _network(
    name: str,
    cell: str,
    *,
    train: dict[str, object] | None = None,
    direction: str | None = None,
    int8: bool = True,
    keeps: tuple[str, ...] = (),
    **settings: object,
) -> Checkpoint:
    size = _SMALLER if name.endswith(("bpe", "unigram")) else _SMALL
    keys = _keys("neural", {**size, **settings}) | _keys("train", {**_TRAIN, **(train or {})})
    if direction is not None:
        keys["direction"] = direction
    backward = direction == "backward"
    return Checkpoint(name, cell, keys, networks=True, int8=int8, backward=backward, keeps=keeps)


def _mixture(
    name: str, *models: str, int8: bool = True, around: str | None = None, **settings: object
) -> Checkpoint:
    keys = _keys("mixture", {"models": list(models), **settings})
    if around is not None:
        keys["cache.around"] = around
    networks = any(not model.startswith("ngram") for model in models)
    return Checkpoint(name, "mixture", keys, networks=networks, int8=networks and int8)


def _keys(table: str, settings: dict[str, object]) -> dict[str, object]:
    return {f"{table}.{key}": value for key, value in settings.items()}


def _of_each_tokenizer() -> list[Checkpoint]:
    """Return every family with each kind of tokenizer; mixtures and caches contain earlier models."""
    found = []
    for tokens in ("word", "char", "bpe", "unigram"):
        found += [
            _ngram(
                f"ngram-{tokens}",
                order=6 if tokens == "char" else 3,
                discounts="held-out",
                keeps=(".png",) if tokens == "word" else (),
            ),
            *(
                _network(
                    f"{cell}-{tokens}", cell, keeps=(".html",) if f"{cell}-{tokens}" == "lstm-word" else ()
                )
                for cell in CELLS
            ),
            _mixture(f"mixture-{tokens}", f"ngram-{tokens}", f"lstm-{tokens}", weights="by-order"),
            _mixture(f"cache-{tokens}", f"gru-{tokens}", cache=True),
        ]
    return found


CALIBRATED = ("ngram-word", "ngram-bpe")
"""Checkpoints with a calibration for checking, so that requests may set `precision`."""

PROMOTED, ALIAS = "ngram-word", "champion"
"""A checkpoint and the alias that points to it."""

PROFILE, TUNED = "tuned", "ngram-word"
"""A profile of weights, and the checkpoint it was tuned with."""

CHECKPOINTS = (
    *_of_each_tokenizer(),
    # every smoothing, kind of storage, pruning and order
    _ngram("ngram-mle-word", smoothing="mle"),
    _ngram("ngram-laplace-word", smoothing="laplace"),
    _ngram("ngram-add-k-word", smoothing="add-k", k=0.05),
    _ngram("ngram-good-turing-word", smoothing="good-turing"),
    _ngram("ngram-jelinek-mercer-word", smoothing="jelinek-mercer", buckets=2, order=2),
    _ngram("ngram-witten-bell-word", smoothing="witten-bell"),
    _ngram("ngram-absolute-word", smoothing="absolute"),
    _ngram("ngram-kneser-ney-word", smoothing="kneser-ney"),
    _ngram("ngram-unigram-order-word", order=1),
    _ngram("ngram-pruned-word", prune=[0, 0, 1], prune_entropy=1e-4, order=4),
    _ngram("ngram-quantised-word", quantize_bits=8),
    _ngram("ngram-quantised-bpe", quantize_bits=8, order=4),
    _ngram("ngram-backward-word", backward=True, direction="backward"),
    _ngram("ngram-pattern"),
    _ngram("ngram-folded"),
    # every output layer, attention and option of a network
    _network("adaptive-word", "lstm", output="adaptive", cutoffs=[10, 25], int8=False),
    _network("adaptive-untied-bpe", "gru", output="adaptive", cutoffs=[40, 120], tied=False, int8=False),
    _network(
        "additive-attention-word",
        "lstm",
        attention="additive",
        attention_window=6,
        attention_size=7,
        int8=False,
    ),
    _network(
        "multiplicative-attention-char", "gru", attention="multiplicative", attention_window=6, int8=False
    ),
    _network(
        "scaled-attention-word", "elman", attention="scaled", attention_window=4, attention_size=5, int8=False
    ),
    _network("untied-word", "lstm", tied=False),
    _network(
        "deep-word",
        "lstm",
        layers=3,
        embedding_size=12,
        hidden_size=12,
        residual=True,
        layer_norm=True,
        learned_state=True,
        orthogonal=True,
    ),
    _network(
        "relu-word", "feed-forward", layers=2, window=3, activation="relu", residual=True, layer_norm=True
    ),
    _network("relu-pattern", "elman", activation="relu"),
    _network("deep-mingru-word", "mingru", layers=2, embedding_size=17, residual=True, layer_norm=True),
    _network("self-normalised-word", "lstm", train={"self_normalise": 0.1}),
    _network("backward-word", "lstm", direction="backward"),
    # every kind of mixture, and caches around each kind of model
    _mixture("ngram-static-word", "ngram-absolute-word", "ngram-witten-bell-word", kind="static"),
    _mixture("global-mixture-word", "gru-word", "ngram-word", "elman-word"),
    _mixture("nested-mixture-bpe", "mixture-bpe", "elman-bpe"),
    _mixture("adaptive-mixture-word", "adaptive-word", "ngram-word", int8=False),
    _mixture("ngram-cache-word", "ngram-word", cache=True),
    _mixture("cached-mixture-word", "mixture-word", cache=True),
    _mixture("cache-within-word", "ngram-word", "lstm-word", cache=True, around="neural"),
)
"""All checkpoints, each after its parts."""


def training_text(lines: int, seed: int) -> str:
    """Return lines of a small language with recurring words, names, numbers and punctuation."""
    draw = random.Random(seed)
    nouns = ("cat", "dog", "owl", "hen", "naïve painter", "old café")
    places = ("mat", "bed", "house", "roof", "river", "station")
    verbs = ("sat on", "ran to", "slept near", "saw", "painted")
    found = []
    for number in range(lines):
        line = (
            f"{draw.choice(('The', 'A'))} {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(places)}"
        )
        if number % 3 == 0:
            line += f", and a {draw.choice(nouns)} slept"
        if number % 5 == 0:
            line += f" at {draw.randint(1, 12)}:{draw.choice(('00', '15', '30'))}"
        if number % 16 == 0:
            line += f" with Guest{number}"
        found.append(line + draw.choice((".", ".", "!")))
    return "\n".join(found) + "\n"
