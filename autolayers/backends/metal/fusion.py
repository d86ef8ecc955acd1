"""What Metal fuses: the table and its checks of ggml/src/ggml-metal/ggml-metal-fusion.cpp, as
modelled. `span` is the number of nodes that stay together when a graph is reordered,
`add_alloc_deps` how long their sources must live. The snake activation (MUL SIN SQR MUL ADD) is
left out: no language model has it."""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise

from ...builds import Rule, Rules
from ...ggml.tensor import VIEW_OPS, Tensor
from ..fusing import CHOICE, NORMALISED, SCALED, adds_up, fusible, keep_sources, linked
from ..kernels import types_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...ggml.scheduler import AddAllocDep

    ByFirst = dict[str, list["_Fusion"]]

MOST = 16  # GGML_METAL_FUSION_MAX
EMPTY = VIEW_OPS | {"NONE"}
_MOE_MOST_USED = 8  # GGML_METAL_MOE_REDUCE_MAX_EXPERTS
_MOE_MOST_EXPERTS = 1024  # GGML_METAL_TOPK_MOE_MAX_EXPERTS
# ggml_metal_mul_mv_mma_type_supported; since Rules.metal_products_of_all the others too
_PRODUCTS = types_of("MTL", "PRODUCTS")
_OTHER = types_of("MTL", "OTHER_PRODUCTS")


class _Fusion:
    """A sequence of operations: `ops_all` includes the views between them, `ops` does not. `check`
    gets the nodes, with those views."""

    def __init__(
        self,
        ops: str,
        check: Callable[[Sequence[Tensor]], bool],
        chain: bool = True,
        rule: Rule | None = None,
    ) -> None:
        self.ops_all = tuple(ops.split())
        self.ops = tuple(op for op in self.ops_all if op not in EMPTY)
        self.check = check
        self.rule = rule  # builds without this rule lack it
        # each node reads the previous one, has its shape and is read only by the next
        self.chain = chain


def add_alloc_deps(nodes: list[Tensor], add_alloc_dep: AddAllocDep, rules: Rules) -> None:
    """Mirror ggml_metal_fusion_add_alloc_deps: by the kinds of operations only, the longest
    sequence first."""
    ops, by_first = [node.op for node in nodes], known(rules)
    i, count = 0, len(nodes)
    while i < count:
        length = 0
        # the longest: a shorter row would free sources that the longer fusion still reads
        for fusion in by_first.get(ops[i], ()):
            size = len(fusion.ops_all)
            if size > length and tuple(ops[i : i + size]) == fusion.ops_all:
                length = size
        if length:
            keep_sources(nodes[i : i + length], nodes[i + length - 1], add_alloc_dep)
        i += max(1, length)


def span(nodes: Sequence[Tensor], real: Sequence[int], at: int, by_first: ByFirst) -> int:
    """Return the number of nodes from `real[at]` on that form one kernel (ggml_metal_fusion_max).
    `real`: indices of nodes that compute; `by_first`: known()."""
    start, end = at, min(at + MOST, len(real))
    # fused kernels that follow one another are moved as one piece
    while at < end:
        best = 0
        for fusion in by_first.get(nodes[real[at]].op, ()):
            n = len(fusion.ops)
            if n > best and at + n <= end and _matches(fusion, nodes, real[at : at + n]):
                best = n
        if not best or at + best - start > MOST:
            break
        at += best
    return min(MOST, real[at - 1] - real[start] + 1) if at > start else 1


def _matches(fusion: _Fusion, nodes: Sequence[Tensor], idxs: Sequence[int]) -> bool:
    """Mirror ggml_metal_fusion_next, for one row of the table."""
    start, length = idxs[0], len(fusion.ops_all)
    has_views = length > len(fusion.ops)
    group = nodes[start : start + length] if has_views else [nodes[i] for i in idxs]
    if tuple([node.op for node in group]) != fusion.ops_all:
        return False
    if fusion.chain and not (_is_chain(group) and fusible(group, group[-1])):
        return False
    return fusion.check(group)


def _is_chain(group: Sequence[Tensor]) -> bool:
    """Return whether each node reads the one before, of the same shape."""
    for before, node in pairwise(group):
        if not any(source is before for source in node.src[:2]) or node.ne != before.ne:
            return False
    return True


def _norm(group: Sequence[Tensor]) -> bool:
    before = first = group[0]
    for node in group[1:]:
        if node.src[0] is not before or node.type != "f32":
            return False
        if node.op == "SCALE":
            return len(node.src) == 1
        # weights and biases as wide as the row
        if node.src[1].ne[0] != first.ne[0] or not node.src[1].contiguous_rows():
            return False
        before = node
    return True


def _ssm_conv_silu(group: Sequence[Tensor]) -> bool:
    conv, unary = group
    return unary.param == "SILU" and conv.type == unary.type == "f32" and unary.contiguous_rows()


def _add_chain(group: Sequence[Tensor]) -> bool:
    for before, node in pairwise(group):
        a, b = node.src[1], before.src[1]
        # chains of equal shapes: one kernel with several sources
        if node.src[0] is not before or a.type != b.type or a.ne != b.ne or a.nb != b.nb:
            return False
    return True


