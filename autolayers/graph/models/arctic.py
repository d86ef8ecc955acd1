"""A dense FFN and experts in parallel, the experts on the layer's input (src/models/arctic.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing, build_moe_ffn
from ..llm import Llm


class Arctic(Decoder):
    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g = llm.graph
        cur = self.attention(llm, self.normed(llm, inp_l, il, "attn_norm"), il)
        cur, residual = llm.select_outputs(il, cur, inp_l)
        ffn_inp = g.add(cur, residual)
        dense = llm.build_ffn(
            self.normed(llm, ffn_inp, il, "ffn_norm"), il, scales=False, biases=False
        )
        out = g.add(dense, ffn_inp)
        # the experts read the layer's input, not attention's result
        experts = build_moe_ffn(llm, self.normed(llm, residual, il, "ffn_norm_exps"), il, _ROUTING)
        return g.add(experts, out)


_ROUTING = Routing("softmax", norm_w=True, probs_b=None)

BUILDERS = {"arctic": Arctic(wo_bias=False)}
