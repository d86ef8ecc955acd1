"""ik_llama.cpp's graph of gated delta nets (src/llama-delta-net.cpp; qwen3next, qwen35, qwen35moe;
8337e4cd). Each function mirrors the one of its name there."""

from __future__ import annotations

from ....ggml.tensor import Tensor
from .graph import Builder, Family


class DeltaNet(Family):
    """Mirror build_qwen3next, build_qwen35 and build_qwen35moe."""

    def attention(self, b: Builder, il: int, start: Tensor) -> Tensor:
        normed = b.normed(il, start, "attn_norm")
        cur = (_linear if b.hp.is_recr(il) else _gated)(b, il, normed)
        cur, start = b.picked(il, cur, start)
        return b.graph.add(cur, start)


def _gated(b: Builder, il: int, cur: Tensor) -> Tensor:
    """Mirror build_std_attention with llm_build_mul_mat_qkv_gated."""
    g, head, n = b.graph, b.hp.head_k(il), b.tokens
    both, k, v = (b.mul_mat(il, f"attn_{part}", cur) for part in "qkv")
    for made in (both, k, v):
        g.expand(made)
    heads, strides = both.ne[0] // (2 * head), (8 * head, both.nb[1])
    # both copied, as CUDA was slow with views (a TODO of llm_build_mul_mat_qkv_gated)
    q = g.cont(g.view(both, (head, heads, n), strides))
    gate = g.cont(g.view(both, (head, heads, n), strides, 4 * head), both.ne[0] // 2, n)
    q, k = b.normed(il, q, "attn_q_norm"), b.by_head(il, k, "k")
    g.expand(q)
    g.expand(k)
    cur = b.kv(il, g.rope(q, b.pos), g.rope(k, b.pos), v)
    return b.mul_mat(il, "attn_output", g.mul(cur, g.unary("SIGMOID", gate)))


def _linear(b: Builder, il: int, cur: Tensor) -> Tensor:
    """Mirror build_layer_attn_linear_core."""
    g, hp = b.graph, b.hp
    qkv, z = _qkvz(b, il, cur)
    out = _net(b, il, qkv, *_beta_gate(b, il, cur))
    # build_gated_output
    heads, value = hp.ssm_dt_rank, hp.ssm_d_inner // hp.ssm_dt_rank
    flat, gates = (g.reshape(t, value, heads * b.tokens) for t in (out, z))
    cur = g.like("FUSED_MUL_UNARY", gates, b.normed(il, flat, "ssm_norm"))
    cur = b.mul_mat(il, "ssm_out", g.reshape(cur, value * heads, b.tokens))
    return g.reshape(cur, hp.n_embd, b.tokens)


def _qkvz(b: Builder, il: int, cur: Tensor) -> tuple[Tensor, Tensor]:
    """Mirror build_qkvz: of two matrices, or of one whose rows are by head of the keys."""
    g, hp, n = b.graph, b.hp, b.tokens
    if b.of(il, "attn_qkv") is not None:
        mixed, z = b.mul_mat(il, "attn_qkv", cur), b.mul_mat(il, "attn_gate", cur)
        g.expand(mixed)
        g.expand(z)
        return g.reshape(mixed, mixed.ne[0], n, 1), z
    # ssm_in: by head of the keys its query, key, values and gates
    made = b.mul_mat(il, "ssm_in", cur)
    key, heads_k, value = hp.ssm_d_state, hp.ssm_n_group, hp.ssm_d_inner // hp.ssm_n_group
    made = g.reshape(made, made.ne[0] // heads_k, heads_k, n, 1)
    sizes = (key, key, value, value)
    parts = [
        g.view(made, (size, heads_k, n, 1), made.nb[1:], 4 * sum(sizes[:i]))
        for i, size in enumerate(sizes)
    ]
    q, k, v = (g.cont(part, part.ne[0] * heads_k, n, 1) for part in parts[:3])
    return g.concat(g.concat(q, k, 0), v, 0), g.cont(parts[3])


def _beta_gate(b: Builder, il: int, cur: Tensor) -> tuple[Tensor, Tensor]:
    g, hp, n = b.graph, b.hp, b.tokens
    heads_k, heads_v = hp.ssm_n_group, hp.ssm_dt_rank
    # ssm_ba: by head of the keys the betas of its values, then the alphas
    if b.of(il, "ssm_ba") is not None:
        each = heads_v // heads_k
        made = g.reshape(b.mul_mat(il, "ssm_ba", cur), 2 * each, heads_k, n, 1)
        beta = g.cont(g.view(made, (each, heads_k, n, 1), made.nb[1:]), heads_v, 1, n, 1)
        alpha = g.cont(g.view(made, (each, heads_k, n, 1), made.nb[1:], 4 * each), heads_v, n, 1)
    else:
        beta = g.reshape(b.mul_mat(il, "ssm_beta", cur), heads_v, 1, n, 1)
        alpha = g.reshape(b.mul_mat(il, "ssm_alpha", cur), heads_v, n, 1)
    g.expand(beta)
    g.expand(alpha)
    # the file has ssm_a as -exp(A_log)
    soft = g.unary("SOFTPLUS", g.add(alpha, b.need(il, "ssm_dt", "bias")))
    return beta, g.mul(soft, b.need(il, "ssm_a", ""))


def _net(b: Builder, il: int, qkv: Tensor, beta: Tensor, gate: Tensor) -> Tensor:
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
        (states, qkv, b.need(il, "ssm_conv1d"), b.sequences),
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
