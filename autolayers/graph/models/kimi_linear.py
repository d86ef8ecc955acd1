"""Kimi delta attention with low-rank gates (src/models/kimi-linear.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..experts import Routing
from ..kimi_delta_attention import KimiDeltaAttention
from ..latent_attention import absorbed, latent
from ..llm import Llm
from ..recurrent import F32


class KimiLinear(KimiDeltaAttention):
    expand_input = flat_states = True

    def qkv(self, llm: Llm, cur: Tensor, il: int) -> list[Tensor]:
        weight = llm.layer_weight(il, "attn_qkv")
        if weight is None:
            return super().qkv(llm, cur, il)
        g, width = llm.graph, llm.hparams.n_embd_head_kda * llm.n_head
        both = g.mul_mat(weight, cur)
        # copies: the convolution reshapes each part to sequences, which needs whole rows
        return [
            g.cont(g.view(both, (width, llm.n_tokens), (both.nb[1],), part * width * F32))
            for part in range(3)
        ]

    def decay(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g = llm.graph
        gate = self.low_rank_gate(llm, cur, il)
        gate = g.reshape(
            g.unary("SOFTPLUS", gate), llm.hparams.n_embd_head_kda, llm.n_head, llm.n_tokens
        )
        # the converter stores -exp(A_log)
        return g.mul(gate, self.decay_rates(llm, il))

    def low_rank_gate(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g = llm.graph
        low = llm.linear(il, "ssm_f_a", cur)
        return g.add(llm.linear(il, "ssm_f_b", low), llm.need_layer(il, "ssm_dt", "bias"))

    def output_gate(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        low = llm.linear(il, "ssm_g_a", self.regrouped(llm, cur))
        return llm.linear(il, "ssm_g_b", low)

    def regrouped(self, llm: Llm, cur: Tensor) -> Tensor:
        # by sequence for the recurrence, and back to tokens for the gate: two reshapes
        g = llm.graph
        return g.reshape(
            g.reshape(cur, cur.ne[0], llm.n_seq_tokens, llm.n_seqs), cur.ne[0], llm.n_tokens
        )

    def mla(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        # no rope (rotary_emb=None in vLLM): no positions
        q, k, v = absorbed(llm, self.queries(llm, cur, il), *latent(llm, cur, il), il)
        return llm.build_attn(
            q, k, v, il, mla=True, v_mla=llm.layer_weight(il, "attn_v_b"), wo_bias=False
        )


BUILDERS = {
    "kimi-linear": KimiLinear(
        inp_pos=False,
        shexp="add",
        ffn_bias=False,
        moe=Routing(norm_w=True, gate_up=None, biases=False),
    ),
}
