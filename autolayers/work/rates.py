"""The share of their rated figures that GPUs reach under llama.cpp, by backend and generation. Every number
in RATES and SHARED is fitted: `python benchmarks/fit_speed.py` derives them from the measured launches in
fixtures/speeds and prints the prediction errors; --write writes the table. A generation without measured
launches uses its backend's figures."""

from __future__ import annotations

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device


@dataclass(frozen=True)
class Rates:
    """`read` and `cache`: shares of the bandwidth for weights and for the KV cache, `quantised` of the latter
    for quantised caches. `kernel`: microseconds per node of the graph. `matmul` and `attention`: shares of
    the dense fp16 rate, `experts` of the former for many matrices with few tokens each. `handover`:
    microseconds from the device to the CPU or back."""

    read: float
    cache: float
    kernel: float
    matmul: float
    attention: float
    handover: float = 25.0
    quantised: float = 1.0
    bf16: float = 1.0         # relative to f16's speed
    experts: float = 0.7
    n: int = 0                # measured launches that it is fitted to


@dataclass(frozen=True)
class Shared:
    """What does not depend on the GPU. Seconds are microseconds and rates are shares, unless a unit is
    given."""

    token: float              # constant per token
    experts: float            # reading chosen experts, relative to reading one matrix
    expert_tokens: float      # tokens per expert at which half of that rate is reached
    prompt_read: float        # reading weights during arithmetic, relative to reading them alone
    prompt_kernel: float      # kernels of a prompt, relative to those of a token
    hop: float                # from one device to another
    ram: float                # share of RAM's bandwidth for matrices
    ram_experts: float
    ram_cache: float          # attention on the CPU
    core: float               # 10**9 bytes per second per core
    core_flops: float         # 10**9 operations per second per core
    core_kernel: float        # microseconds of CPU time per node of the graph
    bus_copy: float           # weights copied for a prompt, share of the bus
    ram_copy: float           # and of RAM
    copied: float             # how quickly tokens spread over the experts that are copied
    # several devices: the part of the other stages that does not overlap with the slowest
    stages: float


# (generation, compute capability under CUDA, pattern of the description)
GENERATIONS: tuple[tuple[str, str, str], ...] = (
    ("Maxwell", "3.5 3.7 5.0 5.2 5.3", r"GTX 9\d\d|GTX 750|Tesla [MK]\d|GTX TITAN X"),
    ("Pascal", "6.0 6.1 6.2", r"GTX? 10\d\d|Tesla P\d|Quadro P|TITAN X"),
    ("Volta", "7.0 7.2", r"V100|TITAN V"),
    ("Turing", "7.5", r"GTX 16\d\d|RTX 20\d\d|Quadro RTX|\bT4\b|TITAN RTX|T\d00\b"),
    ("A100", "8.0", r"\bA100|\bA30\b"),
    ("Hopper", "9.0", r"\bG?H[12]00|\bGH200"),
    ("Datacenter Blackwell", "10.0 10.3", r"\bG?B[23]00"),
    ("GB10", "12.1 11.0", r"\bGB10\b|DGX Spark|Thor"),
    ("Blackwell", "12.0", r"RTX 50\d\d|Blackwell"),
    ("Ada", "8.9", r"RTX 40\d\d|\bAda\b|\bL4\b|\bL20\b|\bL40S?\b"),
    ("Ampere", "8.6 8.7 8.8", r"RTX 30\d\d|RTX A\d000|\bA[124]0?0?0\b|\bA16\b|Orin"),
    ("Strix Halo", "", r"80[456]0S|Strix Halo|Ryzen AI M(ax|AX)|(?i:gfx1151)"),
    ("RDNA3 integrated", "", r"Radeon.* [78][46789]0M|RADV (PHOENIX|STRIX1|KRACKAN)|(?i:gfx1103|gfx115[02])"),
    ("RDNA2 integrated", "", r"Radeon.* 6[168]0M|RADV (REMBRANDT|RAPHAEL|VANGOGH)|Custom GPU 0[49]|(?i:gfx103[3567])"),
    ("RDNA4", "", r"RX 90\d\d|R9[67]00|(?i:gfx120\d)"),
    ("RDNA3", "", r"RX 7\d\d\d|PRO W7\d00|(?i:gfx11\d\d)"),
    ("RDNA2", "", r"RX 6\d\d\d|PRO W6\d00|PRO V620|(?i:gfx103\d)"),
    ("RDNA1", "", r"RX 5[3567]\d\d|(?i:gfx101\d)"),
    ("CDNA", "", r"Instinct|MI\d\d\d?X?\b|(?i:gfx9(06|08|0a|4\w|50))"),
    ("Vega", "", r"Vega|Radeon.* VII\b|RX [45]\d0\b|RADV (RENOIR|RAVEN|POLARIS)|(?i:gfx(803|900|902|90c))"),
    ("Xe2 integrated", "", r"1[34]0V|B3[79]0|\((LNL|PTL)\)"),
    ("Xe integrated", "", r"UHD|Iris|HD Graphics|Arc\(TM\) Graphics$|\((MTL|TGL|ADL|RPL|KBL|CFL|CML)\b"),
    ("Arc", "", r"\bArc\b|Intel"),
    ("M5", "", r"Apple M5"),
    ("Apple", "", r"Apple M\d"),
)

