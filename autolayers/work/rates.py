"""The share of their rated figures that GPUs reach under llama.cpp, by backend and generation. Every number
in RATES and SHARED is fitted: `python benchmarks/fit_speed.py` derives them from the measured launches in
fixtures/speeds and prints the prediction errors; --write writes the table. A generation without measured
launches uses its backend's figures."""

from __future__ import annotations

from ..records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..machine import Device


@dataclass(frozen=True)
class Rates:
    """`read` and `cache`: shares of the bandwidth for weights and for the KV cache, `quantised` of the latter
    for quantised caches. `kernel`: microseconds per node of the graph. `matmul` and `attention`: shares of
    the dense fp16 rate, `experts` of the former for many matrices with few tokens each. `handover`:
    microseconds from the device to the CPU or back. `bf16`: relative to f16's speed, `bf16_experts`: of
    experts, whose kernels have no bf16 of their own under Vulkan. `chosen`: reading a token's experts,
    relative to reading one matrix."""

    read: float
    cache: float
    kernel: float
    matmul: float
    attention: float
    handover: float = 25.0
    quantised: float = 1.0
    bf16: float = 1.0
    experts: float = 0.7
    bf16_experts: float = 1.0
    chosen: float = 0.9
    n: int = 0                # measured launches that it is fitted to


@dataclass(frozen=True)
class Age:
    """How builds before `before` differ from today's: kernels were fused since, so a token's nodes took `kernel`
    times as long, and prompts' matrices were multiplied at `prompt` of today's rate."""

    before: int
    kernel: float
    prompt: float


@dataclass(frozen=True)
class Shared:
    """What does not depend on the GPU. Seconds are microseconds and rates are shares, unless a unit is
    given."""

    token: float              # constant per token
    prompt_experts: float     # reading experts for a prompt, relative to reading one matrix
    expert_tokens: float      # tokens per expert at which half of that rate is reached
    prompt_read: float        # reading weights during arithmetic, relative to reading them alone
    prompt_kernel: float      # kernels of a prompt, relative to those of a token
    hop: float                # from one device to another
    ram: float                # share of RAM's bandwidth for matrices
    ram_experts: float
    alone: float              # of both, if the CPU computes everything
    core: float               # 10**9 bytes per second per core
    core_flops: float         # 10**9 operations per second per core
    core_experts: float       # share of it for experts
    core_attention: float     # 10**9 operations of attention per second per core
    core_kernel: float        # microseconds of CPU time per node of the graph
    bus_copy: float           # weights copied for a prompt, share of the bus
    ram_copy: float           # and of RAM
    copied: float             # how quickly tokens spread over the experts that are copied
    several: float            # kernels of a launch on several devices
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

_GEN9 = r"HD Graphics [56]\d\d|\((SKL|KBL|CFL|CML|GLK)\b"      # up to 2020

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

SHARED = Shared(token=163,
                prompt_experts=0.961,
                expert_tokens=33.2,
                prompt_read=0.929,
                prompt_kernel=1.64,
                hop=65,
                ram=1,
                ram_experts=0.959,
                alone=0.843,
                core=14.1,
                core_flops=63.8,
                core_experts=0.607,
                core_attention=3.06,
                core_kernel=1.94,
                bus_copy=0.574,
                ram_copy=0.429,
                copied=0.187,
                several=1.56,
                stages=0.275)

