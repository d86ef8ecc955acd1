"""What each further sequence of a decoding step costs, by backend (docs/levers.md).

STREAMS["CUDA", ""].read(read, f16, 8)     # seconds of a matrix for 8 tokens
touched(4 / 128, 8, 0.8)                   # the share of the experts that 8 tokens choose
"""

from __future__ import annotations

from math import inf

from ..records import dataclass
from .rates import NVIDIA, by_card, generation_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device

# reading and writing the states of a further sequence with a selective scan (Mamba), relative to
# those of one or the share of one sequence's step that a further one takes in all, if that is less
STATE, SCANNED = 8.0, 0.4


@dataclass(frozen=True)
class Streams:
    """How a backend's kernels take a few tokens. Below `matrix` tokens each further one costs as
    much as reading `more` of the weights in f16: these kernels are bound by arithmetic, which a
    smaller type does not make less. From there on matrix kernels take at least `least` times as
    long as reading. n tokens choose as many different experts as they would by chance, to the power
    of `spread`; from `matrix` tokens on reading them takes `mixed` times as long. With
    micro-batches above llama.cpp's own, a mixture's prompts are at most `gain` times as fast: as
    was measured, and on cards without such rows no faster."""

    more: float
    matrix: int = 1 << 30
    least: float = 1.0
    spread: float = 0.8
    mixed: float = 1.0
    gain: float = 1.0

    def read(self, read: float, f16: float, n: int) -> float:
        """Return the seconds of a matrix for n tokens without a prompt's arithmetic; `read` and
        `f16` are those of reading it as it is and in f16."""
        # Kernels for vectors take the matrix once and compute each further token.
        vector = read + self.more * f16 * (min(n, self.matrix - 1) - 1)
        return vector if n < self.matrix else max(vector, self.least * read)


# By backend and generation, from launches measured with several sequences
# (fixtures/levers/batch.jsonl), drafts and micro-batches (fixtures/speeds). Vulkan's experts of
# more than 8 tokens leave the kernels for vectors (ggml_vk_use_mul_mat_vec_id); NVIDIA's matrix
# cores make up for it. Micro-batches: CUDA gains up to 4096 on seven generations, RDNA3 by ROCm
# 12 % at 1024 and no more at 2048, Strix Halo by Vulkan -22 % at 1024 (fixtures/speeds, n28-*)
_NVIDIA = Streams(0.015, 9, 1.5)
STREAMS = {
    ("CUDA", ""): Streams(0.014, 9, 1.35, gain=inf),
    ("ROCm", ""): Streams(0.03),
    ("ROCm", "RDNA3"): Streams(0.03, gain=1.12),
    # its kernels read the experts of each token by themselves
    ("MTL", ""): Streams(0.13, 32, 3.5, 1.0),
    ("Vulkan", ""): Streams(0.015, 9, 1.5, 1.0, 2.0),
    **{("Vulkan", name): _NVIDIA for name in NVIDIA},
    ("Vulkan", "Vega"): Streams(0.12, 9, 5.9),
    ("CPU", ""): Streams(0.1, gain=inf),
    ("", ""): Streams(0.03, 9, 1.35),
}
CPU = STREAMS["CPU", ""]


def streams_of(device: Device) -> Streams:
    """Return the row of a device."""
    return by_card(STREAMS, device, generation_of(device))


def touched(used: float, n: int, spread: float) -> float:
    """Return the share of the experts that n tokens choose together, if one chooses the share
    `used`."""
    return float(used * ((1 - (1 - used) ** n) / used) ** spread)
