"""What a graph computes, and where: a Step for each weight, cache or run of other nodes, in the
graph's order.

    steps_of(nodes, places)        # of a scheduled graph
    # of one that is not: what cannot run on which backend, instead of where it runs
    script_of(nodes, backends)

A kernel is a node that computes something. Backends run a norm and its weight, or a chain of sums,
as one kernel (ggml_cuda_can_fuse, ggml_vk_can_fuse).
"""

from __future__ import annotations

from functools import lru_cache

from ...ggml.tensor import VIEW_OPS, Tensor
from ...records import lazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...backends import Backend

BLOCK = "blk."  # what names of a layer's weights begin with
WEIGHT, CACHE, ATTENTION, OTHER = "weight", "cache", "attention", ""
# an operation -> those whose kernel does it as well, right after them
_FUSED = {"MUL": ("RMS_NORM", "NORM"), "ADD": ("ADD",)}
INPUT, OUTPUT = -1, 1 << 30  # layers before the first block and after the last


class Step:
    """`kernels` consecutive nodes in one place.

    A WEIGHT step reads the weight `name`, a CACHE step writes to a cache, an ATTENTION step reads
    one; `source` is the buffer that holds it. OTHER nodes read only results, and belong to the
    `layer` of the last weight; `op` is the first node's. `place` is the number of the backend that
    runs them; in a script it is a bit set of the backends that cannot, or that copy a weight from
    RAM. `few`, of a prompt's graph: only for tokens with output.
    """

    # no record: a search keeps a million of them for a model of hundreds of layers
    __slots__ = ("few", "kernels", "kind", "layer", "name", "op", "place", "source")

    def __init__(
        self,
        kind: str,
        op: str,
        name: str,
        source: str,
        layer: int,
        place: int,
        kernels: float,
        few: bool = False,
    ) -> None:
        self.kind, self.op, self.name, self.source = kind, op, name, source
        self.layer, self.place, self.kernels, self.few = layer, place, kernels, few

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]


