"""The router reads the layer's input, before any norm (src/models/smallthinker.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ...model.hparams import Hparams
from ..decoder import Decoder
from ..experts import Routing, build_moe_ffn
from ..llm import Llm


class SmallThinker(Decoder):
    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g = llm.graph
        # logits of the router: [n_expert, n_tokens]
        probs = llm.linear(il, "ffn_gate_inp", inp_l)
        cur = self.attention(llm, self.normed(llm, inp_l, il, "attn_norm"), il)
        # the router's rows are left out with the others
        cur, residual, probs = llm.select_outputs(il, cur, inp_l, probs)
        ffn_inp = g.add(cur, residual)
        out = build_moe_ffn(
            llm, self.normed(llm, ffn_inp, il, "ffn_norm"), il, _ROUTING, probs_in=probs
        )
        return g.add(out, ffn_inp)


_ROUTING = Routing(norm_w=True, act="relu", probs_b=None)


def _all_but_every_fourth(hp: Hparams, il: int) -> bool:
    return hp.swa_type == "none" or il % 4 != 0


BUILDERS = {"smallthinker": SmallThinker(rope=_all_but_every_fourth)}
