"""What share of their makers' figures cards reach under llama.cpp, by backend and generation.

Every number of RATES and SHARED is fitted: `python benchmarks/fit_speed.py` makes them from the measured launches in
fixtures/speeds, prints how far predictions are off, and writes the table with --write. A generation without measured
launches has the figures of its backend.
"""

from __future__ import annotations

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..devices.device import Device


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
    ("RDNA4", "", r"RX 90\d\d|R9[67]00|gfx120\d"),
    ("RDNA3", "", r"RX 7\d\d\d|PRO W7\d00|7[48]0M|8[89]0M|gfx11\d\d"),
    ("RDNA2", "", r"RX 6\d\d\d|PRO W6\d00|PRO V620|6[68]0M|gfx103\d"),
    ("RDNA1", "", r"RX 5[3567]\d\d|gfx101\d"),
    ("CDNA", "", r"Instinct|MI\d\d\d?X?\b|gfx9"),
    ("Vega", "", r"Vega|Radeon VII|RX [45]\d0\b"),
    ("Arc", "", r"\bArc\b|Intel"),
    ("M5", "", r"Apple M5"),
    ("Apple", "", r"Apple M\d"),
)

# Dense fp16 TFLOPS for each 10**12 bytes per second of bandwidth, where a card's rate is not known
FP16_PER_BANDWIDTH = {"Pascal": 25.0, "Volta": 125.0, "Turing": 160.0, "A100": 160.0, "Hopper": 300.0,
                      "Datacenter Blackwell": 290.0, "GB10": 450.0, "Blackwell": 240.0, "Ada": 320.0, "Ampere": 160.0,
                      "Strix Halo": 230.0, "RDNA4": 300.0, "RDNA3": 128.0, "RDNA2": 75.0, "RDNA1": 40.0, "CDNA": 190.0,
                      "Vega": 27.0, "Arc": 240.0, "M5": 60.0, "Apple": 34.0}
FP16_UNKNOWN = 150.0

# --- made by benchmarks/fit_speed.py

SHARED = Shared(token=165,
                experts=0.951,
                expert_tokens=31.9,
                prompt_read=1,
                prompt_kernel=1.47,
                hop=64.9,
                ram=1,
                ram_experts=0.91,
                ram_cache=0.0592,
                core=13.8,
                core_flops=78.5,
                core_kernel=1.97,
                bus_copy=0.554,
                ram_copy=0.387,
                copied=0.188,
                stages=0.317)