class Walk:
    """One graph's steps: those `built`, whose layers stand for those of `numbers`; None: for
    themselves."""

    def __init__(
        self, built: Sequence[Step] = (), numbers: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        self.built, self.numbers = built, numbers or {}

    @lazy
    def stands_for(self) -> dict[int, int]:
        """By layer, the one of `built` that it is like."""
        return {il: layer for layer, numbers in self.numbers.items() for il in numbers}

    @lazy
    def steps(self) -> tuple[Step, ...]:
        """Of all layers, in their order."""
        if not self.numbers:
            return tuple(self.built)
        # the steps of each layer that was built
        rows: dict[int, list[Step]] = {}
        for step in self.built:
            rows.setdefault(step.layer, []).append(step)
        # layers left out of the graph, in reverse: the next one is popped from the end
        more = sorted(
            [(il, layer) for layer, steps in self.numbers.items() for il in steps[1:]], reverse=True
        )
        steps: list[Step] = []
        for step in self.built:
            il = self.numbers.get(step.layer, (step.layer,))[0]
            while more and il > more[-1][0]:
                copy, layer = more.pop()
                steps.extend([_renamed(row, copy) for row in rows.get(layer, ())])
            steps.append(_renamed(step, il))
        return tuple(steps)

    def multiplied(self, places: int) -> list[tuple[set[str], set[str]]]:
        """Return the names of the weights that each place multiplies with, for every token and for
        those with output only."""
        names_of: list[tuple[set[str], set[str]]] = [(set(), set()) for _ in range(places)]
        for step in self.built:
            if step.kind == WEIGHT:
                # "blk.3.ffn_up.weight" -> "ffn_up.weight", which every layer that
                # this one stands for has
                names, rest = names_of[step.place][step.few], within_block(step.name)
                if step.layer in self.numbers and step.name.startswith(BLOCK):
                    names.update([f"{BLOCK}{il}.{rest}" for il in self.numbers[step.layer]])
                else:
                    names.add(step.name)
        return names_of


def _renamed(step: Step, il: int) -> Step:
    """Return the step of layer `il`."""
    if il == step.layer:
        return step
    name = step.name
    if name.startswith(BLOCK):
        name = f"{BLOCK}{il}.{within_block(name)}"
    return Step(step.kind, step.op, name, step.source, il, step.place, step.kernels, step.few)


class Steps:
    """A launch's two graphs: of one `token` per slot, and of a full micro-batch of a `prompt`.
    `places` are the backends that Step.place indexes, the host's last."""

    def __init__(self, token: Walk, prompt: Walk, places: tuple[str, ...] = ()) -> None:
        self._token, self._prompt, self.places = token, prompt, places

    def alike(self, layer: int) -> tuple[int | None, int | None]:
        """Return the layers whose steps are those of this one; None where it is like no other."""
        return self._token.stands_for.get(layer), self._prompt.stands_for.get(layer)

    @property
    def token(self) -> tuple[Step, ...]:
        return self._token.steps

    @property
    def prompt(self) -> tuple[Step, ...]:
        return self._prompt.steps

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Steps) and (self.token, self.prompt, self.places) == (
            other.token,
            other.prompt,
            other.places,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Steps({len(self.token)}, {len(self.prompt)}, {self.places})"

    @property
    def fall(self) -> bool:
        """Whether the host runs a node of a token's layers."""
        # a node on the host means a copy there and back for every token
        host = len(self.places) - 1
        return any(step.place == host and step.layer > INPUT for step in self._token.built)

    def multiplied(self, place: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of the weights that a place multiplies with, for every token and for
        those with output only."""
        names = self._multiplied.get(place)
        return (frozenset(), frozenset()) if names is None else names

    @lazy
    def _multiplied(self) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
        """Each place with the weights of `multiplied`: a prompt multiplies some for its last token
        alone, which is the only one with output."""
        count = len(self.places)
        names_of = {}
        for place, (token, more), (many, few) in zip(
            self.places, self._token.multiplied(count), self._prompt.multiplied(count), strict=True
        ):
            # a single token has output, so its graph does not tell the two apart
            names_of[place] = frozenset(many), frozenset(few | ((token | more) - many))
        return names_of


def steps_of(nodes: Sequence[Tensor], n_tokens: int = 0) -> tuple[Step, ...]:
    """Return the steps of a graph of this many tokens whose nodes have backends."""
    return tuple(_steps(nodes, lambda node, kind: node.backend, n_tokens))


def script_of(
    nodes: Sequence[Tensor], backends: Sequence[Backend], n_tokens: int = 0
) -> tuple[Step, ...]:
    """Return the steps of a graph before its nodes have backends, for layers on devices. What the
    builder pins to the CPU is lacked by all; the bits of a weight are the backends that would copy
    it from RAM."""
    # layers repeat: an operation with the same shapes and owners is asked about once
    lacks_of: dict[object, int] = {}
    # bit sets of the backends of each one's kind: what one CUDA device lacks, all lack
    alike = [
        sum(1 << j for j, other in enumerate(backends) if other.kind == backend.kind)
        for backend in backends
    ]

    def lacking(node: Tensor, kind: str) -> int:
        """Return the bits of the backends that would copy a weight, or have no kernel for a
        node."""
        # every backend writes to a cache of its own
        if kind == CACHE:
            return 0
        if kind == WEIGHT:
            return sum(1 << i for i, backend in enumerate(backends) if backend.offload_op(node))
        # -nkvo: build_attn_mha pins attention to the CPU
        if node.pinned == len(backends):
            return (1 << len(backends)) - 1
        # only that device can be asked about an op that reads its memory
        owners = tuple(
            {
                source.buffer.device
                for source in node.src
                if source.buffer and source.buffer.device >= 0
            }
        )
        shape = (
            node.op,
            node.type,
            node.ne,
            owners,
            *[(source.type, source.ne) for source in node.src],
        )
        if shape not in lacks_of:
            lacks = [i for i in owners or range(len(backends)) if not backends[i].supports_op(node)]
            lacks_of[shape] = 0
            for i in lacks:
                lacks_of[shape] |= alike[i] if owners else 1 << i
        return lacks_of[shape]

    return tuple(_steps(nodes, lacking, n_tokens))


def _steps(
    nodes: Sequence[Tensor], place_of: Callable[[Tensor, str], int], n_tokens: int = 0
) -> Iterator[Step]:
    """Yield the steps of nodes in order: each multiplies with a weight, attends, or is of others
    that read results."""
    # the operation before; the layer of the last weight; the last layer that attended
    before, layer, attended = "", INPUT, INPUT
    layers: dict[str, int] = {}  # by weight
    # of the nodes since the last step that read nothing but results
    count = place = others = 0
    first = ""

    def few(node: Tensor, layer: int) -> bool:
        # a prompt has one output, whatever builds without a limit of outputs reserve for
        # The number of tokens that a weight is used for; a large number if it is not a matrix.
        # MUL_MAT_ID: dimension 1 holds the experts of each token
        _, n1, n2, n3 = node.ne
        columns = (
            n1 * n2 * n3
            if node.op == "MUL_MAT"
            else n2 * n3
            if node.op == "MUL_MAT_ID"
            else 1 << 30
        )
        return columns < n_tokens or (layer == OUTPUT and n_tokens > 1)

    for node in nodes:
        op = node.op
        # no kernel: views compute nothing, and an empty tensor has no row
        if op in VIEW_OPS or not node.ne[1]:
            continue
        alone = before not in _FUSED.get(op, ())
        before = op
        kind, name, source = _read(node)
        if kind == ATTENTION:
            # without flash attention two products read a layer's cache; the first one counts
            if attended == layer and op != "FLASH_ATTN_EXT":
                kind = OTHER  # values, after keys
            attended = layer
        here = place_of(node, kind)
        # nodes that read only results are one step until something else comes or the place changes
        if count and (kind != OTHER or here != place):
            yield Step(OTHER, first, "", "", others, place, count)
            count = 0
        if kind == WEIGHT:
            if name not in layers:
                layers[name] = _layer(name)
            layer = layers[name]
        if kind != OTHER:
            yield Step(
                kind, op, name, source, layer, here, int(alone), kind == WEIGHT and few(node, layer)
            )
        # a fused node adds no kernel to the run
        elif alone:
            first = first if count else op
            count, place, others = count + 1, here, layer
    if count:
        yield Step(OTHER, first, "", "", others, place, count)


def _read(node: Tensor) -> tuple[str, str, str]:
    """Return (kind, name, buffer) of the weight or cache that a node reads or writes."""
    if node.op == "FLASH_ATTN_EXT":
        keys = node.src[1]
        return ATTENTION, "", keys.buffer.name if keys.buffer is not None else ""
    for source in node.src:
        # rope factors are a few bytes: no step of their own
        if source.weight and source.buffer is not None and not source.name.startswith("rope_f"):
            return WEIGHT, source.name, source.buffer.name
    # without flash attention: keys, or values, are the matrix of a product
    if node.op == "MUL_MAT" and node.src[0].buffer is not None and not node.src[0].weight:
        return ATTENTION, "", node.src[0].buffer.name
    # a node in a buffer writes to it: SET_ROWS or a copy into a cache
    return (OTHER, "", "") if node.buffer is None else (CACHE, "", node.buffer.name)


@lru_cache(4096)
def block_number(name: str) -> int:
    """Return the layer of a weight whose name begins with BLOCK, -1 for none."""
    number = name[len(BLOCK) :].partition(".")[0]
    return int(number) if number.isdigit() else -1


def within_block(name: str) -> str:
    """ "blk.12.ffn_up.weight" -> "ffn_up.weight"."""
    return name.partition(".")[2].partition(".")[2]


def _layer(name: str) -> int:
    """Return the block of a weight, or INPUT or OUTPUT."""
    if name.startswith(BLOCK):
        return block_number(name)
    # read before the first layer, by row
    before = name.startswith(("token_embd", "per_layer", "position_embd", "token_types"))
    return INPUT if before else OUTPUT
