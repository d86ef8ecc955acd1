"""CUDA, and HIP and MUSA, which are built from the same source: ggml/src/ggml-cuda, as modelled."""

from __future__ import annotations

from ...builds import Rules
from ...records import lazy
from ...units import MiB
from ..backend import NVIDIA, OFFLOAD_MIN_BATCH, Backend
from ..ops import TEMPORARIES, Ops, Parts
from . import pool
from .fattn import ADA, AMD, flash_kernel, generation, with_converted_cache
from .fusion import add_alloc_deps, with_shared_experts
from .supported import SUPPORTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from typing import ClassVar

    from ...ggml.scheduler import AddAllocDep
    from ...ggml.tensor import Tensor


_DEVICE = r"^ *Device (?P<index>\d{1,3}): (?P<description>[^,]{1,90}), "
_VRAM = r"(?:.{0,80}VRAM: (?P<mib>\d{1,12}) MiB)?"

TURING = 750
# of a device's limits: is its llama.cpp built with GGML_CUDA_FA_ALL_QUANTS?
ALL_QUANTS = "fa_all_quants"
SHARED_MEMORY = 65536  # bytes that a workgroup of AMD's has
_SORTED = 1024  # elements of a row that one block sorts

# GPUs by their names, as far as that decides the kernels: which have matrix cores, and their kind
# (CDNA, RDNA 3 and 4)
_GFX = (
    ("RX 6|PRO W6", 100300),
    ("RX 7|PRO W7|780M|760M", 110000),
    ("8060S|8050S|8040S|890M|880M", 110501),
    ("RX 90|AI PRO R9", 120001),
    ("MI355|MI350", 90500),
    ("MI325|MI300", 90402),
    ("MI250|MI210", 90010),
    ("MI100", 90008),
    ("MI50|MI60|Radeon VII", 90006),
)


class CudaBuffers(Backend):
    """Buffers as CUDA's (ggml_backend_cuda_buffer_type_get_alignment and _get_alloc_size), which
    some other backends are assumed to have too."""

    alignment = 128
    row_padding = 512  # MATRIX_ROW_PADDING
    cc = ADA  # 100 * major + 10 * minor of the compute capability
    all_quants = False  # built with GGML_CUDA_FA_ALL_QUANTS

    def alloc_size(self, tensor: Tensor) -> int:
        # a weight or an input may be a view of another one's memory
        if tensor.op == "NONE" or tensor.view_src is not None:
            size = tensor.nbytes
        else:
            size = tensor.nb[3] * tensor.ne[3]  # a result has no gaps
        if tensor.op == "FLASH_ATTN_EXT" and self.rules.converts_in_graph:
            size = with_converted_cache(tensor, size, self.cc, self.rules, self.all_quants)
        return size if tensor.type == "f32" else size + self.padding(tensor.type, tensor.ne)


class Cuda(CudaBuffers):
    name = "CUDA"
    own_cards = True
    makers: tuple[str, ...] = NVIDIA
    vendor = "NVIDIA"
    host_buffer = "CUDA_Host"
    row_splits = Rules.cuda_splits_rows
    igpu_mmap = False
    offload_min_batch = OFFLOAD_MIN_BATCH
    modelled = True
    proven = True
    kernels = SUPPORTED
    caches_experts = True
    context_first = True
    image = "-cuda"
    visible = "CUDA_VISIBLE_DEVICES"
    gpu_driver = "nvidia"
    koboldcpp: tuple[str, ...] | None = ("--usecuda",)
    nixpkgs: str | None = "cudaSupport"
    llmkube: tuple[str, str] | None = ("cuda", "")
    log_words: tuple[str, ...] = ("CUDA", "ggml_cuda", "cuda", "CUBLAS", "cublas")
    # ggml_cuda_init
    device_lines: tuple[tuple[str, str], ...] = (
        (
            "compute capability",
            rf"{_DEVICE}compute capability (?P<major>\d{{1,2}})\.(?P<minor>\d){_VRAM}",
        ),
    )
    ollama = "cuda"
    # NCCL or RCCL, not measured: 4 MiB (NCCL_BUFFSIZE) per channel and direction, 24 channels with
    # NVLink, and kernels. Without it, llama.cpp's own takes 32 MiB (ggml_cuda_ar_pipeline_init).
    communicator = 384 * MiB
    # its contexts were measured and the choice of matrix kernels is known
    nvidia = True
    blas = "cuBLAS"
    flipped: ClassVar[Mapping[str, int]] = {ALL_QUANTS: 1}
    undecided_doubt = (
        "whether this llama.cpp was built with GGML_CUDA_FA_ALL_QUANTS, which flash attention with "
        "these cache types takes before b10878, is not known: the larger of both"
    )

    def by_device(self) -> None:
        if self.device is not None and self.device.compute_capability is not None:
            # GGML_CUDA_CC_*: 890 is Ada
            major, minor = self.device.compute_capability
            self.cc = 100 * major + 10 * minor
        self.all_quants = bool(self.given.get(ALL_QUANTS))

    @lazy
    def kind(self) -> Hashable:
        return self.name, generation(self.cc), self.all_quants

    @property
    def slow_quantised_cache(self) -> bool:
        # 50 of 448 GB/s: an RTX 2070 SUPER, q8_0 after 22k tokens
        return self.nvidia and self.cc == TURING

    def supports_op(self, op: Tensor) -> bool:
        if not self.reaches(op):
            return False
        if self.has_kernel(op):
            return True
        # only a build with all quantised kernels runs it: nobody says whether this one is
        if op.op == "FLASH_ATTN_EXT" and flash_kernel(op, self.cc, self.rules, True) != "none":
            self.undecided = ALL_QUANTS not in self.given
        return False

    def graph_optimize(
        self, nodes: list[Tensor], after: Tensor | None, add_alloc_dep: AddAllocDep
    ) -> list[Tensor]:
        # nodes move first, then what the fusions read is kept
        if self.rules.shared_expert_fused:
            nodes = with_shared_experts(nodes, add_alloc_dep)
        add_alloc_deps(nodes, after, add_alloc_dep, self.rules)
        return nodes

    @property
    def _size(self) -> tuple[tuple[int, int], int | None]:
        """The compute capability, an Ada's where it is unknown, and the multiprocessors."""
        device = self.device
        capability = (device and device.compute_capability) or pool.ASSUMED
        return capability, device.n_sm if device else None

    def margin(self, ops: Ops) -> Parts:
        capability, n_sm = self._size
        parts = [
            (TEMPORARIES, pool.pool(ops, capability, n_sm, self.nvidia)),
            (self.blas, pool.blas(capability)),
            (f"{self.name} graphs", pool.GRAPHS),
        ]
        if self.nvidia:
            parts.append((f"{self.name} kernels", pool.kernels(capability, n_sm)))
        # --list-devices reads free memory after the context, NVML before it
        if self.device is None or not self.device.includes_context:
            context = pool.context(capability, n_sm) if self.nvidia else pool.OTHER_CONTEXT
            parts.insert(0, (f"{self.name} context", context))
        return tuple(parts)

    def again(self, ops: Ops) -> int:
        capability, n_sm = self._size
        temporaries = pool.pool(ops, capability, n_sm, self.nvidia)
        return temporaries + pool.workspaces(capability) + pool.GRAPHS