# dense fp16 TFLOPS per 10**12 bytes per second of bandwidth, for GPUs of unknown compute rate
FP16_PER_BANDWIDTH = {"Pascal": 25.0, "Volta": 125.0, "Turing": 160.0, "A100": 160.0, "Hopper": 300.0,
                      "Datacenter Blackwell": 290.0, "GB10": 450.0, "Blackwell": 240.0, "Ada": 320.0,
                      "Ampere": 160.0,
                      "Strix Halo": 230.0, "RDNA3 integrated": 190.0, "RDNA2 integrated": 90.0,
                      "RDNA4": 300.0, "RDNA3": 128.0, "RDNA2": 75.0, "RDNA1": 40.0, "CDNA": 190.0,
                      "Vega": 27.0,
                      "Xe integrated": 80.0, "Xe2 integrated": 300.0, "Arc": 240.0, "M5": 60.0, "Apple": 34.0}
FP16_UNKNOWN = 150.0

# --- made by benchmarks/fit_speed.py

SHARED = Shared(token=164,
                experts=0.894,
                expert_tokens=29.1,
                prompt_read=1,
                prompt_kernel=1.55,
                hop=64.9,
                ram=0.999,
                ram_experts=0.922,
                ram_cache=0.0699,
                core=14.1,
                core_flops=67.9,
                core_kernel=1.89,
                bus_copy=0.557,
                ram_copy=0.381,
                copied=0.186,
                stages=0.311)

