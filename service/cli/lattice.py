"""Command `gramophone lattice`: rescore word lattices with a published model, without a server."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from models.errors import FormatError, InputError
from service.cli.ask import read_dictionary
from service.cli.options import (
    FormsOption,
    ModelArgument,
    PhrasesOption,
    ProposeOption,
    PublishedModels,
    ReferenceLayoutOption,
    ReferencesOption,
    option_groups,
    valid_items,
)
from service.local.streams import open_source, open_target

if TYPE_CHECKING:
    from models.lattices.files import LatticeFormat
    from models.lattices.lattice import Lattice
    from models.lattices.token_passing import LatticeSearch
    from models.reranking.formats.format import ReferenceLayout

lattice_app = typer.Typer()


class LatticeOptions(NamedTuple):
    """Options for reading and searching lattices; see `option_groups`."""

    words: Annotated[Path | None, typer.Option(help="Kaldi's words.txt, for lattices with numbers.")] = None
    no_word: Annotated[
        list[str] | None,
        typer.Option(
            help="Label in lattices that is not a word, in addition to `!NULL`, `<eps>` and similar; may be repeated."
        ),
    ] = None
    max_tokens_per_node: Annotated[int, typer.Option(help="Maximum hypotheses kept per lattice node.")] = 64
    beam: Annotated[
        float | None,
        typer.Option(help="Drop hypotheses in lattices that score lower by more than this. Default: none."),
    ] = None
    recombination_order: Annotated[
        int,
        typer.Option(
            min=0,
            help="Neural models on lattices: merge hypotheses with this many equal last words; 0 compares all words.",
        ),
    ] = 4

    def search(self) -> "LatticeSearch":
        """Return the settings of the search.

        Raises:
            InputError: a setting is out of range.
        """
        from models.lattices.token_passing import LatticeSearch

        order = self.recombination_order or None
        return LatticeSearch(
            max_tokens_per_node=self.max_tokens_per_node, beam=self.beam, recombination_order=order
        )

    def read(
        self,
        files: Sequence[str],
        form: "LatticeFormat | None",
        references: Sequence[Path],
        layout: "ReferenceLayout | None",
    ) -> "Iterator[Lattice]":
        """Read lattices of files and folders of SLF files; report unreadable ones.

        With references, all are read at once.
        A format of None is detected from the first file, and a layout of None from the references.

        Raises:
            FormatError: a file is missing or damaged, the format (if None) cannot be detected, or references differ.
        """
        from models.lattices.files import detect_lattice_format, read_lattices, read_symbol_file, slf_files
        from models.lattices.lattice import NON_WORD_LABELS
        from models.reranking.formats.reader import References, attach_references

        sources = list(map(open_source, files))
        form = form or detect_lattice_format(sources[0])
        if form is None:
            raise FormatError(files[0], "is not a lattice or its format is unknown", hint="set --format")
        symbols = None if self.words is None else read_symbol_file(self.words)
        items = chain.from_iterable(
            read_lattices(
                part,
                form,
                name=str(part) if isinstance(part, Path) else "<stdin>" if name == "-" else name,
                symbols=symbols,
                no_words=NON_WORD_LABELS.union(self.no_word or ()),
            )
            for name, file in zip(files, sources, strict=True)
            for part in (slf_files(file) if isinstance(file, Path) else ()) or (file,)
        )
        where = files[0] if len(files) == 1 else f"{files[0]} …"
        if not references:
            return valid_items(items, where)
        opened = [References(path, layout=layout, usual="lines", numbered=False) for path in references]
        return valid_items(iter(list(attach_references(items, opened))), where)


@lattice_app.command()
@option_groups
def lattice(
    model: ModelArgument,
    *,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Lattices, also .gz, .xz, .zst or .bz2; folders of SLF; - for stdin."
        ),
    ],
    form: Annotated[
        Literal["slf", "kaldi"] | None,
        typer.Option("--format", help="HTK's lattice format, or Kaldi's text format. Default: detected."),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            help="Signed weights of am, old_lm, lm, words, unk, phrases and proposals, such as am=0.1,lm=0.7. Default: "
            "the lattice's acscale, lmscale and wdpenalty, else am=1,lm=1; 0 for old_lm and unk; 10 for phrases; the "
            "weight of lm times those of rerank for proposals."
        ),
    ] = "",
    profile: Annotated[
        str | None, typer.Option(help="Name of a profile of weights, saved by tune, instead of --weights.")
    ] = None,
    phrases: PhrasesOption = None,
    propose: ProposeOption = None,
    forms: FormsOption = None,
    nbest: Annotated[int, typer.Option(min=1, help="Number of word strings per lattice.")] = 1,
    options: LatticeOptions,
    output: Annotated[
        str, typer.Option(help="File to write, or folder for multi-file formats; - prints.")
    ] = "-",
    output_format: Annotated[
        str,
        typer.Option(
            help="jsonl or another n-best format, see `lists convert`; text: the best words after each id; "
            "slf-lattice, kaldi-lattice: lattices with the new scores."
        ),
    ] = "jsonl",
    references: ReferencesOption = None,
    reference_layout: ReferenceLayoutOption = None,
    published: PublishedModels,
) -> None:
    """Rescore lattices with a language model in place of the first pass's model.

    Features of a word string are am and old_lm, the lattice's acoustic and language model scores; lm, its natural-log
    probability by the model, including the end of sentence; words and unk, the numbers of its words and unknown tokens;
    phrases, the weights of the given phrases in it. --propose and --forms add their proposals for words of the best
    strings to a lattice, with the features of rerank.
    The best string has the largest weighted sum. With references, all lattices are read first, and the word error rates
    of the best strings and of the lattices' oracle paths go to standard error.
    """
    from models.lattices.files import read_symbol_file, write_lattices
    from models.lattices.graph import PathWeights, tuned_weights
    from models.lattices.lattice import Scales
    from models.phrases import Phrase, PhraseList
    from models.reranking.formats.reader import format_by_name
    from models.reranking.ranking import ProfileStore
    from models.scoring.candidate_features import ScoringModels
    from service.local.ask import (
        LATTICE_FORMATS,
        TEXT,
        report_replaced,
        rescore_lattices,
        write_best,
    )
    from service.operations.rerank_request import ProposingSettings, parse_entries, parse_weights

    search = options.search()
    target = open_target(output)
    if output_format not in {TEXT, *LATTICE_FORMATS}:
        format_by_name(output_format, to_write=True)  # refuses other formats
    if output_format in LATTICE_FORMATS and references:
        raise InputError("--references applies to n-best lists, not to lattices", param="references")
    if profile and weights:
        raise InputError("give either --weights or --profile, not both", param="weights")
    saved = ProfileStore(published.registry).read(profile) if profile else None
    entries = saved.phrases if saved else []
    if phrases is not None:
        found = parse_entries({"phrases": json.dumps(read_dictionary(phrases))})["phrases"]
        entries = [one for one in found if isinstance(one, Phrase)]
    listed = PhraseList(entries)
    proposing = ProposingSettings(propose=propose, forms=forms)
    sources = proposing.proposals(saved, listed)
    given = parse_weights(weights, param="weights") if weights else {}
    proposals = sources.path_weights(proposing.untuned_weights(saved.weights if saved else given, listed))
    if saved:
        path_weights = tuned_weights(saved.weights, saved.length_exponent, listed.features, proposals)
    else:
        path_weights = partial(PathWeights.of, given, phrases=listed.features, proposals=proposals)
    path_weights(Scales())  # refuses wrong weights before the model is loaded
    loaded = published.load(model)
    if saved:
        report_replaced(profile, saved.replaced_versions([loaded.address]))
    lattices = options.read(files, form, references or (), reference_layout)
    rescored = rescore_lattices(
        loaded,
        lattices,
        weights=path_weights,
        search=search,
        phrases=listed,
        proposers=sources.proposers(ScoringModels((loaded,))),
    )
    if output_format in LATTICE_FORMATS:
        symbols = None if options.words is None else read_symbol_file(options.words)
        new = (result.as_lattice() for result in rescored)
        write_lattices(new, target, LATTICE_FORMATS[output_format], symbols=symbols)
        return
    write_best(rescored, nbest, target, output_format)
