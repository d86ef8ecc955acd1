"""CANN: ggml/src/ggml-cann/ggml-cann.cpp. It pads as CUDA does; how it lays out matrices only its library knows."""

from __future__ import annotations

from .cuda import CudaBuffers


class Cann(CudaBuffers):
    name = "CANN"
    own_cards = True
    out_of_memory = (r"allocating (?P<mib>\d+\.\d+) MiB on device (?P<index>\d+): aclrtMalloc failed",)
