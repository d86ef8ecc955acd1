"""Ollama's own behaviour: its server's settings, and what it derives from them before llama-server
starts.

Facts of Ollama 0.33 (2026-08-21): envconfig/config.go, server/sched.go, server/routes.go:Serve,
llm/llama_server.go.
"""

from __future__ import annotations

import re
from itertools import chain

from ..backends import Cuda
from ..errors import UsageError
from ..flags.kinds import CACHE_TYPES
from ..records import dataclass
from ..tables import listed
from ..units import GiB, MiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..machine import Device
    from ..model import Model

# the server's settings that a plan depends on
READ = listed(
    "OLLAMA_NUM_PARALLEL OLLAMA_CONTEXT_LENGTH OLLAMA_KV_CACHE_TYPE OLLAMA_FLASH_ATTENTION "
    "OLLAMA_GPU_OVERHEAD OLLAMA_SCHED_SPREAD LLAMA_ARG_FIT_TARGET OLLAMA_IGPU_ENABLE "
    "OLLAMA_VULKAN OLLAMA_LLM_LIBRARY"
)
# Default num_ctx by the sum of all GPUs' memory: (at least, num_ctx).
# (a 48 GB card reports a little less than 48 GiB)
_CONTEXTS = ((47 * GiB, 262144), (23 * GiB, 32768), (0, 4096))
_MIN_CONTEXT, _MIN_VISION_CONTEXT = 4, 2048
_MARGINS = re.compile(r"\d{1,9}(,\d{1,9})*")
_DIGITS = 18  # of a number, which Go keeps in 64 bits

# integrated GPUs that it uses by default (defaultIntegratedROCmGFXTargets)
_INTEGRATED_ROCM = re.compile(r"gfx1151|80[456]0S|strix halo|Ryzen AI Max", re.IGNORECASE)

BATCH = 512  # num_batch of api.DefaultOptions
# Automatic num_batch: (num_ctx * parallel above, batch), then down this list until it fits: batch
# -> (share of free memory that the prediction may use, Ollama's estimate of the batch's cost).
_BATCHES = ((32768, 2048), (4096, 1024), (0, BATCH))
_SPACE = {2048: (0.60, 2 * GiB), 1024: (0.75, 768 * MiB)}
# share of a GPU's free memory that a model on one GPU may use, alone or with another model
PACKED = 0.80


