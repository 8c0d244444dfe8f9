"""Candidates that stand on lines of their own, one after the other, as lists."""

from collections.abc import Iterable, Iterator

from models.reranking.formats.interface import MAX_LIST_CANDIDATES, BadLine, ListOrBadLine, SourceLines
from models.reranking.lists import Candidate, CandidateList

CandidateRow = tuple[str, int, Candidate]
"""The id of the list that a candidate belongs to, its place there as far as the line says it, the candidate."""


def group_candidates(
    rows: Iterable[tuple[int, CandidateRow] | BadLine], lines: SourceLines
) -> Iterator[ListOrBadLine]:
    """Lists of candidates with the same id in a row; a list is closed when the id changes.

    Args:
        rows: of each line its number and what stands there. Candidates are sorted by their places;
            equal places stay in the order of the lines.
        lines: where they come from, for messages.
    """
    name, members = "", list[tuple[int, Candidate]]()
    for row in rows:
        if isinstance(row, BadLine):
            yield row
            continue
        number, (row_name, place, candidate) = row
        if members and row_name != name:
            yield _close_list(name, members)
            members = []
        name = row_name
        if len(members) < MAX_LIST_CANDIDATES:
            members.append((place, candidate))
        else:
            yield lines.bad(number, f"list {name!r} has more than {MAX_LIST_CANDIDATES:,} candidates")
    if members:
        yield _close_list(name, members)


def _close_list(name: str, members: list[tuple[int, Candidate]]) -> CandidateList:
    members.sort(key=lambda member: member[0])
    return CandidateList(name, "", tuple(candidate for _, candidate in members))
