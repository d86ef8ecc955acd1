"""Norms without weights, and the embeddings added to every layer's output
(src/models/talkie.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..decoder import Decoder
from ..llm import Llm


class Talkie(Decoder):
    def build(self, llm: Llm) -> Tensor:
        g = llm.graph
        cur = skip = g.rms_norm(llm.build_inp_embd())
        llm.build_inp_pos()
        llm.inp = llm.build_attn_inp_kv()
        llm.build_inp_out_ids()
        for il in llm.layers:
            q, k, v = llm.build_qkv(g.rms_norm(cur), il)
            q, k = llm.rope(q), llm.rope(k)
            # as in the reference, norms come after rope
            q, k = llm.rms_norm(il, "attn_q_norm", q), g.rms_norm(k)
            attn = llm.build_attn(q, k, v, il)
            attn, cur, here = llm.select_outputs(il, attn, cur, skip)
            ffn_inp = g.add(attn, cur)
            # the down projection is separate, because its scale comes after it
            cur = llm.build_ffn(g.rms_norm(ffn_inp), il, down=None, scales=False)
            cur = llm.linear(il, "ffn_down", cur)
            scale = llm.layer_weight(il, "ffn_down", "scale")
            if scale is not None:
                cur = g.mul(cur, scale)
            cur = g.add(g.add(cur, ffn_inp), g.mul(here, llm.need_layer(il, "layer_output_scale")))
        llm.t_embd = llm.output(g.rms_norm(cur))
        return g.scale(g.mul_mat(llm.need("output.weight"), llm.t_embd))


BUILDERS = {"talkie": Talkie()}
