"""Fair shares of what passes, such as places in a queue: what is free is lent, and comes back as it ends.

With n owners that hold something, the share of each is an n-th of the capacity. An owner may hold more while
capacity is free, and gets its share even if others have borrowed it. In a queue the total then exceeds the capacity
until borrowed work ends; a store evicts what was borrowed.
"""

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shares:
    """Amounts of one capacity that owners hold.

    Args:
        total: the capacity; also an attribute.

    Attributes:
        used: sum of the amounts.
    """

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._held: Counter[Hashable] = Counter()

    def held(self, owner: Hashable) -> int:
        """Return the amount of an owner."""
        return self._held[owner]

    def share(self, owner: Hashable) -> int:
        """Return the amount that an owner gets even if nothing is free; the total if no other owner holds anything."""
        return self.total // (len(self._held) + (owner not in self._held))

    def grants(self, owner: Hashable, amount: int) -> bool:
        """Return whether an owner may hold more by an amount."""
        return self.used + amount <= self.total or self._held[owner] + amount <= self.share(owner)

    def add(self, owner: Hashable, amount: int) -> None:
        """Add to the amount of an owner, or subtract if it is negative."""
        self.used += amount
        self._held[owner] += amount
        if not self._held[owner]:
            del self._held[owner]

    def limits(self, owner: Hashable, whose: str) -> str:
        """Return the end of a message that says what an owner may hold."""
        share = self.share(owner)
        if share == self.total:  # no other owner holds anything
            return f"the maximum is {self.total}"
        return f"the maximum is {self.total}, and the share of {whose} {share}, of which {self.held(owner)} are taken"

    def largest(self, other_than: Hashable) -> Hashable:
        """Return the other owner that holds most; there must be one."""
        return max(self._held.keys() - {other_than}, key=self._held.__getitem__)


class TurnQueue(Generic[T]):
    """Queue in which owners take turns, and the items of each owner keep their order."""

    def __init__(self) -> None:
        self._items: dict[str, deque[T]] = {}  # the next owner first

    def __len__(self) -> int:
        """Return the number of items."""
        return sum(map(len, self._items.values()))

    def append(self, owner: str, item: T) -> None:
        """Add an item as the last of its owner."""
        self._items.setdefault(owner, deque()).append(item)

    def pop(self) -> T:
        """Remove and return the next item; there must be one."""
        owner = next(iter(self._items))
        items = self._items.pop(owner)
        item = items.popleft()
        if items:
            self._items[owner] = items  # as the last
        return item
