"""Repeating layers: a graph of few of them needs the buffers that all of them need. Layers in one
place that do the same come in runs of equal periods (one layer, or three and one), which may differ
in the types of their weights. What a period allocates depends on its types and on what is free when
it begins. If the latter is the same before every second period, those whose types occurred before
at the same parity change nothing and can be left out of the graph. `allocate` checks this, and the
full graph is used if it does not hold."""

from __future__ import annotations

from ...records import dataclass
from .scheduled import BLOCK, block_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from ...ggml.tensor import Tensor

# e.g. 6 in Gemma 3 (five sliding layers and a full one), 4 in Qwen3-Next
_LONGEST = 8  # layers in a period


@dataclass(frozen=True)
class Repeats:
    """The layers that a graph is built of; pairs of layers before which the same memory must be
    free if the others are to be left out; and for each of the latter a layer that is like it."""

    layers: tuple[int, ...]
    marks: tuple[tuple[int, int], ...]
    twins: Mapping[int, int]

    @classmethod
    def of(cls, kinds: Sequence[Hashable], alike: Sequence[Hashable] = ()) -> Repeats | None:
        """Find the layers of a shorter graph by the kind of each layer; None if nothing can be left
        out. `alike`: the kinds without the weights' types.

        >>> Repeats.of("abbbbbbbbc").layers
        (0, 1, 2, 3, 8, 9)
        >>> Repeats.of("aaaabaabaabaabaa", "." * 16).layers
        (0, 1, 2, 3, 4, 7, 14, 15)
        """
        layers: list[int] = []
        marks: list[tuple[int, int]] = []
        twins: dict[int, int] = {}
        # from run to run: leading dense layers, the body, MTP blocks
        first = 0
        while first < len(kinds):
            period, count, numbers = _run(kinds, alike or kinds, first)
            starts = [first + number * period for number in numbers]
            layers.extend([start + i for start in starts for i in range(period)])
            if len(numbers) < count:
                # (a, b): kept periods of one parity, before which the same memory must be free
                marks.extend(zip(starts[1:], starts[3:], strict=False))
                # (parity, types) -> the first layer of the period that stands for its like
                like: dict[Hashable, int] = {}
                for number in range(1, count):
                    start = first + number * period
                    twin = like.setdefault(
                        (number % 2, tuple(kinds[start : start + period])), start
                    )
                    if number not in numbers:
                        twins.update({start + i: twin + i for i in range(period)})
            first += count * period
        return cls(tuple(layers), tuple(marks), twins) if twins else None


@dataclass(frozen=True)
class Layers:
    """The kind of each layer of a graph, as numbers, and which layers a shorter graph keeps."""

    kinds: tuple[int, ...]
    repeats: Repeats | None

    @classmethod
    def of(cls, kinds: Sequence[int], alike: Sequence[int], few: int) -> Layers:
        """Return the layers of these kinds. `alike`: the kinds without the weights' types. `few`:
        layers that are never left out."""
        return cls(tuple(kinds), None if len(kinds) < few else Repeats.of(kinds, alike))

    def key(self, short: bool) -> Hashable:
        """Return a key that is equal for graphs, short or full, that differ only in their layers'
        numbers."""
        repeats = self.repeats
        if not short or repeats is None:
            return self.kinds
        # positions among the layers that stay, so that models of any length share a graph
        marks = tuple([repeats.layers.index(mark) for pair in repeats.marks for mark in pair])
        return tuple([self.kinds[il] for il in repeats.layers]), marks

    def numbers(self, short: bool) -> tuple[int, ...]:
        """Return the layers of a graph that is `short` or not."""
        return (
            self.repeats.layers
            if short and self.repeats is not None
            else tuple(range(len(self.kinds)))
        )

    def copies(self, numbers: Sequence[int]) -> dict[int, list[int]]:
        """Return the layers that each of `numbers` stands for, in a graph with an equal key."""
        short = len(numbers) < len(self.kinds)
        own = dict(zip(self.numbers(short), numbers, strict=True))
        copies = {layer: [il] for il, layer in own.items()}
        for il, twin in (self.repeats.twins if short and self.repeats is not None else {}).items():
            copies[own[twin]].append(il)
        return copies


def _run(
    kinds: Sequence[Hashable], alike: Sequence[Hashable], first: int
) -> tuple[int, int, list[int]]:
    """Return (layers per period, periods, periods to keep) of the run that begins here, for the
    period that saves most."""
    best, saved = (1, 1, [0]), 0
    # the shortest period wins a tie, as it is tried first
    for period in range(1, _LONGEST + 1):
        end = first
        while end + period < len(alike) and alike[end] == alike[end + period]:
            end += 1
        count = (end - first) // period + 1
        # four stay at least: the first one, the next at each parity, and the last one
        if (count - 4) * period <= saved:
            continue
        numbers = _periods_to_keep(
            [tuple(kinds[at : at + period]) for at in range(first, first + count * period, period)]
        )
        if (count - len(numbers)) * period > saved:
            best, saved = (period, count, numbers), (count - len(numbers)) * period
    return best


def _periods_to_keep(kinds: Sequence[Hashable]) -> list[int]:
    """Return the first and the last period, and the first one of each kind at each parity, all at
    the parity that they have in the whole run."""
    numbers = [0]
    seen: set[Hashable] = set()
    for number in range(1, len(kinds)):
        kind = number % 2, kinds[number]
        if kind in seen and number < len(kinds) - 1:
            continue
        # keep its predecessor too: what is free before a period alternates between two states
        if len(numbers) % 2 != number % 2:
            numbers.append(number - 1)
        numbers.append(number)
        seen.add(kind)
    return numbers


def block_of(tensor: Tensor) -> int:
    """Return the layer whose weight a node reads, -1 for none."""
    for source in tensor.src:
        if source.weight and source.name.startswith(BLOCK):
            return block_number(source.name)
    return -1


def _named(source: Tensor) -> Hashable:
    """Return what names a node's source within its layer. A weight has its name without the layer;
    an input, or what another layer computed, its own number."""
    if source.size >= 0 or source.is_input:
        return source.size
    if source.weight:
        return source.ne, source.name[len(BLOCK) :].partition(".")[2]
    return source.type, source.ne


def structures(nodes: Sequence[Tensor], leafs: Sequence[Tensor], n_layer: int) -> tuple[int, ...]:
    """Return the kind of each layer's nodes, as a number: equal if operations, shapes and sources
    are, whatever the weights' types."""
    # `size` is free until allocation: it serves as the tensor's number here
    for number, leaf in enumerate(leafs):
        leaf.size = -1 - number
    rows: list[list[Hashable]] = [[] for _ in range(n_layer)]
    starts = [0] * (n_layer + 1)
    here = -1
    for number, node in enumerate(nodes):
        node.size = number
        block = block_of(node)
        # nodes before a layer's first weight (its RMS_NORM) belong to the layer before it
        if 0 <= block < n_layer and block != here:
            here = block
            starts[here] = number
        if here >= 0:
            # anything farther away is identified by its own number
            near = starts[here - 1] if here else 0
            rows[here].append(
                (
                    node.op,
                    node.type,
                    node.ne,
                    *[
                        number - source.size if source.size >= near else _named(source)
                        for source in node.src
                    ],
                )
            )
    kinds: dict[Hashable, int] = {}
    return tuple([kinds.setdefault(tuple(row), len(kinds)) for row in rows])
