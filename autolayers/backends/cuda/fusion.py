"""What CUDA keeps in memory for its fusions: ggml_backend_cuda_graph_optimize of
ggml/src/ggml-cuda/ggml-cuda.cu, as modelled."""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...builds import Rules
    from ...ggml.scheduler import AddAllocDep

_SHARED = ("SWIGLU", "GEGLU", "SWIGLU_OAI", "SWIGLU_CLAMP")     # gates that a shared expert is fused with
_FUSED_FIRST = frozenset(("MUL", "UNARY", "SOFT_MAX"))     # the first ops of fusions that keep tensors alive


def add_alloc_deps(nodes: list[Tensor], after: Tensor | None, add_alloc_dep: AddAllocDep,
                   rules: Rules) -> None:
    """Report what the fused MoE paths among `nodes`, one split, still read at their end. A fusion at the end
    of its split keeps its tensors until `after`, the next split's first node."""
    if not rules.keeps_weighted_experts:
        return
    i, count = 0, len(nodes)
    while i < count:
        node = nodes[i]
        if node.op not in _FUSED_FIRST:
            i += 1
            continue
        if node.op == "MUL" and i + 1 < count and nodes[i + 1].op in ("MUL", "VIEW"):
            match = _weighted_reduction(nodes, i)
            if match is not None:
                kept, length = match
                for tensor in kept:
                    add_alloc_dep(tensor, nodes[i + length - 1])
                i += length - 1
                node = nodes[i]
        if node.op in ("UNARY", "SOFT_MAX") and rules.keeps_top_k_moe:
            length = _top_k_moe(nodes, i)
            until = nodes[i + length] if i + length < count else after
            if length and until is not None:
                for fused in nodes[i:i + length]:
                    for tensor in (fused, *fused.src):
                        add_alloc_dep(tensor, until)
                i += length - 1
        i += 1


def with_shared_experts(nodes: list[Tensor], add_alloc_dep: AddAllocDep) -> list[Tensor]:
    """The nodes, with each shared expert's gate, up and activation directly after those of the routed experts
    that it is fused with; what both read lives until then."""
    ops = [node.op for node in nodes]
    if "MUL_MAT_ID" not in ops:
        return nodes
    nodes = list(nodes)
    i, count = 0, len(nodes)
    while i + 5 < count:
        if ops[i] == ops[i + 1] == "MUL_MAT_ID" and ops[i + 2] == "GLU":
            for j in range(i + 3, count - 2):
                op = ops[j]
                if op == "MUL_MAT_ID" and ops[j + 1] == "MUL_MAT_ID":
                    break
                if op == ops[j + 1] == "MUL_MAT" and ops[j + 2] == "GLU" \
                        and _shared_expert(nodes[i:i + 3], nodes[j:j + 3]):
                    nodes[i + 3:j + 3] = nodes[j:j + 3] + nodes[i + 3:j]
                    ops[i + 3:j + 3] = ops[j:j + 3] + ops[i + 3:j]
                    up = nodes[i + 2].src[1]
                    add_alloc_dep(up.src[1], nodes[i + 5])
                    add_alloc_dep(up.src[2], nodes[i + 5])
                    i += 5
                    break
        i += 1
    return nodes


def _shared_expert(routed: list[Tensor], shared: list[Tensor]) -> bool:
    """Of two matrices and a gate each: ggml_cuda_match_shared_expert, with ggml_cuda_should_fuse_mul_mat of both."""
    for group in (routed, shared):
        first, second, act = group
        if act.param not in _SHARED or len(act.src) < 2:
            return False
        gate, up = act.src
        if {id(gate), id(up)} != {id(first), id(second)} or up.src[1:] != gate.src[1:]:
            return False
        a, b = up.src[0], gate.src[0]
        if (a.type, a.ne, a.nb) != (b.type, b.ne, b.nb) or not act.contiguous():
            return False
    if routed[2].param != shared[2].param or not _fusible([*routed, *shared], (routed[2], shared[2])):
        return False
    (weight, source, _), (theirs, read) = routed[2].src[1].src, shared[2].src[1].src
    return (weight.buffer is not None and block_size(weight.type) > 1
            and source.op == "RESHAPE" and source.src[0] is read and source.ne[1] == source.ne[3] == 1
            and source.contiguous() and read.contiguous() and read.ne[2] == read.ne[3] == 1
            and weight.type == theirs.type and weight.ne[:2] == theirs.ne[:2] and weight.nb[1] == theirs.nb[1]
            and weight.ne[3] == 1 and theirs.ne[2] == theirs.ne[3] == 1 and theirs.contiguous()
            and shared[2].src[0].src[0].contiguous() and theirs.op == shared[2].src[0].src[0].op == "NONE")


def _fusible(group: list[Tensor], outputs: tuple[Tensor, ...]) -> bool:
    """ggml_can_fuse_subgraph: nothing inside is used outside, except the outputs."""
    if len(group) > 31:
        return False
    inside = {id(node): 0 for node in group}       # how often the others read each
    for node in group:
        for source in node.src:
            if id(source) in inside:
                inside[id(source)] += 1
    for node in group:
        if node in outputs:
            continue
        if node.is_output or inside[id(node)] != node.uses:
            return False
        root = node.view_src
        if root is not None and not root.weight and id(root) not in inside:
            return False
    return True


