"""Gated delta nets, attention to the best blocks of tokens, several residual streams, n-gram
embeddings (src/models/qwen4exp.cpp).
"""

from __future__ import annotations

from ...errors import LaunchRefused
from ...ggml.tensor import Tensor, row_size
from ...model.hparams import Hparams
from ..gated_delta_net import ROUTING, GatedDeltaNet
from ..hyper_connections import expand_streams, picked_streams
from ..inputs import AttnInput
from ..llm import Llm
from ..recurrent import F32, build_rs, n_cells, snapshots, state
from ..sparse_attention import Pools, pools_mask, top_k_mask

_MAX_RATIO = 1024  # tokens of a block; each is a tensor of the graph


class _Blocks:
    """llm_graph_input_qsa: which cells make up a block of `ratio` tokens; shared by layers of one
    ratio."""

    def __init__(self, llm: Llm, ratio: int) -> None:
        g, cache = llm.graph, llm.caches["idx"]
        n_kv, streams = cache.n_kv, cache.n_stream
        self.n = -(-n_kv // ratio)
        self.ids = g.input("qsa_k_idxs", "i64", llm.n_tokens)
        self.of_cell = g.input("cell_blk", "i32", n_kv, streams)
        self.cells = g.input("blk_cells", "i32", ratio * self.n, streams)
        # 4 per block: M-RoPE positions
        self.pos = g.input("blk_pos", "i32", 4 * self.n * streams)
        self.bias = g.input("qsa_bias", "f32", self.n, llm.n_tokens // streams, streams)


class QsaInput(AttnInput):
    """The input of attention, and of the step that chooses what it reads: pools of tokens, or
    blocks of a given length."""

    new_pos: Tensor  # positions of new pools

    def __init__(self, llm: Llm) -> None:
        base = llm.attn_input(llm.caches["attn"], by_rows=False)
        super().__init__(base.cache, base.mask, base.k_idxs, base.v_idxs, base.k_rot, base.v_rot)
        self.blocks: dict[int, _Blocks] = {}
        self.pools: Pools | None = None


def _ratio(hp: Hparams, il: int) -> int:
    """Return the tokens of a block of layer `il`, 0: it attends to all."""
    ratio: int = hp.number_at("attention.compress_ratios", il, 0, _MAX_RATIO)
    return ratio


class Qwen4Exp(GatedDeltaNet):
    def __call__(self, llm: Llm) -> Tensor | None:
        g, hp = llm.graph, llm.hparams
        grams = self.grams(llm) if llm.rules.grams_first else None
        embd = llm.build_inp_embd()
        inp = llm.inp = QsaInput(llm)
        size = self.pool_size(llm)
        if size:
            inp.pools = Pools(llm, size, "f16")
            inp.new_pos = llm.graph.input("new_pool_pos", "i32", 4 * inp.pools.n_new)
        llm.build_inp_pos()
        llm.build_inp_out_ids()
        if not llm.rules.grams_first:
            grams = self.grams(llm)
        # every stream starts as a copy of the embeddings
        x = expand_streams(llm, embd)
        if llm.rules.qsa_pools:
            g.expand(x)
        for il in llm.layers:
            if grams is not None and il in hp.ple_layers:
                x = self.ple(llm, x, grams, il)
            x = self.layer_of_streams(llm, x, il)
            # llama.cpp names it l_last
            llm.pin(x, il)
        if llm.rules.rows_before_nextn:
            # what an MTP block would read
            g.expand(g.reshape(x, llm.n_embd * x.ne[1], x.ne[2]))
        # no output_norm: the last mixer carries it
        return self.head(llm, self.hc_mix(llm, x, "output_hc", -1)[0])

    def layer_of_streams(self, llm: Llm, x: Tensor, il: int) -> Tensor:
        """Return the streams after a layer: [n_embd, streams, n_tokens]."""
        g = llm.graph
        cur, inject = self.hc_mix(llm, x, f"blk.{il}.hc_attn", il)
        assert inject is not None
        cur = self.attention(llm, cur, il)
        # What follows works on each token by itself, so only the output's tokens are kept: rows of
        # the block's result, of its shares and of all streams
        if il == llm.n_layer - 1:
            cur, inject = g.get_rows(cur, llm.out_ids), g.get_rows(inject, llm.out_ids)
            x = picked_streams(llm, x)
        x = self.hc_combine(llm, x, cur, inject, il)
        cur, inject = self.hc_mix(llm, x, f"blk.{il}.hc_ffn", il)
        assert inject is not None
        return self.hc_combine(llm, x, self.feed_forward(llm, cur, il), inject, il)

    def pool_size(self, llm: Llm) -> int:
        """Return the cells that one pooled key of the indexer stands for; 0 if this build or file
        pools none."""
        hp = llm.hparams
        # layers without a ratio attend to everything
        sizes = {ratio for il in range(llm.n_layer) if (ratio := _ratio(hp, il))}
        if not llm.rules.qsa_pools or not sizes or "idx" not in llm.caches:
            return 0
        size = min(sizes)
        if len(sizes) > 1 or size == 1 or hp.indexer_top_k % size:
            raise LaunchRefused(
                "attention.compress_ratios: llama.cpp wants one ratio, above 1, that divides "
                "attention.indexer.top_k"
            )
        return size

    # residual streams

    def hc_mix(self, llm: Llm, x: Tensor, name: str, il: int) -> tuple[Tensor, Tensor | None]:
        """Return (the block's input, what decides how much of its result each stream gets), as
        build_hc_mix does."""
        g, width, streams, n = llm.graph, x.ne[0], x.ne[1], x.ne[2]
        # grouped: the mean square of one stream, with a gain for each of them
        normed = g.mul(g.rms_norm(x), llm.need(f"{name}_norm.weight"))
        normed = g.reshape(normed, width * streams, n)
        low = g.unary("SILU", g.scale(llm.build_lora_mm(llm.need(f"{name}_down.weight"), normed)))
        gate = llm.build_lora_mm(llm.need(f"{name}_up.weight"), low)
        if llm.fused_ops["hc_pre"] and il >= 0:
            mixed = g.hc_pre(
                g.reshape(normed, width, streams, n), g.reshape(gate, width, streams, n)
            )
            llm.fused_nodes.append(("hc_pre", mixed, il))
        else:
            gated = g.reshape(g.mul(normed, g.unary("SIGMOID", gate)), width, streams, n)
            # a view of each stream, as ggml has no sum over dimension 1
            parts = [
                g.view(gated, (width, n), (width * streams * F32,), i * width * F32)
                for i in range(streams)
            ]
            mixed = g.scale(llm.add_up([g.cont(parts[0]), *parts[1:]]))
        inject = llm.weight(f"{name}_inject.weight")
        return mixed, None if inject is None else llm.build_lora_mm(inject, normed)

    def hc_combine(self, llm: Llm, x: Tensor, cur: Tensor, inject: Tensor, il: int) -> Tensor:
        """Return the streams, each with its share of the block's result (build_hc_combine)."""
        g, width, streams, n = llm.graph, x.ne[0], x.ne[1], x.ne[2]
        # 2 sigmoid(x): where x is 0 the block's result is added as it is
        weights = g.scale(g.unary("SIGMOID", g.scale(inject)))
        if llm.fused_ops["hc_post"]:
            out = g.hc_post(cur, x, weights)
            llm.fused_nodes.append(("hc_post", out, il))
            return out
        weights = g.reshape(weights, 1, streams, n)
        cur = g.repeat(g.reshape(cur, width, 1, n), width, streams, n, 1)
        return g.add(x, g.mul(cur, weights))

    # n-gram embeddings

    def grams(self, llm: Llm) -> Tensor | None:
        """Mirror build_inp_ple, where the model has any."""
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        if not hp.ple_layers:
            return None
        # n-grams of 2 to ple_ngram_size tokens, each with several rows of the table
        heads = (hp.ple_ngram_size - 1) * hp.ple_heads_per_ngram
        # hashed on the CPU: ggml has neither 64-bit integers nor xor
        rows = g.input("ple_rows", "i32", heads * n)
        grams = g.get_rows(llm.need("per_layer_token_embd.weight"), rows)
        grams = g.reshape(grams, hp.n_embd_per_layer * heads, n)
        # in the same split as the embeddings of the tokens
        g.expand(grams)
        return grams

    def ple(self, llm: Llm, x: Tensor, grams: Tensor, il: int) -> Tensor:
        """Return the streams plus a gated, convolved projection of the n-grams' embeddings
        (build_ple)."""
        g, hp, n, n_tok, n_seqs = llm.graph, llm.hparams, llm.n_tokens, llm.n_seq_tokens, llm.n_seqs
        width, streams = x.ne[0], x.ne[1]
        every = width * streams

        def normed(t: Tensor, name: str) -> Tensor:
            t = g.rms_norm(g.reshape(t, width, streams, n))
            return g.mul(t, llm.need_layer(il, f"ple_norm_{name}"))

        # how well the n-gram fits to the stream decides how much of it is added
        key = normed(llm.linear(il, "ple_key", grams), "key")
        value = llm.linear(il, "ple_value", grams)
        match = g.scale(g.sum_rows(g.mul(key, normed(x, "query"))))
        # a signed square root
        size = g.sqrt(g.clamp(g.unary("ABS", match)))
        gate = g.unary("SIGMOID", g.mul(g.unary("SGN", match), size))
        gated = g.mul(g.repeat(g.reshape(value, width, 1, n), width, streams, n, 1), gate)
        taps, step = hp.ple_conv_kernel, hp.ple_ngram_size
        # a dilated convolution: taps are `step` tokens apart
        past = (taps - 1) * step
        inputs = g.reshape(normed(g.reshape(gated, every, n), "conv"), every, n)
        padded = self.conv_state(
            llm, state(llm, il, 2), g.reshape(inputs, every, n_tok, n_seqs), past, every
        )
        kernel = llm.need_layer(il, "ple_conv1d")
        terms = []
        for tap in range(taps):
            at = (past - (taps - 1 - tap) * step) * F32
            shifted = g.view(padded, (n_tok, every, n_seqs), padded.nb[1:3], at)
            weight = g.cont(g.view(kernel, (1, every), (kernel.nb[1],), tap * kernel.nb[0]))
            weight = g.reshape(weight, every)
            # the kernel keeps the file's type, and what it multiplies is f32
            if weight.type != "f32":
                weight = g.cast(weight, "f32")
            terms.append(g.mul(g.cont(g.transpose(shifted)), weight))
        out = g.reshape(g.cont(g.unary("SILU", llm.add_up(terms))), width, streams, n)
        return g.add(x, g.add(gated, out))

    # linear attention

    def value_size(self, hp: Hparams) -> int:
        size: int = hp.ssm_d_state
        return size

    def conv_state(
        self, llm: Llm, states: Tensor, mixed: Tensor, columns: int, channels: int
    ) -> Tensor:
        """Mirror build_conv_state_at."""
        g, n_seqs = llm.graph, llm.n_seqs
        before = g.reshape(build_rs(llm, states), columns, channels, n_seqs)
        conv = g.concat(before, g.transpose(mixed), 0)
        # slot s ends s tokens earlier, for drafts from which s tokens are taken back
        for slot in range(snapshots(llm)):
            first = max(0, conv.ne[0] - columns - slot)
            tail = g.view(conv, (columns, channels, n_seqs), conv.nb[1:3], first * F32)
            at = slot * n_cells(llm) * states.nb[1]
            place = g.view(states, (columns * channels, n_seqs), (states.nb[1],), at)
            g.expand(g.cpy(g.cont(tail), place))
        return conv

    # sparse attention

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        g.expand(cur)
        if hp.is_recr(il):
            return self.recurrent(llm, cur, il)
        inp = llm.inp
        assert isinstance(inp, QsaInput)
        head, n_head, n_head_kv, ratio = hp.head_v(0), llm.n_head, llm.n_head_kv, _ratio(hp, il)
        chosen, n_kv_max = None, 0
        if ratio and inp.pools is not None:
            chosen = self.qsa_sel(llm, inp, inp.pools, cur, il)
            n_kv_max = inp.pools.size * (inp.pools.best + 1) - 1
        elif ratio and "idx" in llm.caches:
            chosen = self.qsa_top_k(llm, inp, cur, il, ratio)
            n_kv_max = chosen.ne[0]
        both, k, v = (self.linear(llm, cur, il, f"attn_{x}") for x in "qkv")
        q, gate = self.query_and_gate(llm, both, head, n_head)
        k, v = g.reshape(k, head, n_head_kv, n), g.reshape(v, head, n_head_kv, n)
        q, k = self.qk_normed(llm, q, k, il, "rms")
        q, k = llm.rope(q), llm.rope(k)
        if chosen is None:
            out = llm.build_attn(q, k, v, il, wo=None)
        else:
            out = self.attn_qsa(llm, inp, q, k, v, chosen, n_kv_max, il)
        return self.linear(llm, g.mul(out, g.unary("SIGMOID", gate)), il, "attn_output")

    def qsa_top_k(self, llm: Llm, inp: QsaInput, cur: Tensor, il: int, ratio: int) -> Tensor:
        """Return the cells of the best blocks (build_qsa_top_k), [width, n_tokens / n_stream, 1,
        n_stream] of i32."""
        g, hp, n, cache = llm.graph, llm.hparams, llm.n_tokens, llm.caches["idx"]
        head, n_head = hp.indexer_head_size, hp.indexer_n_head
        n_kv, streams = cache.n_kv, cache.n_stream
        per = n // streams
        blocks = inp.blocks.get(ratio) or inp.blocks.setdefault(ratio, _Blocks(llm, ratio))
        raw = g.reshape(llm.linear(il, "indexer.k_proj", cur), head, 1, n)
        g.expand(cache.cpy_k(raw, blocks.ids, il))
        keys = cache.get_k(il, head, 1)
        keys = g.view(keys, (head, n_kv, streams), keys.nb[2:])
        members = g.reshape(g.get_rows(keys, blocks.cells), head, ratio, blocks.n, streams)
        parts = []
        for i in range(ratio):
            at = i * members.nb[1]
            parts.append(g.cont(g.view(members, (head, blocks.n, streams), members.nb[2:], at)))
        pooled = llm.add_up(parts)
        pooled = g.reshape(g.scale(pooled), head, blocks.n * streams, 1)
        pooled = llm.rms_norm(il, "indexer.k_norm", pooled)
        # a block's key is the mean of its members, rotated by its own position
        pooled = g.rope(g.reshape(pooled, head, 1, blocks.n * streams), blocks.pos)
        pooled = g.reshape(pooled, head, blocks.n, streams)
        q = g.reshape(llm.linear(il, "indexer.q_proj", cur), head, n_head, n)
        q = llm.rope(llm.rms_norm(il, "indexer.q_norm", q))
        score = g.mul_mat(pooled, g.reshape(q, head, n_head * per, streams))
        score = g.unary("RELU", g.reshape(score, blocks.n, n_head, per, streams))
        by_head = [
            g.view(score, (blocks.n, per, streams), score.nb[2:], h * score.nb[1])
            for h in range(n_head)
        ]
        total = llm.add_up([g.cont(by_head[0]), *by_head[1:]])
        assert inp.mask is not None
        # each cell gets its block's score, so top_k chooses cells
        by_block = g.cont(g.permute(g.add(total, blocks.bias), 1, 0, 2, 3))
        by_cell = g.cont(g.permute(g.get_rows(by_block, blocks.of_cell), 1, 0, 2, 3))
        mask = inp.mask if inp.mask.type == "f32" else g.cast(inp.mask, "f32")
        by_cell = g.add(by_cell, g.reshape(mask, n_kv, per, streams))
        # plus the members of a block that is not complete
        width = min(n_kv, hp.indexer_top_k + ratio - 1)
        return g.reshape(g.cont(g.top_k(by_cell, width)), width, per, 1, streams)

    def qsa_sel(self, llm: Llm, inp: QsaInput, pools: Pools, cur: Tensor, il: int) -> Tensor:
        """Return the attention mask, closed but for the cells of the best pools and of the last,
        unfinished one (build_qsa_sel)."""
        g, hp, n, mask, cache = llm.graph, llm.hparams, llm.n_tokens, inp.mask, llm.caches["idx"]
        assert mask is not None
        head, n_head = hp.indexer_head_size, hp.indexer_n_head
        size, n_new, best = pools.size, pools.n_new, pools.best
        raw = llm.linear(il, "indexer.k_proj", cur)
        # a cell holds the raw key and room for the pooled one
        packed = g.concat(raw, g.fill(g.new("f32", head, n)), 0)
        g.expand(cache.cpy_k(g.reshape(packed, 2 * head, 1, n), pools.ids, il))

        store: Tensor = cache.layers[il][0]
        cells = store.ne[1] * store.ne[2]
        raw_keys = g.view(store, (head, cells), (store.nb[1],))
        pooled_keys = g.view(store, (head, cells), (store.nb[1],), row_size(store.type, head))
        rows = g.get_rows(raw_keys, g.reshape(pools.new_members, size * n_new))
        rows = g.reshape(rows, head, size, n_new)
        parts = [g.view(rows, (head, n_new), (rows.nb[2],), i * rows.nb[1]) for i in range(size)]
        # pools that this batch completes: means of their members, stored with their representative
        fresh = g.scale(llm.add_up([g.cont(parts[0]), *parts[1:]]))
        fresh = llm.rms_norm(il, "indexer.k_norm", fresh)
        fresh = g.rope(g.reshape(fresh, head, 1, n_new), inp.new_pos)
        fresh = g.reshape(fresh, head, n_new)
        g.expand(g.set_rows(pooled_keys, fresh, pools.new_cells))
        # older pools come from cells that earlier micro-batches wrote
        pooled = g.reshape(g.get_rows(pooled_keys, pools.cells), head, 1, pools.count)

        q = g.reshape(llm.linear(il, "indexer.q_proj", cur), head, n_head, n)
        q = llm.rope(llm.rms_norm(il, "indexer.q_norm", q))
        # every head counts the same: weights of one value
        score = g.lightning_indexer(q, pooled, g.fill(g.new("f32", n_head, n)), pools.visible)
        top = g.top_k(score, best)
        if llm.fused_ops.get("top_k_mask"):
            return pools_mask(llm, mask, top, pools.members, pools.tail, il)
        chosen = g.reshape(g.get_rows(pools.members, g.reshape(top, best * n)), size * best, n)
        # the unfinished pool is always read, whatever its score would be
        chosen = g.concat(chosen, pools.tail, 0)
        n_chosen, n_kv = chosen.ne[0], cache.n_kv
        g.expand(chosen)
        closed = g.repeat(g.fill(g.new(mask.type, n_kv + n_chosen)), n_kv + n_chosen, n)
        zeros = g.repeat(g.fill(g.new(mask.type, n_chosen)), n_chosen, n)
        ranked = g.get_rows(g.reshape(score, 1, pools.count, n), top)
        # a visible score is a sum of rectified ones, at least 0; an invisible one is -inf
        live = g.repeat(g.clamp(g.scale(ranked)), size, best, n, 1)
        live = g.reshape(live, size * best, n)
        live = g.concat(live, g.clamp(g.scale(g.cast(pools.tail, "f32"))), 0)
        # a cumulative sum: -sm tensor cannot split an arange, which has no source
        dump = g.scale(g.like("CUMSUM", g.fill(live)))
        # cells that do not exist are sent to scratch rows behind the mask: live is 1 or 0
        ids = g.mul(g.sub(g.cast(chosen, "f32"), dump), live)
        ids = g.cast(g.add(ids, dump), "i32")
        opened = g.set_rows(
            g.reshape(closed, 1, n_kv + n_chosen, n),
            g.reshape(zeros, 1, n_chosen, n),
            g.reshape(ids, n_chosen, n, 1),
        )
        row = opened.nb[2]
        strides = row, row * mask.ne[1], row * mask.ne[1] * mask.ne[2]
        opened = g.view(opened, (n_kv, *mask.ne[1:]), strides)
        return g.add(opened, mask)

    def attn_qsa(
        self,
        llm: Llm,
        inp: QsaInput,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        chosen: Tensor,
        n_kv_max: int,
        il: int,
    ) -> Tensor:
        """Mirror build_attn_qsa, before wo; `chosen`: the cells, or the mask that is open there."""
        assert inp.mask is not None
        q, k = llm.hadamard(q, inp.k_rot), llm.hadamard(k, inp.k_rot)
        v = llm.hadamard(v, inp.v_rot)
        llm.expand_all(q, v, k)
        keys, values = llm.cached(inp, k, v, il)
        # the chosen mask contains the causal one
        mask = (
            llm.graph.reshape(chosen, *inp.mask.ne)
            if inp.pools is not None
            else top_k_mask(llm, inp.mask, chosen, il)
        )
        out = llm.build_attn_mha(q, keys, values, mask, il, n_kv_max=n_kv_max)
        return llm.hadamard(out, inp.v_rot)


BUILDERS = {
    "qwen4exp": Qwen4Exp(
        gate_act="SIGMOID", ffn_scales=True, ffn_bias=False, moe=ROUTING, shexp="gated"
    ),
}
