"""Kimi delta attention and latent attention with a gate per head (src/models/bailingmoe3.cpp)."""

from __future__ import annotations

from ..experts import Routing
from ..kimi_delta_attention import KimiDeltaAttention

BUILDERS = {
    "bailingmoe3": KimiDeltaAttention(
        select="last", shexp="add", ffn_bias=False, moe=Routing(gate_up=None, biases=False)
    ),
}
