"""Without ffn_norm the FFN reads the attention's input (src/models/stablelm.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm


class StableLm(Decoder):
    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g = llm.graph
        normed = self.normed(llm, inp_l, il, "attn_norm")
        cur = self.attention(llm, normed, il)
        cur, inp_l, normed = llm.select_outputs(il, cur, inp_l, normed)
        ffn_inp = g.add(cur, inp_l)
        # a parallel layer (StableLM 2 12B): see the module's first line
        cur = (
            normed
            if llm.layer_weight(il, "ffn_norm") is None
            else self.normed(llm, ffn_inp, il, "ffn_norm")
        )
        return g.add(self.feed_forward(llm, cur, il), ffn_inp)


BUILDERS = {"stablelm": StableLm(norm="layer", qk_norm="head")}
