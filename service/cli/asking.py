"""`gramophone next | score | generate | rerank`: asking a published model, without a server."""

import sys
from typing import Annotated, Literal

import typer

from models.errors import InvalidInputError
from service.cli.list_options import ListSource, with_list_options
from service.cli.options import (
    DEFAULT_REGISTRY,
    DeviceOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    RegistryOption,
    print_json,
)

ask_app = typer.Typer()


@ask_app.command("next")
def next_token(
    model: ModelArgument,
    context: Annotated[str, typer.Argument(help="Text to continue; empty for the start of a sentence.")] = "",
    top_k: Annotated[int, typer.Option(help="How many candidates.")] = 10,
    unit: Annotated[
        Literal["token", "word"],
        typer.Option(help="What to rank; words are put together from tokens, exactly."),
    ] = "token",
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """The most probable next tokens, or words, after a context."""
    from service.console.asking import show_next
    from service.local import asking

    loaded = asking.load_published(registry, model, device, precision)
    reply = asking.next_token(loaded, {"context": context, "top_k": top_k, "unit": unit})
    print_json(reply) if as_json else show_next(reply)


@ask_app.command()
def score(
    model: ModelArgument,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts. Default: lines of standard input.")
    ] = None,
    context: Annotated[str, typer.Option(help="What stands before each text; not scored.")] = "",
    bos: Annotated[bool, typer.Option(help="Begin with `<s>`.")] = True,
    eos: Annotated[bool, typer.Option(help="Score `</s>` at the end.")] = True,
    detail: Annotated[Literal["none", "token", "word"], typer.Option(help="How finely to report.")] = "none",
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Log-probability and perplexity of texts."""
    from service.console.asking import show_scores
    from service.local import asking

    # no stream at all where standard input is closed
    lines = texts or [line.rstrip("\n") for line in sys.stdin or () if line.strip()]
    if not lines:
        raise InvalidInputError(
            "there is no text: give texts as arguments, or as lines of standard input", parameter="texts"
        )
    request = {"texts": lines, "context": context, "bos": bos, "eos": eos, "detail": detail}
    reply = asking.score(asking.load_published(registry, model, device, precision), request)
    print_json(reply) if as_json else show_scores(lines, reply)


@ask_app.command()
def generate(
    model: ModelArgument,
    prompt: Annotated[str, typer.Argument(help="Text to continue.")] = "",
    strategy: Annotated[
        Literal["greedy", "sample", "beam"], typer.Option(help="How to choose tokens.")
    ] = "sample",
    max_tokens: Annotated[int, typer.Option(help="At most so many tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="Flatter above 1, sharper below, greedy at 0.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k most probable. Default: all.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw among the fewest with this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Draw among those with this share of the greatest.")] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1, words that came before come less.")
    ] = 1.0,
    n: Annotated[int, typer.Option("-n", help="How many continuations, one after the other.")] = 1,
    num_beams: Annotated[int | None, typer.Option(help="Continuations kept by strategy beam.")] = None,
    length_penalty: Annotated[
        float, typer.Option(help="With beam: above 0 favours longer ones, below shorter ones.")
    ] = 1.0,
    bad_word: Annotated[list[str] | None, typer.Option(help="Never generate this; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; may be repeated.")] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Continue a text, token by token."""
    from service.local import asking

    request = {
        "prompt": prompt,
        "strategy": strategy,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "n": n,
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "bad_words": bad_word or [],
        "seed": seed,
        "stop": stop or [],
    }
    loaded = asking.load_published(registry, model, device, precision)
    if as_json:
        print_json(asking.generate(loaded, request))
        return
    if n > 1:  # they grow together, so they are printed when they are whole
        for choice in asking.generate(loaded, request)["choices"]:
            typer.echo(prompt + choice["text"])
        return
    pieces = asking.stream_text(loaded, request)  # refuses a bad request before anything is printed
    typer.echo(prompt, nl=False)
    for text in pieces:
        typer.echo(text, nl=False)
    typer.echo()


@ask_app.command()
@with_list_options
def rerank(
    model: Annotated[
        str,
        typer.Argument(
            help="Model: NAME, NAME@7 or NAME@champion; or several as a mixture: ngram=0.3,lstm=0.7."
        ),
    ],
    source: ListSource,
    weights: Annotated[
        str | None,
        typer.Option(help="Signed weights of the features, such as lm=0.7,am=1,words=0.2 [default: lm=1]."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Weights that were tuned and saved under this name.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Further models with features of their own: old=small@3 adds lm:old.")
    ] = None,
    length_exponent: Annotated[
        float | None, typer.Option(help="Divide lm by tokens to this power [default: 0].")
    ] = None,
    posterior_scale: Annotated[
        float | None, typer.Option(help="Multiply totals by this to make posteriors [default: 1].")
    ] = None,
    mbr: Annotated[
        Literal["wer", "chrf", "bleu"] | None,
        typer.Option(help="Order by this, expected under the posteriors."),
    ] = None,
    confidences: Annotated[
        bool, typer.Option(help="Tell how sure each word of the best candidate is.")
    ] = False,
    detail: Annotated[Literal["none", "token", "word"], typer.Option(help="How finely to report.")] = "none",
    bos: Annotated[bool, typer.Option(help="Begin with `<s>`.")] = True,
    eos: Annotated[bool, typer.Option(help="Score `</s>` at the end.")] = True,
    drop_duplicates: Annotated[bool, typer.Option(help="Leave out candidates of equal text.")] = False,
    top: Annotated[int | None, typer.Option(help="Print so many candidates of each list.")] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            help="Write the lists in any of these formats, best candidate first. Default: as /v1/rerank replies."
        ),
    ] = None,
    output: Annotated[str, typer.Option(help="File to write; a folder for SRILM's and Kaldi's.")] = "-",
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "auto",
) -> None:
    """Put candidates in a better order; prints one list a line, as JSON.

    A feature of a file with the name of one that is computed, such as Moses' lm, becomes old_lm. With references, the
    word error rates before and after are told on standard error.
    """
    from models.reranking.features import is_reserved
    from service.local import asking, reranking

    asked = asking.prepare_rerank(
        {
            "mixture" if "=" in model else "model": model,
            "weights": weights,
            "profile": profile,
            "models": models,
            "length_exponent": length_exponent,
            "posterior_scale": posterior_scale,
            "mbr": mbr,
            "confidences": confidences,
            "detail": detail,
            "bos": bos,
            "eos": eos,
            "drop_duplicates": drop_duplicates,
            "top": top,
        },
        registry,
        device,
        precision,
    )
    lists = source.lists(reserved=lambda name: is_reserved(name, asked.models.extra))
    reranking.rerank_file(asked, lists, file=source.file, target=output, output_format=output_format)
