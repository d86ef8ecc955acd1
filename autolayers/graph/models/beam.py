"""A gate for each head with a bias, a factor of Q in layers that do not slide, and both branches
scaled before each sum (as recorded of b11739's library)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm
from ..rows import slides


class Beam(Decoder):
    def gated(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        g, n_head = llm.graph, llm.hparams.n_head(il)
        llm.need_layer(il, self.wo)
        gate = llm.linear(il, "attn_gate", cur)
        bias = g.reshape(llm.need_layer(il, "attn_gate", "bias"), 1, n_head)
        by_head = g.reshape(gate, gate.ne[0] // n_head, n_head, out.ne[1])
        gate = g.unary("SIGMOID", g.add(by_head, bias))
        return g.mul(out, g.reshape(gate, *out.ne[:2]))

    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g, residual = llm.graph, inp_l
        cur = self.attention(llm, self.normed(llm, inp_l, il, "attn_norm"), il)
        cur = self.normed(llm, cur, il, "post_attention_norm")
        cur, residual = llm.select_outputs(il, cur, residual)
        ffn_inp = g.add(g.scale(cur), g.scale(residual))
        cur = self.feed_forward(llm, self.normed(llm, ffn_inp, il, "ffn_norm"), il)
        cur = self.normed(llm, cur, il, "post_ffw_norm")
        return g.add(g.scale(cur), g.scale(ffn_inp))


BUILDERS = {
    "beam": Beam(
        qk_norm="head",
        rope=slides,
        temperature="unroped",
        wo_bias=False,
        select="",
        moe=Routing("sigmoid"),
    )
}
