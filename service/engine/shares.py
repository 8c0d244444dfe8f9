"""What each of several calls has of a slice, so that short ones are soon done and long ones are not forgotten."""

from collections.abc import Sequence


def split_budget(wanted: Sequence[int], left: Sequence[int], room: int) -> list[int]:
    """Half of the room goes to the calls that have least left to do, the rest to the oldest.

    Args:
        wanted: what each call could use, the oldest first.
        left: what each call has left to do altogether.
        room: what there is.

    Returns:
        What each gets, at most what it wanted.
    """
    shares = [0] * len(wanted)
    shortest = sorted(range(len(wanted)), key=left.__getitem__)  # of equal ones, the oldest first
    used = 0
    for order, limit in ((shortest, room // 2), (range(len(wanted)), room)):
        for call in order:
            if used >= limit:
                break
            more = min(wanted[call] - shares[call], limit - used)
            shares[call] += more
            used += more
    return shares
