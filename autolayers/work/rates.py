"""What share of their makers' figures cards reach under llama.cpp, by backend and generation.

Every number of RATES and SHARED is fitted: `python benchmarks/fit_speed.py` makes them from the measured launches in
fixtures/speeds, prints how far predictions are off, and writes the table with --write. A generation without measured
launches has the figures of its backend.
"""

from __future__ import annotations

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device


@dataclass(frozen=True)
class Rates:
    """`read` and `cache`: shares of the bandwidth for weights and for the KV cache, `quantised` of the latter for
    caches of quantised types. `kernel`: microseconds a node of the graph. `matmul` and `attention`: shares of the dense
    fp16 rate, `experts` of the former for many matrices that each get few of the tokens. `handover`: microseconds from
    the device to the processor or back."""

    read: float
    cache: float
    kernel: float
    matmul: float
    attention: float
    handover: float = 25.0
    quantised: float = 1.0
    bf16: float = 1.0         # of the speed with f16
    experts: float = 0.7
    n: int = 0                # measured launches behind it


@dataclass(frozen=True)
class Shared:
    """What does not depend on the card. Seconds are microseconds, rates shares, where no unit is given."""

    token: float              # whatever is read
    experts: float            # reading chosen experts, of reading one matrix
    expert_tokens: float      # tokens per expert at which half of that rate is reached
    prompt_read: float        # weights read while arithmetic runs, of reading them alone
    prompt_kernel: float      # kernels of a prompt, of those of a token
    hop: float                # from one device to another
    ram: float                # share of RAM's bandwidth for matrices
    ram_experts: float
    ram_cache: float          # attention on the processor
    core: float               # 10**9 bytes per second that one core takes
    core_flops: float         # 10**9 operations per second of one core
    core_kernel: float        # microseconds a node of the graph takes the processor
    bus_copy: float           # weights copied for a prompt, share of the bus
    ram_copy: float           # and of RAM
    copied: float             # how quickly tokens spread over the experts that are copied
    stages: float             # several devices: what of the other stages does not overlap with the slowest


# (generation, compute capability under CUDA, what a description has)
GENERATIONS: tuple[tuple[str, str, str], ...] = (
    ("Pascal", "6.0 6.1 6.2", r"GTX 10\d\d|Tesla P\d|Quadro P|TITAN X"),
    ("Volta", "7.0 7.2", r"V100|TITAN V"),
    ("Turing", "7.5", r"GTX 16\d\d|RTX 20\d\d|Quadro RTX|\bT4\b|TITAN RTX|T\d00\b"),
    ("A100", "8.0", r"\bA100|\bA30\b"),
    ("Hopper", "9.0", r"\bG?H[12]00|\bGH200"),
    ("Datacenter Blackwell", "10.0 10.3", r"\bG?B[23]00"),
    ("GB10", "12.1 11.0", r"\bGB10\b|DGX Spark|Thor"),
    ("Blackwell", "12.0", r"RTX 50\d\d|Blackwell"),
    ("Ada", "8.9", r"RTX 40\d\d|\bAda\b|\bL4\b|\bL20\b|\bL40S?\b"),
    ("Ampere", "8.6 8.7 8.8", r"RTX 30\d\d|RTX A\d000|\bA[124]0?0?0\b|\bA16\b|Orin"),
    ("Strix Halo", "", r"80[456]0S|Strix Halo|Ryzen AI Max|gfx1151"),
    ("RDNA3 integrated", "", r"Radeon.* [78][46789]0M|RADV (PHOENIX|STRIX1|KRACKAN)|gfx1103|gfx115[02]"),
    ("RDNA2 integrated", "", r"Radeon.* 6[168]0M|RADV (REMBRANDT|RAPHAEL|VANGOGH)|gfx103[567]"),
    ("RDNA4", "", r"RX 90\d\d|R9[67]00|gfx120\d"),
    ("RDNA3", "", r"RX 7\d\d\d|PRO W7\d00|gfx11\d\d"),
    ("RDNA2", "", r"RX 6\d\d\d|PRO W6\d00|PRO V620|gfx103\d"),
    ("RDNA1", "", r"RX 5[3567]\d\d|gfx101\d"),
    ("CDNA", "", r"Instinct|MI\d\d\d?X?\b|gfx9"),
    ("Vega", "", r"Vega|Radeon VII|RX [45]\d0\b|RADV (RENOIR|RAVEN)|gfx90c"),
    ("Xe2 integrated", "", r"1[34]0V|B3[79]0|\((LNL|PTL)\)"),
    ("Xe integrated", "", r"UHD|Iris|HD Graphics|Arc\(TM\) Graphics$|\((MTL|TGL|ADL|RPL|KBL|CFL|CML)\b"),
    ("Arc", "", r"\bArc\b|Intel"),
    ("M5", "", r"Apple M5"),
    ("Apple", "", r"Apple M\d"),
)

