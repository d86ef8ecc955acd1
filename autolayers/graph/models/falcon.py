"""Attention may have a norm of its own; the FFN always reads the first (src/models/falcon.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm


class Falcon(Decoder):
    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g = llm.graph
        normed = self.normed(llm, inp_l, il, "attn_norm")
        # Falcon-40B; the 7B's attention reads the same norm as its FFN
        has_own = llm.layer_weight(il, "attn_norm_2") is not None
        attn = self.attention(
            llm, self.normed(llm, inp_l, il, "attn_norm_2") if has_own else normed, il
        )
        attn, inp_l, normed = llm.select_outputs(il, attn, inp_l, normed)
        return g.add(g.add(self.feed_forward(llm, normed, il), attn), inp_l)


BUILDERS = {"falcon": Falcon(norm="layer", act="gelu", gate="seq")}
