"""ik_llama.cpp's graph of gated delta nets (src/llama-delta-net.cpp; qwen3next, qwen35, qwen35moe;
8337e4cd). Each function mirrors the one of its name there."""

from __future__ import annotations

from ....ggml.tensor import Tensor
from .graph import Experts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .graph import Builder


def qwen3next(b: Builder) -> Tensor:
    """Mirror build_qwen3next, build_qwen35 and build_qwen35moe."""
    g, hp, first = b.graph, b.hp, b.architecture == "qwen3next"
    # qwen3next makes its inputs in another order than qwen35
    pos = None if first else b.positions()
    cur = b.embeddings()
    if pos is None:
        pos = b.positions()
    ids = b.output_ids() if b.tokens > 1 else None
    mask = b.mask()
    sequences = g.input("inp_s_seq_qnext", "i32", 1, b.tokens)
    for il in range(hp.n_layer):
        rows = ids if il == hp.n_layer - 1 else None
        if hp.is_recr(il):
            cur = _linear(b, il, cur, sequences, rows)
        else:
            cur = _attention(b, il, cur, pos, rows, mask)
        norm = b.of(il, "post_attention_norm.weight")
        if b.of(il, "ffn_gate_inp.weight") is None:
            cur = b.ffn(il, cur, norm, add_input=True)
        else:
            cur = b.std_moe(il, cur, norm, Experts(normalised=True, shared=True, bias=False))
    return b.head(cur)