RATES = {      # read, cache, kernel, matmul, attention, handover, quantised, bf16, experts, rows
    ("CUDA", ""): Rates(0.867, 0.583, 2.47, 0.442, 0.321, 23.5, 1, 1, 0.485, 363),
    ("MTL", ""): Rates(0.811, 0.586, 4.49, 0.77, 0.336, 40, 1, 1, 0.7, 35),
    ("ROCm", ""): Rates(0.78, 0.536, 2.88, 0.301, 0.156, 40, 1, 1, 0.591, 42),
    ("SYCL", ""): Rates(0.759, 0.5, 2.98, 0.113, 0.0494, 80, 1, 1, 0.592, 12),
    ("Vulkan", ""): Rates(0.777, 0.56, 2.46, 0.29, 0.0917, 156, 1, 1.2, 0.648, 208),
    ("CUDA", "A100"): Rates(0.577, 0.582, 2.71, 0.476, 0.321, 23.5, 1, 1, 0.485, 26),
    ("CUDA", "Ada"): Rates(0.935, 0.586, 2.61, 0.476, 0.321, 23.5, 1, 1, 0.485, 91),
    ("CUDA", "Ampere"): Rates(0.915, 0.583, 2.74, 0.503, 0.316, 23.1, 1, 1, 0.368, 73),
    ("CUDA", "Blackwell"): Rates(0.933, 0.647, 1.67, 0.49, 0.324, 24.7, 1, 1, 0.326, 19),
    ("CUDA", "GB10"): Rates(0.927, 0.65, 2.32, 0.276, 0.31, 23.5, 1, 1, 0.532, 53),
    ("CUDA", "Hopper"): Rates(0.64, 0.582, 2.57, 0.329, 0.321, 23.5, 1, 1, 0.485, 14),
    ("CUDA", "Pascal"): Rates(0.616, 0.576, 3.36, 1.32, 0.537, 24.2, 1, 1, 0.5, 11),
    ("CUDA", "Turing"): Rates(0.841, 0.592, 2.42, 0.401, 0.309, 22.8, 0.21, 1, 0.57, 74),
    ("CUDA", "Volta"): Rates(0.725, 0.497, 3.17, 0.298, 0.125, 23.5, 1, 1, 0.491, 2),
    ("MTL", "Apple"): Rates(0.813, 0.612, 4.87, 0.72, 0.312, 40, 1, 1, 0.699, 35),
    ("ROCm", "CDNA"): Rates(0.667, 0.487, 3.26, 0.582, 0.244, 40, 1, 1, 0.591, 2),
    ("ROCm", "RDNA3"): Rates(0.731, 0.528, 3.39, 0.394, 0.242, 40, 1, 1, 0.596, 18),
    ("ROCm", "RDNA3 integrated"): Rates(0.739, 0.535, 2.93, 0.265, 0.156, 40, 1, 1, 0.538, 4),
    ("ROCm", "RDNA4"): Rates(0.803, 0.537, 2.85, 0.315, 0.21, 40, 1, 1, 0.591, 6),
    ("ROCm", "Strix Halo"): Rates(0.792, 0.533, 2.93, 0.283, 0.157, 40, 1, 1, 0.546, 12),
    ("SYCL", "Arc"): Rates(0.793, 0.5, 2.94, 0.0845, 0.048, 80, 1, 1, 0.593, 8),
    ("SYCL", "Xe integrated"): Rates(0.727, 0.5, 3, 0.163, 0.0497, 80, 1, 1, 0.498, 4),
    ("Vulkan", "Ada"): Rates(0.935, 0.561, 2.12, 0.394, 0.274, 156, 1, 1.2, 0.649, 7),
    ("Vulkan", "Ampere"): Rates(0.811, 0.544, 2.55, 0.419, 0.301, 156, 1, 1.2, 0.543, 19),
    ("Vulkan", "Arc"): Rates(0.746, 0.56, 3.7, 0.0778, 0.0241, 156, 1, 1.2, 0.53, 6),
    ("Vulkan", "Blackwell"): Rates(0.85, 0.56, 2.44, 0.356, 0.361, 156, 1, 1.2, 0.524, 7),
    ("Vulkan", "Pascal"): Rates(0.747, 0.558, 2.49, 0.382, 0.094, 156, 1, 1.2, 0.648, 2),
    ("Vulkan", "RDNA2"): Rates(0.769, 0.56, 2.5, 0.288, 0.0916, 206, 1, 1.2, 0.644, 28),
    ("Vulkan", "RDNA2 integrated"): Rates(0.917, 0.586, 2.35, 0.39, 0.092, 156, 1, 1.2, 0.892, 3),
    ("Vulkan", "RDNA3 integrated"): Rates(0.752, 0.563, 2.57, 0.228, 0.0885, 156, 1, 1.2, 0.523, 11),
    ("Vulkan", "RDNA4"): Rates(0.752, 0.575, 3.45, 0.14, 0.0441, 156, 1, 0.98, 0.669, 72),
    ("Vulkan", "Strix Halo"): Rates(0.931, 0.58, 2.2, 0.214, 0.117, 156, 1, 0.695, 1.08, 37),
    ("Vulkan", "Turing"): Rates(0.765, 0.56, 2.47, 0.414, 0.275, 156, 1, 1.2, 0.648, 2),
    ("Vulkan", "Vega"): Rates(0.705, 0.549, 2.52, 0.325, 0.092, 156, 1, 1.2, 0.74, 2),
    ("Vulkan", "Xe integrated"): Rates(0.678, 0.535, 2.45, 0.238, 0.0774, 156, 1, 1.2, 0.497, 12),
    ("", ""): Rates(0.7, 0.5, 3, 0.3, 0.1, 80, 1, 1, 0.7),
}

