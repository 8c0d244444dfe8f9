"""Commands that query a published model without a server, and readers of their input files.

The commands are `gramophone next | score | generate | rerank | check | complete`; the files hold
text, words or dictionaries.
"""

import json
import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from models.errors import FormatError, InputError
from models.files import DECOMPRESSION_ERRORS, check_text, decompressed
from service.cli.options import (
    MIXTURE_HELP,
    FormsOption,
    FurtherModelsOption,
    JsonOption,
    ListSource,
    ModelArgument,
    PhrasesOption,
    ProposeOption,
    PublishedModels,
    option_groups,
    print_json,
)

ask_app, check_app, complete_app = typer.Typer(), typer.Typer(), typer.Typer()
_BosOption = Annotated[bool, typer.Option(help="Begin with `<s>`.")]
_EosOption = Annotated[bool, typer.Option(help="Score `</s>` at the end.")]
_DetailOption = Annotated[Literal["none", "token", "word"], typer.Option(help="Level of detail.")]


@ask_app.command("next")
@option_groups
def next_token(
    model: ModelArgument,
    *,
    context: Annotated[str, typer.Argument(help="Text to continue; empty for the start of a sentence.")] = "",
    top_k: Annotated[
        int | None, typer.Option(help="Number of candidates. Default: 10, or the vocabulary's size if less.")
    ] = None,
    unit: Annotated[
        Literal["token", "word"],
        typer.Option(help="Rank tokens or complete words; word probabilities are exact."),
    ] = "token",
    published: PublishedModels,
    as_json: JsonOption = False,
) -> None:
    """List the most probable next tokens or words after a context."""
    from service.console.tables import show_next
    from service.local.ask import ask

    given = {} if top_k is None else {"top_k": top_k}
    reply = ask(published.call(model), "/v1/next-token", {"context": context, "unit": unit, **given})
    print_json(reply) if as_json else show_next(reply)


@ask_app.command()
@option_groups
def score(
    model: ModelArgument,
    *,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts. Default: lines of standard input.")
    ] = None,
    context: Annotated[str, typer.Option(help="Context before each text; not scored.")] = "",
    bos: _BosOption = True,
    eos: _EosOption = True,
    detail: _DetailOption = "none",
    published: PublishedModels,
    as_json: JsonOption = False,
) -> None:
    """Compute log-probability and perplexity of texts."""
    from service.console.tables import show_scores
    from service.local.ask import ask

    # None if standard input is closed
    lines = texts or [line.rstrip("\n") for line in sys.stdin or () if line.strip()]
    if not lines:
        raise InputError(
            "there is no text: give texts as arguments or as lines of standard input", param="texts"
        )
    request = {"texts": lines, "context": context, "bos": bos, "eos": eos, "detail": detail}
    reply = ask(published.call(model), "/v1/score", request)
    print_json(reply) if as_json else show_scores(lines, reply)


@ask_app.command()
@option_groups
def restore(
    model: ModelArgument,
    *,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts. Default: lines of standard input.")
    ] = None,
    one_per_line: Annotated[
        bool, typer.Option("--one-per-line", help="Each line is one sentence. Default: the model decides.")
    ] = False,
    published: PublishedModels,
    as_json: JsonOption = False,
) -> None:
    """Restore capitals and punctuation in texts that have neither, such as the output of a recogniser."""
    from service.local.ask import ask

    lines = texts or [line.rstrip("\n") for line in sys.stdin or ()]
    if not lines:
        raise InputError(
            "there is no text: give texts as arguments or as lines of standard input", param="texts"
        )
    reply = ask(
        published.call(model), "/v1/restore", {"texts": lines, "words": as_json, "one_per_line": one_per_line}
    )
    if as_json:
        print_json(reply)
        return
    for result in reply["results"]:
        typer.echo(result["text"])


