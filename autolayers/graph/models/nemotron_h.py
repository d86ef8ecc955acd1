"""A layer is Mamba-2, attention or an FFN; experts may work in a smaller, latent space
(src/models/nemotron-h.cpp, nemotron-h-moe.cpp).
"""

from __future__ import annotations

from ...builds import Rules
from ...ggml.tensor import Tensor
from ..experts import Routing, build_latent_moe
from ..llm import Llm
from ..recurrent import OneBlock
from .mamba_base import build_mamba2_layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..llm import Norm


class NemotronH(OneBlock):
    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        g = llm.graph
        if llm.layer_weight(il, "ffn_gate_inp") is None:
            return llm.build_ffn(cur, il, "relu_sqr", None)
        used = llm.hparams.n_expert_used(il)
        # the shared expert reads the whole state
        out = build_latent_moe(llm, cur, il, _ROUTING, n_expert_used=used, optional=True)
        shared = llm.build_ffn(
            cur, il, "relu_sqr", None, up="ffn_up_shexp", down="ffn_down_shexp", biases=False
        )
        return g.add(out, shared)

    def mtp_layer(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Build attention and experts in one block, unlike in the trunk."""
        g = llm.graph
        attn = g.add(self.attention(llm, self.normed(llm, cur, il, "attn_norm"), il), cur)
        attn = g.get_rows(attn, llm.out_ids)
        return g.add(
            self.feed_forward(llm, self.normed(llm, attn, il, "post_attention_norm"), il), attn
        )

    def mtp_norm(self) -> Norm:
        return "layer"


_ROUTING = Routing("sigmoid", act="relu_sqr", gate=None, gate_up=None, biases=False, scales=True)
_ROW = NemotronH(
    mixer=build_mamba2_layer,
    inp_pos=False,
    select="last",
    select_before=((Rules.nemotron_last_rows, "attention"),),
)

BUILDERS = {"nemotron_h": _ROW, "nemotron_h_moe": _ROW}
