"""Experts in a latent vector, both normed, factors of each residual and branch, and a gate of the
normed heads (as recorded of b11739's library)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing, build_latent_moe
from ..llm import Llm
from ..rows import slides


class MuseSpark(Decoder):
    def embedded(self, llm: Llm) -> Tensor:
        cur = llm.graph.rms_norm(llm.build_inp_embd())
        llm.build_inp_pos()
        return cur

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return llm.graph.rms_norm(super().attention(llm, cur, il))

    def gated(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        g, hp, (width, n) = llm.graph, llm.hparams, out.ne[:2]
        llm.need_layer(il, self.wo)
        out = g.rms_norm(g.reshape(out, hp.head_v(il), hp.n_head(il), n))
        return g.mul(g.reshape(out, width, n), g.unary("SIGMOID", llm.linear(il, "attn_gate", cur)))

    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g, residual = llm.graph, inp_l
        cur = self.attention(llm, self.normed(llm, inp_l, il, "attn_norm"), il)
        cur, residual = llm.select_outputs(il, cur, residual)
        ffn_inp = _weighted_sum(llm, residual, cur, il, "attn_resid")
        cur = self.feed_forward(llm, self.normed(llm, ffn_inp, il, "ffn_norm"), il)
        cur = g.rms_norm(g.mul(cur, llm.need_layer(il, "post_ffw_norm")))
        return _weighted_sum(llm, ffn_inp, cur, il, "ffn_resid")

    def experts(self, llm: Llm, cur: Tensor, il: int, routing: Routing) -> Tensor:
        return build_latent_moe(llm, cur, il, routing, before="ffn_pre_exp_norm")


def _weighted_sum(llm: Llm, residual: Tensor, branch: Tensor, il: int, name: str) -> Tensor:
    """Return the residual times its alpha, and the branch times its beta."""
    g = llm.graph
    alpha, beta = (llm.need_layer(il, f"{name}_{factor}") for factor in ("alpha", "beta"))
    return g.add(g.mul(residual, alpha), g.mul(branch, beta))


BUILDERS = {
    "muse-spark": MuseSpark(
        qk_norm="head",
        rope=slides,
        wo_bias=False,
        select="",
        moe=Routing(normed="ffn_post_exp_norm"),
        logit_scale=True,
        final_cap=True,
    )
}
