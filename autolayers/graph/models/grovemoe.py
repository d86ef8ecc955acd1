"""Experts, then chunk experts over their sum (src/models/grovemoe.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ...records import replace
from ..decoder import Decoder
from ..experts import Routing, build_moe_ffn
from ..llm import Llm


class GroveMoe(Decoder):
    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp = llm.graph, llm.hparams
        logits = llm.linear(il, "ffn_gate_inp", cur)
        out = build_moe_ffn(llm, cur, il, _ROUTING, probs_in=logits)
        # the router's logits serve twice, and experts are chosen twice ("TODO: ... only once")
        n_chunk = llm.n_expert // hp.n_group_experts
        chunk = build_moe_ffn(
            llm,
            out,
            il,
            _CHUNK_ROUTING,
            probs_in=logits,
            n_expert=n_chunk,
            n_expert_used=min(n_chunk, llm.n_expert_used),
        )
        return g.add(out, g.scale(chunk))


_ROUTING = Routing("softmax", norm_w=True, select="sigmoid", gate_up=None, probs_b=None)
_CHUNK_ROUTING = replace(
    _ROUTING, up="ffn_up_chexps", gate="ffn_gate_chexps", down="ffn_down_chexps"
)

BUILDERS = {"grovemoe": GroveMoe(qk_norm="head")}
