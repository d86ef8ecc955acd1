"""Kimi delta attention, sparse latent attention over pools of tokens, several residual streams. The
indexer scores pools of a few consecutive tokens by one averaged key, stored in the cache next to
its sources. Source: src/models/glm5-next.cpp and src/llama-memory-hybrid-idx.cpp (as modelled)."""

from __future__ import annotations

from ...ggml.tensor import Tensor, row_size
from ..experts import Routing
from ..hyper_connections import build_hc_post, build_hc_pre, expand_streams, picked_streams
from ..inputs import AttnInput
from ..kimi_delta_attention import KimiDeltaAttention
from ..llm import Llm
from ..sparse_attention import Pools, indexer_mask_type, indexer_scores, pools_mask
from .kimi_k3 import KimiK3

# up to this many tokens, the chosen cells are copied out instead of masked in place
_GATHER_TOKENS = 16


class KpoolInput(AttnInput):
    """llm_graph_input_kpool and the input of the latent cache; `chosen` is what the last indexer
    chose."""

    def __init__(self, llm: Llm) -> None:
        base = llm.build_attn_inp_k()
        super().__init__(base.cache, base.mask, base.k_idxs)
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        self.keys = keys = llm.caches["idx"]
        self.pools = pools = Pools(llm, hp.indexer_kpool, indexer_mask_type(llm))
        tail = pools.size - 1
        self.n_chosen = pools.size * pools.best + (tail if hp.indexer_kpool_select_tail else 0)
        if llm.rules.kpool_masked_only:
            self.gathers = False
        elif llm.rules.kpool_gather:
            self.gathers = (
                llm.cparams.n_ubatch <= _GATHER_TOKENS
                and llm.cparams.n_ctx > hp.indexer_top_k + tail
            )
        else:
            self.gathers = n <= _GATHER_TOKENS and keys.n_kv > self.n_chosen
        self.live = g.input("gather_mask", "f32", self.n_chosen, 1, 1, n)
        # what makes the mask in one op needs no scratch rows
        if not llm.fused_ops.get("top_k_mask"):
            g.expand(self.live)
        self.chosen: Tensor | None = None


