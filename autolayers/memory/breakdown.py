"""The answer of the memory model: bytes per device, in llama.cpp's three parts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ..records import dataclass


@dataclass(frozen=True)
class Usage:
    """Bytes on one device: weights, KV cache and recurrent state, graph buffers."""

    model: int = 0
    context: int = 0
    compute: int = 0

    @property
    def total(self) -> int:
        return self.model + self.context + self.compute


@dataclass(frozen=True)
class Extra:
    """Something that lives beside the model: mmproj, draft model, LoRA, prompt cache, output buffer..."""

    name: str          # "mmproj weights"
    device: str        # a device's name, or "Host"
    size: int          # bytes
    exact: bool
    upper_limit: bool = False   # grows up to this while serving (prompt cache, checkpoints)


@dataclass(frozen=True)
class Breakdown:
    """What a launch allocates. `devices` has one Usage per device in llama.cpp's order."""

    devices: dict[str, Usage]
    host: Usage
    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    kv_unified: bool
    flash_attn: bool             # after llama.cpp's auto decision
    exact: bool
    warnings: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()
    host_resident: int = 0       # bytes of host weights that must be in RAM, whatever is mapped
    partial: bool = False        # at least this much: measuring ended early because that was enough to know
    runtime_peak: dict[str, int] | None = None   # device or "Host" -> bytes a single-sequence graph needs above `compute`
