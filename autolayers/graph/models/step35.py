"""Head-wise gates; rope factors on full layers only; biased dense FFN (src/models/step35.cpp)."""

from __future__ import annotations

from ...builds import Rules
from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm


class Step35(Decoder):
    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        normed = cur
        n_head, head = hp.n_head(il), hp.head_v(0)
        q, k, v = llm.build_qkv(cur, il, head_k=hp.head_k(0), head_v=head, reshape=False)
        q = g.reshape(q, hp.head_k(0), n_head, n)
        k = g.reshape(k, hp.head_k(0), hp.n_head_kv(il), n)
        v = g.reshape(v, head, hp.n_head_kv(il), n)
        q, k = self.qk_normed(llm, q, k, il, "rms")
        # one tensor for all layers: rope reads as many factors as half of the layer's rotated part
        factors = None if hp.is_swa(il) else llm.rope_factors(il)
        q, k = llm.rope(q, factors), llm.rope(k, factors)
        cur = llm.build_attn(q, k, v, il, wo=None)
        # one gate per head, [n_head, n_tokens], of attention's input
        gate_w = llm.layer_weight(il, "attn_gate")
        if gate_w is not None:
            gate = g.unary("SIGMOID", llm.build_lora_mm(gate_w, normed))
            cur = g.mul(g.reshape(cur, head, n_head, n), g.reshape(gate, 1, n_head, n))
            cur = g.reshape(cur, head * n_head, n)
        return llm.linear(il, "attn_output", cur, scale=True)


BUILDERS = {
    "step35": Step35(
        select="late",
        select_before=((Rules.step35_late_rows, "attention"),),
        moe=Routing(),
        shexp="add",
    )
}