class Glm5Next(KimiK3):
    def __call__(self, llm: Llm) -> Tensor:
        g, n_embd = llm.graph, llm.n_embd
        embd = llm.build_inp_embd()
        llm.inp = KpoolInput(llm)
        llm.build_inp_out_ids()
        x = expand_streams(llm, embd)
        streams = x.ne[1]
        for il in llm.layers:
            for block, run in (("attn", self.attention), ("ffn", self.feed_forward)):
                cur, post, comb = build_hc_pre(llm, x, block, il)
                cur = run(llm, self.normed(llm, cur, il, f"{block}_norm"), il)
                x = build_hc_post(llm, cur, x, post, comb, il)
        x = picked_streams(llm, x)
        parts = [g.view(x, (n_embd, x.ne[2]), (x.nb[2],), i * x.nb[1]) for i in range(streams)]
        return self.head(llm, llm.output_norm(g.scale(llm.add_up(parts))))

    def output_gate(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return llm.linear(il, "ssm_g_b", llm.linear(il, "ssm_g_a", cur))

    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return KimiDeltaAttention.feed_forward(self, llm, cur, il)

    def mla(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Mirror build_dsa_layer."""
        inp = llm.inp
        assert isinstance(inp, KpoolInput) and inp.cache is not None and inp.mask is not None
        g, hp, n, cache, mask = llm.graph, llm.hparams, llm.n_tokens, inp.cache, inp.mask
        rank = hp.n_lora_kv
        low = llm.linear(il, "attn_q_a", cur)
        low = llm.rms_norm(il, "attn_q_a_norm", low)
        q = llm.linear(il, "attn_q_b", low)
        q = g.reshape(q, hp.n_embd_head_k_mla, llm.n_head, n)
        kv = llm.linear(il, "attn_kv_a_mqa", cur)
        kv = g.reshape(llm.rms_norm(il, "attn_kv_a_norm", kv), rank, 1, n)
        q = llm.linear(il, "attn_k_b", g.permute(q, 0, 2, 1, 3))
        q = g.permute(q, 0, 2, 1, 3)
        if hp.has_indexer(il):
            inp.chosen = self.kpool_select(llm, inp, cur, low, il)
        chosen = inp.chosen
        assert chosen is not None
        g.expand(q)
        g.expand(kv)
        g.expand(cache.cpy_k(kv, inp.k_idxs, il))
        v_b = llm.need_layer(il, "attn_v_b")
        # few tokens: the chosen cells are copied, and attention runs over the copies
        if inp.gathers:
            g.expand(mask)
            store = cache.layers[il][0]
            rows = g.view(store, (store.ne[0], store.ne[1] * store.ne[2]), (store.nb[1],))
            k = g.get_rows(rows, g.reshape(chosen, inp.n_chosen * n))
            k = g.reshape(k, rank, inp.n_chosen, 1, n)
            kq = g.soft_max(g.mul_mat(k, g.permute(q, 0, 2, 3, 1)), inp.live)
            kqv = g.mul_mat(v_b, g.mul_mat(g.cont(g.transpose(k)), kq))
            out = g.cont(g.permute(kqv, 0, 2, 1, 3))
            out = g.reshape(out, kqv.ne[0] * llm.n_head, n)
        else:
            k = cache.get_k(il, hp.head_k(il), hp.n_head_kv(il))
            v = g.view(k, (rank, *k.ne[1:]), k.nb[1:])
            out = llm.build_attn_mha(
                q, k, v, g.reshape(chosen, *mask.ne), il, v_mla=v_b, n_kv_max=inp.n_chosen
            )
        return llm.linear(il, "attn_output", out)

    def kpool_select(self, llm: Llm, inp: KpoolInput, cur: Tensor, low: Tensor, il: int) -> Tensor:
        """Return the chosen cells of each token, or the attention mask with -inf elsewhere
        (build_kpool_select)."""
        g, hp, n, pools = llm.graph, llm.hparams, llm.n_tokens, inp.pools
        head, n_head, size, n_new = hp.indexer_head_size, hp.indexer_n_head, pools.size, pools.n_new
        q = g.reshape(llm.linear(il, "indexer.attn_q_b", low), head, n_head, n)
        key = llm.linear(il, "indexer.attn_k", cur)
        key = llm.norm(il, "indexer.k_norm", key, "layer")
        gate = llm.linear(il, "indexer_compressor_gate", cur)
        # a cell of the indexer: key, gate, and the pool's average in its representative
        packed = g.concat(g.concat(key, gate, 0), g.fill(g.new("f32", head, n)), 0)
        g.expand(inp.keys.cpy_k(g.reshape(packed, 3 * head, 1, n), pools.ids, il))

        store: Tensor = inp.keys.layers[il][0]
        cells = store.ne[1] * store.ne[2]
        both = g.view(store, (2 * head, cells), (store.nb[1],))
        averages = g.view(store, (head, cells), (store.nb[1],), row_size(store.type, 2 * head))
        rows = g.get_rows(both, g.reshape(pools.new_members, size * n_new))
        rows = g.reshape(rows, 2 * head, size, n_new)
        keys, gates = (
            g.view(rows, (head, size, n_new), rows.nb[1:3], at * head * rows.nb[0]) for at in (0, 1)
        )
        gates = g.add(gates, llm.need_layer(il, "indexer_compressor_ape"))
        # softmax over the members of a pool, per channel
        shares = g.reshape(g.cont(g.permute(gates, 1, 0, 2, 3)), size, head * n_new)
        shares = g.reshape(g.soft_max(shares), size, head, n_new)
        fresh = g.sum_rows(g.mul(shares, g.cont(g.permute(keys, 1, 0, 2, 3))))
        g.expand(g.set_rows(averages, g.reshape(fresh, head, n_new), pools.new_cells))
        pooled = g.reshape(g.get_rows(averages, pools.cells), head, 1, pools.count)

        weights = g.scale(llm.linear(il, "indexer.proj", cur))
        score = indexer_scores(llm, q, pooled, weights, pools.visible, il)
        top = g.top_k(score, pools.best)
        if llm.fused_ops.get("top_k_mask"):
            return pools_mask(llm, inp.mask, top, pools.members, pools.tail, il)
        ranked = g.get_rows(g.reshape(score, 1, pools.count, n), top)
        # the best pools in the order of their scores, as top_k alone leaves them in any order
        order = g.argsort(g.reshape(ranked, pools.best, n))
        top = g.get_rows(g.reshape(g.cast(top, "f32"), 1, pools.best, n), order)
        top = g.cast(g.cont(g.reshape(top, pools.best, n)), "i32")
        chosen = g.get_rows(pools.members, g.reshape(top, pools.best * n))
        chosen = g.reshape(chosen, size * pools.best, n)
        if hp.indexer_kpool_select_tail:
            chosen = g.concat(chosen, pools.tail, 0)
        return chosen if inp.gathers else self.top_k_mask(llm, inp, chosen)

    def top_k_mask(self, llm: Llm, inp: KpoolInput, chosen: Tensor) -> Tensor:
        """Return a mask with -inf everywhere except at the chosen cells; padding indices point to
        scratch rows at the end."""
        g, n, mask = llm.graph, llm.n_tokens, inp.mask
        assert mask is not None
        n_kv, n_chosen = inp.keys.n_kv, inp.n_chosen
        if llm.rules.kpool_masks:
            g.expand(chosen)
            closed = g.repeat(g.fill(g.new(mask.type, n_kv + n_chosen)), n_kv + n_chosen, n)
            zeros = g.repeat(g.fill(g.new(mask.type, n_chosen)), n_chosen, n)
        else:
            seed = g.cast(g.view(chosen, (1,)), "f32")
            closed = g.fill(seed if mask.type == "f32" else g.cast(seed, mask.type))
            closed = g.repeat(closed, 1, n_kv + n_chosen, n)
            zeros = g.repeat(g.fill(seed), 1, n_chosen, n)
        closed, zeros = g.reshape(closed, 1, n_kv + n_chosen, n), g.reshape(zeros, 1, n_chosen, n)
        live = g.unary("EXP", g.reshape(inp.live, n_chosen, n))
        # scratch rows behind the mask for padding: live is 1 or 0
        dump = g.arange(n_chosen)
        ids = g.cast(g.add(g.mul(g.sub(g.cast(chosen, "f32"), dump), live), dump), "i32")
        opened = g.set_rows(closed, zeros, g.reshape(ids, n_chosen, n, 1))
        opened = g.view(opened, (n_kv, n), (opened.nb[2],))
        return g.add(opened, g.reshape(mask, n_kv, n))


BUILDERS = {
    "glm5-next": Glm5Next(shexp="add", ffn_bias=False, moe=Routing(gate_up=None, biases=False)),
}
