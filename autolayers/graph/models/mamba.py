"""Mamba and Mamba-2 without attention: a layer is one mixer (src/models/mamba.cpp, mamba2.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ..llm import Llm
from ..recurrent import OneBlock
from .mamba_base import build_mamba2_layer, build_mamba_layer


class Mamba(OneBlock):
    def recurrent(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return build_mamba_layer(llm, cur, il)


class Mamba2(OneBlock):
    def recurrent(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return build_mamba2_layer(llm, cur, il)


BUILDERS = {
    "mamba": Mamba(inp_pos=False),
    "mamba2": Mamba2(inp_pos=False),
}