RATES = {      # read, cache, kernel, matmul, attention, handover, quantised, bf16, experts, bf16_experts, chosen, rows
    ("CUDA", ""): Rates(0.869, 0.581, 2.42, 0.49, 0.355, 21, 1, 1, 0.495, 1, 0.931, 487),
    ("MTL", ""): Rates(0.804, 0.582, 4.39, 0.782, 0.35, 40, 1, 1, 0.7, 1, 0.871, 37),
    ("ROCm", ""): Rates(0.781, 0.538, 2.7, 0.285, 0.164, 39.9, 1, 1, 0.567, 1, 0.742, 67),
    ("SYCL", ""): Rates(0.75, 0.499, 2.94, 0.115, 0.0502, 80, 1, 1, 0.578, 1, 0.768, 17),
    ("Vulkan", ""): Rates(0.783, 0.571, 2.45, 0.321, 0.0939, 92.7, 1, 1.2, 0.686, 0.536, 0.871, 235),
    ("CUDA", "A100"): Rates(0.579, 0.58, 2.65, 0.535, 0.355, 21, 1, 1, 0.495, 1, 0.931, 26),
    ("CUDA", "Ada"): Rates(0.909, 0.577, 2.23, 0.535, 0.344, 20.8, 1, 1, 0.399, 1, 0.888, 175),
    ("CUDA", "Ampere"): Rates(0.931, 0.577, 2.85, 0.602, 0.397, 20.7, 1, 1, 0.404, 1, 0.945, 82),
    ("CUDA", "Blackwell"): Rates(0.943, 0.634, 1.89, 0.57, 0.438, 21.1, 1, 1, 0.355, 1, 0.939, 47),
    ("CUDA", "GB10"): Rates(0.908, 0.642, 2.3, 0.318, 0.32, 21, 1, 1, 0.548, 1, 0.99, 53),
    ("CUDA", "Hopper"): Rates(0.642, 0.58, 2.5, 0.373, 0.355, 21, 1, 1, 0.495, 1, 0.931, 14),
    ("CUDA", "Pascal"): Rates(0.622, 0.576, 3.18, 1.41, 0.62, 21.3, 1, 1, 0.6, 1, 0.929, 11),
    ("CUDA", "Turing"): Rates(0.866, 0.603, 2.2, 0.399, 0.327, 19.2, 0.222, 1, 0.547, 1, 0.941, 77),
    ("CUDA", "Volta"): Rates(0.725, 0.493, 3.11, 0.328, 0.13, 21, 1, 1, 0.498, 1, 0.891, 2),
    ("MTL", "Apple"): Rates(0.805, 0.606, 4.67, 0.739, 0.35, 40, 1, 1, 0.699, 1, 0.864, 37),
    ("ROCm", "CDNA"): Rates(0.667, 0.489, 7.5, 0.543, 0.264, 39.9, 1, 1, 0.329, 1, 0.742, 4),
    ("ROCm", "RDNA2"): Rates(0.775, 0.537, 2.7, 0.353, 0.164, 39.7, 1, 1, 0.567, 1, 0.742, 2),
    ("ROCm", "RDNA3"): Rates(0.719, 0.53, 3.08, 0.378, 0.261, 39.9, 1, 1, 0.636, 1, 0.711, 18),
    ("ROCm", "RDNA3 integrated"): Rates(0.754, 0.537, 2.74, 0.265, 0.164, 39.9, 1, 1, 0.552, 1, 0.725, 4),
    ("ROCm", "RDNA4"): Rates(0.805, 0.539, 2.68, 0.284, 0.225, 39.9, 1, 1, 0.567, 1, 0.742, 10),
    ("ROCm", "Strix Halo"): Rates(0.797, 0.536, 2.69, 0.208, 0.166, 39.9, 1, 1, 0.728, 1, 0.754, 29),
    ("SYCL", "Arc"): Rates(0.777, 0.499, 2.89, 0.0846, 0.0502, 80, 1, 1, 0.559, 1, 0.207, 13),
    ("SYCL", "Xe integrated"): Rates(0.724, 0.498, 2.96, 0.171, 0.0507, 80, 1, 1, 0.493, 1, 0.762, 4),
    ("Vulkan", "Ada"): Rates(0.95, 0.571, 2.13, 0.459, 0.282, 92.7, 1, 1.2, 0.686, 0.536, 0.913, 7),
    ("Vulkan", "Ampere"): Rates(0.817, 0.554, 2.54, 0.527, 0.33, 92.7, 1, 1.2, 0.538, 0.536, 0.862, 19),
    ("Vulkan", "Arc"): Rates(0.701, 0.564, 4.32, 0.0838, 0.0229, 106, 1, 1.2, 0.562, 0.536, 0.236, 11),
    ("Vulkan", "Blackwell"): Rates(0.855, 0.571, 2.43, 0.403, 0.367, 92.7, 1, 1.2, 0.574, 0.536, 0.871, 7),
    ("Vulkan", "Gen9"): Rates(0.58, 0.57, 3.07, 0.229, 0.0743, 92.7, 1, 1.2, 0.685, 0.536, 0.871, 2),
    ("Vulkan", "Pascal"): Rates(0.75, 0.568, 2.48, 0.393, 0.0956, 92.7, 1, 1.2, 0.685, 0.536, 0.871, 2),
    ("Vulkan", "RDNA2"): Rates(0.775, 0.571, 2.48, 0.299, 0.0931, 224, 1, 1.2, 0.629, 0.536, 0.867, 28),
    ("Vulkan", "RDNA2 integrated"): Rates(0.934, 0.597, 2.34, 0.413, 0.094, 92.7, 1, 1.2, 0.913, 0.536, 0.907, 3),
    ("Vulkan", "RDNA3 integrated"): Rates(0.751, 0.574, 2.53, 0.199, 0.0977, 92.7, 1, 1.2, 0.737, 0.536, 0.832, 17),
    ("Vulkan", "RDNA4"): Rates(0.824, 0.577, 3.03, 0.204, 0.0437, 92.7, 1, 0.909, 0.647, 0.643, 0.851, 80),
    ("Vulkan", "Strix Halo"): Rates(0.904, 0.593, 2.14, 0.244, 0.118, 92.7, 1, 0.674, 1.16, 0.536, 0.93, 45),
    ("Vulkan", "Turing"): Rates(0.77, 0.571, 2.46, 0.458, 0.282, 92.7, 1, 1.2, 0.685, 0.536, 0.871, 2),
    ("Vulkan", "Vega"): Rates(0.717, 0.561, 2.5, 0.374, 0.0942, 92.7, 1, 1.2, 0.822, 0.536, 0.839, 2),
    ("Vulkan", "Xe integrated"): Rates(0.721, 0.561, 2.47, 0.254, 0.0829, 92.7, 1, 1.2, 0.498, 0.536, 0.858, 10),
    ("", ""): Rates(0.7, 0.5, 3, 0.3, 0.1, 80, 1, 1, 0.7, 1, 0.9),
}

