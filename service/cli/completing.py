"""`gramophone complete`: asking a published model what a text goes on as, without a server."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from service.cli.options import (
    DEFAULT_REGISTRY,
    DeviceOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    RegistryOption,
    print_json,
)
from service.cli.words import read_dictionary, read_words

complete_app = typer.Typer()


@complete_app.command()
def complete(
    model: ModelArgument,
    texts: Annotated[list[str], typer.Argument(help="Texts to complete, as typed up to the caret.")],
    limit: Annotated[int, typer.Option(help="How many completions of each.")] = 10,
    max_words: Annotated[int, typer.Option(help="Tell phrases of up to so many words too.")] = 1,
    min_probability: Annotated[float, typer.Option(help="Tell none that is less probable.")] = 0.0,
    rank: Annotated[
        Literal["probability", "savings"],
        typer.Option(help="Order by probability, or by that times the characters that are spared."),
    ] = "probability",
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", help="Complete the word whatever the case that was typed.")
    ] = False,
    fuzzy: Annotated[int, typer.Option(help="Look past so many typing mistakes: 0, 1 or 2.")] = 0,
    dictionary: Annotated[
        Path | None,
        typer.Option(help="File of words to offer too, a line each; after a tab, how much each counts."),
    ] = None,
    blocklist: Annotated[Path | None, typer.Option(help="File of words not to tell, a line each.")] = None,
    user_weight: Annotated[
        float, typer.Option(help="The share of the dictionary in the probabilities.")
    ] = 0.2,
    max_steps: Annotated[int, typer.Option(help="Rows that the model may be asked for.")] = 128,
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Complete the word that a text ends in, or tell the next one; exact over all ways to cut it into tokens."""
    from service.console.completing import show_completions
    from service.local import asking

    request: dict[str, Any] = {
        "limit": limit,
        "max_words": max_words,
        "min_probability": min_probability,
        "rank": rank,
        "casing": "ignore" if ignore_case else "exact",
        "fuzzy": fuzzy,
        "dictionary": [] if dictionary is None else [one._asdict() for one in read_dictionary(dictionary)],
        "blocklist": [] if blocklist is None else read_words(blocklist),
        "user_weight": user_weight,
        "max_steps": max_steps,
    }
    loaded = asking.load_published(registry, model, device, precision)
    for text in texts:
        reply = asking.autocomplete(loaded, {"text": text, **request})
        print_json(reply) if as_json else show_completions(text, reply)