class _GenerateOptions(NamedTuple):
    """Options of `gramophone generate`, named like the fields of POST /v1/generate."""

    prompt: Annotated[str, typer.Argument(help="Text to continue.")] = ""
    strategy: Annotated[Literal["greedy", "sample", "beam"], typer.Option(help="Decoding strategy.")] = (
        "sample"
    )
    max_tokens: Annotated[int, typer.Option(help="Maximum new tokens.")] = 64
    temperature: Annotated[float, typer.Option(help="Sampling temperature; greedy at 0.")] = 1.0
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable. Default: all.")] = None
    top_p: Annotated[float, typer.Option(help="Nucleus sampling: total probability of the tokens.")] = 1.0
    min_p: Annotated[float, typer.Option(help="Minimum probability relative to the best token.")] = 0.0
    repetition_penalty: Annotated[float, typer.Option(help="Above 1, earlier tokens become less likely.")] = (
        1.0
    )
    n: Annotated[int, typer.Option("-n", help="Number of continuations, printed one after another.")] = 1
    num_beams: Annotated[int | None, typer.Option(help="Number of beams, for strategy beam.")] = None
    length_penalty: Annotated[
        float, typer.Option(help="With beam: above 0 favours long continuations, below 0 short ones.")
    ] = 1.0
    bad_words: Annotated[
        list[str] | None, typer.Option("--bad-word", help="Never generate this; may be repeated.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Random seed; equal seeds give equal texts.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; up to 32.")] = None


