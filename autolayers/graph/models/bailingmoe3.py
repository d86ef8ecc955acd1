"""Kimi delta attention and latent attention with a gate per head (src/models/bailingmoe3.cpp)."""

from __future__ import annotations

from ..kimi_delta_attention import KimiDeltaAttention
from ..llm import Routing

BUILDERS = {
    "bailingmoe3": KimiDeltaAttention(select="last", shexp="add", ffn_bias=False,
                                      moe=Routing(gate_up=None, biases=False)),
}
