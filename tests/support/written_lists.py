"""n-best lists as text, in any format that can be written."""

from models.reranking.formats.reader import format_by_name


def format_lists(lists, format_name):
    """Format lists as pieces of text."""
    return format_by_name(format_name, to_write=True).write(lists)