def _attention(
    b: Builder, il: int, start: Tensor, pos: Tensor, ids: Tensor | None, mask: Tensor
) -> Tensor:
    """Mirror build_std_attention with llm_build_mul_mat_qkv_gated."""
    g, head, n = b.graph, b.hp.head_k(il), b.tokens
    cur = b.norm(start, b.of(il, "attn_norm.weight"), None, "rms", il)
    both, k, v = (g.mul_mat(b.need(il, f"attn_{part}.weight"), cur) for part in "qkv")
    for made in (both, k, v):
        g.expand(made)
    heads, strides = both.ne[0] // (2 * head), (8 * head, both.nb[1])
    # both copied, as CUDA was slow with views (a TODO of llm_build_mul_mat_qkv_gated)
    q = g.cont(g.view(both, (head, heads, n), strides))
    gate = g.cont(g.view(both, (head, heads, n), strides, 4 * head), both.ne[0] // 2, n)
    k = g.reshape(k, head, k.ne[0] // head, n)
    normed = []
    for made, part in ((q, "q"), (k, "k")):
        weight = b.of(il, f"attn_{part}_norm.weight")
        if weight is not None:
            made = b.norm(made, weight)
            g.expand(made)
        normed.append(g.rope(made, pos))
    cur = b.kv(il, normed[1], v, normed[0], mask, None, None)
    cur = g.mul(cur, g.unary("SIGMOID", gate))
    cur = g.mul_mat(b.need(il, "attn_output.weight"), cur)
    if ids is not None:
        cur, start = g.get_rows(cur, ids), g.get_rows(start, ids)
    return g.add(cur, start)


def _linear(b: Builder, il: int, start: Tensor, sequences: Tensor, ids: Tensor | None) -> Tensor:
    """Mirror build_layer_attn_linear_core."""
    g = b.graph
    cur = b.norm(start, b.of(il, "attn_norm.weight"), None, "rms", il)
    qkv, z = _qkvz(b, il, cur)
    beta, gate = _beta_gate(b, il, cur)
    out = _gated(b, il, _net(b, il, qkv, sequences, beta, gate), z)
    if ids is not None:
        out, start = g.get_rows(out, ids), g.get_rows(start, ids)
    return g.add(out, start)


def _qkvz(b: Builder, il: int, cur: Tensor) -> tuple[Tensor, Tensor]:
    """Mirror build_qkvz: of two matrices, or of one whose rows are by head of the keys."""
    g, hp, n = b.graph, b.hp, b.tokens
    qkv, gate = b.of(il, "attn_qkv.weight"), b.of(il, "attn_gate.weight")
    if qkv is not None and gate is not None:
        mixed, z = g.mul_mat(qkv, cur), g.mul_mat(gate, cur)
        g.expand(mixed)
        g.expand(z)
        return g.reshape(mixed, mixed.ne[0], n, 1), z
    # ssm_in: by head of the keys its query, key, values and gates
    made = g.mul_mat(b.need(il, "ssm_in.weight"), cur)
    key, heads_k, heads_v = hp.ssm_d_state, hp.ssm_n_group, hp.ssm_dt_rank
    value = hp.ssm_d_inner // heads_k
    made = g.reshape(made, made.ne[0] // heads_k, heads_k, n, 1)
    sizes, parts, offset = (key, key, value, value), [], 0
    for size in sizes:
        parts.append(g.view(made, (size, heads_k, n, 1), made.nb[1:], 4 * offset))
        offset += size
    z = g.cont(parts[3])
    flat = [
        g.cont(part, size * heads_k, n, 1) for part, size in zip(parts[:3], sizes, strict=False)
    ]
    assert heads_v % heads_k == 0
    return g.concat(g.concat(flat[0], flat[1], 0), flat[2], 0), z


def _beta_gate(b: Builder, il: int, cur: Tensor) -> tuple[Tensor, Tensor]:
    g, hp, n = b.graph, b.hp, b.tokens
    heads_k, heads_v = hp.ssm_n_group, hp.ssm_dt_rank
    # ssm_ba: by head of the keys the betas of its values, then the alphas
    both = b.of(il, "ssm_ba.weight")
    if both is not None:
        each = heads_v // heads_k
        made = g.reshape(g.mul_mat(both, cur), 2 * each, heads_k, n, 1)
        beta = g.cont(g.view(made, (each, heads_k, n, 1), made.nb[1:]), heads_v, 1, n, 1)
        alpha = g.cont(g.view(made, (each, heads_k, n, 1), made.nb[1:], 4 * each), heads_v, n, 1)
    else:
        beta = g.reshape(g.mul_mat(b.need(il, "ssm_beta.weight"), cur), heads_v, 1, n, 1)
        alpha = g.reshape(g.mul_mat(b.need(il, "ssm_alpha.weight"), cur), heads_v, n, 1)
    g.expand(beta)
    g.expand(alpha)
    # the file has ssm_a as -exp(A_log)
    soft = g.unary("SOFTPLUS", g.add(alpha, b.need(il, "ssm_dt.bias")))
    return beta, g.mul(soft, b.need(il, "ssm_a"))


def _net(b: Builder, il: int, qkv: Tensor, sequences: Tensor, beta: Tensor, gate: Tensor) -> Tensor:
    """Mirror build_qkv and build_fused_delta_net."""
    g, hp, n, store = b.graph, b.hp, b.tokens, b.caches[il]["s"]
    key, heads_k, heads_v, taps = hp.ssm_d_state, hp.ssm_n_group, hp.ssm_dt_rank, hp.ssm_d_conv
    value = hp.ssm_d_inner // heads_v
    width = 2 * key * heads_k + value * heads_v
    columns, matrix = (taps - 1) * width, value * value * heads_v
    # one row per sequence: the last inputs of the convolution, then the state matrix
    everything = g.view(store, (columns + matrix, store.ne[1]), (store.nb[1],))
    slot = g.view(everything, (columns + matrix, 1), (store.nb[1],))
    states = g.reshape(g.view(slot, (columns, 1), (slot.nb[1],)), taps - 1, width, 1)
    state = g.reshape(
        g.view(slot, (matrix, 1), (slot.nb[1],), 4 * columns), value, value, heads_v, 1
    )
    # before the convolution's copy: backends then write the state in place
    # (ggml_delta_net_find_state_cpy)
    g.expand(state)
    # its result: outputs of all tokens, then the inputs that the next batch needs
    raw = Tensor(
        "SSM_CONV",
        "f32",
        (width * n + taps * width, 1, 1, 1),
        (states, qkv, b.need(il, "ssm_conv1d.weight"), sequences),
    )
    out = g.unary("SILU", g.view(raw, (width, n), (4 * width,)))
    g.expand(out)
    q, k = (
        g.view(out, (key, heads_k, n, 1), (4 * key, 4 * width, 4 * width * n), 4 * offset)
        for offset in (0, key * heads_k)
    )
    v = g.view(
        out, (value, heads_v, n, 1), (4 * value, 4 * width, 4 * width * n), 8 * key * heads_k
    )
    # as there: the norm before the permutation for one token, after it for several
    if n > 1:
        q, k = (g.l2_norm(g.permute(part, 0, 2, 1, 3)) for part in (q, k))
    else:
        q, k = (g.permute(g.l2_norm(part), 0, 2, 1, 3) for part in (q, k))
    v, gate, beta = (
        g.permute(v, 0, 2, 1, 3),
        g.permute(gate, 2, 0, 3, 1),
        g.permute(beta, 2, 0, 1, 3),
    )
    flat = g.reshape(state, value, value * heads_v, 1, 1)
    size = value * heads_v * n
    net = Tensor("DELTA_NET", "f32", (size + matrix, 1, 1, 1), (q, k, v, gate, beta, flat))
    result = g.view(net, (value, heads_v, n, 1), (4 * value, 4 * value * heads_v, 4 * size))
    after = g.reshape(g.view(net, (matrix,), (), 4 * size), value, value, heads_v, 1)
    # of the columns behind the outputs, without the oldest
    last = g.cont(g.view(raw, (taps - 1, width), (4 * taps,), 4 * (1 + width * n)))
    g.expand(
        g.cpy(g.reshape(after, matrix, 1), g.view(slot, (matrix, 1), (store.nb[1],), 4 * columns))
    )
    g.expand(g.cpy(g.reshape(last, columns, 1), g.view(slot, (columns, 1), (store.nb[1],))))
    return result


def _gated(b: Builder, il: int, out: Tensor, z: Tensor) -> Tensor:
    """Mirror build_gated_output."""
    g, hp, n = b.graph, b.hp, b.tokens
    heads, value = hp.ssm_dt_rank, hp.ssm_d_inner // hp.ssm_dt_rank
    flat, gates = g.reshape(out, value, heads * n), g.reshape(z, value, heads * n)
    normed = b.norm(flat, b.of(il, "ssm_norm.weight"), None, "rms", il)
    cur = Tensor("FUSED_MUL_UNARY", "f32", gates.ne, (gates, normed), param="SILU")
    cur = g.mul_mat(b.need(il, "ssm_out.weight"), g.reshape(cur, value * heads, n))
    return g.reshape(cur, hp.n_embd, n)
