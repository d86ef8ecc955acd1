"""What CUDA, Metal and Vulkan ask of nodes that they would fuse: whether each reads the one that it
should, whether nothing inside is used elsewhere, and what must live until they are done.

    links("ARGSORT VIEW<1 GET_ROWS<3,1")     # GET_ROWS reads the third node before it and the last
    linked(nodes, 4, CHOICE)                 # how many nodes from 4 on are that choice, 0: none
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ggml.scheduler import AddAllocDep
    from ..ggml.tensor import Tensor

    Links = tuple[tuple[str, tuple[int, ...]], ...]

_MOST = 31  # ggml_can_fuse_subgraph asserts fewer than 32 nodes


def links(text: str) -> Links:
    """Return operations, each with how many places before it its first sources are."""
    pairs = [word.partition("<") for word in text.split()]
    return tuple([(op, tuple(map(int, back.split(","))) if back else ()) for op, _, back in pairs])


# the choice of experts by their probabilities, which the node before it has; what divides their
# weights by their sum; and a factor
CHOICE = links("RESHAPE<1 ARGSORT<2 VIEW<1 GET_ROWS<3,1")
BIASED = links("RESHAPE<1 ADD<2 ARGSORT<1 VIEW<1 GET_ROWS<4,1")
NORMALISED = links("RESHAPE<1 SUM_ROWS<1 CLAMP<1 DIV<3,1 RESHAPE<1")
SCALED = links("SCALE<1")


def linked(nodes: Sequence[Tensor], at: int, pattern: Links) -> int:
    """Return the length of the pattern if the nodes from `at` on are its operations and read what
    it says, otherwise 0."""
    if at + len(pattern) > len(nodes):
        return 0
    for i, (op, before) in enumerate(pattern, at):
        node = nodes[i]
        if node.op != op:
            return 0
        for source, back in zip(node.src, before, strict=False):
            if source is not nodes[i - back]:
                return 0
    return len(pattern)


def adds_up(parts: Sequence[Tensor], sums: Sequence[Tensor]) -> bool:
    """Return whether these sums add one part after the other, from the left."""
    if len(sums) != len(parts) - 1:
        return False
    left = parts[0]
    for total, right in zip(sums, parts[1:], strict=True):
        if total.src[0] is not left or total.src[1] is not right:
            return False
        left = total
    return True


def fusible(group: Sequence[Tensor], *outputs: Tensor) -> bool:
    """Return whether nothing inside is used outside, except the outputs
    (ggml_can_fuse_subgraph)."""
    if len(group) > _MOST:
        return False
    # how often the others of a group read each node, by its id
    reads = {id(node): 0 for node in group}
    for node in group:
        for source in node.src:
            if id(source) in reads:
                reads[id(source)] += 1
    for node in group:
        if node in outputs:
            continue
        if node.is_output or reads[id(node)] != node.uses:
            return False
        # a view into memory that others see must stay, unless that is a weight
        root = node.view_src
        if root is not None and not root.weight and id(root) not in reads:
            return False
    return True


def keep_sources(group: Sequence[Tensor], until: Tensor, add_alloc_dep: AddAllocDep) -> None:
    """Report what nodes read from outside as needed until a node is done."""
    seen: set[int] = set()
    for node in group:
        for source in node.src:
            if id(source) not in seen:
                seen.add(id(source))
                add_alloc_dep(source, until)
        seen.add(id(node))
