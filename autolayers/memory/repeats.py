"""Repeating layers: a graph of few of them needs the buffers that all of them need. Layers of one kind in one
place come in runs of equal periods (one layer, or three and one). A period's allocations depend on what is
free when it begins. So if that is the same after three periods as after one, two more periods change nothing
and can be left out of the graph: an even number in the middle of each run. `allocate` checks this, and the
full graph is used if it does not hold."""

from __future__ import annotations

from ..records import dataclass
from .scheduled import BLOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from ..ggml.tensor import Tensor

_LONGEST = 8        # layers in a period
_BEFORE, _AFTER = 3, 1      # periods of a run to keep


@dataclass(frozen=True)
class Repeats:
    """The layers that a graph is built of; pairs of layers before which the same memory must be free if the
    others are to be left out; and for each of the latter a layer that is like it."""

    layers: tuple[int, ...]
    marks: tuple[tuple[int, int], ...]
    twins: Mapping[int, int]

    @classmethod
    def of(cls, kinds: Sequence[Hashable]) -> Repeats | None:
        """By the kind of each layer; None if nothing can be left out.

        >>> Repeats.of("abbbbbbbbc").layers
        (0, 1, 2, 3, 8, 9)
        """
        layers: list[int] = []
        marks: list[tuple[int, int]] = []
        twins: dict[int, int] = {}
        first = 0
        while first < len(kinds):
            period, spare = _run(kinds, first)
            if not spare:
                layers.append(first)
                first += 1
                continue
            head = first + _BEFORE * period
            layers.extend(range(first, head))
            marks.append((first + period, head + spare))
            twins.update({head + i: first + period + i % (2 * period) for i in range(spare)})
            first = head + spare
        return cls(tuple(layers), tuple(marks), twins) if twins else None


@dataclass(frozen=True)
class Layers:
    """The kind of each layer of a graph, as numbers, and which layers a shorter graph keeps."""

    kinds: tuple[int, ...]
    repeats: Repeats | None

    @classmethod
    def of(cls, kinds: Sequence[int], few: int) -> Layers:
        """`few`: layers that are never left out."""
        return cls(tuple(kinds), None if len(kinds) < few else Repeats.of(kinds))

    def key(self, short: bool) -> Hashable:
        """Equal for graphs, short or full, that differ only in their layers' numbers."""
        repeats = self.repeats
        if not short or repeats is None:
            return self.kinds
        marks = tuple([repeats.layers.index(mark) for pair in repeats.marks for mark in pair])
        return tuple([self.kinds[il] for il in repeats.layers]), marks

    def numbers(self, short: bool) -> tuple[int, ...]:
        """The layers of such a graph."""
        return self.repeats.layers if short and self.repeats is not None else tuple(range(len(self.kinds)))

    def copies(self, numbers: Sequence[int]) -> dict[int, list[int]]:
        """The layers that each of `numbers` stands for, in a graph with an equal key."""
        short = len(numbers) < len(self.kinds)
        own = dict(zip(self.numbers(short), numbers, strict=True))
        found = {layer: [il] for il, layer in own.items()}
        for il, twin in (self.repeats.twins if short and self.repeats is not None else {}).items():
            found[own[twin]].append(il)
        return found


def _run(kinds: Sequence[Hashable], first: int) -> tuple[int, int]:
    """(layers per period, layers that can be left out) of the run that begins here, for the period that saves
    most."""
    best = 1, 0
    for period in range(1, _LONGEST + 1):
        end = first
        while end + period < len(kinds) and kinds[end] == kinds[end + period]:
            end += 1
        count = (end - first) // period + 1
        spare = (count - _BEFORE - _AFTER) // 2 * 2 * period
        if spare > best[1]:
            best = period, spare
    return best


def block_of(tensor: Tensor) -> int:
    """The layer whose weight a node reads, -1 for none."""
    for source in tensor.src:
        if source.weight and source.name.startswith(BLOCK):
            number = source.name[len(BLOCK):].partition(".")[0]
            return int(number) if number.isdigit() else -1
    return -1


def _named(source: Tensor) -> Hashable:
    """What is read of other layers, and inputs, which several layers may share, by its own number; weights by
    name."""
    if source.size >= 0 or source.is_input:
        return source.size
    if source.weight:
        return source.ne, source.name[len(BLOCK):].partition(".")[2]
    return source.type, source.ne


def structures(nodes: Sequence[Tensor], leafs: Sequence[Tensor], n_layer: int) -> tuple[int, ...]:
    """The kind of each layer's nodes, as a number: equal if operations, shapes and sources are, whatever the
    weights' types."""
    for number, leaf in enumerate(leafs):
        leaf.size = -1 - number
    rows: list[list[Hashable]] = [[] for _ in range(n_layer)]
    starts = [0] * (n_layer + 1)
    here = -1
    for number, node in enumerate(nodes):
        node.size = number
        block = block_of(node)
        if 0 <= block < n_layer and block != here:
            here = block
            starts[here] = number
        if here >= 0:
            # anything farther away is identified by its own number
            near = starts[here - 1] if here else 0
            rows[here].append((node.op, node.type, node.ne, *[
                number - source.size if source.size >= near else _named(source) for source in node.src]))
    known: dict[Hashable, int] = {}
    return tuple([known.setdefault(tuple(row), len(known)) for row in rows])
