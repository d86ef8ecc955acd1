"""Well-known GPUs: the figures behind `--gpu rtx-3090`, one row of cards.csv each.

The memory is the total that CUDA (or ROCm) reports under Linux: the lowest seen in public llama.cpp
logs of 2026 ("VRAM: ... MiB"), or 1.5 % less than advertised if none was found; a driver update
moves it by up to 1 %. Bandwidth and fp16 rate are the vendor's: matrix units at boost clock,
without sparsity (NVIDIA since Turing: 1024 operations per clock and multiprocessor, with fp16
sums), otherwise one or two times fp32.
"""

from __future__ import annotations

from ..backends import DEFAULT, METAL, VULKAN
from ..records import dataclass
from ..tables import rows
from ..units import GiB, MiB
from .macs import working_set


@dataclass(frozen=True)
class Card:
    """The figures of one `--gpu NAME`."""

    description: str
    usable: int  # MiB
    compute_capability: tuple[int, int] | None  # None: not CUDA
    n_sm: int | None
    bandwidth: int  # 10**9 bytes per second; 0: the RAM's
    # 10**12 operations per second of its matrix units; 0: integrated.py
    fp16: float
    # PCIe generation and lanes; "": none, its memory is the system's
    pcie: str
    backend: str = DEFAULT.name  # the backend of its device
    # GiB of the machine as sold, if its memory is the system's
    ram: int = 0

    @property
    def unified(self) -> bool:
        return self.ram > 0

    @property
    def system_ram(self) -> int:
        """Bytes of RAM that the system counts, 0 if its memory is its own: CUDA's total is the
        system's, as both lack what the firmware keeps (cudaMemGetInfo)."""
        return (
            min(self.ram * GiB, self.usable * MiB)
            if self.backend == DEFAULT.name
            else self.ram * GiB
        )

    @property
    def link(self) -> float | None:
        """Bytes per second that copies from RAM reach."""
        generation, _, lanes = self.pcie.partition("x")
        return _LANE[generation] * int(lanes) if lanes else None


# 0.9 of a lane's bytes per second, by generation
_LANE = {"3": 0.886e9, "4": 1.77e9, "5": 3.54e9}

# MiB of that much RAM; Vulkan: of Windows and amdgpu
_SHARED = {VULKAN: lambda gib: gib * 512, METAL: working_set}


def _cards() -> dict[str, Card]:
    """Return the rows of cards.csv; one without its own size has one for each size of RAM."""
    cards = {}
    for row in rows("devices/cards.csv"):
        major, _, minor = row["compute_capability"].partition(".")
        sizes = [int(gib) for gib in row["ram_gib"].split()] or [0]
        capability = (int(major), int(minor)) if major else None
        for gib in sizes:
            name = row["name"] if row["mib"] else f"{row['name']}-{gib}g"
            # The card of a row, with this RAM where it has none.
            cards[name] = Card(
                row["description"],
                int(row["mib"] or _SHARED[row["backend"]](gib)),
                capability,
                int(row["sm"]) if row["sm"] else None,
                int(row["gb_per_s"] or 0),
                float(row["fp16_tflops"] or 0),
                row["pcie"],
                row["backend"],
                gib,
            )
    return cards


CARDS = _cards()


def table() -> str:
    """Return all GPUs as text, for --gpu list."""
    lines = [f"{'name':<20}{'MiB':>8}{'GB/s':>7}"]
    lines += [
        f"{key:<20}{card.usable:>8}{card.bandwidth or 'RAM':>7}" for key, card in CARDS.items()
    ]
    return "\n".join([*lines, "any other GPU: give its memory, --gpu 24GiB"]) + "\n"
