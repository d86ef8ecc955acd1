"""What CUDA keeps in memory for its fusions: ggml_backend_cuda_graph_optimize of
ggml/src/ggml-cuda/ggml-cuda.cu, as modelled."""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size
from ..fusing import BIASED, CHOICE, NORMALISED, SCALED, adds_up, fusible, linked, links

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...builds import Rules
    from ...ggml.scheduler import AddAllocDep

# gates that a shared expert is fused with
_SHARED = ("SWIGLU", "GEGLU", "SWIGLU_OAI", "SWIGLU_CLAMP")
_SQRT = links("SQRT<1")
# the first ops of fusions that keep tensors alive
_FUSED_FIRST = frozenset(("MUL", "UNARY", "SOFT_MAX"))


def add_alloc_deps(
    nodes: list[Tensor], after: Tensor | None, add_alloc_dep: AddAllocDep, rules: Rules
) -> None:
    """Report what the fused MoE paths among `nodes`, one split, still read at their end. A fusion
    at the end of its split keeps its tensors until `after`, the next split's first node."""
    if not rules.keeps_weighted_experts:
        return
    i, count = 0, len(nodes)
    while i < count:
        op = nodes[i].op
        if op not in _FUSED_FIRST:
            i += 1
        elif op == "MUL":
            i += _keep_weighted(nodes, i, add_alloc_dep)
        elif rules.keeps_top_k_moe:
            # keep a fused choice of experts until the next node; return the number of nodes done
            # all of a fused sequence is kept, so that none of it shares memory
            length = _top_k_moe(nodes, i)
            until = nodes[i + length] if i + length < len(nodes) else after
            if not length or until is None:
                keep_top_k_moe = 1
            else:
                for fused in nodes[i : i + length]:
                    for tensor in (fused, *fused.src):
                        add_alloc_dep(tensor, until)
                keep_top_k_moe = length
            i += keep_top_k_moe
        else:
            i += 1


def _keep_weighted(nodes: list[Tensor], i: int, add_alloc_dep: AddAllocDep) -> int:
    """Keep what a weighted sum of experts reads until its end; return the number of nodes done."""
    # cheap to ask, and true of most MULs
    if i + 1 == len(nodes) or nodes[i + 1].op not in ("MUL", "VIEW"):
        return 1
    match = _weighted_reduction(nodes, i)
    if match is None:
        return 1
    inputs, length = match
    for tensor in inputs:
        add_alloc_dep(tensor, nodes[i + length - 1])
    return length


def with_shared_experts(nodes: list[Tensor], add_alloc_dep: AddAllocDep) -> list[Tensor]:
    """Return the nodes, with each shared expert's gate, up and activation directly after those of
    the routed experts that it is fused with; what both read lives until then."""
    ops = [node.op for node in nodes]
    if "MUL_MAT_ID" not in ops:
        return nodes
    nodes = list(nodes)
    i, count = 0, len(nodes)
    while i + 5 < count:
        routed = ops[i] == ops[i + 1] == "MUL_MAT_ID" and ops[i + 2] == "GLU"
        j = _shared_at(nodes, ops, i) if routed else 0
        if j:
            # what lay between moves behind the shared expert's three nodes
            nodes[i + 3 : j + 3] = nodes[j : j + 3] + nodes[i + 3 : j]
            ops[i + 3 : j + 3] = ops[j : j + 3] + ops[i + 3 : j]
            up = nodes[i + 2].src[1]
            add_alloc_dep(up.src[1], nodes[i + 5])
            add_alloc_dep(up.src[2], nodes[i + 5])
            i += 5
        i += 1
    return nodes


def _shared_at(nodes: list[Tensor], ops: list[str], i: int) -> int:
    """Return where the shared expert of the routed ones at `i` begins; 0 without one."""
    for j in range(i + 3, len(nodes) - 2):
        op = ops[j]
        # the next layer's experts: its shared expert is not this one's
        if op == "MUL_MAT_ID" and ops[j + 1] == "MUL_MAT_ID":
            return 0
        two_and_gate = op == ops[j + 1] == "MUL_MAT" and ops[j + 2] == "GLU"
        if two_and_gate and _shared_expert(nodes[i : i + 3], nodes[j : j + 3]):
            return j
    return 0


def _shared_expert(routed: list[Tensor], shared: list[Tensor]) -> bool:
    """Whether routed and shared experts, each of two matrices and a gate, may run as one kernel:
    ggml_cuda_match_shared_expert, with ggml_cuda_should_fuse_mul_mat of both."""
    if not _is_gated(*routed) or not _is_gated(*shared):
        return False
    ours, theirs = routed[2], shared[2]
    if ours.param != theirs.param or not fusible([*routed, *shared], ours, theirs):
        return False
    (experts, source, _), (up, read) = ours.src[1].src, theirs.src[1].src
    quantised = experts.buffer is not None and block_size(experts.type) > 1
    if not quantised or not _is_matrix(up) or not _is_matrix(theirs.src[0].src[0]):
        return False
    # whether the routed experts read what the shared one reads, of one token
    if source.op != "RESHAPE" or source.src[0] is not read:
        same_token = False
    else:
        one_token = source.ne[1] == source.ne[3] == 1 and read.ne[2] == read.ne[3] == 1
        same_token = one_token and source.contiguous() and read.contiguous()
    return same_token and _same_matrix(experts, up)


def _is_matrix(weight: Tensor) -> bool:
    """Return whether a factor is a whole weight, not a result."""
    return weight.op == "NONE" and weight.contiguous()


