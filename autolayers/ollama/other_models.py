"""Which other models Ollama would load beside those that it has, and which would make it unload one
first.

    for other in other_models(server, devices, settings):
        other.name, other.keeps, other.guess, other.allowed  # "qwen3:8b", False, 6.2 GiB of 5.1 GiB

Ollama 0.33 (2026-08-21): server/sched.go:processPending, load and findRunnerToUnload. Its own guess
of a model has to stay within 80 % of the free memory, and of models there may be
OLLAMA_MAX_LOADED_MODELS, three a GPU by default.
"""

from __future__ import annotations

import re

from ..records import as_json, dataclass
from ..sources.ollama.api import OllamaError, OllamaServer
from .settings import PACKED, Settings, default_context, guessed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ..machine import Device

MODELS_A_GPU = 3  # defaultModelsPerGPU
_MOST = 24  # models that are asked for
# lines of /api/show's "parameters", e.g. "num_ctx                        8192"
_GIVEN = re.compile(r"^(num_ctx|num_gpu) +(-?\d{1,9})\b", re.MULTILINE)


@dataclass(frozen=True)
class Other:
    """`guess`: Ollama's own, in bytes; `allowed`: what it may be. `evicts`: the model that goes
    first, where one does and which is known."""

    name: str
    guess: int
    allowed: int
    keeps: bool
    evicts: str = ""

    def to_dict(self) -> dict[str, object]:
        return {**as_json(self), "evicts": self.evicts or None}


def other_models(
    server: OllamaServer,
    devices: Sequence[Device],
    settings: Settings,
    loaded: Sequence[Mapping[str, Any]],
    most: int | None = None,
) -> Iterator[Other]:
    """Yield each model that the server has and that is not loaded; `most`:
    OLLAMA_MAX_LOADED_MODELS. Nothing is loaded."""
    names = [str(row.get("name")) for row in loaded]
    # of equal keep_alive it is the first by its file's name, which the server does not say
    first = names[0] if len(names) == 1 else ""
    # Without a GPU the CPU counts as one
    full = len(names) >= (most or MODELS_A_GPU * max(1, len(devices)))
    for model in _installed(server, names):
        arch = str(model.info.get("general.architecture"))
        n_ctx = model.given.get("num_ctx") or default_context(settings, devices)
        trained = model.info.get(f"{arch}.context_length")
        n_ctx = min(n_ctx, trained) if isinstance(trained, int) and trained > 0 else n_ctx
        # Embedding models have a single slot, whatever OLLAMA_NUM_PARALLEL says
        slots = 1 if f"{arch}.pooling_type" in model.info else settings.parallel
        guess = guessed(model.info, arch, model.size, n_ctx * slots)
        allowed = allowed_for(guess, devices, settings)
        # An explicit partial num_gpu skips the check, and may run out of memory
        keeps = not full and (guess <= allowed or model.is_partial or not devices)
        yield Other(model.name, guess, allowed, keeps, "" if keeps else first)


@dataclass(frozen=True)
class _Installed:
    """A model that the server has: `given` are num_ctx and num_gpu of its Modelfile."""

    name: str
    size: int
    info: Mapping[str, Any]
    given: Mapping[str, int]

    @property
    def is_partial(self) -> bool:
        """num_gpu keeps a part of it in RAM (explicitPartialGPUOffload)."""
        layers = self.info.get(f"{self.info.get('general.architecture')}.block_count")
        return isinstance(layers, int) and 0 <= self.given.get("num_gpu", -1) <= layers


def _installed(server: OllamaServer, loaded: Sequence[str]) -> Iterator[_Installed]:
    """Yield the server's own models that are not loaded and that it describes."""
    for entry in server.tags()[:_MOST]:
        name, size = str(entry.get("name")), entry.get("size")
        # /api/tags has the sum of all layers; nearly all of it is the model's
        if name in loaded or not isinstance(size, int):
            continue
        try:
            shown = server.show(name, verbose=False)
        except OllamaError:
            continue
        info = shown.get("model_info")
        if not isinstance(info, dict) or shown.get("remote_host"):
            continue
        given = _GIVEN.findall(str(shown.get("parameters") or ""))
        yield _Installed(name, size, info, {key: int(value) for key, value in given})


def allowed_for(guess: int, devices: Sequence[Device], settings: Settings) -> int:
    """Return 80 % of the best single GPU's free memory where the guess fits that, otherwise of all
    of the best backend's."""
    largest = max((device.free for device in devices), default=0)
    if not settings.spread and guess <= PACKED * largest:
        return int(PACKED * largest)
    sums: dict[str, int] = {}
    for device in devices:
        sums[device.backend] = sums.get(device.backend, 0) + device.free
    return int(PACKED * max(sums.values(), default=0))
