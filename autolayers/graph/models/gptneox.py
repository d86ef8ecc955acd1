"""Attention and FFN in parallel, each with its norm, if the file says so
(src/models/gptneox.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm


class GptNeoX(Decoder):
    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        if not llm.hparams.use_par_res:
            return super().layer(llm, inp_l, il)
        g = llm.graph
        attn = self.attention(llm, self.normed(llm, inp_l, il, "attn_norm"), il)
        attn, inp_l = llm.select_outputs(il, attn, inp_l)
        ffn = self.feed_forward(llm, self.normed(llm, inp_l, il, "ffn_norm"), il)
        return g.add(g.add(ffn, inp_l), attn)


BUILDERS = {"gptneox": GptNeoX(norm="layer", act="gelu", gate="seq")}
