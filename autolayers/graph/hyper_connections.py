"""Hyper-connections: several residual streams, mixed into one before each block and updated by its
result. A small matrix computed from the streams decides how much each gives (`pre`), gets (`post`)
and passes on to the others (`comb`, made doubly stochastic by Sinkhorn's iteration). Source:
build_hc_* of src/models/deepseek4.cpp (as modelled)."""

from __future__ import annotations

from ..ggml.tensor import Tensor
from .llm import Llm


def expand_streams(llm: Llm, embd: Tensor) -> Tensor:
    """Return the embeddings, once per stream: [n_embd, streams, n_tokens]."""
    g, width, n = llm.graph, embd.ne[0], embd.ne[1]
    return g.repeat(g.reshape(embd, width, 1, n), width, llm.hparams.dsv4_hc_mult, n, 1)


def picked_streams(llm: Llm, x: Tensor) -> Tensor:
    """Return the streams of the output rows alone."""
    g, (width, streams, n, _) = llm.graph, x.ne
    x = g.get_rows(g.reshape(x, width * streams, n), llm.out_ids)
    return g.reshape(x, width, streams, llm.n_outputs)


def build_hc_pre(llm: Llm, x: Tensor, block: str, il: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (the block's input [n_embd, n_tokens], post, comb), by blk.<il>.hc_<block>_*; `block`
    is attn or ffn."""
    g, hc, n = llm.graph, x.ne[1], x.ne[2]
    scale, base = (llm.need_layer(il, f"hc_{block}_{part}") for part in ("scale", "base"))
    # over all streams of a token together
    normed = g.rms_norm(g.reshape(x, x.ne[0] * hc, n))
    mixes = llm.linear(il, f"hc_{block}_fn", normed)

    def affine(i: int, size: int) -> Tensor:
        # mixes has pre, post and comb one after the other, each with its own factor and offset
        part = g.view(mixes, (size, n), (mixes.nb[1],), i * hc * mixes.nb[0])
        part = g.mul(part, g.view(scale, (1,), (), i * scale.nb[0]))
        return g.add(part, g.view(base, (size,), (), i * hc * base.nb[0]))

    pre = g.scale(g.unary("SIGMOID", affine(0, hc)))
    post = g.scale(g.unary("SIGMOID", affine(1, hc)))
    # the fused op reads all of mixes: the affine map is part of it
    if llm.fused_ops["hc_comb"]:
        comb = g.hc_comb(mixes, scale, base, hc)
        llm.fused_nodes.append(("hc_comb", comb, il))
    else:
        comb = _sinkhorn(llm, g.reshape(affine(2, hc * hc), hc, hc, n))
    return _weighted_sum(llm, x, pre, il), post, comb


def _weighted_sum(llm: Llm, x: Tensor, weights: Tensor, il: int = -1) -> Tensor:
    """Return the streams' weighted sum; without a layer never as the fused op."""
    g, n = llm.graph, x.ne[2]
    # the head's mix has no layer whose device a probe could ask
    if llm.fused_ops["hc_pre"] and il >= 0:
        out = g.hc_pre(x, weights)
        llm.fused_nodes.append(("hc_pre", out, il))
        return out
    weighted = []
    for i in range(x.ne[1]):
        stream = g.view(x, (x.ne[0], n), (x.nb[2],), i * x.nb[1])
        weight = g.view(weights, (1, n), (weights.nb[1],), i * weights.nb[0])
        weighted.append(g.mul(stream, weight))
    return llm.add_up(weighted)


def build_hc_post(llm: Llm, cur: Tensor, x: Tensor, post: Tensor, comb: Tensor, il: int) -> Tensor:
    """Return the streams after a block: each gets its share of the result and of the others."""
    g, hc, n = llm.graph, x.ne[1], x.ne[2]
    if llm.fused_ops["hc_post"]:
        fused = g.hc_post(cur, x, post, comb)
        llm.fused_nodes.append(("hc_post", fused, il))
        return fused
    streams = []
    for to in range(hc):
        part = g.mul(cur, g.view(post, (1, n), (post.nb[1],), to * post.nb[0]))
        for source in range(hc):
            # comb[to, source]: how much of stream `source` goes into stream `to`
            stream = g.view(x, (x.ne[0], n), (x.nb[2],), source * x.nb[1])
            share = g.view(comb, (1, n), (comb.nb[2],), to * comb.nb[0] + source * comb.nb[1])
            part = g.add(part, g.mul(stream, share))
        streams.append(g.reshape(part, x.ne[0], 1, n))
    return llm.concat_all(streams, 1)


def build_hc_head(llm: Llm, x: Tensor) -> Tensor:
    """Return the streams combined into one after the last layer."""
    g = llm.graph
    normed = g.rms_norm(g.reshape(x, x.ne[0] * x.ne[1], x.ne[2]))
    mixes = g.mul_mat(llm.need("output_hc_fn.weight"), normed)
    scaled = g.mul(mixes, llm.need("output_hc_scale.weight"))
    weights = g.add(scaled, llm.need("output_hc_base.weight"))
    return _weighted_sum(llm, x, g.scale(g.unary("SIGMOID", weights)))


def _sinkhorn(llm: Llm, comb: Tensor) -> Tensor:
    """Mirror build_hc_sinkhorn."""
    g = llm.graph
    # rows and columns are normalised in turns; the first rows by softmax
    eps = g.fill(g.new("f32", 1))
    comb = g.add(g.soft_max(comb), eps)
    # the first round has had its rows normalised by softmax
    for i in range(llm.hparams.dsv4_hc_sinkhorn_iters):
        if i:
            comb = g.div(comb, g.add(g.sum_rows(comb), eps))
        columns = g.add(g.sum_rows(g.cont(g.permute(comb, 1, 0, 2, 3))), eps)
        comb = g.div(comb, g.permute(columns, 1, 0, 2, 3))
    return comb
