"""A dense FFN may run next to the experts; their norm has an older name too
(src/models/grok.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm


class Grok(Decoder):
    def normed(
        self, llm: Llm, cur: Tensor, il: int, name: str | None, pinned: bool = True
    ) -> Tensor:
        # the loader takes either name (LLM_TENSOR_LAYER_OUT_NORM, then FFN_POST_NORM)
        if name == "post_ffw_norm" and llm.layer_weight(il, name) is None:
            name = "layer_output_norm"
        return super().normed(llm, cur, il, name, pinned)

    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g = llm.graph
        experts = super().feed_forward(llm, cur, il)
        if llm.layer_weight(il, "ffn_up") is None:
            return experts
        dense = llm.build_ffn(cur, il, "gelu", scales=False, biases=False)
        # sqrt(2) / 2 of the sum
        return g.scale(g.add(dense, experts))


BUILDERS = {
    "grok": Grok(
        attn_post_norm="attn_output_norm",
        soft_cap=True,
        act="gelu",
        moe=Routing("softmax", norm_w=True, act="gelu", probs_b=None),
        ffn_post_norm="post_ffw_norm",
        ffn_post_norm_pinned=True,
        logit_scale=True,
        final_cap=None,
    ),
}
