"""The share of their rated figures that GPUs reach under llama.cpp, by backend and generation.
Every number in rates.csv, doubts.csv and SHARED is fitted: `python benchmarks/fit_speed.py` derives
them from the measured launches in fixtures/speeds and prints the prediction errors; --write writes
them. A generation without measured launches uses its backend's figures."""

from __future__ import annotations

from ..records import dataclass, replace
from ..tables import rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import TypeVar

    from ..machine import Device

    Row = TypeVar("Row")


@dataclass(frozen=True)
class Rates:
    """`read` and `cache`: shares of the bandwidth for weights and for the KV cache, `quantised`
    of the latter for quantised caches. `kernel`: microseconds per node of the graph. `matmul`
    and `attention`: shares of the dense fp16 rate, `experts` of the former for many matrices
    with few tokens each. `handover`: microseconds from the device to the CPU or back. `bf16`:
    of a prompt's matrices, relative to f16's; `bf16_experts`: of experts, of tokens too, whose
    kernels have no bf16 of their own under Vulkan. `chosen`: reading a token's experts,
    relative to reading one matrix. `launch`: microseconds per node of a prompt, whose kernels
    are launched one by one. `tile`: tokens per expert at which half of the experts' rate is
    reached."""

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
    launch: float = 5.0
    tile: float = 29.0
    sources: int = 0  # of the measured launches that it is fitted to


@dataclass(frozen=True)
class Age:
    """How builds before `before` differ from today's: kernels were fused since, so a token's nodes
    took `kernel` times as long, and prompts' matrices were multiplied at `prompt` of today's
    rate, experts at `experts` of the rest."""

    before: int
    kernel: float
    prompt: float
    experts: float = 1.0


@dataclass(frozen=True)
class Shared:
    """What does not depend on the GPU. Seconds are microseconds and rates are shares, unless a unit
    is given."""

    token: float  # constant per token
    prompt_experts: float  # reading experts for a prompt, relative to reading one matrix
    prompt_read: float  # reading weights during arithmetic, relative to reading them alone
    activations: float  # bytes that a prompt's node moves for each token and width
    hop: float  # from one device to another
    reduction: float  # a sum over two devices' slices, with split mode tensor
    ram: float  # share of RAM's bandwidth for matrices
    ram_experts: float
    alone: float  # of both, if the CPU computes everything
    core: float  # 10**9 bytes per second per core
    core_flops: float  # 10**9 operations per second per core
    core_experts: float  # share of it for experts
    # 10**9 operations of attention per second per core: of a token with a cache that the
    # processor's own holds, with the rest of it, and of a prompt
    core_attention: float
    core_attention_far: float
    core_scores: float
    core_unfused: float  # the same without flash attention, of tokens and prompts
    core_kernel: float  # microseconds of CPU time per node of the graph
    ram_copy: float  # weights that the CPU copies for the bus, share of RAM's bandwidth
    copied: float  # how quickly tokens spread over the experts that are copied
    several: float  # kernels of a launch on several devices
    # several devices: the part of the other stages that does not overlap with the slowest
    stages: float


_GENERATIONS = rows("work/generations.tsv")
# (generation, compute capability under CUDA, pattern of the description)
GENERATIONS = tuple([(row["name"], row["capabilities"], row["pattern"]) for row in _GENERATIONS])

NVIDIA = tuple([name for name, capabilities, _ in GENERATIONS if capabilities])


def by_generation(column: str) -> dict[str, float]:
    """Return a figure of generations.tsv, of those that have it."""
    return {row["name"]: float(row[column]) for row in _GENERATIONS if row[column]}


_GEN9 = r"HD Graphics [56]\d\d|\((SKL|KBL|CFL|CML|GLK)\b"  # up to 2020

# dense fp16 TFLOPS per 10**12 bytes per second of bandwidth, for GPUs of unknown compute rate
FP16_PER_BANDWIDTH = by_generation("fp16_per_bandwidth")
FP16_UNKNOWN = 150.0

# Flash attention on the CPU before about this build (February 2026): one token's heads shared no
# thread, prompts had no tiles (ggml_compute_forward_flash_attn_ext). Published sweeps of before and
# of the change give 0.2 to 0.5 of today's rate
FLASH_BUILD, OLD_FLASH = 7950, 0.4

# --- made by benchmarks/fit_speed.py

SHARED = Shared(
    token=164,
    prompt_experts=1.02,
    prompt_read=1,
    activations=6.25,
    hop=65.3,
    reduction=37.5,
    ram=0.944,
    ram_experts=0.92,
    alone=0.8,
    core=18.7,
    core_flops=57.3,
    core_experts=0.719,
    core_attention=13.5,
    core_attention_far=2.32,
    core_scores=29,
    core_unfused=26.3,
    core_kernel=2.03,
    ram_copy=0.578,
    copied=0.395,
    several=1.43,
    stages=0.26,
)

