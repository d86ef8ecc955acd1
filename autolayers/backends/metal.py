"""Metal: ggml/src/ggml-metal/ggml-metal.cpp. Weights can stay in the mapped file, which the GPU reads in place. Which
operations it runs, the scratch of its results and how it reorders graphs is not modelled."""

from __future__ import annotations

from .backend import Backend


class Metal(Backend):
    name = "MTL"
    aliases = ("Metal",)               # of builds before 2026
    alignment = 32
    has_igpu = False
    out_of_memory = (
        # ggml-metal-device.m
        r"error: failed to allocate buffer, size = +(?P<mib>\d+\.\d+) MiB",
        r"kIOGPUCommandBufferCallbackErrorOutOfMemory|failed to allocate Metal buffer of (?P<bytes>\d+) bytes",
    )
