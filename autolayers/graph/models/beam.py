"""A gate for each head with a bias, a factor of Q in layers that do not slide, and both branches
scaled before each sum (as recorded of b11739's library)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm


class Beam(Decoder):
    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, normed = llm.graph, llm.hparams, cur
        q, k, v = self.heads(llm, cur, il)
        if hp.is_swa(il):
            q, k = llm.rope(q), llm.rope(k)
        elif llm.attn_temp is not None:
            q = g.mul(q, llm.attn_temp)
        cur = llm.build_attn(q, k, v, il, wo=None)
        gate = llm.linear(il, "attn_gate", normed)
        n_head, n = hp.n_head(il), cur.ne[1]
        bias = g.reshape(llm.need_layer(il, "attn_gate", "bias"), 1, n_head)
        by_head = g.reshape(gate, gate.ne[0] // n_head, n_head, n)
        gate = g.unary("SIGMOID", g.add(by_head, bias))
        cur = g.mul(cur, g.reshape(gate, cur.ne[0], n))
        return llm.linear(il, "attn_output", cur, scale=True)

    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g, residual = llm.graph, inp_l
        cur = self.attention(llm, self.normed(llm, inp_l, il, "attn_norm"), il)
        cur = self.normed(llm, cur, il, "post_attention_norm")
        cur, residual = llm.select_outputs(il, cur, residual)
        ffn_inp = g.add(g.scale(cur), g.scale(residual))
        cur = self.feed_forward(llm, self.normed(llm, ffn_inp, il, "ffn_norm"), il)
        cur = self.normed(llm, cur, il, "post_ffw_norm")
        return g.add(g.scale(cur), g.scale(ffn_inp))


BUILDERS = {"beam": Beam(qk_norm="head", temperature=True, select="", moe=Routing("sigmoid"))}