RATES = {      # read, cache, kernel, matmul, attention, handover, quantised, bf16, experts, rows
    ("CUDA", ""): Rates(0.869, 0.578, 2.57, 0.49, 0.32, 23.3, 1, 1, 0.484, 363),
    ("MTL", ""): Rates(0.806, 0.587, 4.48, 0.812, 0.344, 40, 1, 1, 0.7, 35),
    ("ROCm", ""): Rates(0.807, 0.534, 2.94, 0.333, 0.158, 40, 1, 1, 0.659, 38),
    ("SYCL", ""): Rates(0.794, 0.5, 2.98, 0.0952, 0.0498, 80, 1, 1, 0.7, 8),
    ("Vulkan", ""): Rates(0.805, 0.579, 2.47, 0.312, 0.0955, 193, 1, 1.2, 0.68, 174),
    ("CUDA", "A100"): Rates(0.576, 0.576, 2.83, 0.522, 0.32, 23.3, 1, 1, 0.484, 26),
    ("CUDA", "Ada"): Rates(0.933, 0.577, 2.72, 0.525, 0.32, 23.3, 1, 1, 0.484, 91),
    ("CUDA", "Ampere"): Rates(0.914, 0.577, 2.88, 0.561, 0.314, 23.2, 1, 1, 0.372, 73),
    ("CUDA", "Blackwell"): Rates(0.945, 0.642, 1.73, 0.553, 0.322, 23.5, 1, 1, 0.327, 19),
    ("CUDA", "GB10"): Rates(0.919, 0.644, 2.42, 0.322, 0.305, 23.3, 1, 1, 0.516, 53),
    ("CUDA", "Hopper"): Rates(0.639, 0.577, 2.68, 0.359, 0.32, 23.3, 1, 1, 0.484, 14),
    ("CUDA", "Pascal"): Rates(0.617, 0.57, 3.52, 1.49, 0.527, 23.4, 1, 1, 0.493, 11),
    ("CUDA", "Turing"): Rates(0.841, 0.586, 2.5, 0.451, 0.31, 23.1, 0.209, 1, 0.582, 74),
    ("CUDA", "Volta"): Rates(0.729, 0.492, 3.34, 0.33, 0.126, 23.3, 1, 1, 0.49, 2),
    ("MTL", "Apple"): Rates(0.808, 0.613, 4.84, 0.786, 0.333, 40, 1, 1, 0.699, 35),
    ("ROCm", "CDNA"): Rates(0.69, 0.486, 3.34, 0.652, 0.247, 40, 1, 1, 0.658, 2),
    ("ROCm", "RDNA3"): Rates(0.747, 0.525, 3.52, 0.435, 0.248, 40, 1, 1, 0.674, 18),
    ("ROCm", "RDNA4"): Rates(0.819, 0.535, 2.92, 0.344, 0.216, 40, 1, 1, 0.658, 6),
    ("ROCm", "Strix Halo"): Rates(0.803, 0.531, 3.03, 0.3, 0.159, 40, 1, 1, 0.609, 12),
    ("SYCL", "Arc"): Rates(0.805, 0.5, 2.97, 0.0921, 0.0493, 80, 1, 1, 0.7, 8),
    ("Vulkan", "Ada"): Rates(0.94, 0.579, 2.14, 0.465, 0.287, 193, 1, 1.2, 0.68, 7),
    ("Vulkan", "Ampere"): Rates(0.83, 0.579, 2.47, 0.516, 0.313, 193, 1, 1.2, 0.527, 15),
    ("Vulkan", "Arc"): Rates(0.774, 0.579, 3.71, 0.0849, 0.0248, 193, 1, 1.2, 0.572, 6),
    ("Vulkan", "Blackwell"): Rates(0.881, 0.579, 2.45, 0.379, 0.361, 193, 1, 1.2, 0.569, 7),
    ("Vulkan", "RDNA2"): Rates(0.795, 0.579, 2.51, 0.318, 0.0956, 193, 1, 1.2, 0.692, 28),
    ("Vulkan", "RDNA4"): Rates(0.763, 0.582, 3.59, 0.155, 0.0442, 193, 1, 0.961, 0.691, 72),
    ("Vulkan", "Strix Halo"): Rates(0.926, 0.597, 2.21, 0.239, 0.12, 193, 1, 0.692, 1.17, 37),
    ("Vulkan", "Turing"): Rates(0.786, 0.579, 2.49, 0.446, 0.287, 193, 1, 1.2, 0.68, 2),
    ("", ""): Rates(0.7, 0.5, 3, 0.3, 0.1, 80, 1, 1, 0.7),
}

# The factor that 8 in 10 predictions of a class are within, of sources that were left out of the fit
DOUBT = {
    ("dense resident", "tg"): 1.21,
    ("dense partial", "tg"): 1.14,
    ("MoE resident", "tg"): 1.29,
    ("MoE in RAM", "tg"): 1.23,
    ("multi-GPU", "tg"): 1.69,
    ("dense resident", "pp"): 1.34,
    ("dense partial", "pp"): 1.17,
    ("MoE resident", "pp"): 1.26,
    ("MoE in RAM", "pp"): 1.14,
    ("multi-GPU", "pp"): 1.76,
}

# and comparisons of two launches of a class on one machine
BETWEEN = {
    ("dense resident", "tg"): 1.21,
    ("dense partial", "tg"): 1.05,
    ("MoE resident", "tg"): 1.29,
    ("MoE in RAM", "tg"): 1.09,
    ("multi-GPU", "tg"): 1.69,
    ("dense resident", "pp"): 1.08,
    ("dense partial", "pp"): 1.07,
    ("MoE resident", "pp"): 1.22,
    ("MoE in RAM", "pp"): 1.11,
    ("multi-GPU", "pp"): 1.76,
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
