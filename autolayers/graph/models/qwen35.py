"""Gated delta nets between layers of gated attention (src/models/qwen35.cpp, qwen35moe.cpp)."""

from __future__ import annotations

from ...builds import Rules
from ...ggml.tensor import Tensor
from ...records import replace
from ..gated_delta_net import ROUTING, GatedDeltaNet
from ..llm import Llm
from ..outputs import dense


class Qwen35(GatedDeltaNet):
    def head(self, llm: Llm, cur: Tensor) -> Tensor | None:
        """Return the logits. With cls.output, its product is what embeddings are."""
        if llm.weight("cls.output.weight") is None:
            return super().head(llm, cur)
        if llm.crops_early:
            llm.output(cur)  # t_h_nextn
        llm.t_embd = llm.output(dense(llm, cur, "cls.output"))
        llm.graph.expand(llm.t_embd)
        return llm.build_lora_mm(llm.need("output.weight"), cur, llm.weight("output.scale"))


_ROW = Qwen35(
    ffn_norm="post_attention_norm",
    ffn_scales=True,
    ffn_bias=False,
    select="last",
    select_before=((Rules.qwen35_late_rows, "attention"), (Rules.qwen35_last_rows, "late")),
)

BUILDERS = {
    "qwen35": _ROW,
    "qwen35moe": replace(_ROW, moe=ROUTING, shexp="gated"),
}
