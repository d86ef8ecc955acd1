"""Swin norms come after what they norm; logits of image tokens are overwritten
(src/models/chameleon.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm

_IMAGE_TOKENS = 8192


class Chameleon(Decoder):
    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        if not llm.hparams.swin_norm:
            return super().layer(llm, inp_l, il)
        g = llm.graph
        cur, inp_l = llm.select_outputs(il, self.attention(llm, inp_l, il), inp_l)
        cur = self.normed(llm, cur, il, "attn_norm")
        ffn_inp = g.add(cur, inp_l)
        # llama.cpp hands it what was added, not the sum
        cur = self.feed_forward(llm, cur, il)
        return g.add(self.normed(llm, cur, il, "ffn_norm"), ffn_inp)

    def head(self, llm: Llm, cur: Tensor) -> Tensor:
        # logits of image tokens (4 to 8195) become -FLT_MAX: a text token always wins
        g = llm.graph
        return g.set(llm.finish(cur), g.clamp(g.new("f32", _IMAGE_TOKENS)))


BUILDERS = {
    "chameleon": Chameleon(qk_norm="head", qk_norm_kind="layer", wo_bias=False, ffn_bias=False)
}
