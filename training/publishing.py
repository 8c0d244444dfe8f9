"""A trained model to a version in a registry: figures, provenance, model card, checkpoint."""

import datetime as dt
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.load import Checkpoint
from models.checkpoint.registry import Registry, Version, check_name
from models.checkpoint.write import Description, write_checkpoint
from models.mixture import MixtureModel
from models.tokenizers import Tokenizer
from training.card import CardData, model_card
from training.data import EncodedTexts, Texts
from training.mixing import address_of
from training.pipeline import Trained
from training.recipe import Recipe

_LIBRARIES = ("gramophone-lm", "torch", "numpy", "numba", "sentencepiece")
_GOLDEN_SENTENCES = 4


class Run(NamedTuple):
    """What all models of one run have in common.

    Attributes:
        argv: the command line.
        tokenizer: the one that all share.
        texts: the sentences.
        encoded: the same in ids.
    """

    argv: Sequence[str]
    tokenizer: Tokenizer
    texts: Texts
    encoded: EncodedTexts


def publish(registry: Registry, name: str, trained: Trained, run: Run) -> Version:
    """Describe a trained model and publish it.

    A mixture's parts are embedded, unless it is static and has become one model of its own; they
    are published too if its recipe says so.

    Raises:
        InvalidInputError: a name cannot be a model's.
        CheckpointError: what was written does not verify; nothing is published.
        RegistryError: the file system refused; nothing is published.
    """
    check_name(name)
    embeds = trained.model.family == MixtureModel.family
    wanted = trained.parts if embeds or trained.recipe.mixture.publish_parts else ()
    with tempfile.TemporaryDirectory() as folder:
        parts = [
            _part_directory(registry, part, run, Path(folder) / str(number), trained)
            for number, part in enumerate(wanted)
        ]
        published = [address_of(path) for path in parts] if trained.recipe.mixture.publish_parts else ()
        description = describe(name, trained, run, part_names=published)
        return registry.publish(
            name,
            lambda directory: write_checkpoint(
                directory, trained.model, run.tokenizer, description, parts=parts if embeds else ()
            ),
        )


def describe(name: str, trained: Trained, run: Run, *, part_names: Sequence[str] = ()) -> Description:
    """Figures, provenance and model card of a trained model.

    Args:
        name: under which it is published.
        trained: the model.
        run: it came from.
        part_names: addresses of its parts, where all are published; else each has its title or address.
    """
    names = part_names or [
        part.title if isinstance(part, Trained) else address_of(part.path) for part in trained.parts
    ]
    parts = [
        {
            "name": part_name,
            "family": part.model.family,
            "weight": weight,
            **figures,
        }
        for part, part_name, figures, weight in zip(
            trained.parts, names, trained.part_figures, trained.facts.get("weights", ()), strict=True
        )
    ]
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    metrics = {
        **trained.figures,
        **trained.facts,
        "context": "sentence",
        "data": {
            split: {"sha256": corpus.sha256, "sources": corpus.sources, "sentences": len(corpus.sentences)}
            for split, corpus in run.texts._asdict().items()
            if corpus is not None and corpus.sentences
        },
        **_fitted_on(trained.recipe, run.texts.valid.sources),
        **({"parts": parts} if parts else {}),
        **({"history": [record._asdict() for record in trained.history]} if trained.history else {}),
    }
    provenance = {
        "recipe": trained.recipe.model_dump(mode="json"),
        "argv": list(run.argv),
        "seed": trained.recipe.seed,
        "seconds": round(trained.seconds, 3),
        **surroundings(),
    }
    valid = run.encoded.valid
    golden = [valid.sentence(i).tolist() for i in range(min(_GOLDEN_SENTENCES, valid.num_sentences))]
    card = model_card(
        CardData(
            name=name,
            family=trained.model.family,
            created=created,
            parameters=trained.model.num_parameters,
            vocab_size=len(trained.model.vocabulary),
            tokenizer=run.tokenizer.kind,
            metrics=metrics,
            provenance=provenance,
            histories={p.title: p.history for p in _family(trained) if p.history},
            direction=trained.direction,
        )
    )
    return Description(created, metrics, provenance, golden, card, trained.direction)


def _fitted_on(recipe: Recipe, sources: Sequence[str]) -> dict[str, list[str]]:
    """What was fitted on the validation text, so that figures on it are not held out, with that text's files."""
    ngram = recipe.ngram
    fitted = {
        "weights_fitted_on": recipe.family == "mixture",
        "discounts_fitted_on": recipe.family == "ngram" and ngram.discounts == "held-out",
        "lambdas_fitted_on": recipe.family == "ngram" and ngram.smoothing == "jelinek-mercer",
    }
    return {key: list(sources) for key, is_so in fitted.items() if is_so}


def _part_directory(
    registry: Registry,
    part: Trained | Checkpoint,
    run: Run,
    scratch: Path,
    whole: Trained,
) -> Path:
    """Where a whole checkpoint of the part lies."""
    if isinstance(part, Checkpoint):
        return part.path
    if whole.recipe.mixture.publish_parts:
        return publish(registry, part.title, part, run).path
    scratch.mkdir()
    write_checkpoint(scratch, part.model, run.tokenizer, describe(part.title, part, run))
    return scratch


def _family(trained: Trained) -> list[Trained]:
    return [trained, *(part for part in trained.parts if isinstance(part, Trained))]


def surroundings() -> dict[str, Any]:
    """The code and the machine that run now, for provenance."""
    return {
        "libraries": {library: _version_of(library) for library in _LIBRARIES},
        "python": platform.python_version(),
        "git_commit": _git_commit(),
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "system": platform.system()},
    }


def _version_of(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of this code, if it runs from a checkout; `-dirty` if it was changed since."""
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    # an installed copy may lie in somebody else's repository
    tracked = [*git, "ls-files", "--error-unmatch", here.name]
    describe = [*git, "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        for command in (tracked, describe):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603 - fixed words
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def command_line() -> list[str]:
    """The command that runs now, for provenance."""
    return ["gramophone", *sys.argv[1:]]
