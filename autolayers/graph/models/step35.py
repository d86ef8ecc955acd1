"""Head-wise gates; rope factors on full layers only; biased dense FFN (src/models/step35.cpp)."""

from __future__ import annotations

from ...builds import Rules
from ...ggml.tensor import Tensor
from ...model.hparams import Hparams
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm, Qkv


class Step35(Decoder):
    def heads(self, llm: Llm, cur: Tensor, il: int) -> Qkv:
        g, hp, n, head = llm.graph, llm.hparams, llm.n_tokens, llm.hparams.head_v(0)
        q, k, v = llm.build_qkv(cur, il, head_k=hp.head_k(0), head_v=head, reshape=False)
        q = g.reshape(q, hp.head_k(0), hp.n_head(il), n)
        k = g.reshape(k, hp.head_k(0), hp.n_head_kv(il), n)
        v = g.reshape(v, head, hp.n_head_kv(il), n)
        return *self.qk_normed(llm, q, k, il, "rms"), v

    def gated(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        # one gate per head, [n_head, n_tokens], of attention's input
        llm.need_layer(il, self.wo)
        weight = llm.layer_weight(il, "attn_gate")
        if weight is None:
            return out
        gate = llm.graph.unary("SIGMOID", llm.build_lora_mm(weight, cur))
        return llm.gate_heads(out, gate)


# one tensor for all layers: rope reads as many factors as half of the layer's rotated part
def _slides_not(hp: Hparams, il: int) -> bool:
    return not hp.is_swa(il)


BUILDERS = {
    "step35": Step35(
        rope_factors=_slides_not,
        wo_bias=False,
        select="late",
        select_before=((Rules.step35_late_rows, "attention"),),
        moe=Routing(),
        shexp="add",
    )
}