@dataclass(frozen=True)
class Settings:
    """The server's environment, parsed as Ollama does. None: not set."""

    parallel: int = 1
    context_length: int | None = None
    kv_cache_type: str | None = None
    flash_attention: bool | None = None
    gpu_overhead: int = 0  # bytes
    spread: bool = False
    # LLAMA_ARG_FIT_TARGET, MiB that --fit leaves free on each GPU
    fit_target: tuple[int, ...] = ()
    integrated: bool = False  # OLLAMA_IGPU_ENABLE: integrated GPUs of any backend
    vulkan: bool = True  # OLLAMA_VULKAN
    # OLLAMA_LLM_LIBRARY: cuda_v12, rocm, vulkan, cpu ...; "": any
    library: str = ""
    ignored: tuple[str, ...] = ()  # invalid numbers, which Ollama replaces by the default

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Raise UsageError for a cache type that llama-server refuses."""
        ignored: list[str] = []

        def text(name: str) -> str:
            # envconfig.Var trims blanks and quotes
            return environ.get(name, "").strip(" \t\"'")

        def number(name: str) -> int | None:
            digits = text(name)
            if digits and not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS):
                ignored.append(f"{name}={digits[:40]} is not a number: Ollama uses its default")
                return None
            return int(digits) if digits else None

        def truth(name: str) -> bool | None:
            # anything but a Go boolean counts as set
            return (
                None
                if not text(name)
                else text(name) not in ("0", "f", "F", "false", "False", "FALSE")
            )

        # The type, None for ""
        kind = text("OLLAMA_KV_CACHE_TYPE").lower()
        if kind and kind not in CACHE_TYPES:
            raise UsageError(
                f"OLLAMA_KV_CACHE_TYPE {kind!r}: expected one of {', '.join(CACHE_TYPES)}"
            )
        kv_cache_type = kind or None
        margins = text("LLAMA_ARG_FIT_TARGET")
        return cls(
            # 0 counts as 1
            parallel=max(1, number("OLLAMA_NUM_PARALLEL") or 1),
            context_length=number("OLLAMA_CONTEXT_LENGTH") or None,
            kv_cache_type=kv_cache_type,
            flash_attention=truth("OLLAMA_FLASH_ATTENTION"),
            gpu_overhead=number("OLLAMA_GPU_OVERHEAD") or 0,
            spread=bool(truth("OLLAMA_SCHED_SPREAD")),
            # A list with commas; anything else is none
            fit_target=tuple(map(int, margins.split(","))) if _MARGINS.fullmatch(margins) else (),
            integrated=bool(truth("OLLAMA_IGPU_ENABLE")),
            vulkan=truth("OLLAMA_VULKAN") is not False,
            library=text("OLLAMA_LLM_LIBRARY").lower(),
            ignored=tuple(ignored),
        )


def used(settings: Settings, devices: Sequence[Device]) -> tuple[list[Device], list[str]]:
    """Return (the devices that Ollama's server uses, why it uses no other), by discover/runner.go:
    filterIntegratedGPUs and integratedGPUAllowedByDefault."""
    used_devices: list[Device] = []
    notes: list[str] = []
    for device in devices:
        why = _dropped(settings, device)
        if why:
            notes.append(
                f"{device.name}{f' ({device.description})' * bool(device.description)}: Ollama "
                f"does not use {why}"
            )
        else:
            used_devices.append(device)
    return used_devices, notes


def _dropped(settings: Settings, device: Device) -> str:
    """Return why Ollama's server uses no such device; "" if it does."""
    backend = device.backend.lower()
    if settings.library and not settings.library.startswith(backend):
        return f"it: OLLAMA_LLM_LIBRARY is {settings.library}"
    if backend == "vulkan" and not settings.vulkan:
        return "it: OLLAMA_VULKAN turns Vulkan off"
    # A Jetson's GPU and Apple's are integrated and always used
    if device.kind != "igpu" or settings.integrated or backend in ("cuda", "mtl"):
        return ""
    if backend == "rocm" and _INTEGRATED_ROCM.search(device.description):
        return ""
    return "an integrated GPU unless OLLAMA_IGPU_ENABLE=1 is set for its server"


def is_embedding(model: Model) -> bool:
    """Return whether Ollama takes it for an embedding model: by the pooling type alone."""
    return f"{model.architecture}.pooling_type" in model.header.metadata


def parallel(model: Model, settings: Settings) -> int:
    """Return the model's number of slots."""
    # ollama_single: architectures whose caches cannot be shared by slots there, e.g. qwen3next
    single = is_embedding(model) or model.row.ollama_single
    return 1 if single else settings.parallel


def default_context(settings: Settings, devices: Sequence[Device]) -> int:
    """Return num_ctx if neither request nor model has one, by total memory, not free memory."""
    if settings.context_length is not None:
        return settings.context_length
    total = sum(max(0, device.total - settings.gpu_overhead) for device in devices)
    return next(n_ctx for memory, n_ctx in _CONTEXTS if total >= memory)


def clamped(n_ctx: int, model: Model, vision: bool) -> int:
    """Return num_ctx, clamped by the server between its minimum and the trained context."""
    if model.n_ctx_train:
        n_ctx = min(n_ctx, model.n_ctx_train)
    # After the trained context: the minimum wins
    return max(n_ctx, _MIN_VISION_CONTEXT if vision else _MIN_CONTEXT)


def flash_attention(settings: Settings, devices: Sequence[Device]) -> str:
    """Return the value of --flash-attn."""
    if settings.flash_attention is not None:
        return "on" if settings.flash_attention else "off"
    for device in devices:
        capability = device.compute_capability if device.backend == Cuda.name else None
        # FlashAttentionSupported of ml/device.go: before Pascal, and Xavier's 7.2
        if capability is not None and (capability[0] < 6 or capability == (7, 2)):
            return "off"
    return "auto"


def predicted(model: Model, size: int, n_ctx: int) -> int:
    """Return Ollama's own guess of the memory a model takes, bytes (llm.PredictServerVRAM): the
    file and an f16 cache as if every layer had the fewest KV heads. It decides on GPUs and batch,
    never on layers. `n_ctx` is the total of all slots."""
    return guessed(model.header.metadata, model.architecture, size, n_ctx)


def guessed(metadata: Mapping[str, object], architecture: str, size: int, n_ctx: int) -> int:
    """Return the same of a header's keys."""
    heads = _extreme(metadata.get(f"{architecture}.attention.head_count"), max)
    heads_kv = _extreme(metadata.get(f"{architecture}.attention.head_count_kv"), min) or heads
    layers = _extreme(metadata.get(f"{architecture}.block_count"), max)
    n_embd = _extreme(metadata.get(f"{architecture}.embedding_length"), max)
    # K and V, two bytes each; no graph, no projector, no sliding window
    return size + (2 * layers * heads_kv * (n_embd // heads) * n_ctx * 2 if heads else 0)


def automatic_batch(
    model: Model, size: int, n_ctx: int, devices: Sequence[Device], flash: str
) -> int:
    """Return num_batch if none is given; llama-server's micro-batch is the same. `n_ctx` is the
    total of all slots."""
    if is_embedding(model):
        return min(2048, n_ctx)
    if flash == "off" and Cuda.name in {device.backend for device in devices}:
        # Without flash attention the matrix of scores grows with the batch
        small = any(device.total <= 8 * GiB for device in devices)
        return 256 if small and n_ctx > 4096 else BATCH
    # Where automatic_batch starts from.
    batch = next(batch for above, batch in _BATCHES if n_ctx > above)
    if not devices:
        return batch
    guess, free = predicted(model, size, n_ctx), _free(devices)
    # Down the list until it fits: the smallest always does
    while batch in _SPACE:
        share, surcharge = _SPACE[batch]
        if guess <= share * free and guess + surcharge <= PACKED * free:
            break
        batch //= 2
    return batch


def _free(devices: Sequence[Device]) -> int:
    """Return the bytes free on all of them."""
    return sum(device.free for device in devices)


def visible_devices(
    model: Model,
    size: int,
    n_ctx: int,
    settings: Settings,
    devices: Sequence[Device],
    main_gpu: int | None = None,
) -> list[Device]:
    """Return the GPUs that the model is loaded on: main_gpu within its backend, otherwise the
    single best one if Ollama's guess leaves a fifth of its free memory, otherwise all of one
    backend (discrete before integrated, then the most free memory)."""
    if not devices:
        return []
    # The GPUs of each backend, which are never mixed; no integrated ones where there are others
    by_kind: dict[tuple[bool, str], list[Device]] = {}
    for device in devices:
        by_kind.setdefault((device.kind != "igpu", device.backend), []).append(device)
    discrete = [group for (is_discrete, _), group in by_kind.items() if is_discrete]
    groups = discrete or list(by_kind.values())
    largest = max(groups, key=_free)
    # main_gpu 0 counts as given, and makes it a single GPU
    if main_gpu is not None and len(devices) > 1 and 0 <= main_gpu < len(largest):
        return [largest[main_gpu]]
    if not settings.spread:
        best = max(chain.from_iterable(groups), key=lambda device: device.free)
        if predicted(model, size, n_ctx) <= PACKED * best.free:
            return [best]
    return largest


def _extreme(value: object, choose: Callable[[list[int]], int]) -> int:
    """Return the smallest value of a number that may be per layer; zeros do not count."""
    if isinstance(value, tuple):
        # A layer without attention has 0 heads
        return choose([int(item) for item in value if item] or [0])
    return int(value) if isinstance(value, (int, float)) else 0
