"""Two stacks take turns: the low one several cycles for each of the high one
(src/models/hrm-text.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm


class HrmText:
    def __call__(self, llm: Llm) -> Tensor:
        g, hp = llm.graph, llm.hparams
        per, cycles = hp.n_hrm_layers_per_stack, hp.n_hrm_l_cycles
        # the block of a layer: those of the low stack come first, then those of the high one
        llm.share_blocks(
            lambda il: int(il % per + (per if il // per % (cycles + 1) == cycles else 0)),
            scales=False,
        )
        high = llm.build_inp_embd()
        llm.build_inp_pos()
        llm.inp = llm.build_attn_inp_kv()
        llm.build_inp_out_ids()
        # a learned state, [n_embd], that broadcasts over the tokens
        low = llm.need("hrm.z_l_init")
        cur = high
        for il in range(llm.n_layer):
            # a stack reads both states, and its normed result takes the place of one
            if il % per == 0:
                cur = g.add(high, low)
            cur = self.layer(llm, cur, il)
            if il % per == per - 1:
                cur = llm.build_norm(cur, None)
                if il // per % (cycles + 1) == cycles:
                    high = cur
                else:
                    low = cur
        return llm.finish(g.get_rows(cur, llm.out_ids))

    def layer(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g = llm.graph
        residual = cur
        cur = llm.build_norm(cur, None)
        gate = llm.linear(il, "attn_gate", cur)
        q, k, v = llm.build_qkv(cur, il)
        cur = llm.build_attn(llm.rope(q), llm.rope(k), v, il, wo=None)
        cur = g.mul(cur, g.unary("SIGMOID", gate))
        ffn_inp = g.add(llm.project(cur, il, biased=False), residual)
        return g.add(
            llm.build_ffn(llm.build_norm(ffn_inp, None), il, scales=False, biases=False), ffn_inp
        )


BUILDERS = {"hrm_text": HrmText()}
