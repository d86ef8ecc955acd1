"""What a device computes, which decides what its backend takes beyond llama.cpp's own buffers."""

from __future__ import annotations

from ..records import dataclass
from ..units import MiB

Parts = tuple[tuple[str, int], ...]  # (name, bytes)
TEMPORARIES = "temporaries of operations"  # the part that grows with what operations compute

DEFAULT_TARGET = 1024 * MiB  # llama.cpp's --fit-target, for unknown backends


@dataclass(frozen=True)
class Matmul:
    """A weight that activations are multiplied with: rows of `k` elements, `m` of them, `n_mat`
    matrices.

    `n_used` of the matrices per token if experts are chosen (MUL_MAT_ID), 0: all of them, one after
    the other."""

    type: str
    k: int
    m: int
    n_mat: int = 1
    n_used: int = 0


@dataclass(frozen=True)
class Scan:
    """The state of a Mamba-2 layer."""

    d_state: int
    head_dim: int
    n_head: int
    n_group: int


@dataclass(frozen=True)
class Ops:
    """What one device computes, as far as its temporaries depend on it."""

    n_tokens: int  # of a micro-batch (n_ubatch)
    n_kv: int = 0  # cells of one stream of the largest cache
    n_stream: int = 1
    n_head: int = 0
    head_v: int = 0
    # of the layer with the largest cache: elements for each of `n_kv` cells
    n_embd_k_gqa: int = 0
    flash_attn: bool = True
    weights: tuple[Matmul, ...] = ()  # read by every token of a micro-batch
    outputs: tuple[Matmul, ...] = ()  # read by output tokens only
    n_outputs: int = 1
    n_seqs: int = 1
    scan: Scan | None = None
    sort_columns: int = 0  # the longest rows that are sorted (TOP_K, ARGSORT)
    sort_rows: int = 0
    # bytes of f16 copies of a quantised cache that are not in the compute buffer
    converted: int = 0
    n_embd_v_gqa: int = 0
    quantised_cache: bool = False  # both K and V
