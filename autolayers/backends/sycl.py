"""SYCL: ggml/src/ggml-sycl/ggml-sycl.cpp. It pads as CUDA does and alone has split buffers for -sm row."""

from __future__ import annotations

from .backend import OFFLOAD_MIN_BATCH
from .cuda import CudaBuffers


class Sycl(CudaBuffers):
    name = "SYCL"
    host_buffer = "SYCL_Host"
    split_rows = True
    offload_min_batch = OFFLOAD_MIN_BATCH
    free_is_total = True               # without Level Zero's Sysman
    image = "-intel"
    device_nodes = ("/dev/dri",)
    out_of_memory = (r"can't allocate (?P<bytes>\d+) Bytes of memory on device",)
