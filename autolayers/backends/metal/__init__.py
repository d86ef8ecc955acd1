"""Metal: ggml/src/ggml-metal, as modelled. Weights can stay in the mapped file, which the GPU reads
in place."""

from __future__ import annotations

from ...builds import Rules
from ...units import MiB
from ..backend import OFFLOAD_MIN_BATCH, Backend
from .fusion import add_alloc_deps
from .reorder import reorder
from .sizes import scratch
from .supported import SUPPORTED

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    async_events = Rules.metal_pipelines
    unproven = (
        "Metal: sizes follow its source, an upper bound, as none was compared with a launch on a "
        "Mac"
    )
    linux = False
    koboldcpp = ()
    alignment = 32
    has_igpu = False
    kernels = SUPPORTED
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

    def margin(self, ops: Ops) -> Parts:
        """Return the kernels' part: temporaries are part of the results (sizes.py)."""
        return (("Metal's kernels and command buffers", KERNELS),)

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