AGES: dict[str, tuple[Age, ...]] = {       # before, kernel, prompt
    "CUDA": (Age(6700, 1.19, 0.799), Age(9400, 1.02, 0.856)),
    "MTL": (Age(6700, 0.961, 0.897), Age(9400, 1.07, 1.06)),
    "ROCm": (Age(6700, 1.01, 0.43), Age(9400, 1.01, 1.07)),
    "SYCL": (Age(6700, 1, 1), Age(9400, 1, 1)),
    "Vulkan": (Age(6700, 1.01, 0.695), Age(9400, 1.02, 0.851)),
}

# 80th percentile of a class's prediction error, as a factor, for sources left out of the fit
DOUBT = {
    ("dense resident", "tg"): 1.21,
    ("dense partial", "tg"): 1.21,
    ("MoE resident", "tg"): 1.25,
    ("MoE in RAM", "tg"): 1.21,
    ("multi-GPU", "tg"): 1.35,
    ("CPU", "tg"): 1.18,
    ("dense resident", "pp"): 1.64,
    ("dense partial", "pp"): 1.41,
    ("MoE resident", "pp"): 1.45,
    ("MoE in RAM", "pp"): 1.36,
    ("multi-GPU", "pp"): 1.50,
    ("CPU", "pp"): 1.40,
}

# the same after one measured launch of the class there
CALIBRATED = {
    ("dense resident", "tg"): 1.21,
    ("dense partial", "tg"): 1.19,
    ("MoE resident", "tg"): 1.11,
    ("MoE in RAM", "tg"): 1.14,
    ("multi-GPU", "tg"): 1.35,
    ("CPU", "tg"): 1.18,
    ("dense resident", "pp"): 1.30,
    ("dense partial", "pp"): 1.24,
    ("MoE resident", "pp"): 1.32,
    ("MoE in RAM", "pp"): 1.31,
    ("multi-GPU", "pp"): 1.50,
    ("CPU", "pp"): 1.23,
}

# and for comparisons of two launches of a class there
BETWEEN = {
    ("dense resident", "tg"): 1.21,
    ("dense partial", "tg"): 1.08,
    ("MoE resident", "tg"): 1.25,
    ("MoE in RAM", "tg"): 1.15,
    ("multi-GPU", "tg"): 1.35,
    ("CPU", "tg"): 1.08,
    ("dense resident", "pp"): 1.08,
    ("dense partial", "pp"): 1.05,
    ("MoE resident", "pp"): 1.32,
    ("MoE in RAM", "pp"): 1.21,
    ("multi-GPU", "pp"): 1.50,
    ("CPU", "pp"): 1.05,
}

# what RAM of unknown speed adds to a doubt, where RAM decides
UNKNOWN_RAM = {"pp": 1.57, "tg": 1.28}

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


def row_of(device: Device) -> str:
    """The generation in RATES: Intel's integrated GPUs of before Xe read at less than half of the rate of those
    since."""
    found = generation_of(device)
    if found == "Xe integrated":
        import re  # few calls

        return "Gen9" if re.search(_GEN9, device.description) else found
    return found


def rates_of(device: Device) -> Rates:
    """The Rates of a device: its generation's under its backend (for a server's device, the server's), else
    its backend's."""
    backend = device.engine or device.backend
    return RATES.get((backend, row_of(device))) or RATES.get((backend, "")) or RATES["", ""]


def aged(rates: Rates, backend: str, build: int) -> Rates:
    """The rates with an older build."""
    for age in AGES.get(backend, ()):
        if build < age.before:
            return replace(rates, kernel=rates.kernel * age.kernel, matmul=rates.matmul * age.prompt)
    return rates
