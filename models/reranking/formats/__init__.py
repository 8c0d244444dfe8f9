"""n-best lists in the formats of other programs, read and written.

Scores become natural logarithms, larger is better: costs are negated, other bases converted. What is called `am` is an
acoustic score, `old_lm` that of the first pass's language model, `score` the first pass's own total.

White space around a text is dropped in all formats but `jsonl`; in those without JSON, every run of ASCII white space
is written as one space. What a format has no place for is left out (`Format.dropped_fields`); what it would
change is refused.
"""

from models.reranking.formats.interface import BadLine, Format, ListOrBadLine, ReferenceLayout
from models.reranking.formats.reading import read_bytes, read_lists
from models.reranking.formats.table import FORMAT_NAMES, FORMATS, format_by_name, format_name_of_media_type
from models.reranking.formats.writing import format_lists, write_lists

__all__ = [
    "FORMATS",
    "FORMAT_NAMES",
    "BadLine",
    "Format",
    "ListOrBadLine",
    "ReferenceLayout",
    "format_by_name",
    "format_name_of_media_type",
    "read_bytes",
    "read_lists",
    "format_lists",
    "write_lists",
]