def _gdn_cache(group: Sequence[Tensor]) -> bool:
    """Return whether these are the states that GATED_DELTA_NET puts after its output, copied to
    the cache."""
    gdn, cpy = group
    if gdn.is_output or cpy.is_output or gdn.type != "f32":
        return False
    size, heads, n_tokens, n_seqs = gdn.src[2].ne
    rows = n_tokens * n_seqs
    snapshots = (gdn.ne[1] - rows) // (size * n_seqs)
    states, cache = cpy.src[0], cpy.src[1]
    # the states of one sequence, which the kernel can write straight to the cache
    width = size * size * heads
    if states.op != "VIEW" or states.view_src is not gdn or not states.contiguous():
        return False
    if states.view_offs != 4 * size * heads * rows or cache.type != "f32":
        return False
    shape = (width, n_seqs, min(n_tokens, snapshots), 1)
    return cache.ne == shape and cache.nb[:2] == (4, 4 * width)


def _topk_moe(group: Sequence[Tensor]) -> bool:
    """Mirror ggml_metal_fusion_check_topk_moe: the choice of experts."""
    softmax, ids, out = group[0], group[3], group[-1]
    chosen = linked(group, 1, CHOICE)
    if len(softmax.src) > 1 or not chosen or not _chosen_shapes(softmax, ids, out):
        return False
    end = 1 + chosen
    end += linked(group, end, NORMALISED)
    end += linked(group, end, SCALED)
    return end == len(group) and fusible(group, ids, out)


def _chosen_shapes(softmax: Tensor, ids: Tensor, out: Tensor) -> bool:
    """Return whether the kernel has these types, strides and numbers of experts."""
    logits = softmax.src[0]
    if not logits.type == softmax.type == out.type == "f32" or logits.ne[2:] != (1, 1):
        return False
    n_expert, n_tokens = logits.ne[:2]
    if n_expert > _MOE_MOST_EXPERTS or ids.ne[1:] != (n_tokens, 1, 1):
        return False
    if out.ne != (1, ids.ne[0], n_tokens, 1) or ids.nb[:2] != (4, 4 * n_expert):
        return False
    return logits.contiguous() and out.contiguous()


def _moe_reduce(group: Sequence[Tensor]) -> bool:
    """Mirror ggml_metal_fusion_match_moe_reduce: the weighted sum of the experts' results."""
    n = len(group) // 2  # the product, a view of each expert, and one addition less
    mul, views, adds = group[0], group[1 : n + 1], group[n + 1 :]
    if mul.src[0].ne[1] != n or not _weights_experts(mul, group[-1]):
        return False
    if not all(_is_part(view, mul, i) for i, view in enumerate(views)):
        return False
    # a chain from the left, as build_moe_ffn makes it
    return adds_up(views, adds) and fusible(group, group[-1])


def _weights_experts(mul: Tensor, out: Tensor) -> bool:
    """Return whether `mul` gives each expert's result its weight, and `out` is their sum."""
    experts, weights = mul.src[0], mul.src[1]
    n_embd, used, n_tokens, more = experts.ne
    if not mul.type == experts.type == weights.type == out.type == "f32" or more != 1:
        return False
    if weights.ne != (1, used, n_tokens, 1) or out.ne != (n_embd, n_tokens, 1, 1):
        return False
    return experts.contiguous() and weights.contiguous() and out.contiguous()


def _is_part(view: Tensor, mul: Tensor, number: int) -> bool:
    """Return whether a view is the part of one expert, for all tokens."""
    if view.view_src is not mul or view.src[0] is not mul or view.view_offs != number * mul.nb[1]:
        return False
    return view.ne[:2] == (mul.ne[0], mul.ne[2]) and view.nb[1] == mul.nb[2]


def _mul_mat_add(types: frozenset[str], group: Sequence[Tensor]) -> bool:
    """Mirror ggml_metal_fusion_check_mul_mat_add, as the reordering uses it: a residual, not a
    bias."""
    product, total = group
    if (total.src[0] is product) == (total.src[1] is product):
        return False
    other = total.src[1 if total.src[0] is product else 0]
    floats = other.type == total.type == product.src[1].type == "f32"
    is_bias = (other.view_src or other).weight
    return floats and not is_bias and product.src[0].type in types


_SELECTION = "SOFT_MAX RESHAPE ARGSORT VIEW GET_ROWS"
_NORMALISED = f"{_SELECTION} RESHAPE SUM_ROWS CLAMP DIV RESHAPE"
_FUSIONS = (
    *(
        _Fusion(f"{norm} {rest}", _norm)
        for norm in ("NORM", "RMS_NORM")
        for rest in ("MUL", "MUL ADD", "SCALE")
    ),
    *(_Fusion(" ".join(["ADD"] * n), _add_chain) for n in range(2, 8)),
    _Fusion("GATED_DELTA_NET CPY", _gdn_cache, chain=False),
    *(
        _Fusion(ops, _topk_moe, chain=False)
        for ops in (_SELECTION, f"{_SELECTION} SCALE", _NORMALISED, f"{_NORMALISED} SCALE")
    ),
    *(
        _Fusion(" ".join(["MUL", *["VIEW"] * n, *["ADD"] * (n - 1)]), _moe_reduce, chain=False)
        for n in range(2, _MOE_MOST_USED + 1)
    ),
    _Fusion("SSM_CONV UNARY", _ssm_conv_silu),
    _Fusion("MUL_MAT ADD", partial(_mul_mat_add, _PRODUCTS), rule=Rules.metal_adds_products),
    _Fusion("MUL_MAT ADD", partial(_mul_mat_add, _OTHER), rule=Rules.metal_products_of_all),
)


@cache
def known(rules: Rules) -> ByFirst:
    """Return a build's sequences by their first operation."""
    by_first: ByFirst = {}
    for fusion in _FUSIONS:
        if fusion.rule is None or rules.has(fusion.rule):
            by_first.setdefault(fusion.ops[0], []).append(fusion)
    return by_first
