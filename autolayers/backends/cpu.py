"""Host memory and the CPU: plain buffers, and weights repacked for the CPU's matrix kernels.
Alignment: TENSOR_ALIGNMENT of ggml/src/ggml-impl.h. Operations: ggml_backend_cpu_device_supports_op
of ggml/src/ggml-cpu/ggml-cpu.cpp. Repacking: supports_op and ggml_repack_get_optimal_repack_type of
ggml/src/ggml-cpu/repack.cpp, for x86-64 with AVX2; other instruction sets repack other types, which
moves bytes between host buffers but keeps their sum. All as modelled."""

from __future__ import annotations

from ..builds import NEWEST_RULES, Rules
from ..ggml.tensor import VIEW_OPS, Buffer, Tensor
from .backend import Backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


HOST = "CPU"  # also the device name of everything that is not offloaded
REPACK = "CPU_REPACK"
BUFFERS = ("CPU", "AMX", "KLEIDIAI", "BLAS", "Host")  # prefixes of host memory's buffer types

# types without from_float in type_traits_cpu
_NO_FROM_FLOAT = frozenset(("iq3_xxs", "iq3_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_s", "iq1_m"))
# types with a matrix kernel for AVX2 whose rows are interleaved by eight
_REPACKED = frozenset(("q4_0", "q4_K", "iq4_nl", "mxfp4"))
# tensor_traits of repack.cpp: matrices for products, stacks of them for experts
_REPACKED_DIMS = {"MUL_MAT": 2, "MUL_MAT_ID": 3}
_REPACKED_FIRST = frozenset(("q4_0",))  # in builds that repack before they pin; no experts


class Cpu(Backend):
    """The last backend of a launch. Graph tensors live in `buffer`: the first GPU's pinned memory,
    or plain RAM."""

    name = HOST
    modelled = True
    proven = True

    def __init__(self, buffer: Buffer | None = None, rules: Rules = NEWEST_RULES) -> None:
        super().__init__(rules=rules)
        self.buffer = buffer or Buffer(HOST, -1, self.alignment, host=True)
        self.alignment = self.buffer.alignment

    @property
    def kind(self) -> tuple[str, int]:
        return self.name, self.alignment

    def supports_op(self, op: Tensor) -> bool:
        kind = op.op
        if kind == "NONE" or kind in VIEW_OPS:
            return True
        # ggml_backend_cpu_device_supports_op asks extra buffer types about the first four sources
        for source in op.src[:4]:
            if source.buffer is not None and source.buffer.repack:
                # whether a repacked matrix is multiplied: some types, a multiple of eight rows,
                # times f32
                weight = op.src[0]
                ne = weight.ne
                # ggml_n_dims
                n_dims = 4 if ne[3] > 1 else 3 if ne[2] > 1 else 2 if ne[1] > 1 else 1
                types, dims = (
                    (_REPACKED_FIRST, {"MUL_MAT": 2})
                    if self.rules.repacks_first
                    else (_REPACKED, _REPACKED_DIMS)
                )
                repacked = (
                    weight.buffer is not None and weight.buffer.repack and weight.type in types
                )
                rows_of_eight = ne[1] % 8 == 0 and n_dims == dims.get(op.op)
                return repacked and rows_of_eight and op.src[1].type == "f32"
        # every other operation has a CPU implementation: it is the fallback of all graphs
        rule = _RULES.get(kind)
        return rule is None or rule(op)

    def supports_buft(self, buffer: Buffer) -> bool:
        return buffer.host or buffer.repack


def _multiplies(op: Tensor) -> bool:
    """Return whether there is a dot product of the matrix's type with the activations'."""
    a, b = op.src[0].type, op.src[1].type
    # the rotation of a quantised cache reads half precision activations
    if op.param == "hadamard" and b == "f16":
        return True
    # vec_dot_type: activations are converted from f32, or have the matrix's type already
    return b in ("f32", a) or (b == "bf16" and a == "f32")


def _converts(op: Tensor) -> bool:
    """Return whether floats can be converted to the result's type (from_float)."""
    return op.type not in _NO_FROM_FLOAT


def _scans(op: Tensor) -> bool:
    """Whether the CPU runs the scan: several states at once for Mamba-2 alone, whose decays are one
    per head."""
    several = isinstance(op.param, int) and op.param > 1
    return not several or op.src[3].ne[0] == 1


# ggml_backend_cpu_device_supports_op: everything else runs
_RULES: dict[str, Callable[[Tensor], bool]] = {
    "MUL_MAT": _multiplies,
    "CPY": _converts,
    "SET_ROWS": _converts,
    "SSM_SCAN": _scans,
}
