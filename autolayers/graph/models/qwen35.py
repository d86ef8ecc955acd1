"""Gated delta nets between layers of gated attention (src/models/qwen35.cpp, qwen35moe.cpp)."""

from __future__ import annotations

from ...records import replace
from ..gated_delta_net import ROUTING, GatedDeltaNet

_ROW = GatedDeltaNet(ffn_norm="post_attention_norm", ffn_scales=True, ffn_bias=False, select="last",
                     select_before=(("qwen35_late_rows", "attention"), ("qwen35_last_rows", "late")))

BUILDERS = {
    "qwen35": _ROW,
    "qwen35moe": replace(_ROW, moe=ROUTING, shexp="gated"),
}
