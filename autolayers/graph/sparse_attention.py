"""DeepSeek sparse attention (DSA): a small indexer ranks the keys, and attention sees only the best
of them.

The mask of latent attention is open at the top-k positions only; the indexer's keys are in a cache
of their own. Sources: src/models/deepseek32.cpp, build_attn_inp_k_dsa of src/llama-graph.cpp (as
modelled).
"""

from __future__ import annotations

from ..ggml.tensor import Tensor, row_size
from .inputs import AttnInput
from .llm import Llm


class DsaInput(AttnInput):
    """llm_graph_input_attn_k_dsa: the cache of the latents is the input itself, `lid` the
    indexer's.

    `top_k` is what the last layer with an indexer chose; `window` serves layers that slide instead.
    """

    def __init__(self, mla: AttnInput, lid: AttnInput, window: AttnInput | None = None) -> None:
        super().__init__(mla.cache, mla.mask, mla.k_idxs)
        self.lid = lid
        self.window = window
        self.top_k: Tensor | None = None


class Pools:
    """llm_graph_input_kpool: which cells make up a pool of `size` tokens, and where its key is
    kept; for all layers."""

    def __init__(self, llm: Llm, size: int, mask_type: str) -> None:
        g, n = llm.graph, llm.n_tokens
        # pools that a full cache has, in steps of 64: a graph keeps its shape while some are added
        complete = llm.cparams.n_ctx_seq // size * llm.cparams.n_seq_max
        self.size = size
        self.count = max(64, -(-(complete + 1) // 64) * 64)
        # never 0: a micro-batch that completes no pool has one dummy
        self.n_new = max(1, complete)
        self.best = min(self.count, llm.hparams.indexer_top_k // size)
        self.ids = g.input("kpool_k_idxs", "i64", n)
        self.cells = g.input("pool_cells", "i32", self.count)
        self.members = g.input("pool_idxs", "i32", size, self.count)
        self.visible = g.input("pool_mask", mask_type, self.count, n)
        self.tail = g.input("tail_idxs", "i32", size - 1, n)
        self.new_members = g.input("new_pool_idxs", "i32", size, self.n_new)
        self.new_cells = g.input("new_pool_rep", "i64", self.n_new)
        # filled before each batch (set_input), so allocated even where no op reads them
        llm.expand_all(self.cells, self.members, self.visible, self.tail)


def dsa_input(llm: Llm) -> DsaInput:
    """Mirror build_attn_inp_k_dsa, _iswa."""
    lid = llm.attn_input(llm.caches["lid"], with_v=False, mask_type=indexer_mask_type(llm))
    swa = llm.caches.get("swa")
    window = llm.attn_input(swa, with_v=False, rotations=False) if swa is not None else None
    mla = llm.build_attn_inp_k()
    if llm.rules.shares_masks and mla.mask and lid.mask and mla.mask.type == lid.mask.type:
        lid.mask = mla.mask
    return DsaInput(mla, lid, window)


def lightning_indexer(
    llm: Llm,
    inp: DsaInput,
    cur: Tensor,
    latent_q: Tensor,
    il: int,
    rotate: bool = True,
) -> Tensor:
    """Return the positions every token attends to: [top_k, n_tokens / n_stream, 1, n_stream] of
    i32."""
    g, hp = llm.graph, llm.hparams
    lid = inp.lid
    cache = lid.cache
    assert cache is not None
    head, n_head = hp.indexer_head_size, hp.indexer_n_head
    q = _rotated(llm, llm.linear(il, "indexer.attn_q_b", latent_q), n_head)
    k = llm.linear(il, "indexer.attn_k", cur)
    k = llm.norm(il, "indexer.k_norm", k, "layer")
    k = _rotated(llm, k, 1)
    if rotate:
        # always rotated, whatever the cache's type: DeepSeek's indexer computes in Hadamard space
        q, k = g.mul_mat(lid.k_rot, q), g.mul_mat(lid.k_rot, k)  # type: ignore[arg-type]
    g.expand(cache.cpy_k(k, lid.k_idxs, il))
    weights = llm.linear(il, "indexer.proj", cur)
    keys = cache.get_k(il, head, 1)
    assert lid.mask is not None
    return best_keys(llm, q, keys, weights, lid.mask, il, scaled=False)


def best_keys(
    llm: Llm, q: Tensor, keys: Tensor, weights: Tensor, mask: Tensor, il: int, scaled: bool = True
) -> Tensor:
    """Return the positions of the keys that an indexer ranks best; `scaled`: its weights are."""
    g, (head, n_head, n, _), streams = llm.graph, q.ne, keys.ne[3]
    # with a cache per sequence, each stream's queries meet its own keys
    q = g.view(q, (head, n_head, n // streams, streams), (q.nb[1], q.nb[2], q.nb[3] // streams))
    weights = g.view(
        weights,
        (n_head, n // streams, 1, streams),
        (weights.nb[1], weights.nb[2] // streams, weights.nb[3] // streams),
    )
    weights = weights if scaled else g.scale(weights)
    score = indexer_scores(llm, q, keys, weights, mask, il)
    # top_k's result is a view; several layers may read the choice
    return g.cont(g.top_k(score, min(score.ne[0], llm.hparams.indexer_top_k)))


def indexer_mask_type(llm: Llm) -> str:
    """Return the type of the indexer's mask: the fused indexer takes f16 whatever attention
    does."""
    return "f16" if llm.fused_ops["lid"] else "f32"


def indexer_scores(
    llm: Llm, q: Tensor, keys: Tensor, weights: Tensor, mask: Tensor, il: int
) -> Tensor:
    """Return a score of every key for every token, as one op or as a product a head and their
    weighted sum."""
    g = llm.graph
    if llm.fused_ops["lid"]:
        score = g.lightning_indexer(q, keys, weights, mask)
        llm.fused_nodes.append(("lid", score, il))
        return score
    score = g.mul_mat(g.permute(keys, 0, 2, 1, 3), g.permute(q, 0, 2, 1, 3))
    # heads to the front, so that the weighted sum over them is sum_rows
    score = g.unary("RELU", g.cont(g.permute(score, 2, 1, 0, 3)))
    score = g.sum_rows(g.mul(score, weights))
    return g.add(g.cont(g.permute(score, 2, 1, 0, 3)), mask)


def _rotated(llm: Llm, cur: Tensor, n_head: int) -> Tensor:
    """Return the indexer's heads after rope, which rotates the first part of a head."""
    g, n, head = llm.graph, llm.n_tokens, llm.hparams.indexer_head_size
    if llm.rules.indexer_ropes_whole:
        return llm.rope(g.reshape(cur, head, n_head, n))
    n_rot = llm.hparams.n_rot_full
    strides = (row_size(cur.type, head), row_size(cur.type, head) * n_head)
    first = g.view(cur, (n_rot, n_head, n), strides)
    rest = g.view(cur, (head - n_rot, n_head, n), strides, row_size(cur.type, head - n_rot))
    return g.concat(llm.rope(first), rest, 0)


def top_k_mask(llm: Llm, mask: Tensor, top_k: Tensor, il: int, zeros_type: str = "f32") -> Tensor:
    """Return the attention mask with -inf everywhere except at `top_k`."""
    g = llm.graph
    if llm.fused_ops.get("top_k_mask"):
        fused = g.top_k_mask(mask, top_k)
        llm.fused_nodes.append(("top_k_mask", fused, il))
        return fused
    # each cell is a row of one element, which set_rows can open one by one
    closed = g.fill(mask)
    closed = g.view(closed, (1, closed.ne[0], closed.ne[1], closed.ne[3]), closed.nb[:3])
    ne, nb = top_k.ne, top_k.nb
    rows = g.view(top_k, (ne[0], ne[1], ne[3]), (nb[1], nb[2], ne[3] * nb[3]))
    zeros = g.fill(g.new(zeros_type, 1, *rows.ne[:3]))
    opened = g.set_rows(closed, zeros, rows)
    # back to the shape of the mask, to which the causal mask is added
    opened = g.view(
        opened,
        (opened.ne[1], opened.ne[2], 1, opened.ne[3]),
        (opened.nb[2], opened.nb[3], opened.nb[3]),
    )
    return g.add(opened, mask)


def pools_mask(
    llm: Llm, mask: Tensor | None, top: Tensor, members: Tensor, tail: Tensor, il: int
) -> Tensor:
    """Return the mask of the best pools' members and of an unfinished pool, as one op. It is made
    of no other mask: pools hold cells that are visible alone."""
    assert mask is not None
    empty = Tensor("NONE", mask.type, mask.ne)
    empty.buffer = llm.backends[-1].buffer
    opened = llm.graph.top_k_mask(empty, top, members, tail)
    llm.fused_nodes.append(("top_k_mask", opened, il))
    return opened


def sparse_attention(
    llm: Llm, inp: DsaInput, q: Tensor, k: Tensor, v: Tensor, il: int, sinks: Tensor | None = None
) -> Tensor:
    """Attend as build_attn of llm_graph_input_attn_k_dsa does, before wo."""
    g, hp, top_k = llm.graph, llm.hparams, inp.top_k
    cache, mask = inp.cache, inp.mask
    assert cache is not None and mask is not None and top_k is not None
    g.expand(q)
    g.expand(v)
    g.expand(k)
    g.expand(cache.cpy_k(k, inp.k_idxs, il))
    # a copy of the mask for each such layer, as the choice differs
    mask = top_k_mask(llm, mask, top_k, il)
    keys = cache.get_k(il, hp.head_k(il), hp.n_head_kv(il))
    # values are the first part of the cached keys
    values = g.view(keys, (v.ne[0], *keys.ne[1:]), keys.nb[1:])
    v_mla = llm.layer_weight(il, "attn_v_b")
    return llm.build_attn_mha(
        q, keys, values, mask, il, sinks=sinks, v_mla=v_mla, n_kv_max=top_k.ne[0]
    )
