"""DeepSeek-V4: keys and values are one head, raw within a window and compressed outside it.

A layer's compression ratio is 0 (window only), 128 (HCA: every block of tokens) or 4 (CSA:
overlapping blocks and an indexer picks the best). A block becomes one cell when it is complete;
until then its tokens wait in a state. Sources: src/models/deepseek4.cpp,
src/llama-kv-cache-dsv4.cpp, build_inp_dsv4 of src/llama-graph.cpp (as modelled).
"""

from __future__ import annotations

from ...ggml.tensor import Graph, Tensor
from ...model.hparams import CSA_RATIO, HCA_RATIO
from ...records import replace
from ..decoder import Decoder
from ..experts import Routing, build_moe_ffn
from ..hyper_connections import (
    build_hc_head,
    build_hc_post,
    build_hc_pre,
    expand_streams,
    picked_streams,
)
from ..inputs import AttnInput
from ..llm import Llm
from ..sparse_attention import best_keys, indexer_mask_type, top_k_mask


class _Compressed:
    """Inputs of one kind of compressed cache for the worst batch (dsv4_build_reserve_comp_plan)."""

    def __init__(self, llm: Llm, kind: str, ratio: int, streams: int, mask_type: str) -> None:
        g, n = llm.graph, llm.n_tokens
        self.kind, self.ratio = kind, ratio
        self.cache = llm.caches[kind]
        self.state = llm.states[f"{kind}-state"]
        slots, rollback = llm.cparams.n_seq_max, llm.cparams.n_rs_seq
        self.rows = self.state.n_rows * slots  # of one generation of states
        self.all_rows = self.rows * (1 + rollback)
        # over every split into sequences, the sum of ceil(tokens / ratio) is no larger
        blocks = n // ratio + llm.n_seqs
        # no more rows than the states have can be new
        stored_rows = min(n, self.rows)

        def ids(name: str, size: int, type_: str = "i32") -> Tensor:
            return g.input(f"dsv4_{kind}_{name}", type_, size)

        self.pos = ids("state_pos", n)
        self.persist = (
            ids("state_persist_src_idxs", stored_rows),
            ids("state_persist_dst_idxs", stored_rows),
        )
        self.restore = self.snapshot = None
        if rollback:
            self.restore = (
                ids("state_restore_src_idxs", self.rows),
                ids("state_restore_dst_idxs", self.rows),
            )
            saved = self.rows * rollback
            self.snapshot = (
                ids("state_snapshot_src_idxs", saved),
                ids("state_snapshot_dst_idxs", saved),
            )
        # CSA's cells overlap: each is made of its own block and the one before it
        self.read = ids("state_read_idxs", (2 if ratio == CSA_RATIO else 1) * ratio * blocks)
        self.write = ids("state_write_idxs", blocks, "i64")
        self.write_pos = ids("state_write_pos", blocks)
        self.mask = g.input(
            f"dsv4_{kind}_kq_mask", mask_type, self.cache.n_kv, n // streams, 1, streams
        )
        self.k_rot = llm.rotation("attn_inp_k_rot", self.cache.k_rot)

    def stored(self, g: Graph, il: int, i: int) -> Tensor:
        """Return a layer's state of all generations: of the values (0) or the scores (1)."""
        state = self.state.layers[il][i]
        assert state is not None
        return g.view(state, (state.ne[0], self.all_rows), (state.nb[1],))

    def written(
        self, g: Graph, il: int, rows: list[Tensor], ids: tuple[Tensor, Tensor]
    ) -> list[Tensor]:
        """Return a layer's states with rows of values and scores written to them; `ids`: (which
        rows, to where)."""
        source, target = ids
        return [
            g.set_rows(self.stored(g, il, i), g.get_rows(t, source), target)
            for i, t in enumerate(rows)
        ]


