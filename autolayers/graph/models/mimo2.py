"""Projections without biases and scales, and a scaled result (src/models/mimo2.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm


class Mimo2(Decoder):
    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        # a fused QKV, or three matrices with a head size for keys and one for values
        if llm.layer_weight(il, "attn_qkv") is not None:
            q, k, v = llm.build_qkv(cur, il, scales=False)
        else:
            q, k, v = (llm.linear(il, f"attn_{x}", cur) for x in "qkv")
            q = g.reshape(q, hp.head_k(0), hp.n_head(il), n)
            k = g.reshape(k, hp.head_k(0), hp.n_head_kv(il), n)
            v = g.reshape(v, hp.head_v(0), hp.n_head_kv(il), n)
        q, k = llm.rope(q), llm.rope(k)
        cur = llm.build_attn(q, k, v, il, sinks=llm.layer_weight(il, "attn_sinks"), wo_bias=False)
        return g.scale(cur) if hp.f_attn_value_scale else cur


BUILDERS = {"mimo2": Mimo2(keeps_last=True, moe=Routing("sigmoid", norm_w=True))}
