"""Projections without biases and scales, and a scaled result (src/models/mimo2.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm, Qkv


class Mimo2(Decoder):
    def heads(self, llm: Llm, cur: Tensor, il: int) -> Qkv:
        return llm.build_qkv(cur, il, scales=False, plain=True)

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        cur = super().attention(llm, cur, il)
        return llm.graph.scale(cur) if llm.hparams.f_attn_value_scale else cur


BUILDERS = {
    "mimo2": Mimo2(sinks=True, wo_bias=False, keeps_last=True, moe=Routing("sigmoid", norm_w=True))
}
