"""Attention and FFN in parallel, each with its norm, if the file says so
(src/models/gptneox.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..inputs import AttnInput
from ..llm import Llm


class GptNeoX(Decoder):
    def layer(
        self, llm: Llm, inp_l: Tensor, il: int, inp: AttnInput, pos: Tensor | None, out_ids: Tensor
    ) -> Tensor:
        if not llm.hparams.use_par_res:
            return super().layer(llm, inp_l, il, inp, pos, out_ids)
        g = llm.graph
        attn = self.attention(llm, self.normed(llm, inp_l, il, "attn_norm"), il, inp, pos)
        attn, inp_l = llm.select_outputs(il, out_ids, attn, inp_l)
        ffn = self.feed_forward(llm, self.normed(llm, inp_l, il, "ffn_norm"), il)
        return g.add(g.add(ffn, inp_l), attn)


BUILDERS = {"gptneox": GptNeoX(norm="layer", act="gelu", gate="seq")}
