"""Latent attention with an indexer in every layer, or in some, whose choice the others share
(src/models/deepseek32.cpp, glm-dsa.cpp, dots3note.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..experts import Routing
from ..inputs import AttnInput
from ..latent_attention import LatentAttention, absorbed, latent
from ..llm import Llm
from ..sparse_attention import DsaInput, dsa_input, lightning_indexer, sparse_attention


class DeepSeek32(LatentAttention):
    # the indexer's keys and queries are multiplied by a Hadamard matrix
    rotate_indexer = True

    def for_file(self, llm: Llm) -> Decoder:
        return self if llm.row.memory.startswith("dsa") else LatentAttention(**vars(self))

    def inputs(self, llm: Llm) -> AttnInput:
        return dsa_input(llm)

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        inp = llm.inp
        assert isinstance(inp, DsaInput)
        latent_q = llm.rms_norm(il, "attn_q_a_norm", llm.linear(il, "attn_q_a", cur))
        if llm.hparams.has_indexer(il):
            inp.top_k = lightning_indexer(llm, inp, cur, latent_q, il, self.rotate_indexer)
        q = llm.linear(il, "attn_q_b", latent_q)
        compressed, k_pe = latent(llm, cur, il)
        k_norm = llm.layer_weight(il, "attn_k_norm")
        if k_norm is not None:
            k_pe = llm.build_norm(k_pe, k_norm, None, "rms", il)
        q, k, v = absorbed(llm, q, compressed, k_pe, il)
        if inp.window is not None and llm.hparams.is_swa(il):
            out = llm.build_attn(
                q,
                k,
                v,
                il,
                inp=inp.window,
                wo=None,
                v_mla=llm.layer_weight(il, "attn_v_b"),
                mla=True,
            )
        else:
            out = sparse_attention(llm, inp, q, k, v, il, llm.layer_weight(il, "attn_sinks"))
        return self.projected(llm, out, cur, il)

    def projected(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        """Apply wo, after a sigmoid gate per head of the attention's input, if present."""
        gate = llm.layer_weight(il, "attn_gate")
        if gate is not None:
            out = llm.gate_heads(out, llm.graph.unary("SIGMOID", llm.build_lora_mm(gate, cur)))
        return llm.project(out, il, biased=False)

    def mtp(self, llm: Llm) -> Tensor:
        """Build the MTP block with dense attention, as it has no indexer."""
        return LatentAttention(**vars(self)).mtp(llm)


_ROW = DeepSeek32(
    wo_bias=False, ffn_bias=False, ffn_scales=True, moe=Routing(scales=True), shexp="add"
)

BUILDERS = {"deepseek32": _ROW, "glm-dsa": _ROW, "dots3note": _ROW}
