"""Mamba, attention and experts, without positions (src/models/jamba.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..experts import Routing
from ..llm import Llm
from ..recurrent import Hybrid
from .mamba_base import build_mamba_layer


class Jamba(Hybrid):
    def recurrent(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return build_mamba_layer(llm, cur, il)


BUILDERS = {
    "jamba": Jamba(
        inp_pos=False,
        residual_first=True,
        wo_bias=False,
        ffn_bias=False,
        ffn_residual_first=True,
        moe=Routing("softmax", norm_w=False, probs_b=None, gate_up=None, biases=False),
    ),
}
