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
    fp16 rate. `handover`: microseconds from the device to the processor or back."""

    read: float
    cache: float
    kernel: float
    matmul: float
    attention: float
    handover: float = 25.0
    quantised: float = 1.0
    bf16: float = 1.0         # of the speed with f16
    n: int = 0                # measured launches behind it


@dataclass(frozen=True)
class Shared:
    """What does not depend on the card. Seconds are microseconds, rates shares, where no unit is given."""

    token: float              # whatever is read
    experts: float            # reading chosen experts, of reading one matrix
    expert_work: float        # multiplying many, of multiplying one matrix
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

SHARED = Shared(token=170,
                experts=0.824,
                expert_work=0.729,
                expert_tokens=34,
                prompt_read=1,
                prompt_kernel=1.5,
                hop=65,
                ram=0.992,
                ram_experts=0.952,
                ram_cache=0.0569,
                core=13.6,
                core_flops=77.5,
                core_kernel=1.96,
                bus_copy=0.546,
                ram_copy=0.387,
                copied=0.188,
                stages=0.317)

RATES = {      # read, cache, kernel, matmul, attention, handover, quantised, bf16, rows
    ("CUDA", ""): Rates(0.873, 0.557, 2.46, 0.481, 0.316, 21.8, 1, 1, 274),
    ("MTL", ""): Rates(0.785, 0.548, 4.49, 0.823, 0.36, 40, 1, 1, 28),
    ("ROCm", ""): Rates(0.774, 0.544, 2.28, 0.306, 0.11, 40, 1, 1, 8),
    ("Vulkan", ""): Rates(0.817, 0.575, 2.4, 0.345, 0.102, 196, 1, 1.2, 138),
    ("CUDA", "A100"): Rates(0.576, 0.556, 2.72, 0.521, 0.316, 21.8, 1, 1, 26),
    ("CUDA", "Ada"): Rates(0.932, 0.555, 2.57, 0.525, 0.316, 21.9, 1, 1, 91),
    ("CUDA", "Ampere"): Rates(0.878, 0.556, 2.56, 0.562, 0.316, 21.8, 1, 1, 60),
    ("CUDA", "Blackwell"): Rates(0.888, 0.557, 2.28, 0.467, 0.316, 21.5, 1, 1, 6),
    ("CUDA", "GB10"): Rates(0.884, 0.557, 2.43, 0.481, 0.316, 21.8, 1, 1, 3),
    ("CUDA", "Hopper"): Rates(0.64, 0.556, 2.56, 0.357, 0.316, 21.8, 1, 1, 14),
    ("CUDA", "Turing"): Rates(0.835, 0.565, 2.49, 0.447, 0.292, 21.8, 0.208, 1, 74),
    ("MTL", "Apple"): Rates(0.781, 0.547, 4.86, 0.805, 0.378, 40, 1, 1, 28),
    ("ROCm", "RDNA4"): Rates(0.792, 0.545, 2.26, 0.314, 0.11, 40, 1, 1, 2),
    ("ROCm", "Strix Halo"): Rates(0.759, 0.539, 2.35, 0.289, 0.111, 40, 1, 1, 6),
    ("Vulkan", "Ada"): Rates(0.919, 0.575, 2.04, 0.346, 0.102, 196, 1, 1.2, 6),
    ("Vulkan", "Ampere"): Rates(0.808, 0.575, 2.39, 0.345, 0.102, 196, 1, 1.2, 7),
    ("Vulkan", "RDNA2"): Rates(0.807, 0.574, 2.45, 0.326, 0.101, 196, 1, 1.2, 28),
    ("Vulkan", "RDNA4"): Rates(0.77, 0.582, 3.37, 0.156, 0.0442, 196, 1, 0.952, 72),
    ("Vulkan", "Strix Halo"): Rates(0.948, 0.585, 2.18, 0.325, 0.111, 196, 1, 0.69, 23),
    ("Vulkan", "Turing"): Rates(0.793, 0.574, 2.44, 0.345, 0.102, 196, 1, 1.2, 2),
    ("", ""): Rates(0.7, 0.5, 3, 0.3, 0.1, 80, 1, 1),
}

# The factor that 8 in 10 predictions of a class are within, of sources that were left out of the fit
DOUBT = {
    ("dense resident", "tg"): 1.39,
    ("dense partial", "tg"): 1.13,
    ("MoE resident", "tg"): 1.37,
    ("MoE in RAM", "tg"): 1.39,
    ("multi-GPU", "tg"): 1.60,
    ("dense resident", "pp"): 1.35,
    ("dense partial", "pp"): 1.17,
    ("MoE resident", "pp"): 1.24,
    ("MoE in RAM", "pp"): 1.13,
    ("multi-GPU", "pp"): 1.56,
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
