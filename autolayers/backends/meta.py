"""Several devices as one, which -sm tensor computes on: ggml/src/ggml-backend-meta.cpp, as
modelled. llama.cpp plans one graph for all of them, and each gets a compute buffer of that graph's
full size."""

from __future__ import annotations

from ..builds import NEWEST_RULES, Rules
from ..ggml.tensor import Buffer, Ne, Tensor
from .backend import Backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class Meta(Backend):
    """The devices `parts`, named after the first. It neither orders the graph nor takes operations
    whose weight is in RAM (graph_optimize and offload_op are null)."""

    def __init__(self, parts: Sequence[Backend], rules: Rules = NEWEST_RULES) -> None:
        super().__init__(parts[0].device, 0, rules)
        self._parts = tuple(parts)
        # those of a kind answer alike
        self._unlike = tuple({part.kind: part for part in parts}.values())
        self.mmap = all(part.mmap for part in parts)
        # a slice must suit the device that asks for most
        self.alignment = max(part.alignment for part in parts)
        self.max_size = min(part.max_size for part in parts)
        self.modelled = all(part.modelled for part in parts)
        self.buffer = Buffer(
            parts[0].buffer.name, 0, self.alignment, host=False, max_size=self.max_size
        )
        for part in parts:
            part.buffer = self.buffer
        # one vendor's pinned memory is not pinned for another's
        pinned = {part.host_buffer for part in parts}
        self.host_buffer = pinned.pop() if len(pinned) == 1 else ""

    @property
    def parts(self) -> tuple[Backend, ...]:
        return self._parts

    @property
    def kind(self) -> Hashable:
        return ("Meta", *(part.kind for part in self.parts))

    def host_buffer_type(self) -> Buffer | None:
        return self.parts[0].host_buffer_type() if self.host_buffer else None

    def supports_op(self, op: Tensor) -> bool:
        # one graph for all: what one of them lacks goes to the CPU
        supported = all(part.supports_op(op) for part in self._unlike)
        self.undecided = any(part.undecided for part in self._unlike)
        return supported

    def alloc_size(self, tensor: Tensor) -> int:
        return max(part.alloc_size(tensor) for part in self._unlike)

    def padding(self, type_: str, ne: Ne) -> int:
        return max(part.padding(type_, ne) for part in self._unlike)