AGES: dict[str, tuple[Age, ...]] = {  # before, kernel, prompt, experts
    "CUDA": (Age(6700, 1.2, 1.06, 0.699), Age(8400, 0.94, 0.988, 0.888)),
    "MTL": (Age(6700, 1.11, 0.929, 1), Age(8400, 1.07, 1.1, 1.1)),
    "ROCm": (Age(6700, 1.06, 0.359, 1.1), Age(8400, 1.05, 0.944, 0.969)),
    "SYCL": (Age(6700, 1, 1, 1), Age(8400, 1, 1, 1)),
    "Vulkan": (Age(6700, 1.02, 0.833, 1), Age(8400, 1.03, 0.991, 0.716)),
}

# what RAM of unknown speed adds to a doubt, where RAM decides; and GPUs of a generation
# whose launches one source measured, or none
UNKNOWN_RAM = {"pp": 1.05, "tg": 1.34}
FEW_SOURCES = {"pp": 1.64, "tg": 1.21}

# --- end


def _rates(row: dict[str, str]) -> Rates:
    figures = {
        name: float(text)
        for name, text in row.items()
        if name not in ("backend", "generation", "sources")
    }
    return Rates(**figures, sources=int(row["sources"]))


# by backend and generation; "" for all others
RATES = {(row["backend"], row["generation"]): _rates(row) for row in rows("work/rates.csv")}

# By class and kind of rate, for sources left out of the fit: the 80th percentile of the prediction
# error, as a factor; the same after one measured launch of the class on the machine; for
# comparisons of two launches there; and the part of one launch's error that the others share
DOUBT, CALIBRATED, BETWEEN, ONE_RUN = (
    {
        (row["class"], row["kind"]): float(row[name])
        for row in rows("work/doubts.csv")
        if not row["backend"]
    }
    for name in ("doubt", "calibrated", "between", "run")
)
# the first, of backends with rows of the class from several sources
OWN_DOUBT = {
    (row["class"], row["kind"], row["backend"]): float(row["doubt"])
    for row in rows("work/doubts.csv")
    if row["backend"]
}


def doubt_of(kind: str, part: str, backends: Collection[str]) -> float:
    """Return the DOUBT of launches on devices of these backends: of several the largest."""
    every = DOUBT[kind, part]
    return max((OWN_DOUBT.get((kind, part, name), every) for name in backends), default=every)


def generation_of(device: Device) -> str:
    """Return the generation of a device's GPU, by its compute capability, its name or its gfx
    number; "" if unknown."""
    if device.compute_capability is not None:
        capability = ".".join(map(str, device.compute_capability))
        for name, capabilities, _ in GENERATIONS:
            if capability in capabilities.split():
                return name
    version = (device.limits or {}).get("gfx_target_version", 0)
    texts = (
        device.description,
        f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else "",
    )
    for text in filter(None, texts):
        import re  # few calls

        for name, _, pattern in GENERATIONS:
            if re.search(pattern, text):
                return name
    return ""


# None of the first was measured. It is rated, like the second, for matrix instructions that no
# kernel of llama.cpp uses.
_ALIKE = {"Datacenter Blackwell": "Hopper"}


def row_of(device: Device) -> str:
    """Return the generation in RATES: Intel's integrated GPUs of before Xe read at less than half
    of the rate of those since."""
    generation = generation_of(device)
    generation = _ALIKE.get(generation, generation)
    if generation == "Xe integrated":
        import re  # few calls

        return "Gen9" if re.search(_GEN9, device.description) else generation
    return generation


def by_card(table: Mapping[tuple[str, str], Row], device: Device, generation: str) -> Row:
    """Return a table's row of a device: its generation's under its backend (for a server's device,
    the server's), otherwise its backend's."""
    backend = device.engine or device.backend
    return table.get((backend, generation)) or table.get((backend, "")) or table["", ""]


def rates_of(device: Device) -> Rates:
    """Return the Rates of a device."""
    return by_card(RATES, device, row_of(device))


def aged(rates: Rates, backend: str, build: int) -> Rates:
    """Return the rates with an older build."""
    for age in AGES.get(backend, ()):
        if build < age.before:
            return replace(
                rates,
                kernel=rates.kernel * age.kernel,
                matmul=rates.matmul * age.prompt,
                experts=rates.experts * age.experts,
            )
    return rates