class Hip(Cuda):
    """A device's `limits["gfx_target_version"]` is its GPU's as the driver (KFD) reports it: 110000
    for gfx1100."""

    name = "ROCm"
    makers = ("AMD", "Radeon")
    vendor = "AMD"
    also = ("Vulkan",)
    host_buffer = "ROCm_Host"
    nvidia = False
    blas = "ROCm BLAS"
    image = "-rocm"
    nixpkgs = "rocmSupport"
    llmkube = ("rocm", "rocm")
    visible = "HIP_VISIBLE_DEVICES"
    gpu_driver = ""
    device_nodes = ("/dev/kfd", "/dev/dri")
    log_words = ()
    log_pattern = r"ROCm|\bhip[A-Z]\w+|\bHIP\b|gfx\d{3,4}|AMD Radeon|AMD Instinct"
    built_from = Cuda.name
    log_not = "Vulkan"
    device_lines = (("MiB", rf"{_DEVICE}gfx{_VRAM}"),)
    ollama = "rocm"

    def by_device(self) -> None:
        super().by_device()
        # KFD's number, or a guess by the card's name
        version = self.given.get("gfx_target_version", 0) or _version(
            self.device.description if self.device else ""
        )
        # GGML_CUDA_CC_OFFSET_AMD: AMD's numbers lie above NVIDIA's
        # The number with the same digits in hexadecimal: 110000 -> 0x1100, 90010 -> 0x90a.
        major, minor, step = version // 10000, version // 100 % 100, version % 100
        # the compiler's name (gfx90a) has hexadecimal digits, KFD's number two decimals each
        self.cc = AMD + int(f"{major}{minor:x}{step:x}", 16)
        self.proven = version > 0

    @property
    def doubt(self) -> str:
        if self.proven:
            return ""
        return (
            f"{self.device.name if self.device else self.name}: the GPU's gfx number is unknown: "
            "assuming the kernels that need more memory, an upper bound"
        )

    def supports_op(self, op: Tensor) -> bool:
        if op.op == "ARGSORT" or (op.op == "TOP_K" and not self.rules.hip_top_k):
            # HIP has no CUB to sort longer rows with
            # four bytes for each element's index
            return op.src[0].ne[0] <= (SHARED_MEMORY // 4 if self.rules.hip_sorts else _SORTED)
        return super().supports_op(op)


def _version(description: str) -> int:
    """Return a GPU's gfx_target_version by its name; 0: unknown."""
    for words, version in _GFX:
        if any(word in description for word in words.split("|")):
            return version
    return 0


class Musa(Cuda):
    name = "MUSA"
    makers = ("MTT",)
    vendor = "Moore Threads"
    host_buffer = "MUSA_Host"
    proven = False
    nvidia = False
    blas = "MUSA BLAS"
    image = "-musa"
    gpu_driver = ""
    koboldcpp = nixpkgs = llmkube = None
    log_words = ("MUSA",)
    device_lines = ()
    ollama = ""