# 80th percentile of a class's prediction error, as a factor, for sources left out of the fit
DOUBT = {
    ("dense resident", "tg"): 1.24,
    ("dense partial", "tg"): 1.14,
    ("MoE resident", "tg"): 1.28,
    ("MoE in RAM", "tg"): 1.26,
    ("multi-GPU", "tg"): 1.58,
    ("CPU", "tg"): 1.35,
    ("dense resident", "pp"): 1.48,
    ("dense partial", "pp"): 1.15,
    ("MoE resident", "pp"): 1.35,
    ("MoE in RAM", "pp"): 1.16,
    ("multi-GPU", "pp"): 1.60,
    ("CPU", "pp"): 1.60,
}

# the same after one measured launch of the class on that machine
CALIBRATED = {
    ("dense resident", "tg"): 1.15,
    ("dense partial", "tg"): 1.35,
    ("MoE resident", "tg"): 1.20,
    ("MoE in RAM", "tg"): 1.13,
    ("multi-GPU", "tg"): 1.40,
    ("CPU", "tg"): 1.20,
    ("dense resident", "pp"): 1.20,
    ("dense partial", "pp"): 1.20,
    ("MoE resident", "pp"): 1.30,
    ("MoE in RAM", "pp"): 1.27,
    ("multi-GPU", "pp"): 1.30,
    ("CPU", "pp"): 1.30,
}

# the same for comparisons of two launches of a class on one machine
BETWEEN = {
    ("dense resident", "tg"): 1.24,
    ("dense partial", "tg"): 1.05,
    ("MoE resident", "tg"): 1.28,
    ("MoE in RAM", "tg"): 1.12,
    ("multi-GPU", "tg"): 1.58,
    ("CPU", "tg"): 1.20,
    ("dense resident", "pp"): 1.08,
    ("dense partial", "pp"): 1.05,
    ("MoE resident", "pp"): 1.22,
    ("MoE in RAM", "pp"): 1.11,
    ("multi-GPU", "pp"): 1.60,
    ("CPU", "pp"): 1.20,
}

# --- end


def generation_of(device: Device) -> str:
    """The generation of a device's GPU, by its compute capability, its name or its gfx number; "" if unknown."""
    if device.compute_capability is not None:
        capability = ".".join(map(str, device.compute_capability))
        for name, capabilities, _ in GENERATIONS:
            if capability in capabilities.split():
                return name
    version = (device.limits or {}).get("gfx_target_version", 0)
    texts = (device.description, f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else "")
    for text in filter(None, texts):
        import re  # few calls

        for name, _, pattern in GENERATIONS:
            if re.search(pattern, text):
                return name
    return ""


def rates_of(device: Device) -> Rates:
    """The Rates of a device: its generation's under its backend (for a server's device, the server's), else
    its backend's."""
    backend = device.engine or device.backend
    return RATES.get((backend, generation_of(device))) or RATES.get((backend, "")) or RATES["", ""]
