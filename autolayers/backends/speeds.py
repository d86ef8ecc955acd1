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
    prompt_read: float        # weights read beside arithmetic, of reading them alone
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
                experts=0.823,
                expert_work=0.729,
                expert_tokens=33.9,
                prompt_read=0.918,
                prompt_kernel=1.52,
                hop=65,
                ram=0.958,
                ram_experts=0.952,
                ram_cache=0.0568,
                core=13.6,
                core_flops=77.7,
                core_kernel=1.96,
                bus_copy=0.547,
                ram_copy=0.387,
                copied=0.189,
                stages=0.317)

RATES = {      # read, cache, kernel, matmul, attention, handover, quantised, bf16, rows
    ("CUDA", ""): Rates(0.873, 0.557, 2.47, 0.468, 0.323, 21.9, 1, 1, 274),
    ("MTL", ""): Rates(0.785, 0.548, 4.49, 0.829, 0.354, 40, 1, 1, 28),
    ("ROCm", ""): Rates(0.77, 0.544, 2.28, 0.306, 0.11, 40, 1, 1, 8),
    ("Vulkan", ""): Rates(0.822, 0.574, 2.43, 0.346, 0.102, 196, 1, 1.2, 138),
    ("CUDA", "A100"): Rates(0.575, 0.556, 2.73, 0.509, 0.325, 21.9, 1, 1, 26),
    ("CUDA", "Ada"): Rates(0.931, 0.555, 2.58, 0.5, 0.331, 21.9, 1, 1, 91),
    ("CUDA", "Ampere"): Rates(0.876, 0.556, 2.56, 0.552, 0.334, 21.9, 1, 1, 60),
    ("CUDA", "Blackwell"): Rates(0.889, 0.557, 2.28, 0.455, 0.323, 21.6, 1, 1, 6),
    ("CUDA", "GB10"): Rates(0.884, 0.556, 2.44, 0.468, 0.323, 21.9, 1, 1, 3),
    ("CUDA", "Hopper"): Rates(0.642, 0.556, 2.58, 0.341, 0.321, 21.9, 1, 1, 14),
    ("CUDA", "Turing"): Rates(0.834, 0.564, 2.5, 0.443, 0.296, 21.9, 0.208, 1, 74),
    ("MTL", "Apple"): Rates(0.782, 0.547, 4.87, 0.815, 0.363, 40, 1, 1, 28),
    ("ROCm", "RDNA4"): Rates(0.789, 0.545, 2.27, 0.314, 0.11, 40, 1, 1, 2),
    ("ROCm", "Strix Halo"): Rates(0.755, 0.538, 2.35, 0.289, 0.111, 40, 1, 1, 6),
    ("Vulkan", "Ada"): Rates(0.943, 0.575, 2.1, 0.346, 0.102, 196, 1, 1.2, 6),
    ("Vulkan", "Ampere"): Rates(0.81, 0.574, 2.42, 0.346, 0.102, 196, 1, 1.2, 7),
    ("Vulkan", "RDNA2"): Rates(0.811, 0.574, 2.48, 0.325, 0.101, 196, 1, 1.2, 28),
    ("Vulkan", "RDNA4"): Rates(0.772, 0.582, 3.41, 0.157, 0.0442, 196, 1, 0.951, 72),
    ("Vulkan", "Strix Halo"): Rates(0.95, 0.584, 2.22, 0.325, 0.111, 196, 1, 0.689, 23),
    ("Vulkan", "Turing"): Rates(0.796, 0.574, 2.46, 0.346, 0.102, 196, 1, 1.2, 2),
    ("", ""): Rates(0.7, 0.5, 3, 0.3, 0.1, 80, 1, 1),
}

# The factor that 8 in 10 predictions of a class are within, of sources that were left out of the fit
DOUBT = {
    ("dense resident", "tg"): 1.65,
    ("dense partial", "tg"): 1.15,
    ("MoE resident", "tg"): 1.38,
    ("MoE in RAM", "tg"): 1.39,
    ("multi-GPU", "tg"): 1.87,
    ("dense resident", "pp"): 1.46,
    ("dense partial", "pp"): 1.16,
    ("MoE resident", "pp"): 1.27,
    ("MoE in RAM", "pp"): 1.13,
    ("multi-GPU", "pp"): 1.78,
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
