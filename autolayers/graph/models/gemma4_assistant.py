"""Drafts for gemma4: layers without keys of their own, fed by the target's embedding and last
hidden state (src/models/gemma4-assistant.cpp).
"""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm
from .gemma4 import query


class Gemma4Assistant:
    def __call__(self, llm: Llm) -> Tensor:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        tokens = g.input("inp_tokens", "i32", n)
        state = g.input("inp_h", "f32", hp.n_embd_inp, n)
        embd = g.scale(g.get_rows(llm.need("target.token_embd.weight"), tokens))
        cur = g.mul_mat(llm.need("nextn.pre_projection.weight"), g.concat(embd, state, 0))
        llm.inp = llm.build_attn_inp_kv_iswa()
        llm.build_inp_pos()
        llm.build_inp_out_ids()
        for il in range(hp.n_layer_nextn):
            normed = llm.rms_norm(il, "attn_norm", cur)
            # only layers of full attention have rope_freqs
            factors = None if hp.is_swa(il) else llm.rope_factors(il)
            q = llm.rope(query(llm, normed, None, il, scaled=False), factors)
            attn = llm.linear(il, "attn_output", llm.build_attn(q, None, None, il, wo=None))
            if il == hp.n_layer_nextn - 1:
                attn, cur = g.get_rows(attn, llm.out_ids), g.get_rows(cur, llm.out_ids)
            attn_out = g.add(llm.rms_norm(il, "post_attention_norm", attn), cur)
            cur = llm.rms_norm(il, "ffn_norm", attn_out)
            cur = llm.build_ffn(cur, il, "gelu", scales=False, biases=False)
            cur = g.add(llm.build_norm(cur, llm.layer_weight(il, "post_ffw_norm")), attn_out)
            cur = g.mul(cur, llm.need_layer(il, "layer_output_scale"))
        cur = llm.output_norm(cur)
        # both results are expanded, the state last: the next draft step reads it (h_nextn)
        logits = llm.build_lora_mm(llm.need("output.weight"), cur)
        g.expand(logits)
        g.expand(llm.output(g.mul_mat(llm.need("nextn.post_projection.weight"), cur)))
        return logits

    mtp = __call__  # the model is nothing but an MTP block


BUILDERS = {"gemma4-assistant": Gemma4Assistant()}
