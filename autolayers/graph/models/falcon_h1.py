"""Attention and Mamba-2 in parallel in every layer (src/models/falcon-h1.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm
from .mamba_base import build_mamba2_layer


class FalconH1(Decoder):
    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g = llm.graph
        attended = self.attention(llm, self.normed(llm, inp_l, il, "attn_norm"), il)
        scanned = build_mamba2_layer(llm, self.normed(llm, inp_l, il, "attn_norm"), il)
        cur = g.add(g.add(attended, scanned), inp_l)
        (cur,) = llm.select_outputs(il, cur)
        return g.add(self.feed_forward(llm, self.normed(llm, cur, il, "ffn_norm"), il), cur)


BUILDERS = {"falcon-h1": FalconH1(wo_bias=False)}
