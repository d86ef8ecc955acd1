"""Without ffn_norm the FFN reads the attention's input (src/models/stablelm.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm


class StableLm(Decoder):
    def ffn_input(self, llm: Llm, ffn_inp: Tensor, normed: Tensor, il: int) -> Tensor:
        # a parallel layer (StableLM 2 12B): see the module's first line
        parallel = llm.layer_weight(il, "ffn_norm") is None
        return normed if parallel else super().ffn_input(llm, ffn_inp, normed, il)


BUILDERS = {"stablelm": StableLm(norm="layer", qk_norm="head")}