def _weighted_reduction(nodes: list[Tensor], start: int) -> tuple[list[Tensor], int] | None:
    """experts * weights summed over the experts used (ggml_cuda_match_moe_weighted_reduction)."""

    def parts(mul: Tensor) -> tuple[Tensor, Tensor] | None:
        for full, broadcast in ((mul.src[0], mul.src[1]), (mul.src[1], mul.src[0])):
            if (full.type == broadcast.type == "f32" and full.contiguous() and broadcast.contiguous()
                    and full.ne == mul.ne and broadcast.ne[0] == 1 and broadcast.ne[1:] == mul.ne[1:]):
                return full, broadcast
        return None

    first = nodes[start]
    if first.type != "f32" or not first.contiguous():
        return None
    kept: list[Tensor] = []
    weighted, n_mul = first, 1
    second = nodes[start + 1]
    if second.op == "MUL" and second.type == "f32" and second.contiguous():
        outer, inner = parts(second), parts(first)
        if outer is not None and outer[0] is first and inner is not None:
            weighted, n_mul, kept = second, 2, [inner[0], outer[1], inner[1]]
    if not kept:
        found = parts(first)
        if found is None:
            return None
        kept = [found[0], found[1]]
    used, n_tokens = weighted.ne[1], weighted.ne[2] * weighted.ne[3]
    length = 2 * used + n_mul - 1
    if not 2 <= used <= 15 or n_tokens <= 0 or start + length > len(nodes):
        return None
    views: list[Tensor] = []
    last: Tensor | None = None
    adds = 0
    for candidate in nodes[start + n_mul:start + length]:
        if candidate.op == "VIEW":
            if (len(views) >= used or candidate.src[0] is not weighted or candidate.view_src is not weighted
                    or candidate.ne != (weighted.ne[0], n_tokens, 1, 1) or candidate.nb[0] != weighted.nb[0]
                    or candidate.nb[1] != weighted.nb[2]
                    or candidate.view_offs != len(views) * weighted.nb[1]):
                return None
            views.append(candidate)
        else:
            if candidate.op != "ADD" or len(views) < 2 or adds + 1 >= len(views) or candidate.type != "f32":
                return None
            left = views[0] if adds == 0 else last
            if candidate.src[0] is not left or candidate.src[1] is not views[adds + 1]:
                return None
            last = candidate
            adds += 1
    if len(views) != used or adds != used - 1 or last is None or last.ne != (weighted.ne[0], n_tokens, 1, 1):
        return None
    return (kept, length) if _fusible(nodes[start:start + length], (last,)) else None


def _top_k_moe(nodes: list[Tensor], start: int) -> int:
    """Length of a fusible expert selection that begins here, else 0 (ggml_cuda_topk_moe_fusion)."""
    i, count = start, len(nodes)
    gate = nodes[i]
    if gate.op == "UNARY":
        if gate.param == "SOFTPLUS" and i + 1 < count and nodes[i + 1].op == "SQRT" and nodes[i + 1].src[0] is gate:
            i += 1
        elif gate.param != "SIGMOID":
            return 0

    def follows(j: int, op: str, source: Tensor) -> bool:
        return j < count and nodes[j].op == op and nodes[j].src[0] is source

    probs = nodes[i]
    if not follows(i + 1, "RESHAPE", probs):
        return 0
    reshaped = nodes[i + 1]
    i += 2
    ranked = probs
    if follows(i, "ADD", probs):
        ranked = nodes[i]
        i += 1
    if not follows(i, "ARGSORT", ranked) or not follows(i + 1, "VIEW", nodes[i]):
        return 0
    ids = nodes[i + 1]
    i += 2
    if not follows(i, "GET_ROWS", reshaped) or nodes[i].src[1] is not ids:
        return 0
    ids_at = i - 1
    i += 1
    if (follows(i, "RESHAPE", nodes[i - 1]) and follows(i + 1, "SUM_ROWS", nodes[i])
            and follows(i + 2, "CLAMP", nodes[i + 1]) and follows(i + 3, "DIV", nodes[i])
            and nodes[i + 3].src[1] is nodes[i + 2] and follows(i + 4, "RESHAPE", nodes[i + 3])):
        i += 5
    if follows(i, "SCALE", nodes[i - 1]):
        i += 1
    length = i - start
    if not _fusible(nodes[start:i], (nodes[ids_at], nodes[i - 1])):
        return 0
    n_expert = ids.nb[1] // ids.nb[0]
    if (n_expert & (n_expert - 1) or n_expert > 512) and n_expert not in (288, 576):
        return 0
    if not gate.src[0].contiguous() or not nodes[i - 1].contiguous():
        return 0
    if gate.op == "SOFT_MAX" and (len(gate.src) > 1 or gate.param not in (None, (False, False))):
        return 0
    return length
