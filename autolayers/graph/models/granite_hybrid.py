"""Granite with Mamba-2 in most layers (src/models/granite-hybrid.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..experts import Routing
from ..llm import Llm
from ..recurrent import Hybrid
from .mamba_base import build_mamba2_layer


class GraniteHybrid(Hybrid):
    def recurrent(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return build_mamba2_layer(llm, cur, il)


BUILDERS = {
    "granitehybrid": GraniteHybrid(
        rope="key",
        rope_factors=True,
        residual_scale=None,
        shexp="add",
        logit_scale=None,
        moe=Routing("softmax", norm_w=True, probs_b=None, gate_up=None, biases=False),
    ),
}