def _is_gated(first: Tensor, second: Tensor, act: Tensor) -> bool:
    """Return whether `act` joins these products of two equal matrices with the same activations."""
    if act.param not in _SHARED or len(act.src) < 2:
        return False
    gate, up = act.src
    if {id(gate), id(up)} != {id(first), id(second)} or up.src[1:] != gate.src[1:]:
        return False
    a, b = up.src[0], gate.src[0]
    return (a.type, a.ne, a.nb) == (b.type, b.ne, b.nb) and act.contiguous()


def _same_matrix(experts: Tensor, matrix: Tensor) -> bool:
    """Return whether each routed expert's matrix is laid out as the shared one's."""
    if experts.ne[3] != 1 or not matrix.ne[2] == matrix.ne[3] == 1:
        return False
    alike = experts.type == matrix.type and experts.ne[:2] == matrix.ne[:2]
    return alike and experts.nb[1] == matrix.nb[1]


def _weighted_reduction(nodes: list[Tensor], start: int) -> tuple[list[Tensor], int] | None:
    """Return the inputs and the length of experts * weights summed over the experts used
    (ggml_cuda_match_moe_weighted_reduction), None where it does not begin here."""
    match = _weighted(nodes[start], nodes[start + 1])
    if match is None:
        return None
    weighted, n_mul, inputs = match
    # a view of each expert, and one addition less
    used, n_tokens = weighted.ne[1], weighted.ne[2] * weighted.ne[3]
    length = 2 * used + n_mul - 1
    if not 2 <= used <= 15 or n_tokens <= 0 or start + length > len(nodes):
        return None
    total = _sum_of_views(nodes[start + n_mul : start + length], weighted)
    if total is None or total.ne != (weighted.ne[0], n_tokens, 1, 1):
        return None
    return (inputs, length) if fusible(nodes[start : start + length], total) else None


def _weighted(first: Tensor, second: Tensor) -> tuple[Tensor, int, list[Tensor]] | None:
    """Return the weighted experts, the number of products (experts' scales may be one), and what
    those read."""
    if first.type != "f32" or not first.contiguous():
        return None
    inner = _factors(first)
    if second.op == "MUL" and second.type == "f32" and second.contiguous():
        outer = _factors(second)
        if outer is not None and outer[0] is first and inner is not None:
            return second, 2, [inner[0], outer[1], inner[1]]
    return None if inner is None else (first, 1, [*inner])


def _factors(mul: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the factor of the product's shape, and the one with a number for each row."""
    for full, broadcast in ((mul.src[0], mul.src[1]), (mul.src[1], mul.src[0])):
        if full.ne != mul.ne or broadcast.ne != (1, *mul.ne[1:]):
            continue
        if full.type == broadcast.type == "f32" and full.contiguous() and broadcast.contiguous():
            return full, broadcast
    return None


def _sum_of_views(nodes: list[Tensor], weighted: Tensor) -> Tensor | None:
    """Return the last ADD if the nodes add up the parts of `weighted` of all used experts, two or
    more."""
    views = [node for node in nodes if node.op == "VIEW"]
    sums = [node for node in nodes if node.op == "ADD" and node.type == "f32"]
    if len(views) != weighted.ne[1] or len(views) + len(sums) != len(nodes):
        return None
    parts = all(_is_part(view, weighted, i) for i, view in enumerate(views))
    return sums[-1] if parts and adds_up(views, sums) else None


def _is_part(view: Tensor, weighted: Tensor, number: int) -> bool:
    """Return whether a view is the part of one expert, for all tokens."""
    if view.src[0] is not weighted or view.view_src is not weighted:
        return False
    if view.ne != (weighted.ne[0], weighted.ne[2] * weighted.ne[3], 1, 1):
        return False
    rows = view.nb[:2] == (weighted.nb[0], weighted.nb[2])
    return rows and view.view_offs == number * weighted.nb[1]


def _top_k_moe(nodes: list[Tensor], start: int) -> int:
    """Return the length of a fusible expert selection that begins here, otherwise 0
    (ggml_cuda_topk_moe_fusion)."""
    # gate, choice, then a division by the sum and a factor, both optional
    begin = _gate_end(nodes, start)
    chosen = begin and (linked(nodes, begin, CHOICE) or linked(nodes, begin, BIASED))
    if not chosen:
        return 0
    end = begin + chosen
    ids = nodes[end - 2]
    end += linked(nodes, end, NORMALISED)
    end += linked(nodes, end, SCALED)
    if not fusible(nodes[start:end], ids, nodes[end - 1]):
        return 0
    # Whether a kernel has this number of experts and this gate (ggml_cuda_should_use_topk_moe).
    gate = nodes[start]
    n_expert = ids.nb[1] // ids.nb[0]
    # instances of the kernel's template: powers of two, and sizes of single models
    power = n_expert & (n_expert - 1) == 0 and n_expert <= 512
    if not power and n_expert not in (288, 576):
        top_k_kernel = False
    else:
        if not gate.src[0].contiguous() or not nodes[end - 1].contiguous():
            top_k_kernel = False
        else:
            plain = len(gate.src) == 1 and gate.param in (None, (False, False))
            top_k_kernel = gate.op != "SOFT_MAX" or plain
    return end - start if top_k_kernel else 0


def _gate_end(nodes: list[Tensor], start: int) -> int:
    """Return where the probabilities of the experts are computed; 0 if no kernel has this gate."""
    gate = nodes[start]
    if gate.op != "UNARY":
        return start + 1
    if gate.param == "SOFTPLUS" and linked(nodes, start + 1, _SQRT):
        return start + 2
    return start + 1 if gate.param == "SIGMOID" else 0
