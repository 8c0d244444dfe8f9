"""Options shared by commands, the lists and models they select, and JSON output."""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from models.errors import FormatError, InputError
from models.reranking.candidates import CandidateList, ScoreRanges
from models.reranking.formats.format import BadLine, ReferenceLayout
from models.reranking.formats.reader import FORMAT_NAMES, WRITTEN_FORMAT_NAMES, read_lists
from service.local.streams import good_items, open_source, open_target

if TYPE_CHECKING:
    from service.hosting.loaded_model import LoadedModel
    from service.local.ask import LocalCall
    from service.operations.operation import HunspellDictionaries

EXIT_BAD_INPUT, EXIT_FAILED = 2, 1
DEFAULT_REGISTRY = "registry"
MIXTURE_HELP = "Model: NAME, NAME@7 or NAME@champion; or a mixture: ngram=0.3,lstm=0.7"
CORPUS_HELP = "Text file, also .gz, .xz, .zst or .bz2; may be repeated."
_FORMATS, _WRITTEN_FORMATS = ", ".join(FORMAT_NAMES), ", ".join(WRITTEN_FORMAT_NAMES)
lists_app = typer.Typer(
    name="lists", help="Inspect n-best lists, and convert them between formats.", no_args_is_help=True
)

T = TypeVar("T")
RegistryOption = Annotated[
    str,
    typer.Option(
        envvar="GRAMOPHONE_REGISTRY",
        help="Folder of published models, or URL such as s3://bucket/prefix.",
        show_default=True,
    ),
]
ModelArgument = Annotated[str, typer.Argument(help="Model: NAME, NAME@7 or NAME@champion.")]
DeviceOption = Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1 or auto.")]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="Precision of neural networks: float32, int8 (CPU only), bfloat16 (pretrained models), or auto, as served."
    ),
]
SlotsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLASS=FILE",
        help="Members of a class, one per line, instead of the model's: city=cities.txt for $city; may be repeated.",
    ),
]
ReferencesOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="References, by id if lines have ids (id and tab, Kaldi's text, sclite's trn, a manifest), else one line "
        "per list in order; may be repeated."
    ),
]
ReferenceLayoutOption = Annotated[
    ReferenceLayout | None, typer.Option(help="Layout of the reference files. Default: detected.")
]
PhrasesOption = Annotated[
    Path | None,
    typer.Option(
        help="File of phrases, such as names, one per line; optionally with a tab and a weight, a tab and a class."
    ),
]
ProposeOption = Annotated[
    bool | None,
    typer.Option(
        "--propose",
        help="Propose the phrases for words that are spelled nearly like them [default: as in the profile].",
    ),
]
FormsOption = Annotated[
    str | None,
    typer.Option(
        metavar="LANGUAGE",
        help="Propose other forms of numbers, money, abbreviations and initials in this language, such as en. Needs "
        "gramophone-lm[speech].",
    ),
]
FurtherModelsOption = Annotated[
    str | None, typer.Option(help="Further models that add features: old=small@3 adds lm:old.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NameOption = Annotated[str, typer.Option(help="Name to publish the model under.")]


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


def valid_items(items: Iterator[T | BadLine], file: str) -> Iterator[T]:
    """Yield lists or lattices; report unreadable lines on standard error, the first individually.

    Raises:
        FormatError: some lines are unreadable and no list is readable.
    """
    none_good = FormatError(file, "has no readable list", hint="check --format")
    told = (str(item) if isinstance(item, BadLine) else item for item in items)
    return good_items(told, file, rest="more bad lines", none_good=none_good)


class ListSource(NamedTuple):
    """Options for a command's n-best lists; see `option_groups`."""

    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="n-best lists, also .gz, .xz, .zst or .bz2; a folder for SRILM and Kaldi; - reads standard input.",
        ),
    ]
    format_name: Annotated[
        str | None, typer.Option("--format", help=f"{_FORMATS}. Default: detected from the first lines.")
    ] = None
    references: ReferencesOption = None
    reference_layout: ReferenceLayoutOption = None
    beam_size: Annotated[int | None, typer.Option(help="Candidates per list: nemo, ctranslate2.")] = None
    scores: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE", help="Archive of costs, for format kaldi, such as am=acwt; may be repeated."
        ),
    ] = None

    def lists(self, *, reserved: Callable[[str], bool] | None = None) -> Iterator[CandidateList]:
        """Yield the readable lists; report unreadable ones (see `valid_items`) and suspicious scores.

        `reserved` is true for names of computed features.

        Raises:
            FormatError: a file is missing or damaged, its format is unknown, it has no lists, or references differ.
            InputError: an option is invalid, or does not apply to the format.
        """
        items = read_lists(
            open_source(self.file),
            format_name=self.format_name,
            references=self.references or (),
            reference_layout=self.reference_layout,
            beam_size=self.beam_size,
            scores=_named_files("scores", "NAME", self.scores),
            reserved=reserved,
            source_name="<stdin>" if self.file == "-" else self.file,
        )
        ranges = ScoreRanges()
        yield from ranges.watch(valid_items(items, self.file))
        for warning in ranges.warnings():
            typer.echo(f"gramophone: {self.file}: {warning}", err=True)


