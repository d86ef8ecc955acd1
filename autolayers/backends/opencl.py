"""OpenCL: ggml/src/ggml-opencl/ggml-opencl.cpp."""

from __future__ import annotations

from .backend import Backend


class OpenCl(Backend):
    name = "OpenCL"
    alignment = 128
    mmap = False
    free_doubt = "free is a guess: total less 1 GiB"
