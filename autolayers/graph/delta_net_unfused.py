"""The delta rule as separate operations, if llama.cpp's probes refuse the fused one
(Rules.stays_fused). Source: build_delta_net_chunking and build_delta_net_autoregressive of
src/models/delta-net-base.cpp, builds b8480 to b10666."""

from __future__ import annotations

from ..ggml.tensor import Graph, Tensor, row_size

_CHUNK, _CHUNK_KDA = 64, 16


def build_delta_net_autoregressive(
    graph: Graph, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (output, new state) for one token per sequence."""
    g, heads, n_seqs = graph, v.ne[1], v.ne[3]
    q = g.scale(q)
    q, k, v = (g.permute(t, 0, 2, 1, 3) for t in (q, k, v))
    gate = g.reshape(gate, 1, gate.ne[0], heads, n_seqs)
    beta = g.reshape(beta, 1, 1, heads, n_seqs)
    # decay, then the delta rule: what the state says of k is replaced by v, by the share beta
    state = g.mul(state, g.unary("EXP", gate))
    recalled = g.sum_rows(g.mul(state, k))
    change = g.mul(g.sub(v, g.transpose(recalled)), beta)
    k = g.repeat(k, *state.ne)
    state = g.add(state, g.mul(k, g.transpose(change)))
    out = g.sum_rows(g.mul(state, q))
    return g.permute(out, 2, 0, 1, 3), state


def build_delta_net_chunking(
    graph: Graph, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (output, new states) for several tokens per sequence, in chunks."""
    g = graph
    size_k, heads_k, n_tokens, n_seqs = q.ne
    size, heads = v.ne[:2]
    # Kimi delta attention has a gate per channel, and so a mask per channel
    kda = gate.ne[0] == size_k and gate.ne[1] == heads_k
    chunk = _CHUNK_KDA if kda else _CHUNK
    q = g.scale(q)
    q, k, v, gate, beta = (g.permute(t, 0, 2, 1, 3) for t in (q, k, v, gate, beta))
    # padding to whole chunks
    more = -n_tokens % chunk
    n_chunks = (n_tokens + more) // chunk
    q, k, v, gate, beta = (g.pad(t, 0, more) for t in (q, k, v, gate, beta))
    v_b, k_b = g.mul(v, beta), g.mul(k, beta)

    def chunked(t: Tensor, n_head: int) -> Tensor:
        return g.reshape(t, t.ne[0], chunk, n_chunks, n_head * n_seqs)

    q, k, k_b, v, v_b = (
        chunked(t, n)
        for t, n in ((q, heads_k), (k, heads_k), (k_b, heads), (v, heads), (v_b, heads))
    )
    gate = chunked(gate, heads)
    # decays are logarithms, so a running sum is the decay since the chunk's begin
    sums = g.like("CUMSUM", g.cont(g.transpose(gate)))
    kb, kq = (_decayed_kda if kda else _decayed)(g, q, k, k_b, sums)
    kq = _tri(g, kq)
    attn = _tri(g, kb)
    # (I + A)^-1 by a triangular solve: the tokens of a chunk correct each other
    identity = g.fill(g.view(attn, (chunk,)))
    identity = Tensor("DIAG", identity.type, (chunk, chunk, 1, 1), (identity,))
    left = g.add(attn, identity)
    attn = g.unary("NEG", attn)
    attn = g.add(Tensor("SOLVE_TRI", "f32", attn.ne, (left, attn)), identity)
    v = g.mul_mat(g.cont(g.transpose(v_b)), attn)
    grown = g.unary("EXP", sums)
    k_cd = g.mul_mat(g.mul(g.cont(g.transpose(k_b)), grown), attn)
    q_grown = g.mul(q, g.cont(g.transpose(grown)))
    # the decay over a whole chunk, for the state, and from each token to its end, for the keys
    last = g.cont(g.view(sums, (1, *sums.ne[1:]), sums.nb[1:], row_size(sums.type, sums.ne[0] - 1)))
    last_grown = g.transpose(g.unary("EXP", last))
    left_over = g.unary("NEG", g.sub(sums, last))
    k_left = g.mul(k, g.cont(g.transpose(g.unary("EXP", left_over))))
    k_left = g.cont(g.transpose(k_left))
    state = g.reshape(state, size, size, 1, heads * n_seqs)
    v_t = g.cont(g.transpose(v))

    def part(t: Tensor, i: int) -> Tensor:
        return g.view(t, (t.ne[0], t.ne[1], 1, t.ne[3]), t.nb[1:], t.nb[2] * i)

    # chunks follow each other: each starts from the state that the last one left
    for i in range(n_chunks):
        values, keys = part(v_t, i), part(k_cd, i)
        scores, queries, keys_left = part(kq, i), part(q_grown, i), part(k_left, i)
        fresh = g.sub(values, g.mul_mat(keys, state))
        own = g.mul_mat(fresh, scores)
        out = g.add(g.mul_mat(state, queries), own)
        v = Tensor("SET", v.type, v.ne, (v, out), v.nb, v)
        update = g.mul_mat(keys_left, fresh)
        state = g.add(g.mul(state, part(last_grown, i)), update)
    row = row_size(v.type, size)
    # without the padding
    whole = g.view(
        v,
        (size, n_tokens, heads, n_seqs),
        (row, row * chunk * n_chunks, row * chunk * n_chunks * heads),
    )
    return g.permute(whole, 0, 2, 1, 3), g.reshape(state, size, size, heads, n_seqs)


def _decayed(g: Graph, q: Tensor, k: Tensor, k_b: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products of keys with keys and queries within a chunk, with the decay between
    them; one decay per head."""
    chunk, _, n_chunks, n = sums.ne
    other = g.repeat(g.reshape(sums, 1, chunk, n_chunks, n), chunk, chunk, n_chunks, n)
    mask = g.unary("EXP", _tri(g, g.sub(other, sums)))
    kb = g.mul(g.mul_mat(k, k_b), mask)
    return kb, g.mul(g.mul_mat(k, q), mask)


def _decayed_kda(
    g: Graph, q: Tensor, k: Tensor, k_b: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `_decayed` does, with one decay per channel."""
    chunk, size, n_chunks, n = sums.ne
    # chunks and heads share a dimension, as the channels need one of their own
    count = n_chunks * n
    rows = g.reshape(sums, chunk, 1, size, count)
    columns = g.repeat(g.reshape(sums, 1, chunk, size, count), chunk, chunk, size, count)
    mask = g.unary("EXP", _tri(g, g.sub(columns, rows)))
    mask = g.cont(g.permute(mask, 2, 1, 0, 3), size, chunk, chunk, count)
    k_j = g.reshape(k, size, 1, chunk, count)
    decayed = [g.mul(mask, g.reshape(t, size, chunk, 1, count)) for t in (k_b, q)]
    made = [g.mul_mat(t, k_j) for t in decayed]
    kb, kq = (g.cont(g.transpose(g.reshape(t, chunk, chunk, n_chunks, n))) for t in made)
    return kb, kq


def _tri(g: Graph, a: Tensor) -> Tensor:
    return g.like("TRI", a)