# Dense fp16 TFLOPS for each 10**12 bytes per second of bandwidth, where a card's rate is not known
FP16_PER_BANDWIDTH = {"Pascal": 25.0, "Volta": 125.0, "Turing": 160.0, "A100": 160.0, "Hopper": 300.0,
                      "Datacenter Blackwell": 290.0, "GB10": 450.0, "Blackwell": 240.0, "Ada": 320.0, "Ampere": 160.0,
                      "Strix Halo": 230.0, "RDNA3 integrated": 190.0, "RDNA2 integrated": 90.0,
                      "RDNA4": 300.0, "RDNA3": 128.0, "RDNA2": 75.0, "RDNA1": 40.0, "CDNA": 190.0, "Vega": 27.0,
                      "Xe integrated": 80.0, "Xe2 integrated": 300.0, "Arc": 240.0, "M5": 60.0, "Apple": 34.0}
FP16_UNKNOWN = 150.0

# --- made by benchmarks/fit_speed.py

SHARED = Shared(token=164,
                experts=0.879,
                expert_tokens=29.1,
                prompt_read=1,
                prompt_kernel=1.54,
                hop=64.9,
                ram=0.996,
                ram_experts=0.915,
                ram_cache=0.0702,
                core=14,
                core_flops=67.9,
                core_kernel=1.88,
                bus_copy=0.55,
                ram_copy=0.392,
                copied=0.185,
                stages=0.311)

RATES = {      # read, cache, kernel, matmul, attention, handover, quantised, bf16, experts, rows
    ("CUDA", ""): Rates(0.867, 0.584, 2.46, 0.442, 0.323, 23.4, 1, 1, 0.483, 363),
    ("MTL", ""): Rates(0.811, 0.586, 4.49, 0.77, 0.336, 40, 1, 1, 0.7, 35),
    ("ROCm", ""): Rates(0.78, 0.536, 2.86, 0.301, 0.156, 40, 1, 1, 0.592, 42),
    ("SYCL", ""): Rates(0.759, 0.5, 2.98, 0.113, 0.0494, 80, 1, 1, 0.592, 12),
    ("Vulkan", ""): Rates(0.776, 0.562, 2.49, 0.29, 0.0917, 119, 1, 1.2, 0.647, 208),
    ("CUDA", "A100"): Rates(0.577, 0.583, 2.7, 0.477, 0.323, 23.4, 1, 1, 0.483, 26),
    ("CUDA", "Ada"): Rates(0.934, 0.587, 2.6, 0.476, 0.323, 23.4, 1, 1, 0.483, 91),
    ("CUDA", "Ampere"): Rates(0.914, 0.584, 2.73, 0.503, 0.318, 23.1, 1, 1, 0.367, 73),
    ("CUDA", "Blackwell"): Rates(0.938, 0.648, 1.67, 0.49, 0.325, 24.7, 1, 1, 0.326, 19),
    ("CUDA", "GB10"): Rates(0.923, 0.651, 2.31, 0.276, 0.31, 23.4, 1, 1, 0.529, 53),
    ("CUDA", "Hopper"): Rates(0.64, 0.583, 2.55, 0.329, 0.323, 23.4, 1, 1, 0.483, 14),
    ("CUDA", "Pascal"): Rates(0.616, 0.577, 3.33, 1.32, 0.54, 24, 1, 1, 0.499, 11),
    ("CUDA", "Turing"): Rates(0.845, 0.593, 2.39, 0.403, 0.315, 22.6, 0.21, 1, 0.563, 74),
    ("CUDA", "Volta"): Rates(0.724, 0.498, 3.15, 0.298, 0.126, 23.4, 1, 1, 0.49, 2),
    ("MTL", "Apple"): Rates(0.813, 0.612, 4.87, 0.72, 0.312, 40, 1, 1, 0.699, 35),
    ("ROCm", "CDNA"): Rates(0.667, 0.487, 3.24, 0.582, 0.244, 40, 1, 1, 0.592, 2),
    ("ROCm", "RDNA3"): Rates(0.731, 0.528, 3.36, 0.394, 0.242, 40, 1, 1, 0.596, 18),
    ("ROCm", "RDNA3 integrated"): Rates(0.74, 0.535, 2.91, 0.265, 0.156, 40, 1, 1, 0.539, 4),
    ("ROCm", "RDNA4"): Rates(0.802, 0.537, 2.83, 0.315, 0.21, 40, 1, 1, 0.592, 6),
    ("ROCm", "Strix Halo"): Rates(0.793, 0.533, 2.91, 0.283, 0.157, 40, 1, 1, 0.548, 12),
    ("SYCL", "Arc"): Rates(0.793, 0.5, 2.94, 0.0845, 0.048, 80, 1, 1, 0.593, 8),
    ("SYCL", "Xe integrated"): Rates(0.727, 0.5, 3, 0.163, 0.0497, 80, 1, 1, 0.498, 4),
    ("Vulkan", "Ada"): Rates(0.937, 0.562, 2.14, 0.394, 0.274, 119, 1, 1.2, 0.647, 7),
    ("Vulkan", "Ampere"): Rates(0.812, 0.545, 2.57, 0.419, 0.301, 119, 1, 1.2, 0.542, 19),
    ("Vulkan", "Arc"): Rates(0.746, 0.562, 3.74, 0.0778, 0.0241, 119, 1, 1.2, 0.53, 6),
    ("Vulkan", "Blackwell"): Rates(0.849, 0.562, 2.46, 0.356, 0.362, 119, 1, 1.2, 0.523, 7),
    ("Vulkan", "Pascal"): Rates(0.747, 0.559, 2.51, 0.382, 0.094, 119, 1, 1.2, 0.647, 2),
    ("Vulkan", "RDNA2"): Rates(0.758, 0.561, 2.61, 0.286, 0.0915, 176, 1, 1.2, 0.636, 28),
    ("Vulkan", "RDNA2 integrated"): Rates(0.918, 0.587, 2.37, 0.39, 0.092, 119, 1, 1.2, 0.891, 3),
    ("Vulkan", "RDNA3 integrated"): Rates(0.754, 0.565, 2.59, 0.228, 0.0884, 119, 1, 1.2, 0.523, 11),
    ("Vulkan", "RDNA4"): Rates(0.751, 0.577, 3.47, 0.14, 0.0441, 119, 1, 0.982, 0.669, 72),
    ("Vulkan", "Strix Halo"): Rates(0.927, 0.582, 2.2, 0.214, 0.117, 119, 1, 0.695, 1.09, 37),
    ("Vulkan", "Turing"): Rates(0.765, 0.562, 2.5, 0.414, 0.275, 119, 1, 1.2, 0.647, 2),
    ("Vulkan", "Vega"): Rates(0.708, 0.551, 2.54, 0.325, 0.0919, 119, 1, 1.2, 0.74, 2),
    ("Vulkan", "Xe integrated"): Rates(0.678, 0.536, 2.48, 0.238, 0.0774, 119, 1, 1.2, 0.496, 12),
    ("", ""): Rates(0.7, 0.5, 3, 0.3, 0.1, 80, 1, 1, 0.7),
}

