"""Command `gramophone lattice`: rescore word lattices with a published model, without a server."""

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer

from models.errors import InvalidInputError
from service.cli.ask import read_dictionary
from service.cli.options import (
    ModelArgument,
    PhrasesOption,
    PublishedModels,
    ReferenceLayoutOption,
    ReferencesOption,
    valid_items,
    with_option_groups,
)
from service.local.streams import binary_stream

lattice_app = typer.Typer()


@lattice_app.command()
@with_option_groups
def lattice(
    model: ModelArgument,
    *,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Lattices, also .gz, .xz or .zst; - reads standard input."),
    ],
    form: Annotated[
        Literal["slf", "kaldi"],
        typer.Option("--format", help="HTK's standard lattice format, or Kaldi's text format."),
    ],
    words: Annotated[
        Path | None, typer.Option(help="Kaldi's words.txt, for lattices with word numbers.")
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            help="Signed weights of am, old_lm, lm, words, unk and phrases, such as am=0.1,lm=0.7,old_lm=0.3. Default: "
            "the lattice's acscale, lmscale and wdpenalty, else am=1,lm=1; 0 for old_lm and unk; 10 for phrases."
        ),
    ] = "",
    phrases: PhrasesOption = None,
    nbest: Annotated[int, typer.Option(min=1, help="Number of word strings per lattice.")] = 1,
    max_tokens_per_node: Annotated[int, typer.Option(help="Maximum hypotheses kept per node.")] = 64,
    beam: Annotated[
        float | None,
        typer.Option(help="Drop hypotheses that score lower than the best by more than this. Default: none."),
    ] = None,
    recombination_order: Annotated[
        int,
        typer.Option(
            min=0,
            help="Neural models: merge hypotheses with this many equal last words; 0 compares all words.",
        ),
    ] = 4,
    no_word: Annotated[
        list[str] | None,
        typer.Option(
            help="Label that is not a word, in addition to `!NULL`, `<eps>` and similar; may be repeated."
        ),
    ] = None,
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
    phrases, the weights of the given phrases in it.
    The best string has the largest weighted sum. With references, the word error rates of the best strings and of the
    lattices' oracle paths go to standard error.
    """
    from models.lattices.files import read_lattices, read_symbol_file, write_lattices
    from models.lattices.lattice import NON_WORD_LABELS
    from models.lattices.token_passing import LatticeSearchSettings
    from models.phrases import PhraseList
    from service.local.lattices import (
        LATTICE_FORMATS,
        ReferenceComparison,
        check_output_format,
        rescore_lattices,
        write_best,
    )
    from service.use_cases.rerank_request import parse_phrases, parse_weights

    search = LatticeSearchSettings(
        max_tokens_per_node=max_tokens_per_node, beam=beam, recombination_order=recombination_order or None
    )
    symbols = None if words is None else read_symbol_file(words)
    target = binary_stream(sys.stdout, "output") if output == "-" else Path(output)
    check_output_format(output_format)
    if output_format in LATTICE_FORMATS and references:
        raise InvalidInputError(
            "--references applies to n-best lists, not to lattices", parameter="references"
        )
    compared = ReferenceComparison(references or (), reference_layout)
    loaded = published.load(model)
    sources = [
        (binary_stream(sys.stdin, "input"), "<stdin>") if name == "-" else (Path(name), name)
        for name in files
    ]
    silent = NON_WORD_LABELS.union(no_word or ())
    lattices = chain.from_iterable(
        read_lattices(source, form, name=name, symbols=symbols, no_words=silent) for source, name in sources
    )
    given = [] if phrases is None else parse_phrases(json.dumps(read_dictionary(phrases)))
    rescored = rescore_lattices(
        loaded,
        lattices,
        parse_weights(weights, parameter="weights") if weights else {},
        search,
        PhraseList(given),
    )
    where = files[0] if len(files) == 1 else f"{files[0]} …"
    if output_format in LATTICE_FORMATS:
        new = (result.as_lattice() for result in valid_items(rescored, where))
        write_lattices(new, target, LATTICE_FORMATS[output_format], symbols=symbols)
        return
    write_best(valid_items(compared.lists(rescored, nbest), where), target, output_format)
    for name, figure in compared.figures().items():
        typer.echo(f"{name}: {figure:.2f}", err=True)
