"""Load what was planned and compare it with what Ollama then says; step down where it runs out of memory."""

from __future__ import annotations

from ..records import dataclass, field, replace
from ..sources.ollama.api import Refused
from ..sources.ollama.store import Name
from ..units import MiB, human
from .log import Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..sources.ollama.api import Server
    from .advice import Advice

_TRIES = 8
# Ollama sums llama-server's rounded log lines and leaves out what has no line there.
_TOLERANCE = 64 * MiB


@dataclass(frozen=True)
class LoadResult:
    """`parameters` are those of the load that worked, or of the last that did not. Sizes in bytes."""

    loaded: bool
    parameters: dict[str, int]
    lines: tuple[str, ...]
    size: int = 0
    size_vram: int = 0
    predicted: int = 0
    offloaded: tuple[int, int] | None = None
    failures: tuple[str, ...] = field(default=())

    @property
    def whole(self) -> bool:
        """All layers are on the GPU."""
        if self.offloaded is not None:
            return self.offloaded[0] >= self.offloaded[1]
        return self.size > 0 and self.size == self.size_vram

    def to_dict(self) -> dict[str, Any]:
        return {"loaded": self.loaded, "parameters": self.parameters, "all_layers_on_gpu": self.whole,
                "size": self.size, "size_vram": self.size_vram, "predicted_vram": self.predicted,
                "offloaded": list(self.offloaded) if self.offloaded else None, "failures": list(self.failures)}


def verify(advice: Advice, name: str, server: Server, log: str | None = None, environ: Mapping[str, str] | None = None,
           say: Callable[[str], None] = lambda line: None) -> LoadResult:
    """Loads `name` with the advice's parameters. On out of memory num_gpu is lowered by 1, 2, 4, ... layers.

    Raises OllamaError for what is no lack of memory.
    """
    # The batch is part of what was planned, so the trial always has it; it is stored only where it is pinned.
    options = {**advice.parameters, "num_batch": advice.num_batch}
    if advice.num_gpu is None:
        options["num_gpu"] = -1
    failures: list[str] = []
    for attempt in range(_TRIES):
        reader = Log(environ or {}, log) if server.is_local or log else None
        try:
            server.load(name, options)
            break
        except Refused as error:
            if not error.out_of_memory:
                raise
            failures.append(str(error))
            if options["num_gpu"] <= 0 or attempt == _TRIES - 1:
                line = f"{name} runs out of memory even with num_gpu {options['num_gpu']}"
                return LoadResult(False, options, (line, *failures[-1:]), failures=tuple(failures))
            fewer = max(0, options["num_gpu"] - (1 << attempt))
            say(f"out of memory with num_gpu {options['num_gpu']}: trying {fewer}")
            options["num_gpu"] = fewer
    offloaded = reader.offloaded() if reader else None
    kept = {key: value for key, value in options.items() if key != "num_batch" or advice.pin_batch}
    if advice.num_gpu is None and "num_gpu" not in advice.target.parameters:
        kept.pop("num_gpu")
    entry = _loaded(server, name)
    size, size_vram = (int(entry.get(key) or 0) for key in ("size", "size_vram"))
    predicted = 0 if failures else _predicted(advice)
    result = LoadResult(True, kept, (), size, size_vram, predicted, offloaded, tuple(failures))
    return replace(result, lines=tuple(_lines(result, advice, name, entry)))


def _predicted(advice: Advice) -> int:
    """Bytes on all GPUs: of the plan, or of --fit's own choice where Ollama makes it; 0 where unknown."""
    if advice.num_gpu is not None:
        return sum(row.model + row.context + row.compute for row in advice.plan.devices)
    rival = advice.plan.fit_choice
    return sum(usage.total for usage in rival.breakdown.devices.values()) if rival is not None else 0


def _loaded(server: Server, name: str) -> Mapping[str, Any]:
    """The entry of /api/ps: by name, else by digest, else the only one there is (another name of the same weights)."""
    entries = server.ps()
    wanted = Name.parse(name)
    digests = {str(entry.get("digest")) for entry in server.tags() if _is(entry, wanted)}
    by_name = [entry for entry in entries if _is(entry, wanted)]
    by_digest = [entry for entry in entries if str(entry.get("digest")) in digests]
    return next(iter(by_name or by_digest or (entries if len(entries) == 1 else [])), {})


def _is(entry: Mapping[str, Any], name: Name) -> bool:
    from ..errors import ModelError

    try:
        return Name.parse(str(entry.get("name") or entry.get("model"))).same(name)
    except ModelError:
        return False


def _lines(result: LoadResult, advice: Advice, name: str, entry: Mapping[str, Any]) -> list[str]:
    lines = [f"{name} loaded with " + ", ".join(f"{key} {value}" for key, value in result.parameters.items())]
    if result.offloaded:
        lines.append(f"the server's log: {result.offloaded[0]} of {result.offloaded[1]} layers on the GPU")
    if not entry:
        return [*lines, "the server does not list it as loaded: something else unloaded it at once"]
    if result.size == 0 or result.size_vram == 0:
        lines.append("Ollama reports no GPU memory for it: it runs on the CPU")
    elif result.size == result.size_vram:
        lines.append(f"wholly on the GPU: {human(result.size_vram)}")
    else:
        lines.append(f"partly on the GPU: {human(result.size_vram)} of {human(result.size)}")
    if result.predicted and result.size_vram:
        difference = result.size_vram - result.predicted
        verdict = f"{human(abs(difference))} {'more' if difference > 0 else 'less'} than planned"
        verdict = "as planned" if abs(difference) <= _TOLERANCE else verdict
        lines.append(f"planned {human(result.predicted)} of GPU memory: {verdict}")
    context = entry.get("context_length")
    if isinstance(context, int) and context and context != advice.num_ctx:
        lines.append(f"num_ctx is {context}, planned was {advice.num_ctx}")
    wanted = advice.num_gpu is not None and advice.num_gpu >= advice.everything and not result.failures
    if wanted and not result.whole and result.size:
        lines.append("planned was all layers on the GPU")
    return lines
