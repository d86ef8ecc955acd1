"""MSA: every group of heads attends to the blocks of positions that its indexer head ranks best
(src/models/minimax-m3.cpp).
"""

from __future__ import annotations

from ...ggml.tensor import Tensor, block_size
from ..decoder import Decoder
from ..experts import Routing
from ..inputs import AttnInput
from ..llm import Llm


class MsaInput(AttnInput):
    """llm_graph_input_msa: maps positions to cache cells, and cells back to blocks of positions."""

    def __init__(self, llm: Llm, base: AttnInput) -> None:
        super().__init__(base.cache, base.mask, base.k_idxs, base.v_idxs, base.k_rot, base.v_rot)
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        mask = base.mask
        assert mask is not None
        n_kv, self.per_stream, self.streams = mask.ne[0], mask.ne[1], mask.ne[3]
        self.block = hp.indexer_block_size
        # get_n_pos: llama.cpp reserves with an empty cache; "filled" asks for a full one
        self.blocks = -(
            -(llm.cparams.n_ctx_seq if llm.fused_ops.get("filled") else 256) // self.block
        )
        self.positions = self.blocks * self.block
        self.idx_k_idxs = g.input("msa_k_idxs", "i64", n)
        self.bias = g.input("msa_bias", "f32", self.blocks, n)
        self.visible = g.input("msa_pos_mask", "f32", self.positions, n)
        self.cells = g.input("msa_pos_slot", "i32", self.positions, self.streams)
        self.decodes = self.per_stream == 1
        if self.decodes:
            self.cells_f = g.input("msa_pos_slot_f", "f32", self.positions, self.streams)
        else:
            self.block_of_cell = g.input("msa_cell_blk", "i32", n_kv, self.streams)
            self.float_mask = g.cast(mask, "f32")


