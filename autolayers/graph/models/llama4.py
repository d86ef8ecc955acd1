"""Every n-th layer has no rope and scales Q by position; the others norm Q and K after rope
(src/models/llama4.cpp).
"""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ...model.hparams import Hparams
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm


class Llama4(Decoder):
    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp = llm.graph, llm.hparams
        if llm.attn_temp is None:
            llm.attn_temp = llm.build_inp_attn_scale()
        q, k, v = llm.build_qkv(cur, il)
        if self.ropes(hp, il):
            factors = llm.rope_factors(il)
            q, k = llm.rope(q, factors), llm.rope(k, factors)
            if hp.n_layer != 48 or hp.n_expert != 128:  # use_kq_norm: not in Maverick
                q, k = g.rms_norm(q), g.rms_norm(k)
        else:
            q = g.mul(q, llm.attn_temp)
        return llm.build_attn(q, k, v, il)


def _all_but_every_nth(hp: Hparams, il: int) -> bool:
    return (il + 1) % (hp.n_layer if hp.swa_type == "none" else 4) != 0


BUILDERS = {
    "llama4": Llama4(
        rope=_all_but_every_nth,
        shexp="add",
        moe=Routing("sigmoid", norm_w=False, weight_before=True, select="logits", probs_b=None),
    ),
}
