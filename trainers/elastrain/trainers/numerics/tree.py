"""The canonical summation tree: the order in which a step's microbatch results are added.

Floating-point addition is not associative, so a sum keeps its bits only if it is always made in the same
order. That order is a binary tree over the microbatches 0..count-1 of a step, drawn over the next power of
two. A leaf past `count` is absent: it is skipped, never added as a zero (-0.0 + 0.0 is +0.0). Every inner
value is `left + right`. Whoever computed the leaves and wherever the partial sums met, the root has the
same bits.

Nothing here knows torch or numpy: a value is anything that has `+` (and `+=` where `inplace` is asked for).
"""

import operator
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Node(NamedTuple):
    """A subtree: the leaves start..start+size-1, size a power of two and start a multiple of it."""

    start: int
    size: int

    @property
    def parent(self) -> "Node":
        return Node(self.start - self.start % (2 * self.size), 2 * self.size)

    @property
    def sibling(self) -> "Node":
        return Node(self.start ^ self.size, self.size)

    @property
    def is_left(self) -> bool:
        return self.start % (2 * self.size) == 0

    def leaves(self, count: int) -> range:
        """The present leaves of the subtree in a step of `count` microbatches."""
        return range(self.start, min(self.start + self.size, count))


def root_node(count: int) -> Node:
    """The whole tree over `count` microbatches. Raises ValueError below one."""
    if count < 1:
        raise ValueError(f"a step has at least one microbatch, got a count of {count}")
    return Node(0, 1 << (count - 1).bit_length())


def unit_size(count: int, parts: int) -> int:
    """Leaves of the largest subtrees of which a step of `count` microbatches has at least `parts`; 1 where
    there are fewer microbatches than parts."""
    unit = root_node(count).size
    while unit > 1 and -(-count // unit) < parts:
        unit //= 2
    return unit


def complete_units(held: Iterable[int], count: int, unit: int) -> list[int]:
    """Of the leaves `held` those that lie in subtrees of `unit` leaves which are held whole, in order."""
    have = set(held)
    return [leaf for leaf in sorted(have) if have.issuperset(unit_of(leaf, unit).leaves(count))]


def unit_of(leaf: int, unit: int) -> Node:
    """The subtree of `unit` leaves in which a leaf lies."""
    return Node(leaf - leaf % unit, unit)


def cover(held: Iterable[int], count: int, ceiling: int | None = None) -> list[Node]:
    """The maximal complete subtrees over the leaves `held`, from left to right; of at most `ceiling` leaves.

    A subtree is complete if all its present leaves are held. Raises ValueError for a leaf outside 0..count-1.
    """
    climber: Climber[_Nothing] = Climber(count, ceiling=ceiling)
    for leaf in sorted(set(held)):
        climber.add(leaf, _Nothing())
    return sorted(climber.parts)


def climb(
    parts: Mapping[Node, T], count: int, *, inplace: bool = False, add: Callable[[T, T], T] | None = None
) -> dict[Node, T]:
    """Adds siblings, left + right, upward as far as possible.

    parts: values of disjoint subtrees, from one holder or from several. With `inplace` the left value of
    each pair takes the sum (`+=`), so the caller gives its values away. add: another way to make the same
    sum. Raises ValueError for overlapping subtrees or a leaf that the step does not have.
    """
    climber: Climber[T] = Climber(count, inplace=inplace, add=add)
    for node in sorted(parts):
        climber.put(node, parts[node])
    return climber.parts


def root(
    parts: Mapping[Node, T], count: int, *, inplace: bool = False, add: Callable[[T, T], T] | None = None
) -> T:
    """The sum over all `count` microbatches. Raises ValueError, naming those that the parts do not hold."""
    top = climb(parts, count, inplace=inplace, add=add)
    whole = root_node(count)
    if whole not in top:
        held = {leaf for node in top for leaf in node.leaves(count)}
        missing = [leaf for leaf in range(count) if leaf not in held]
        raise ValueError(f"the sum over {count} microbatches lacks those numbered {missing}")
    return top[whole]


def ascent(
    node: Node, held: Container[Node], count: int, ceiling: int | None = None
) -> tuple[list[Node], Node]:
    """The way up of a value at `node`: the siblings that it meets, in the order in which they are added, and
    the subtree whose sum it is then. It ends at subtrees of `ceiling` leaves."""
    meets, whole = [], root_node(count)
    while node != whole and node.size != ceiling:
        sibling = node.sibling
        if sibling.start < count:
            if sibling not in held:
                break
            meets.append(sibling)
        node = node.parent
    return meets, node


class Climber(Generic[T]):
    """Adds values as they come, each as soon as its sibling is there.

    For a contiguous run of leaves added in order it holds at most 1 + log2(run) values on the way up.
    `parts` are the maximal subtrees so far, the same as `climb` over the same leaves; with a ceiling none of
    them has more than so many leaves.
    """

    def __init__(
        self,
        count: int,
        *,
        inplace: bool = False,
        add: Callable[[T, T], T] | None = None,
        ceiling: int | None = None,
    ) -> None:
        self.count, self.ceiling = count, ceiling
        self.parts: dict[Node, T] = {}
        self._root = root_node(count)
        self._add: Callable[[Any, Any], Any] = add or (operator.iadd if inplace else operator.add)

    def add(self, leaf: int, value: T) -> None:
        """Takes the value of one microbatch."""
        self.put(Node(leaf, 1), value)

    def put(self, node: Node, value: T) -> None:
        """Takes the value of a subtree. Raises ValueError where the step lacks it, or has it already."""
        aligned = node.size > 0 and not node.size & (node.size - 1) and not node.start % node.size
        if not aligned or node.size > self._root.size or not 0 <= node.start < self.count:
            raise ValueError(f"{node} is not a subtree of a step with {self.count} microbatches")
        for held in self.parts:
            if held.start < node.start + node.size and node.start < held.start + held.size:
                raise ValueError(f"{node} overlaps {held}, which is already summed")
        meets, top = ascent(node, self.parts, self.count, self.ceiling)
        for sibling in meets:
            other = self.parts.pop(sibling)
            value = self._sum(other, value) if sibling.is_left else self._sum(value, other)
        self.parts[top] = value

    def _sum(self, left: T, right: T) -> T:
        total: T = self._add(left, right)
        return total


class _Nothing:
    """A value whose sums say nothing: `cover` is `climb` without numbers."""

    def __add__(self, other: "_Nothing") -> "_Nothing":
        return self