class MiniMaxM3(Decoder):
    def inputs(self, llm: Llm) -> AttnInput:
        base = llm.attn_input(llm.caches["attn"], by_rows=False)
        # blocks are of positions: slots of one shared cache interleave, so llama.cpp
        # attends to all cells
        sparse = llm.flash_attn and (llm.cparams.n_seq_max == 1 or not llm.cparams.kv_unified)
        return MsaInput(llm, base) if sparse else base

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        inp = llm.inp
        if not isinstance(inp, MsaInput) or il < hp.n_layer_dense_lead:
            return super().attention(llm, cur, il)
        q, k, v = llm.build_qkv(cur, il)
        q, k = self.qk_normed(llm, q, k, il, "rms")
        q, k = llm.rope(q), llm.rope(k)
        # index branch: one head per group of query heads, and one key for all of them
        size = hp.indexer_head_size
        iq = g.reshape(llm.linear(il, "indexer.q_proj", cur), size, hp.indexer_n_head, n)
        ik = g.reshape(llm.linear(il, "indexer.k_proj", cur), size, 1, n)
        iq = llm.rope(llm.rms_norm(il, "indexer.q_norm", iq))
        ik = llm.rope(llm.rms_norm(il, "indexer.k_norm", ik))
        idx = llm.caches["idx"]
        g.expand(idx.cpy_k(ik, inp.idx_k_idxs, il))
        ik = idx.get_k(il, size, 1)
        q, k = llm.hadamard(q, inp.k_rot), llm.hadamard(k, inp.k_rot)
        v = llm.hadamard(v, inp.v_rot)
        llm.expand_all(q, k, v)
        k, v = llm.cached(inp, k, v, il)
        # a single token copies the chosen keys, many tokens mask what they do not attend to
        attend = self._gathered if inp.decodes else self._masked
        out = llm.hadamard(attend(llm, inp, q, k, v, iq, ik), inp.v_rot)
        return llm.project(out, il, biased=False)

    def _gathered(
        self, llm: Llm, inp: MsaInput, q: Tensor, k: Tensor, v: Tensor, iq: Tensor, ik: Tensor
    ) -> Tensor:
        """Attend to copies of the best blocks' keys and values, for one token per stream."""
        g, hp = llm.graph, llm.hparams
        size, n_idx, s = iq.ne[0], iq.ne[1], inp.streams
        block, n_pos = inp.block, inp.positions
        head, n_kv_head, n_kv = k.ne[0], k.ne[1], k.ne[2]
        best = min(hp.indexer_top_k, inp.blocks)
        # indexer keys in the order of positions, which blocks are made of
        keys = g.get_rows(g.view(ik, (size, n_kv, s), (ik.nb[2], ik.nb[3])), inp.cells)
        score = g.mul_mat(g.reshape(keys, size, n_pos, 1, s), g.reshape(iq, size, n_idx, 1, s))
        # positions without a cell are -inf, so that no block is chosen for them
        score = g.add_inplace(score, g.reshape(inp.visible, n_pos, 1, 1, s))
        # a block's score is pooled from its positions'
        ranked = g.add(g.pool_rows(score, block), g.reshape(inp.bias, inp.blocks, 1, 1, s))
        # the first position of each block, in floats until rows are looked up
        chosen = g.scale(g.cast(g.top_k(ranked, best), "f32"))
        chosen = g.repeat(g.reshape(chosen, 1, best, n_idx, s), block, best, n_idx, s)
        chosen = g.add(chosen, g.reshape(g.arange(block), block, 1, 1))
        at = g.cast(g.reshape(chosen, block * best * n_idx, s), "i32")
        cells = g.reshape(
            g.get_rows(g.reshape(inp.cells_f, 1, n_pos, s), at), block, best, n_idx, s
        )
        # K and V as rows of one head: cell * heads + head
        rows = g.add(g.scale(cells), g.reshape(g.arange(n_kv_head), 1, 1, n_idx))
        rows = g.cast(g.reshape(rows, block * best * n_idx, s), "i32")

        def picked(t: Tensor) -> Tensor:
            part = g.get_rows(g.view(t, (head, n_kv_head * n_kv, s), (t.nb[1], t.nb[3])), rows)
            part = g.reshape(part, head, block * best, 1, n_idx * s)
            # get_rows returns f32; flash attention wants f16 for a quantised cache
            wanted = "f16" if block_size(t.type) > 1 else t.type
            return part if part.type == wanted else g.cast(part, wanted)

        mask = g.get_rows(g.reshape(inp.visible, 1, n_pos, s), at)
        mask = g.cast(g.reshape(mask, block * best, 1, 1, n_idx * s), "f16")
        return self._grouped(llm, q, picked(k), picked(v), mask, n_kv_head)

    def _masked(
        self, llm: Llm, inp: MsaInput, q: Tensor, k: Tensor, v: Tensor, iq: Tensor, ik: Tensor
    ) -> Tensor:
        """Attend with a mask per group of heads, stream by stream, for many tokens."""
        g, hp = llm.graph, llm.hparams
        size, n_idx, n = iq.ne[0], iq.ne[1], inp.per_stream
        block, n_pos, blocks = inp.block, inp.positions, inp.blocks
        n_kv = k.ne[2]
        best = min(hp.indexer_top_k, blocks)
        outs = []
        for s in range(inp.streams):

            def part(
                t: Tensor, ne: tuple[int, ...], nb: tuple[int, ...], step: int, s: int = s
            ) -> Tensor:
                return g.view(t, ne, nb, s * step)

            iq_s = part(iq, (size, n_idx, n), iq.nb[1:3], n * iq.nb[2])
            keys = g.get_rows(
                part(ik, (size, n_kv), (ik.nb[2],), ik.nb[3]),
                part(inp.cells, (n_pos,), (), inp.cells.nb[1]),
            )
            # not scaled: only the order of the scores matters
            score = g.reshape(g.mul_mat(keys, g.reshape(iq_s, size, n_idx * n)), n_pos, n_idx, n)
            nb = inp.visible.nb[1]
            score = g.add_inplace(score, part(inp.visible, (n_pos, 1, n), (nb, nb), n * nb))
            nb = inp.bias.nb[1]
            bias = part(inp.bias, (blocks, 1, n), (nb, nb), n * nb)
            # the bias is 1e30 for a token's own and nearest blocks, which always rank first
            chosen = g.top_k(g.add(g.pool_rows(score, block), bias), best)
            # the bias times 0, minus 1e30: every block is closed
            closed = g.repeat(g.cast(g.scale(bias), "f16"), blocks, n_idx, n, 1)
            zero = g.scale(g.cast(chosen, "f32"))
            opened = g.set_rows(
                g.reshape(closed, 1, blocks, n_idx * n),
                g.reshape(zero, 1, best, n_idx * n),
                g.reshape(chosen, best, n_idx * n),
            )
            opened = g.reshape(opened, blocks, n_idx, n)
            opened = g.cont(g.permute(opened, 0, 2, 1, 3))
            opened = g.cont(g.transpose(g.reshape(opened, blocks, n * n_idx)))
            # each cell gets the mask of the block that its position is in
            of_cell = part(inp.block_of_cell, (n_kv,), (), inp.block_of_cell.nb[1])
            opened = g.get_rows(opened, of_cell)
            mask = g.reshape(g.cont(g.transpose(opened)), n_kv, n, n_idx)
            causal = inp.float_mask
            strides = causal.nb[1], causal.nb[3]
            mask = g.add_inplace(mask, part(causal, (n_kv, n, 1), strides, causal.nb[3]))
            mask = g.cast(g.reshape(mask, n_kv, n, 1, n_idx), "f16")
            q_s = part(q, (q.ne[0], q.ne[1], n), q.nb[1:3], n * q.nb[2])
            k_s, v_s = (g.permute(part(t, t.ne[:3], t.nb[1:], t.nb[3]), 0, 3, 1, 2) for t in (k, v))
            outs.append(self._grouped(llm, q_s, k_s, v_s, mask, k.ne[1]))
        return llm.concat_all(outs, 1)

    def _grouped(
        self, llm: Llm, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, n_kv_head: int
    ) -> Tensor:
        """Mirror build_attn_msa_fa: groups of heads (and streams) as sequences of one flash
        attention."""
        g, (head, n_head, n, _) = llm.graph, q.ne
        # a prompt: a channel per group; one token: per group and stream
        group, channels = n_head // n_kv_head, k.ne[3]
        q = g.reshape(q, head, group, channels, n_head * n // (group * channels))
        q = g.permute(q, 0, 2, 3, 1)
        out = g.flash_attn(q, k, v, mask, None, llm.hparams.f_max_alibi_bias > 0.0)
        out = g.permute(out, 0, 1, 3, 2)
        return g.reshape(out if out.contiguous() else g.cont(out), head * n_head, n)


BUILDERS = {
    "minimax-m3": MiniMaxM3(
        wo_bias=False,
        ffn_bias=False,
        qk_norm="head",
        act="swiglu_oai",
        shexp="add",
        moe=Routing(act="swiglu_oai", gate_up=None),
    ),
}
