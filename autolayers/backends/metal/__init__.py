"""Metal: ggml/src/ggml-metal, as modelled. Weights can stay in the mapped file, which the GPU reads
in place."""

from __future__ import annotations

from ...builds import Rule, Rules
from ...units import MiB
from ..backend import HYPER_CONNECTIONS, OFFLOAD_MIN_BATCH, Backend
from ..sign import BYTES, MIB, Sign
from .fusion import add_alloc_deps
from .reorder import reorder
from .sizes import scratch
from .supported import supports_op

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...ggml.scheduler import AddAllocDep
    from ...ggml.tensor import Tensor
    from ..ops import Ops, Parts


# estimate: what Metal counts as its own grew by at most 1 MiB after the buffers
KERNELS = 64 * MiB


class Metal(Backend):
    name = "MTL"
    title = "Metal"
    own_cards = True
    makers = ("Apple",)
    vendor = "Apple"
    linux = False
    koboldcpp = ()
    alignment = 32
    has_igpu = False
    added: Mapping[str, Rule] = {
        "LIGHTNING_INDEXER": Rules.metal_indexer,
        **dict.fromkeys(HYPER_CONNECTIONS, Rules.metal_hyper_connections),
    }
    modelled = True
    old_name = "Metal"
    log_words = ("ggml_metal", "ggml-metal", "MTL", "Metal", "kIOGPU")
    device_lines = (
        (
            "GPU name",
            r"(?:GPU name: +(?:MTL\d \()?|found device: )(?P<description>Apple M\d[\w ]{0,12})",
        ),
        (
            "recommendedMaxWorkingSetSize",
            r"recommendedMaxWorkingSetSize += +(?P<mb>\d{1,12})\.\d+ MB",
        ),
    )
    ollama = "metal"
    signs = (
        Sign(
            "oom_device",
            "failed to allocate buffer, size",
            rf"failed to allocate buffer, size = *{MIB} MiB",
        ),
        Sign(
            "oom_device",
            "allocate Metal buffer",
            rf"failed to allocate Metal buffer of {BYTES} bytes",
        ),
        Sign("oom_device", "Insufficient Memory (0", r"Insufficient Memory \(0+8", "run"),
        Sign("oom_device", "kIOGPUCommandBufferCallbackErrorOutOfMemory", "", "run"),
        Sign(
            "device_lost",
            "SubmissionsIgnored",
            r"[sS]ubmissionsIgnored|for prior/excessive GPU errors",
            "run",
        ),
        Sign("device_lost", "Impacting Interactivity", "", "run"),
        Sign(
            "device_lost",
            "CallbackError",
            r"kIOGPUCommandBufferCallbackError(?:Timeout|Hang|PageFault|InnocentVictim)",
            "run",
        ),
        Sign("oom_device", "failed with status 5", r"failed with status 5\b", "run", weight=8),
        Sign("buffer_limit", "Buffer Validation"),
        Sign(
            "buffer_limit",
            "maxBufferLength",
            r"(?:exceeds|greater than|larger than).{0,60}maxBufferLength",
        ),
        Sign("buffer_limit", "is larger than buffer maximum", "", "load", last=3000),
        Sign(
            "gpu_build",
            "Metal library",
            r"failed to (?:initialize the|create) Metal library",
            "start",
            weight=8,
        ),
        Sign("gpu_build", "in any metal library", "", "start", weight=8),
        Sign("gpu_build", "failed to compile pipeline", "", "start", weight=8),
        Sign("gpu_build", "failed to create pipeline state", "", "start", weight=8),
        Sign("gpu_build", "nil Metal pipeline", "", "run", weight=8),
        Sign("gpu_build", "error compiling source", "", "start", weight=8),
        Sign("gpu_build", "compiling metal source", "", "start", weight=8),
        Sign("device_lost", "from a previous command buffer failure", "", "run", weight=8),
        # of its shaders
        Sign("gpu_build", "program_source:", r"program_source:\d{1,6}:\d{1,4}: error", "start"),
        Sign(
            "oom_device",
            "recommended max working set size",
            r"current allocated size is greater than the recommended max working set size",
            "load",
            weight=5,
        ),
    )

    @property
    def doubt(self) -> str:
        return (
            "Metal: sizes follow its source, an upper bound, as none was compared with a launch on "
            "a Mac"
        )

    def margin(self, ops: Ops) -> Parts:
        """Return the kernels' part: temporaries are part of the results (sizes.py)."""
        return (("Metal's kernels and command buffers", KERNELS),)

    def pipelines(self) -> bool:
        return self.rules.metal_pipelines

    def supports_op(self, op: Tensor) -> bool:
        return not self.lacks(op) and supports_op(op, self.rules)

    def offload_op(self, op: Tensor) -> bool:
        # ggml_backend_metal_device_offload_op counts rows of these two alone
        if op.op == "MUL_MAT":
            return op.ne[1] >= OFFLOAD_MIN_BATCH
        return op.op == "MUL_MAT_ID" and op.ne[2] >= OFFLOAD_MIN_BATCH

    def alloc_size(self, tensor: Tensor) -> int:
        return scratch(tensor, tensor.nbytes, self.rules)

    def graph_optimize(
        self, nodes: list[Tensor], after: Tensor | None, add_alloc_dep: AddAllocDep
    ) -> list[Tensor]:
        if self.rules.metal_fusions:
            add_alloc_deps(nodes, add_alloc_dep, self.rules)
        return reorder(nodes, self.rules)
