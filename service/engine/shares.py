"""Fair shares of what passes, such as places in a queue: what is free is lent, and comes back as it ends.

With n owners that hold something, the share of each is an n-th of the capacity. An owner may hold more while
capacity is free, and gets its share even if others have borrowed it. In a queue the total then exceeds the capacity
until borrowed work ends; a store evicts what was borrowed.
"""

from collections import Counter
from collections.abc import Hashable


class Shares:
    """Amounts of one capacity that owners hold.

    Args:
        total: the capacity; also an attribute.

    Attributes:
        used: sum of the amounts.
        held: amount of each owner, if any.
    """

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self.held: Counter[Hashable] = Counter()

    def share(self, owner: Hashable) -> int:
        """Return the amount that an owner gets even if nothing is free; the total if no other owner holds anything."""
        return self.total // (len(self.held) + (owner not in self.held))

    def refusal(self, owner: Hashable, amount: int, whose: str = "this key") -> str | None:
        """Return why an owner may not hold more by an amount, as the end of a message; None if it may."""
        share = self.share(owner)
        if amount <= max(0, self.total - self.used, share - self.held[owner]):
            return None
        shared = f", and the share of {whose} {share}, of which {self.held[owner]} are taken"
        return f"the maximum is {self.total}" + (shared if share < self.total else "")

    def add(self, owner: Hashable, amount: int) -> None:
        """Add to the amount of an owner, or subtract if it is negative."""
        self.used += amount
        self.held[owner] += amount
        if not self.held[owner]:
            del self.held[owner]

    def largest(self, other_than: Hashable) -> Hashable:
        """Return the other owner that holds most; there must be one."""
        return max(self.held.keys() - {other_than}, key=self.held.__getitem__)