# The factor that 8 in 10 predictions of a class are within, of sources that were left out of the fit
DOUBT = {
    ("dense resident", "tg"): 1.23,
    ("dense partial", "tg"): 1.14,
    ("MoE resident", "tg"): 1.26,
    ("MoE in RAM", "tg"): 1.25,
    ("multi-GPU", "tg"): 1.59,
    ("dense resident", "pp"): 1.48,
    ("dense partial", "pp"): 1.14,
    ("MoE resident", "pp"): 1.34,
    ("MoE in RAM", "pp"): 1.17,
    ("multi-GPU", "pp"): 1.62,
}

# and comparisons of two launches of a class on one machine
BETWEEN = {
    ("dense resident", "tg"): 1.23,
    ("dense partial", "tg"): 1.06,
    ("MoE resident", "tg"): 1.26,
    ("MoE in RAM", "tg"): 1.24,
    ("multi-GPU", "tg"): 1.59,
    ("dense resident", "pp"): 1.08,
    ("dense partial", "pp"): 1.05,
    ("MoE resident", "pp"): 1.22,
    ("MoE in RAM", "pp"): 1.12,
    ("multi-GPU", "pp"): 1.62,
}

# --- end


def generation_of(device: Device) -> str:
    """The generation of a device's card, "" where it is not known."""
    if device.compute_capability is not None:
        capability = ".".join(map(str, device.compute_capability))
        for name, capabilities, _ in GENERATIONS:
            if capability in capabilities.split():
                return name
    if device.description:
        import re  # of few devices

        for name, _, pattern in GENERATIONS:
            if re.search(pattern, device.description):
                return name
    return ""


def rates_of(device: Device) -> Rates:
    """The Rates of a device: its generation's under its backend (of a server's, the server's), else its backend's."""
    backend = device.engine or device.backend
    return RATES.get((backend, generation_of(device))) or RATES.get((backend, "")) or RATES["", ""]