@ask_app.command()
@option_groups
def generate(
    model: ModelArgument,
    options: _GenerateOptions,
    published: PublishedModels,
    lines: Annotated[
        int | None,
        typer.Option(min=1, help="Write this many sampled lines, such as a training text, to --out."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for --lines; compressed if it ends in .gz, .xz, .zst or .bz2.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a text, token by token; or sample a text of many lines from a model (--lines)."""
    from models.files import atomic_writer
    from service.local.ask import ask, sample_lines, stream_text

    if (lines is None) != (out is None):
        raise InputError("--lines and --out are given together", param="lines")
    if lines is not None and options.strategy != "sample":
        raise InputError(f"--lines requires the strategy sample, given {options.strategy}", param="strategy")
    request = {**options._asdict(), "bad_words": options.bad_words or [], "stop": options.stop or []}
    call = published.call(model)
    if lines is not None and out is not None:
        from service.console.evaluation import TuningProgress

        with TuningProgress() as progress, atomic_writer(out) as write:
            for number, line in enumerate(sample_lines(call, request, lines), start=1):
                write(f"{line}\n".encode())
                progress("sampling lines", number, lines)
    elif as_json:
        print_json(ask(call, "/v1/generate", {**request, "logprobs": True}))
    elif options.n > 1:  # generated in parallel, so printed only when complete
        for choice in ask(call, "/v1/generate", request)["choices"]:
            typer.echo(options.prompt + choice["text"])
    else:
        pieces = stream_text(call, request)  # rejects an invalid request before any output
        for text in chain([options.prompt], pieces):
            typer.echo(text, nl=False)
        typer.echo()


class _RerankOptions(NamedTuple):
    """Options of `gramophone rerank`, named like the settings of POST /v1/rerank."""

    weights: Annotated[
        str | None,
        typer.Option(help="Signed weights of the features, such as lm=0.7,am=1,words=0.2 [default: lm=1]."),
    ] = None
    profile: Annotated[str | None, typer.Option(help="Name of a saved profile of tuned weights.")] = None
    models: FurtherModelsOption = None
    propose: ProposeOption = None
    forms: FormsOption = None
    length_exponent: Annotated[
        float | None, typer.Option(help="Divide lm by the number of tokens to this power [default: 0].")
    ] = None
    posterior_scale: Annotated[
        float | None, typer.Option(help="Scale of the totals in the posteriors' softmax [default: 1].")
    ] = None
    mbr: Annotated[
        Literal["wer", "chrf", "bleu"] | None,
        typer.Option(help="Minimum Bayes risk: rank by the expectation of this metric."),
    ] = None
    confidences: Annotated[bool, typer.Option(help="Report a confidence per word of the best candidate.")] = (
        False
    )
    detail: _DetailOption = "none"
    bos: _BosOption = True
    eos: _EosOption = True
    score_mode: Annotated[
        Literal["normalised", "unnormalised"],
        typer.Option(help="unnormalised: sums of logits, for models trained for them; faster."),
    ] = "normalised"
    form: Annotated[
        Literal["asis", "sentence-case", "sentence"] | None,
        typer.Option(help="Form in which pretrained models read lower-cased texts [default: asis]."),
    ] = None
    drop_duplicates: Annotated[bool, typer.Option(help="Omit candidates with equal text.")] = False
    top: Annotated[int | None, typer.Option(help="Print only this many candidates per list.")] = None
    restore: Annotated[
        str | None, typer.Option(help="Restore each best text's capitals and punctuation: true, or a model.")
    ] = None


@ask_app.command()
@option_groups
def rerank(
    model: Annotated[str, typer.Argument(help=f"{MIXTURE_HELP}; - for the profile's.")],
    source: ListSource,
    settings: _RerankOptions,
    *,
    phrases: PhrasesOption = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            help="Format of the written lists, best candidate first; see `lists convert`. "
            "Default, and jsonl: the lines that /v1/rerank replies."
        ),
    ] = None,
    output: Annotated[str, typer.Option(help="File to write; a folder for SRILM and Kaldi.")] = "-",
    published: PublishedModels,
) -> None:
    """Re-rank the candidates of n-best lists; print one list per line, as JSON.

    A feature with the name of a computed one gets the prefix old_: Moses' lm becomes old_lm; in jsonl it is dropped.
    With references, the error rates before and after are printed to standard error, by the metric of the profile.
    """
    from models.reranking.features import is_reserved
    from service.local import ask

    entries = None if phrases is None else json.dumps(read_dictionary(phrases))
    given = {**ask.main_model(model), "phrases": entries, **settings._asdict()}
    operation = ask.prepare_rerank(given, published.registry, published.load)
    lists = source.lists(reserved=lambda name: is_reserved(name, operation.job.models.extra))
    ask.rerank_file(operation, lists, file=source.file, target=output, output_format=output_format)


def read_text(path: Path) -> str:
    """Read a file's text.

    Raises:
        FormatError: the file cannot be read, or is not UTF-8.
    """
    try:
        with path.open("rb") as raw:
            content = decompressed(raw).read()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        check_text(error.object, path)
        wrong = f"byte {error.start} is 0x{error.object[error.start]:02x} ({error.reason})"
        raise FormatError(path, f"is not UTF-8: {wrong}", hint="convert it, for example with iconv") from None
    except (OSError, *DECOMPRESSION_ERRORS) as error:
        raise FormatError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_words(path: Path) -> list[str]:
    """Read a file's words, one per line; skip empty lines.

    Raises:
        FormatError: see `read_text`.
    """
    return [word for line in read_text(path).split("\n") if (word := line.strip())]


def read_dictionary(path: Path) -> list[dict[str, Any]]:
    """Read a dictionary file: an entry per line, with optional weight (default 1) and class, each after a tab.

    Raises:
        FormatError: see `read_text`; or a weight is not a number.
    """
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(read_words(path), 1):
        word, weight, class_name, *_ = [*line.split("\t"), "", ""]
        try:
            entry = {"text": word.rstrip(), "weight": float(weight or 1)}
        except ValueError:
            raise FormatError(
                path,
                f"entry {number}: the weight is {weight!r}, it must be a number",
                hint="word, tab, weight",
            ) from None
        entries.append(entry | {"class": class_name} if class_name else entry)
    return entries


def split_dictionaries(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the lists of words and the Hunspell dictionaries (`.dic`) among files."""
    hunspell = [file for file in files if file.suffix == ".dic"]
    return [file for file in files if file not in hunspell], hunspell


@check_app.command()
@option_groups
def check(
    model: ModelArgument,
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="TEXT|FILE|-",
            help="Text; the name of an existing file; or - for standard input.",
        ),
    ] = "-",
    threshold: Annotated[
        float | None, typer.Option(help="Minimum error probability of reported words [default: 0.5].")
    ] = None,
    min_precision: Annotated[
        float | None,
        typer.Option(
            help="Instead of --threshold: target precision, by the calibration that `evaluate` saved."
        ),
    ] = None,
    max_suggestions: Annotated[int, typer.Option(help="Maximum suggestions per word.")] = 5,
    dictionary: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of correct words, one per line, or a Hunspell dictionary FILE.dic with FILE.aff beside it; "
            "may be repeated."
        ),
    ] = None,
    error_rate: Annotated[float, typer.Option(help="Prior probability that a word is wrong.")] = 0.01,
    max_edits: Annotated[int, typer.Option(help="Maximum edits per word: 1 or 2.")] = 2,
    published: PublishedModels,
    as_json: JsonOption = False,
) -> None:
    """Find probable errors from the text on both sides of each word; each line is a sentence."""
    from models.checking.lexicon import HunspellDictionary
    from service.console.tables import show_check
    from service.local.ask import ask

    if threshold is not None and min_precision is not None:
        raise InputError("give either --threshold or --min-precision, not both", param="threshold")
    text = _read_source(source)
    lists, hunspell = split_dictionaries(dictionary or ())
    request: dict[str, Any] = {
        "text": text,
        "threshold": threshold,
        "precision": min_precision,
        "max_suggestions": max_suggestions,
        "dictionary": [entry["text"] for file in lists for entry in read_dictionary(file)],
        "error_rate": error_rate,
        "max_edits": max_edits,
    }
    read = tuple(map(HunspellDictionary, hunspell))
    reply = ask(published.call(model, hunspell=read), "/v1/check", request)
    print_json(reply) if as_json else show_check(text, reply)