class PublishedModels(NamedTuple):
    """Options for a command's models; see `option_groups`."""

    registry: RegistryOption = DEFAULT_REGISTRY
    device: DeviceOption = "cpu"
    precision: PrecisionOption = "auto"
    slots: SlotsOption = None

    def members(self) -> dict[str, list[str]]:
        """Read the lists of `--slots`.

        Raises:
            InputError: an option is not `CLASS=FILE`.
            FormatError: a file cannot be read as text.
        """
        files = _named_files("slots", "CLASS", self.slots)
        if not files:
            return {}
        from training.corpus import read_members

        return read_members(files)

    def load(self, address: str) -> "LoadedModel":
        """Load a published model.

        Raises:
            DomainError: the registry or model is missing or damaged.
        """
        from service.local.ask import load_published

        loaded = load_published(self.registry, address, self.device, self.precision)
        return loaded.with_slots(self.members())

    def call(self, *addresses: str, hunspell: "HunspellDictionaries" = ()) -> "LocalCall":
        """Load published models for calls of operations in this process; the first is the default.

        Raises:
            DomainError: the registry or a model is missing or damaged.
        """
        from service.local.ask import LocalCall, model_loader

        resolve = model_loader(self.load, addresses[0])
        for address in addresses:
            resolve(address)
        return LocalCall(self.registry, resolve, hunspell)


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace parameters that are named tuples of options by these options; build the tuples from their values."""
    groups, parameters = dict[str, Any](), list[inspect.Parameter]()
    for own in inspect.signature(command, eval_str=True).parameters.values():
        options = [own]
        if hasattr(own.annotation, "_fields"):
            groups[own.name] = own.annotation
            options = [*inspect.signature(own.annotation).parameters.values()]
        parameters += [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in group._fields})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {param.name: param.annotation for param in parameters}
    return run


def _named_files(option: str, kind: str, given: Iterable[str] | None) -> dict[str, Path]:
    files = {}
    for one in given or ():
        name, _, path = one.partition("=")
        if not (name and path):
            raise InputError(f"--{option} takes {kind}=FILE, given {one!r:.80}", param=option)
        files[name] = Path(path)
    return files


@lists_app.command()
@option_groups
def convert(
    source: ListSource,
    target: Annotated[
        str,
        typer.Argument(
            help="File to write (compressed if it ends in .gz, .xz, .zst, .bz2); folders for SRILM, Kaldi; - prints."
        ),
    ],
    output_format: Annotated[str, typer.Option(help=f"{_WRITTEN_FORMATS}.")] = "jsonl",
) -> None:
    """Write lists in another format; omit and report fields that the format cannot represent.

    Scores become natural logarithms; larger is better. am is the acoustic score, old_lm the old language model's
    score, and score the total of the first pass.
    """
    from models.reranking.formats.reader import format_by_name
    from models.reranking.formats.writer import write_lists

    form = format_by_name(output_format, to_write=True)
    lost: set[str] = set()

    def watched(lists: Iterable[CandidateList]) -> Iterator[CandidateList]:
        for candidates in lists:
            lost.update(form.dropped_fields(candidates, streamed=target == "-"))
            yield candidates

    write_lists(watched(source.lists()), open_target(target), output_format)
    if lost:
        typer.echo(f"note: format {output_format} cannot represent {', '.join(sorted(lost))}", err=True)


@lists_app.command()
@option_groups
def show(
    source: ListSource,
    as_json: JsonOption = False,
) -> None:
    """Count lists, candidates, duplicates and features; with references, show first and oracle word error rates."""
    from models.reranking.metrics import summarise_lists

    figures = summarise_lists(source.lists())
    if as_json:
        print_json(figures)
        return
    from models.reranking.metrics.metric import format_score
    from service.console.evaluation import show_figures

    figures |= {name: format_score("wer", rate) for name, rate in figures.items() if name.endswith("_wer")}
    features = {f"candidates with {name}": count for name, count in figures.pop("features").items()}
    show_figures({**figures, **features})
