"""Experts in a latent vector, both normed, factors of each residual and branch, and a gate of the
normed heads (as recorded of b11739's library)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing, build_moe_ffn
from ..llm import Llm


class MuseSpark(Decoder):
    def embedded(self, llm: Llm) -> Tensor:
        cur = llm.graph.rms_norm(llm.build_inp_embd())
        llm.build_inp_pos()
        return cur

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, normed = llm.graph, llm.hparams, cur
        q, k, v = self.heads(llm, cur, il)
        # layers without a window have no rope
        if hp.is_swa(il):
            q, k = llm.rope(q), llm.rope(k)
        cur = llm.build_attn(q, k, v, il, wo=None)
        width, n = cur.ne[0], cur.ne[1]
        cur = g.rms_norm(g.reshape(cur, hp.head_v(il), hp.n_head(il), n))
        cur = g.reshape(cur, width, n)
        gate = g.unary("SIGMOID", llm.linear(il, "attn_gate", normed))
        return g.rms_norm(llm.linear(il, "attn_output", g.mul(cur, gate), scale=True))

    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g, residual = llm.graph, inp_l
        cur = self.attention(llm, self.normed(llm, inp_l, il, "attn_norm"), il)
        cur, residual = llm.select_outputs(il, cur, residual)
        ffn_inp = _weighted_sum(llm, residual, cur, il, "attn_resid")
        cur = self.feed_forward(llm, self.normed(llm, ffn_inp, il, "ffn_norm"), il)
        cur = g.rms_norm(g.mul(cur, llm.need_layer(il, "post_ffw_norm")))
        return _weighted_sum(llm, ffn_inp, cur, il, "ffn_resid")

    def experts(self, llm: Llm, cur: Tensor, il: int, routing: Routing) -> Tensor:
        # the router reads the whole state, the experts a smaller one
        logits = llm.linear(il, "ffn_gate_inp", cur)
        small = llm.linear(il, "ffn_latent_down", cur)
        small = llm.rms_norm(il, "ffn_pre_exp_norm", small)
        out = build_moe_ffn(llm, small, il, routing, probs_in=logits)
        return llm.linear(il, "ffn_latent_up", out)


def _weighted_sum(llm: Llm, residual: Tensor, branch: Tensor, il: int, name: str) -> Tensor:
    """Return the residual times its alpha, and the branch times its beta."""
    g = llm.graph
    alpha, beta = (llm.need_layer(il, f"{name}_{factor}") for factor in ("alpha", "beta"))
    return g.add(g.mul(residual, alpha), g.mul(branch, beta))


BUILDERS = {
    "muse-spark": MuseSpark(
        qk_norm="head",
        select="",
        moe=Routing(normed="ffn_post_exp_norm"),
        logit_scale=True,
        final_cap=True,
    )
}
