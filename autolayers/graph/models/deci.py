"""Layers may have no attention, a linear one, or no feed-forward network (src/models/deci.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm


class Deci(Decoder):
    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g, hp = llm.graph, llm.hparams
        n_head, n_head_kv = hp.n_head(il), hp.n_head_kv(il)
        residual = cur = inp_l
        # Nemotron-51B: layers without heads have no attention, those without KV heads a linear one
        if n_head:
            cur = self.normed(llm, inp_l, il, "attn_norm")
            cur = self.attention(llm, cur, il) if n_head_kv else llm.linear(il, "attn_output", cur)
        cur, residual = llm.select_outputs(il, cur, residual)
        # Nemotron-Ultra-253B has layers without an FFN
        if not hp.n_ff(il):
            return inp_l  # llama.cpp continues with the layer's input
        ffn_inp = g.add(cur, residual) if n_head else cur
        cur = self.feed_forward(llm, self.normed(llm, ffn_inp, il, "ffn_norm"), il)
        return g.add(cur, ffn_inp)


BUILDERS = {"deci": Deci(rope_factors=True)}
