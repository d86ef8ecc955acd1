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
                experts=0.894,
                expert_tokens=30.5,
                prompt_read=0.995,
                prompt_kernel=1.47,
                hop=65,
                ram=1,
                ram_experts=0.913,
                ram_cache=0.0706,
                core=14,
                core_flops=78.8,
                core_kernel=1.93,
                bus_copy=0.554,
                ram_copy=0.387,
                copied=0.188,
                stages=0.317)

RATES = {      # read, cache, kernel, matmul, attention, handover, quantised, bf16, experts, rows
    ("CUDA", ""): Rates(0.868, 0.579, 2.5, 0.489, 0.32, 23.4, 1, 1, 0.478, 363),
    ("MTL", ""): Rates(0.806, 0.586, 4.45, 0.812, 0.344, 40, 1, 1, 0.7, 35),
    ("ROCm", ""): Rates(0.782, 0.536, 2.85, 0.325, 0.159, 40, 1, 1, 0.628, 42),
    ("SYCL", ""): Rates(0.764, 0.501, 2.98, 0.122, 0.0495, 80, 1, 1, 0.62, 12),
    ("Vulkan", ""): Rates(0.778, 0.561, 2.43, 0.332, 0.0914, 191, 1, 1.2, 0.652, 208),
    ("CUDA", "A100"): Rates(0.574, 0.577, 2.76, 0.52, 0.32, 23.4, 1, 1, 0.478, 26),
    ("CUDA", "Ada"): Rates(0.932, 0.582, 2.64, 0.523, 0.32, 23.4, 1, 1, 0.478, 91),
    ("CUDA", "Ampere"): Rates(0.911, 0.578, 2.82, 0.559, 0.315, 23.3, 1, 1, 0.365, 73),
    ("CUDA", "Blackwell"): Rates(0.949, 0.64, 1.69, 0.552, 0.323, 23.6, 1, 1, 0.323, 19),
    ("CUDA", "GB10"): Rates(0.928, 0.648, 2.34, 0.322, 0.306, 23.4, 1, 1, 0.512, 53),
    ("CUDA", "Hopper"): Rates(0.638, 0.578, 2.6, 0.358, 0.32, 23.4, 1, 1, 0.478, 14),
    ("CUDA", "Pascal"): Rates(0.617, 0.572, 3.4, 1.49, 0.53, 23.5, 1, 1, 0.484, 11),
    ("CUDA", "Turing"): Rates(0.837, 0.586, 2.45, 0.45, 0.31, 23.2, 0.208, 1, 0.574, 74),
    ("CUDA", "Volta"): Rates(0.725, 0.493, 3.21, 0.329, 0.126, 23.4, 1, 1, 0.485, 2),
    ("MTL", "Apple"): Rates(0.808, 0.613, 4.79, 0.786, 0.334, 40, 1, 1, 0.699, 35),
    ("ROCm", "CDNA"): Rates(0.669, 0.487, 3.24, 0.649, 0.249, 40, 1, 1, 0.627, 2),
    ("ROCm", "RDNA3"): Rates(0.733, 0.528, 3.36, 0.435, 0.251, 40, 1, 1, 0.653, 18),
    ("ROCm", "RDNA3 integrated"): Rates(0.74, 0.535, 2.91, 0.293, 0.159, 40, 1, 1, 0.581, 4),
    ("ROCm", "RDNA4"): Rates(0.805, 0.537, 2.82, 0.343, 0.216, 40, 1, 1, 0.627, 6),
    ("ROCm", "Strix Halo"): Rates(0.795, 0.534, 2.89, 0.3, 0.16, 40, 1, 1, 0.594, 12),
    ("SYCL", "Arc"): Rates(0.794, 0.501, 2.94, 0.0944, 0.0482, 80, 1, 1, 0.621, 8),
    ("SYCL", "Xe integrated"): Rates(0.736, 0.501, 2.99, 0.18, 0.0498, 80, 1, 1, 0.546, 4),
    ("Vulkan", "Ada"): Rates(0.938, 0.562, 2.1, 0.471, 0.274, 191, 1, 1.2, 0.652, 7),
    ("Vulkan", "Ampere"): Rates(0.811, 0.545, 2.52, 0.469, 0.306, 191, 1, 1.2, 0.559, 19),
    ("Vulkan", "Arc"): Rates(0.747, 0.561, 3.66, 0.0882, 0.0239, 191, 1, 1.2, 0.541, 6),
    ("Vulkan", "Blackwell"): Rates(0.851, 0.562, 2.41, 0.396, 0.356, 191, 1, 1.2, 0.535, 7),
    ("Vulkan", "Pascal"): Rates(0.747, 0.559, 2.46, 0.456, 0.094, 191, 1, 1.2, 0.652, 2),
    ("Vulkan", "RDNA2"): Rates(0.769, 0.561, 2.46, 0.332, 0.0913, 190, 1, 1.2, 0.652, 28),
    ("Vulkan", "RDNA2 integrated"): Rates(0.918, 0.587, 2.32, 0.452, 0.0918, 191, 1, 1.2, 0.885, 3),
    ("Vulkan", "RDNA3 integrated"): Rates(0.752, 0.564, 2.54, 0.259, 0.0884, 191, 1, 1.2, 0.544, 11),
    ("Vulkan", "RDNA4"): Rates(0.756, 0.576, 3.42, 0.156, 0.044, 191, 1, 0.964, 0.671, 72),
    ("Vulkan", "Strix Halo"): Rates(0.932, 0.582, 2.15, 0.242, 0.118, 191, 1, 0.688, 1.12, 37),
    ("Vulkan", "Turing"): Rates(0.765, 0.561, 2.44, 0.474, 0.274, 191, 1, 1.2, 0.652, 2),
    ("Vulkan", "Vega"): Rates(0.706, 0.55, 2.48, 0.363, 0.0916, 191, 1, 1.2, 0.723, 2),
    ("Vulkan", "Xe integrated"): Rates(0.685, 0.536, 2.42, 0.306, 0.0751, 191, 1, 1.2, 0.473, 12),
    ("", ""): Rates(0.7, 0.5, 3, 0.3, 0.1, 80, 1, 1, 0.7),
}

# The factor that 8 in 10 predictions of a class are within, of sources that were left out of the fit
DOUBT = {
    ("dense resident", "tg"): 1.20,
    ("dense partial", "tg"): 1.15,
    ("MoE resident", "tg"): 1.26,
    ("MoE in RAM", "tg"): 1.25,
    ("multi-GPU", "tg"): 1.80,
    ("dense resident", "pp"): 1.43,
    ("dense partial", "pp"): 1.11,
    ("MoE resident", "pp"): 1.26,
    ("MoE in RAM", "pp"): 1.12,
    ("multi-GPU", "pp"): 1.74,
}

# and comparisons of two launches of a class on one machine
BETWEEN = {
    ("dense resident", "tg"): 1.20,
    ("dense partial", "tg"): 1.05,
    ("MoE resident", "tg"): 1.26,
    ("MoE in RAM", "tg"): 1.10,
    ("multi-GPU", "tg"): 1.80,
    ("dense resident", "pp"): 1.08,
    ("dense partial", "pp"): 1.05,
    ("MoE resident", "pp"): 1.22,
    ("MoE in RAM", "pp"): 1.10,
    ("multi-GPU", "pp"): 1.74,
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