def _read_source(source: str) -> str:
    """Return the text to check, never empty: standard input, the named file, or else the argument."""
    # a mistyped file name, such as letter.txt, is one too
    is_name = len(source.split()) == 1 and "\0" not in source and Path(source).suffix[1:].isalnum()
    if source == "-":
        text = sys.stdin.read() if sys.stdin else ""
    elif is_name or os.path.exists(source):  # noqa: PTH110 - false if it is no valid path
        text = read_text(Path(source))
    else:
        text = source
    if not text.strip():
        raise InputError(
            "there is no text: give a text, a file, or - and lines of standard input", param="source"
        )
    return text


@complete_app.command()
@option_groups
def complete(
    model: ModelArgument,
    *,
    texts: Annotated[list[str], typer.Argument(help="Texts to complete, as typed up to the caret.")],
    limit: Annotated[int, typer.Option(help="Maximum completions per text.")] = 10,
    max_words: Annotated[int, typer.Option(help="Maximum words per completion.")] = 1,
    min_probability: Annotated[float, typer.Option(help="Minimum probability of a completion.")] = 0.0,
    rank: Annotated[
        Literal["probability", "savings"],
        typer.Option(help="Sort key: the probability, or the probability times the characters saved."),
    ] = "probability",
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", help="Ignore the case of the typed prefix.")
    ] = False,
    fuzzy: Annotated[int, typer.Option(help="Maximum typing errors in the prefix: 0, 1 or 2.")] = 0,
    dictionary: Annotated[
        Path | None,
        typer.Option(help="File of additional words, one per line, with an optional weight after a tab."),
    ] = None,
    blocklist: Annotated[Path | None, typer.Option(help="File of words to exclude, one per line.")] = None,
    user_weight: Annotated[float, typer.Option(help="Weight of the dictionary in the probabilities.")] = 0.2,
    max_steps: Annotated[int, typer.Option(help="Maximum model evaluations for the search.")] = 128,
    open_vocabulary: Annotated[
        bool,
        typer.Option(
            "--open-vocabulary",
            help="Also offer words outside the training text, if tokens are pieces or characters.",
        ),
    ] = False,
    published: PublishedModels,
    as_json: JsonOption = False,
) -> None:
    """Complete the last word of a text, or predict the next; exact over all tokenisations of a word."""
    from service.console.tables import show_completions
    from service.local.ask import ask

    request: dict[str, Any] = {
        "limit": limit,
        "max_words": max_words,
        "min_probability": min_probability,
        "rank": rank,
        "casing": "ignore" if ignore_case else "exact",
        "fuzzy": fuzzy,
        "dictionary": [] if dictionary is None else read_dictionary(dictionary),
        "blocklist": [] if blocklist is None else read_words(blocklist),
        "user_weight": user_weight,
        "max_steps": max_steps,
        "open_vocabulary": open_vocabulary,
    }
    call = published.call(model)
    for text in texts:
        reply = ask(call, "/v1/autocomplete", {"text": text, **request})
        print_json(reply) if as_json else show_completions(text, reply)
