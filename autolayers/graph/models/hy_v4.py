"""Sparse latent attention, and several residual streams, mixed into one before each block and
updated by its result (src/models/hy-v4.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..experts import Routing
from ..hyper_connections import picked_streams
from ..inputs import AttnInput
from ..latent_attention import absorbed, latent
from ..llm import Llm
from ..sparse_attention import DsaInput, dsa_input
from .deepseek32 import DeepSeek32


class HyV4(DeepSeek32):
    rotate_indexer = False

    def inputs(self, llm: Llm) -> AttnInput:
        # checkpoints of full attention alone have no indexer keys, so top_k stays 0
        return dsa_input(llm) if llm.hparams.indexer_top_k else llm.build_attn_inp_k()

    def build(self, llm: Llm) -> Tensor:
        g, hp = llm.graph, llm.hparams
        width, streams, n = hp.n_embd, hp.dsv4_hc_mult, llm.n_tokens
        x = llm.build_inp_embd()
        llm.build_inp_pos()
        llm.inp = self.inputs(llm)
        llm.build_inp_out_ids()
        # iHC: every stream starts as the embeddings, [width, streams, n_tokens]
        x = g.repeat(g.reshape(x, width, 1, n), width, streams, n, 1)
        for il in llm.layers:
            for block, run in (("attn", self.attention), ("ffn", self.feed_forward)):
                weights, after = self.hc_weights(llm, x, il, block)
                cur = self.normed(llm, self.hc_mix(llm, x, weights), il, f"{block}_norm")
                x = self.hc_post(llm, run(llm, cur, il), x, after)
        # build_hc_head: the streams become one before the last norm
        x = picked_streams(llm, x)
        mixes = g.mul_mat(
            llm.need("output_hc_fn.weight"), g.rms_norm(g.reshape(x, width * streams, x.ne[2]))
        )
        weights = g.add(
            g.mul(mixes, llm.need("output_hc_scale.weight")), llm.need("output_hc_base.weight")
        )
        cur = self.hc_mix(llm, x, g.scale(g.unary("SIGMOID", weights)))
        return llm.finish(llm.output_norm(cur))

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        if isinstance(llm.inp, DsaInput):
            return super().attention(llm, cur, il)
        latent_q = llm.rms_norm(il, "attn_q_a_norm", llm.linear(il, "attn_q_a", cur))
        compressed, k_pe = latent(llm, cur, il)
        q, k, v = absorbed(llm, llm.linear(il, "attn_q_b", latent_q), compressed, k_pe, il)
        sinks, v_mla = llm.layer_weight(il, "attn_sinks"), llm.layer_weight(il, "attn_v_b")
        out = llm.build_attn(q, k, v, il, wo=None, sinks=sinks, v_mla=v_mla, mla=True)
        return self.projected(llm, out, cur, il)

    def projected(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        # gated MLA: the gate reads attention's input, and wo comes after it
        gate = llm.graph.unary("SIGMOID", llm.linear(il, "attn_gate", cur))
        return llm.linear(il, "attn_output", llm.graph.mul(out, gate))

    def hc_weights(self, llm: Llm, x: Tensor, il: int, block: str) -> tuple[Tensor, Tensor]:
        """Return how much of each stream the block reads, and each stream takes of the block's
        result: [streams, n_tokens]."""
        g, streams = llm.graph, x.ne[1]
        # hc_fn makes 2 * streams coefficients: those of the input, then those of the result
        scale, base = (llm.need_layer(il, f"hc_{block}_{part}") for part in ("scale", "base"))
        mixes = llm.linear(
            il,
            f"hc_{block}_fn",
            g.rms_norm(g.reshape(x, x.ne[0] * streams, x.ne[2])),
        )

        def gate(i: int) -> Tensor:
            t = g.view(mixes, (streams, x.ne[2]), (mixes.nb[1],), i * streams * mixes.nb[0])
            t = g.mul(t, g.view(scale, (1,), (), i * scale.nb[0]))
            return g.scale(
                g.unary("SIGMOID", g.add(t, g.view(base, (streams,), (), i * streams * base.nb[0])))
            )

        # hyper_connection_magnitude: of the result's share alone
        return gate(0), g.scale(gate(1))

    def hc_mix(self, llm: Llm, x: Tensor, weights: Tensor) -> Tensor:
        """Return the streams' weighted sum."""
        g, n = llm.graph, x.ne[2]
        # as in the reference, in f32; a cast is a copy even of what is f32 already
        x = g.cast(x, "f32")
        parts = [
            g.mul(
                g.view(x, (x.ne[0], n), (x.nb[2],), i * x.nb[1]),
                g.view(weights, (1, n), (weights.nb[1],), i * weights.nb[0]),
            )
            for i in range(x.ne[1])
        ]
        return g.cast(llm.add_up(parts), "f32")

    def hc_post(self, llm: Llm, cur: Tensor, x: Tensor, weights: Tensor) -> Tensor:
        """Return the streams, each with its share of the block's result (build_hc_post)."""
        g, n = llm.graph, x.ne[2]
        # in f32, as the rounding of bf16 would add up over the layers
        cur, weights, x = g.cast(cur, "f32"), g.cast(weights, "f32"), g.cast(x, "f32")
        streams = []
        for i in range(x.ne[1]):
            stream = g.view(x, (x.ne[0], n), (x.nb[2],), i * x.nb[1])
            part = g.mul(cur, g.view(weights, (1, n), (weights.nb[1],), i * weights.nb[0]))
            streams.append(g.reshape(g.add(stream, part), x.ne[0], 1, n))
        return g.cast(llm.concat_all(streams, 1), "f32")


BUILDERS = {"hy_v4": HyV4(wo_bias=False, ffn_bias=False, moe=Routing(gate_up=None), shexp="add")}
