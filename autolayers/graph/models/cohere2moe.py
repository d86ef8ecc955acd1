"""Attention and FFN in parallel; with a shared expert the two are averaged
(src/models/cohere2moe.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ...model.hparams import Hparams
from ...records import replace
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm


class Cohere2Moe(Decoder):
    def for_file(self, llm: Llm) -> Decoder:
        return replace(self, norm="rms" if llm.hparams.f_norm_rms_eps else "layer")

    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        out = super().feed_forward(llm, cur, il)
        shared = (
            llm.layer_weight(il, "ffn_gate_inp") is not None
            and llm.layer_weight(il, "ffn_up_shexp") is not None
        )
        # the mean of the two: 0.5
        return llm.graph.scale(out) if shared else out

    def mtp(self, llm: Llm) -> Tensor:
        """Build the MTP block, whose layer always has rope, unlike the trunk's."""
        return Decoder.mtp(replace(self, rope="all"), llm)


def _slides_or_leads(hp: Hparams, il: int) -> bool:
    return hp.is_swa(il) or il < hp.n_layer_dense_lead


BUILDERS = {
    "cohere2moe": Cohere2Moe(
        norm="layer",
        rope=_slides_or_leads,
        rope_factors=True,
        parallel="fra",
        select="last",
        logit_scale=None,
        ffn_scales=True,
        shexp="add",
        moe=Routing(scales=True, probs_b=None),
    ),
}