class Dsv4Input(AttnInput):
    """The raw window and the compressed caches (build_inp_dsv4)."""

    def __init__(self, llm: Llm) -> None:
        g, n = llm.graph, llm.n_tokens
        cache = llm.caches["swa"]
        streams = llm.n_seqs if llm.cparams.n_seq_max > 1 else 1
        type_ = "f16" if llm.flash_attn else "f32"
        super().__init__(
            cache,
            g.input("attn_inp_kq_mask", type_, cache.n_kv, n // streams, 1, streams),
            g.input("attn_inp_k_idxs", "i64", n),
            k_rot=llm.rotation("attn_inp_k_rot", cache.k_rot),
        )
        self.csa = _Compressed(llm, "csa", CSA_RATIO, streams, type_)
        self.hca = _Compressed(llm, "hca", HCA_RATIO, streams, type_)
        self.lid = _Compressed(llm, "lid", CSA_RATIO, streams, indexer_mask_type(llm))


class DeepSeek4(Decoder):
    def build(self, llm: Llm) -> Tensor:
        g = llm.graph
        embd = llm.build_inp_embd()
        llm.build_inp_pos()
        llm.build_inp_out_ids()
        llm.inp = Dsv4Input(llm)
        g.expand(llm.inp.mask)  # type: ignore[arg-type]
        x = expand_streams(llm, embd)
        for il in llm.layers:
            x = self.block(llm, x, il)
            # l_last, the name that graph_get_cb pins
            llm.pin(x, il)
        if llm.rules.rows_before_nextn:
            llm.output(x)
        return llm.finish(llm.output_norm(build_hc_head(llm, picked_streams(llm, x))))

    def block(self, llm: Llm, x: Tensor, il: int, early: bool = True) -> Tensor:
        """Return the streams after a layer."""
        cur, post, comb = build_hc_pre(llm, x, "attn", il)
        cur = self.attention(llm, self.normed(llm, cur, il, "attn_norm"), il)
        x = build_hc_post(llm, cur, x, post, comb, il)
        cur, post, comb = build_hc_pre(llm, x, "ffn", il)
        # expanded before the FFN, so that they are not computed in between
        if early:
            llm.expand_all(x, post, comb)
        cur = self.feed_forward(llm, self.normed(llm, cur, il, "ffn_norm"), il)
        return build_hc_post(llm, cur, x, post, comb, il)

    def mtp(self, llm: Llm) -> Tensor:
        return WINDOWED.mtp(llm)

    def experts(self, llm: Llm, cur: Tensor, il: int, routing: Routing) -> Tensor:
        """Build the experts; in hash layers a table chooses them by token."""
        table = llm.layer_weight(il, "ffn_gate_tid2eid")
        if table is None:
            return super().experts(llm, cur, il, routing)
        chosen = llm.graph.get_rows(table, llm.inp_tokens)  # type: ignore[arg-type]
        return build_moe_ffn(llm, cur, il, replace(routing, probs_b=None), selected_in=chosen)

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        head, n_head = hp.head_k(il), hp.n_head(il)
        latent_q = llm.rms_norm(il, "attn_q_a_norm", llm.linear(il, "attn_q_a", cur))
        # a norm per head, without a weight
        q = g.rms_norm(g.reshape(llm.linear(il, "attn_q_b", latent_q), head, n_head, n))
        q = llm.rope_end(q, hp.n_rot())
        kv = llm.rms_norm(il, "attn_kv_a_norm", llm.linear(il, "attn_kv", cur))
        kv = llm.rope_end(g.reshape(kv, head, 1, n), hp.n_rot())
        out = g.reshape(self.attend(llm, q, kv, latent_q, cur, il), head, n_head, n)
        groups = hp.dsv4_o_group_count
        # keys serve as values, rotated part included, so the result is rotated back
        out = llm.rope_end(out, hp.n_rot(), back=True)
        out = g.permute(g.reshape(out, n_head // groups * head, groups, n), 0, 2, 1, 3)
        # wo in two steps: per group of heads to a low rank, then all groups together
        # the weight as one matrix per group, whatever its shape in the file (TENSOR_ALLOW_RESHAPE)
        weight = llm.need_layer(il, "attn_output_a")
        if weight.ne[2] != groups:
            rows = weight.ne[1] * weight.ne[2] // groups
            weight.ne = (weight.ne[0], rows, groups, 1)
            weight.nb = (*weight.nb[:2], rows * weight.nb[1], rows * groups * weight.nb[1])
        first = weight
        out = g.permute(g.mul_mat(first, out), 0, 2, 1, 3)
        return llm.linear(il, "attn_output_b", g.cont(out, out.ne[0] * groups, n))

    def attend(
        self,
        llm: Llm,
        q: Tensor,
        kv: Tensor,
        latent_q: Tensor,
        cur: Tensor,
        il: int,
    ) -> Tensor:
        """Attend to the window and, by the layer's ratio, to compressed cells, which are updated
        first."""
        inp = llm.inp
        assert isinstance(inp, Dsv4Input)
        hp = llm.hparams
        head, ratio = hp.head_k(il), hp.compress_ratios[il]
        if ratio == CSA_RATIO:
            self._compress(llm, inp.csa, cur, il, "attn_compressor", head)
            self._compress(llm, inp.lid, cur, il, "indexer_compressor", hp.indexer_head_size)
        elif ratio == HCA_RATIO:
            self._compress(llm, inp.hca, cur, il, "attn_compressor", head)
        top_k = self._top_k(llm, inp.lid, latent_q, cur, il) if ratio == CSA_RATIO else None
        g, cache, mask = llm.graph, inp.cache, inp.mask
        assert cache is not None and mask is not None
        q, kv = llm.hadamard(q, inp.k_rot), llm.hadamard(kv, inp.k_rot)
        # added together, so that they are not reordered and make fewer splits
        g.expand(q)
        g.expand(kv)
        g.expand(cache.cpy_k(kv, inp.k_idxs, il))
        keys = cache.get_k(il, head, 1)
        n_kv_max = 0
        if hp.compress_ratios[il]:
            comp = inp.hca if top_k is None else inp.csa
            # raw cells of the window, then compressed ones, under one mask
            keys = g.concat(keys, self._keys(llm, comp, il, head), 2)
            more = comp.mask
            if top_k is not None:
                # no token sees more cells than its window and the chosen ones
                n_kv_max = min(mask.ne[0], hp.n_swa) + top_k.ne[0]
                more = top_k_mask(llm, more, top_k, il, "f16" if llm.flash_attn else "f32")
            mask = g.concat(mask, more, 0)
        out = llm.build_attn_mha(
            q, keys, keys, mask, il, sinks=llm.layer_weight(il, "attn_sinks"), n_kv_max=n_kv_max
        )
        return llm.hadamard(out, inp.k_rot)

    def _compress(
        self, llm: Llm, inp: _Compressed, cur: Tensor, il: int, name: str, head: int
    ) -> None:
        """Turn complete blocks of stored and new tokens into cells, and store the rest."""
        g = llm.graph
        kv = llm.linear(il, f"{name}_kv", cur)
        score = llm.linear(il, f"{name}_gate", cur)
        score = g.add(score, g.get_rows(llm.need_layer(il, f"{name}_ape"), inp.pos))
        restored = [inp.stored(g, il, 0), inp.stored(g, il, 1)]
        if inp.restore is not None:
            restored = inp.written(g, il, restored, inp.restore)
        # of the newest generation alone: older ones are for drafts that are taken back
        sources = [
            g.concat(g.view(t, (t.ne[0], inp.rows), (t.nb[1],)), new, 1)
            for t, new in zip(restored, (kv, score), strict=True)
        ]
        blocks = self._overlapping_blocks if inp.ratio == CSA_RATIO else self._blocks
        cells = blocks(llm, inp, sources, head)
        # a cell is the average of its tokens, weighted per channel
        weights = g.soft_max(cells[1])
        comp = g.cont(g.permute(g.sum_rows(g.mul(cells[0], weights)), 1, 0, 2, 3))
        comp = llm.rms_norm(il, f"{name}_norm", comp)
        comp = llm.rope_end(comp, llm.hparams.n_rot(), pos=inp.write_pos)
        comp = llm.hadamard(comp, inp.k_rot)
        g.expand(inp.cache.cpy_k(comp, inp.write, il))
        if inp.snapshot is not None:
            both = [g.concat(t, new, 1) for t, new in zip(restored, (kv, score), strict=True)]
            llm.expand_all(*inp.written(g, il, both, inp.snapshot))
        llm.expand_all(*inp.written(g, il, [kv, score], inp.persist))

    def _blocks(self, llm: Llm, inp: _Compressed, sources: list[Tensor], head: int) -> list[Tensor]:
        """Return the values and scores of each block: [ratio, head, blocks]."""
        g = llm.graph
        blocks = inp.write.ne[0]
        made = []
        for t in sources:
            rows = g.reshape(g.get_rows(t, inp.read), head, inp.ratio, blocks)
            made.append(g.cont(g.permute(rows, 1, 0, 2, 3)))
        return made

    def _overlapping_blocks(
        self, llm: Llm, inp: _Compressed, sources: list[Tensor], head: int
    ) -> list[Tensor]:
        """Return what `_blocks` does of every block after its predecessor, [2 ratio, head,
        blocks]."""
        g, ratio, blocks = llm.graph, inp.ratio, inp.write.ne[0]
        n = ratio * blocks
        made = []
        for t in sources:
            # appended for blocks without a predecessor: zeros for values, -inf for scores
            before = g.reshape(g.scale(g.view(t, (t.ne[0],))), t.ne[0], 1)
            t = g.concat(t, before, 1)
            rows = g.get_rows(t, inp.read)
            parts = []
            # a row is twice as wide as a head: first its part in the next block's
            # cell, then in its own
            for offset in (0, n * rows.nb[1] + head * rows.nb[0]):
                part = g.cont(g.view(rows, (head, n), (rows.nb[1],), offset))
                parts.append(g.reshape(part, head, ratio, blocks))
            both = g.concat(parts[0], parts[1], 1)
            made.append(g.cont(g.permute(both, 1, 0, 2, 3)))
        return made

    def _top_k(self, llm: Llm, inp: _Compressed, latent_q: Tensor, cur: Tensor, il: int) -> Tensor:
        """Return the compressed cells each token attends to."""
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        head, n_head = hp.indexer_head_size, hp.indexer_n_head
        q = g.reshape(llm.linear(il, "indexer.attn_q_b", latent_q), head, n_head, n)
        q = llm.rope_end(q, hp.n_rot())
        q = llm.hadamard(q, inp.k_rot)
        # 1 / sqrt(head * n_head) on the small tensor instead of the scores
        weights = g.scale(llm.linear(il, "indexer.proj", cur))
        return best_keys(llm, q, self._keys(llm, inp, il, head), weights, inp.mask, il)

    @staticmethod
    def _keys(llm: Llm, inp: _Compressed, il: int, head: int) -> Tensor:
        # as many cells as the mask has: the cache may have more
        k = inp.cache.get_k(il, head, 1)
        return llm.graph.view(k, (*k.ne[:2], inp.mask.ne[0], k.ne[3]), k.nb[1:])


class Windowed(DeepSeek4):
    """A block of a draft (MTP, DSpark): it keeps only the raw window."""

    def block(self, llm: Llm, x: Tensor, il: int, early: bool = False) -> Tensor:
        return super().block(llm, x, il, early)

    def attend(
        self,
        llm: Llm,
        q: Tensor,
        kv: Tensor,
        latent_q: Tensor,
        cur: Tensor,
        il: int,
    ) -> Tensor:
        # keys are the values, too, in a cache that has only K (build_attn_inp_k_iswa)
        return llm.build_attn(
            q, kv, kv, il, wo=None, sinks=llm.layer_weight(il, "attn_sinks"), mla=True
        )

    def mtp(self, llm: Llm) -> Tensor:
        """Build the MTP block: all streams of the last hidden state come in, and all go out."""
        g, il, n, hc = llm.graph, llm.n_layer, llm.n_tokens, llm.hparams.dsv4_hc_mult
        embd, state = llm.build_mtp_inputs(il, hc)
        state = g.reshape(state, llm.n_embd, hc, n)
        llm.build_inp_pos()
        llm.build_inp_out_ids()
        llm.inp = llm.build_attn_inp_k_iswa()
        state = llm.rms_norm(il, "nextn.hnorm", state)
        embd = expand_streams(llm, llm.rms_norm(il, "nextn.enorm", embd))
        # each stream of the hidden state is joined with the same embedding
        x = llm.linear(il, "nextn.eh_proj", g.concat(embd, state, 0), scale=True)
        x = self.block(llm, x, il)
        x = llm.output(g.get_rows(g.reshape(x, llm.n_embd * hc, n), llm.out_ids))
        cur = build_hc_head(llm, g.reshape(x, llm.n_embd, hc, llm.n_outputs))
        norm, head = (
            llm.layer_weight(il, "nextn.shared_head_norm"),
            llm.layer_weight(il, "nextn.shared_head_head"),
        )
        cur = llm.finish(
            llm.build_norm(cur, llm.weight("output_norm.weight") if norm is None else norm),
            head=None,
        )
        return g.mul_mat(llm.need("output.weight") if head is None else head, cur)


WINDOWED = Windowed(wo_bias=False, ffn_bias=False, moe=Routing(gate_up=None), shexp="add")

BUILDERS = {"deepseek4": DeepSeek4(**vars(WINDOWED))}
