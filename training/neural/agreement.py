"""Whether all processes of a run are about to train the same, which on several machines nobody else looks after."""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from models.errors import InvalidInputError
from models.tokenizers import Tokenizer
from training.data import EncodedTexts, Texts
from training.neural.distributed import Processes
from training.neural.resume import own_version, text_hash
from training.recipe import Recipe


def check_same_command(
    recipe: Recipe, parts: Mapping[str, Recipe], *, device: str, resume: bool
) -> list[str]:
    """Go on only if all processes were started alike; to be asked before any work is done.

    Args:
        recipe: of the whole.
        parts: the networks' recipes, by title.
        device: where to compute.
        resume: whether to go on with what is saved.

    Returns:
        What differs and may, in words.

    Raises:
        InvalidInputError: what was started differs; the message names the processes, the thing and both values.
        ProcessLostError: a process is gone.
    """
    facts = {
        "the program's version": own_version(),
        "--device": torch.device(device).type,
        "--resume": resume,
        **_recipe_keys("", recipe),
        **{
            name: value
            for title, part in parts.items()
            for name, value in _recipe_keys(f"{title}: ", part).items()
        },
    }
    told = _gather_facts(facts, torch=torch.__version__)
    check_agreement(told)
    versions = {str(other["torch"]) for other in told}
    return [f"the processes have different versions of torch: {', '.join(sorted(versions))}"][
        : len(versions) - 1
    ]


def check_same_text(texts: Texts, tokenizer: Tokenizer, encoded: EncodedTexts) -> None:
    """Go on only if all processes learn from the same text, in the same tokens.

    Raises:
        InvalidInputError: they do not; the message names the processes, the thing and both hashes.
        ProcessLostError: a process is gone.
    """
    if Processes.current().count == 1:
        return
    hashes = {
        "the training text": texts.train.sha256,
        "the validation text": texts.valid.sha256,
        "the tokenizer": tokenizer.fingerprint,
        "the training text in tokens": text_hash(encoded.train),
        "the validation text in tokens": text_hash(encoded.valid),
    }
    told = _gather_facts({name: f"sha256 {value[:12]}" for name, value in hashes.items()})
    check_agreement(told, shown=1)  # what differs first is why the rest does


def check_agreement(told: Sequence[Mapping[str, Any]], *, shown: int = 3) -> None:
    """Compare what each process told, by rank, with what the first one did; so many differences are listed.

    Raises:
        InvalidInputError: they differ.
    """
    first = told[0]
    for rank, other in enumerate(told):
        differences = list(_differences(first["facts"], other["facts"]))
        if differences:
            listed = "; ".join(differences[:shown])
            more = f"; and {len(differences) - shown} more" if len(differences) > shown else ""
            raise InvalidInputError(
                f"process {rank} on {other['machine']} would train something else than process 0 on "
                f"{first['machine']}: {listed}{more}; give all machines the same program, command and text"
            )


def _gather_facts(facts: Mapping[str, Any], **more: str) -> list[dict[str, Any]]:
    """What each process says of itself, by rank."""
    own = {"machine": socket.gethostname(), "facts": facts, **more}
    return [json.loads(text) for text in Processes.current().gather_texts(json.dumps(own))]


def _differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for name in {**first, **other}:
        expected, found = first.get(name), other.get(name)
        if expected != found:
            yield f"{name} is {found} there and {expected} in process 0"


def _recipe_keys(prefix: str, recipe: Recipe) -> dict[str, Any]:
    """A recipe's keys with their values, such as `train.batch_size`."""
    keys: dict[str, Any] = {}
    for name, value in recipe.model_dump(mode="json").items():
        inner = {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
        keys |= {f"{prefix}{key}": v for key, v in inner.items()}
    return keys
