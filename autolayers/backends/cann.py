"""CANN: ggml/src/ggml-cann/ggml-cann.cpp. It pads as CUDA does. Matrices of f16 and f32 are laid
out in squares of 16, whose size only its library knows (GGML_CANN_WEIGHT_NZ, on by default). Only
its rules for weights are modelled, so sizes are an upper bound."""

from __future__ import annotations

from ..ggml.tensor import Ne, Tensor, type_size
from ..units import pad
from .cuda import CudaBuffers

# elements a side that a matrix is taken to be filled up to, twice the squares' side
_SQUARE = 32
_PLAIN, _BLOCKS = ("f32", "f16", "bf16"), ("q8_0", "q4_0")


class Cann(CudaBuffers):
    name = "CANN"
    own_cards = True
    async_events = False
    log_words = ("CANN",)

    def supports_op(self, op: Tensor) -> bool:
        type_ = op.src[0].type if op.src else ""
        if op.op in ("MUL_MAT", "MUL_MAT_ID"):
            return type_ in _PLAIN or (
                type_ in _BLOCKS and op.src[0].contiguous() and op.src[1].contiguous()
            )
        if op.op == "GET_ROWS":
            return type_ in (*_PLAIN, "q8_0")
        return True

    def padding(self, type_: str, ne: Ne) -> int:
        if type_ in ("f32", "f16") and ne[1] > 1 and ne[2] == ne[3] == 1:
            sides = [pad(n, _SQUARE) for n in ne[:2]]
            return type_size(type_) * (sides[0] * sides[1] - ne[0] * ne[1])
        return super().padding(type_, ne)
