"""Loads a plan and compares it with Ollama's report; retries with fewer layers if memory runs
out."""

from __future__ import annotations

from ..errors import ModelError
from ..flags.parse import parse
from ..records import dataclass, field, replace
from ..sources.ollama.api import OllamaServer, Refused
from ..sources.ollama.store import Name
from ..units import MiB, human
from .log import Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from .advice import OllamaAdvice

# Ollama sums llama-server's rounded log lines and omits what has no line
_TOLERANCE = 64 * MiB


@dataclass(frozen=True)
class _LoadResult:
    """`parameters` are those of the load that worked, or of the last that failed. Sizes in
    bytes."""

    loaded: bool
    parameters: dict[str, int]
    lines: tuple[str, ...]
    size: int = 0
    size_vram: int = 0
    predicted: int = 0
    offloaded: tuple[int, int] | None = None
    failures: tuple[str, ...] = field(default=())
    differences: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """All layers are on the GPU."""
        if self.offloaded is not None:
            return self.offloaded[0] >= self.offloaded[1]
        return self.size > 0 and self.size == self.size_vram

    def to_dict(self) -> dict[str, Any]:
        return {
            "loaded": self.loaded,
            "parameters": self.parameters,
            "all_layers_on_gpu": self.whole,
            "size": self.size,
            "size_vram": self.size_vram,
            "predicted_vram": self.predicted,
            "offloaded": list(self.offloaded) if self.offloaded else None,
            "failures": list(self.failures),
            "differences": list(self.differences),
        }


def verify(
    advice: OllamaAdvice,
    name: str,
    server: OllamaServer,
    log: str | None = None,
    environ: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> _LoadResult:
    """Load `name` with the advice's parameters. If memory runs out, num_gpu is lowered by 1, 2, 4,
    ... layers until it loads, then raised again by bisection: the largest that works stays loaded.

    Raises OllamaError for any other failure.
    """
    # the batch is part of the plan, so every trial has it; it is stored only if it is pinned
    options = {**advice.parameters, "num_batch": advice.num_batch}
    if advice.num_gpu is None:
        # On a loaded model -1 keeps what is there: the caller unloads it first
        options["num_gpu"] = -1
    trials = _Trials(server, name, options, environ or {}, log)
    best = _most_layers(options["num_gpu"], trials.loads, say)
    failures = tuple(trials.failures)
    if best is None:
        line = f"{name} runs out of memory even with num_gpu {options['num_gpu']}"
        return _LoadResult(False, options, (line, *failures[-1:]), failures=failures)
    reader = trials.reader
    # Asked at once: keep_alive may end
    # The entry of /api/ps: by name, otherwise by digest, otherwise the only one (another name
    # of the same weights)
    entries = server.ps()
    wanted = Name.parse(name)
    digests = {str(entry.get("digest")) for entry in server.tags() if _is(entry, wanted)}
    by_name = [entry for entry in entries if _is(entry, wanted)]
    # Names of one blob share a runner, and /api/ps shows the first of them
    by_digest = [entry for entry in entries if str(entry.get("digest")) in digests]
    only = entries if len(entries) == 1 else []
    matching = by_name or by_digest or only
    entry = matching[0] if matching else {}
    size, size_vram = entry.get("size", 0), entry.get("size_vram", 0)
    # /api/ps has one figure per kind of buffer: of two caches, the last
    on_gpu = max(size_vram, reader.on_gpu() if reader and size_vram else 0)
    # The parameters that the Modelfile gets.
    stored = dict(options)
    if not advice.pin_batch:
        del stored["num_batch"]
    if advice.num_gpu is None and "num_gpu" not in advice.target.parameters:
        del stored["num_gpu"]
    # The bytes on all GPUs: of the plan, or of --fit's choice if Ollama makes it; 0 if
    # unknown
    if advice.num_gpu is not None:
        guess = sum(row.model + row.context + row.compute for row in advice.plan.devices)
    else:
        # --fit's, where num_gpu is left out
        own = advice.own_choice
        guess = own.breakdown.on_devices if own is not None else 0
    result = _LoadResult(
        True,
        stored,
        (),
        max(size, on_gpu),
        on_gpu,
        # With fewer layers than planned there is nothing to compare
        0 if failures else guess,
        reader.offloaded() if reader else None,
        failures,
        _differences(advice, reader.arguments() if reader else ()),
    )
    return replace(result, lines=tuple(_lines(result, advice, name, entry)))


class _Trials:
    """Loads a model with more or fewer layers on the GPU. `failures`: why some ran out of memory;
    `reader`: of the server's log since the last."""

    def __init__(
        self,
        server: OllamaServer,
        name: str,
        options: dict[str, int],
        environ: Mapping[str, str],
        log: str | None,
    ) -> None:
        self.server, self.name, self.options = server, name, options
        self.environ, self.log = environ, log
        self.failures: list[str] = []
        self.reader: Log | None = None

    def loads(self, num_gpu: int) -> bool:
        """Load with so much on the GPU; false if memory runs out. Raises OllamaError."""
        self.options["num_gpu"] = num_gpu
        has_log = self.server.is_local or self.log
        # Made before the load: it reads what is written from now on
        self.reader = Log(self.environ, self.log) if has_log else None
        try:
            self.server.load(self.name, self.options)
        except Refused as error:
            # Another failure would only repeat with fewer layers
            if not error.out_of_memory:
                raise
            self.failures.append(str(error))
            return False
        return True


def _most_layers(
    wanted: int, loads: Callable[[int], bool], say: Callable[[str], None]
) -> int | None:
    """Return the most layers that load, and stay loaded; None if not even 0 do. A negative number
    is Ollama's own choice, which is not lowered."""
    if loads(wanted):
        return wanted
    if wanted <= 0:
        return None
    failed, step, works = wanted, 1, None
    # 1, 2, 4, ... fewer: a guess that is far off is left after few loads, which take a minute each
    while works is None and failed > 0:
        fewer = max(0, failed - step)
        say(f"out of memory with num_gpu {failed}: trying {fewer}")
        step *= 2
        if loads(fewer):
            works = fewer
        else:
            failed = fewer
    if works is None:
        return None
    last = works
    while failed - works > 1:
        last = (works + failed) // 2
        say(f"num_gpu {works} works and {failed} does not: trying {last}")
        if loads(last):
            works = last
        else:
            failed = last
    # The last trial failed, so the best one is loaded again
    if last != works:
        loads(works)
    return works


# llama-server's flag, and the server setting that it reveals
_SETTINGS = (
    ("-np", "OLLAMA_NUM_PARALLEL"),
    ("-c", "num_ctx times OLLAMA_NUM_PARALLEL"),
    ("-ub", "num_batch"),
    ("-ctk", "OLLAMA_KV_CACHE_TYPE"),
    ("-fa", "OLLAMA_FLASH_ATTENTION"),
    ("--spec-type", "draft_num_predict"),
)
_DEFAULTS = {"-ctk": "f16", "-fa": "auto"}


def _differences(advice: OllamaAdvice, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the differences between the plan and the llama-server that was started."""
    if not arguments:
        return ()
    started, planned = parse(arguments, command=None), parse(advice.words, command=None)
    lines = []
    for flag, setting in _SETTINGS:
        # A flag that is missing in both has the same default
        theirs = started.value(flag) or _DEFAULTS.get(flag, "")
        ours = planned.value(flag) or _DEFAULTS.get(flag, "")
        if theirs != ours:
            lines.append(
                f"the server started llama-server with {flag} {theirs or '(nothing)'}, the plan "
                f"has {ours or '(nothing)'}: {setting} differs there"
            )
    return tuple(lines)


def _is(entry: Mapping[str, Any], name: Name) -> bool:
    try:
        return Name.parse(str(entry.get("name") or entry.get("model"))).same(name)
    except ModelError:
        return False


def _lines(
    result: _LoadResult, advice: OllamaAdvice, name: str, entry: Mapping[str, Any]
) -> list[str]:
    lines = [
        f"{name} loaded with "
        + ", ".join(f"{key} {value}" for key, value in result.parameters.items())
    ]
    if not entry:
        return [*lines, "the server does not list it as loaded: something else unloaded it at once"]
    lines += _placed(result, advice)
    if result.predicted and result.size_vram:
        # How the reported GPU memory compares with the plan's.
        difference = result.size_vram - result.predicted
        verdict = f"{human(abs(difference))} {'more' if difference > 0 else 'less'} than planned"
        if abs(difference) <= _TOLERANCE:
            verdict = "as planned"
        against_plan = f"planned {human(result.predicted)} of GPU memory: {verdict}"
        lines.append(against_plan)
    return [*lines, *result.differences, *_warnings(result, advice, entry)]


def _warnings(result: _LoadResult, advice: OllamaAdvice, entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is not as planned, and a plan that does not fit."""
    context = entry.get("context_length")
    if isinstance(context, int) and context and context != advice.num_ctx:
        yield f"num_ctx is {context}, not {advice.num_ctx} as planned"
    planned = advice.num_gpu is not None and advice.num_gpu >= advice.everything
    if planned and not result.failures and (result.size > 0 and not result.whole):
        yield "the plan has all layers on the GPU"
    if not advice.plan.fits:
        yield "the plan does not fit: it may run out of memory in use"


def _placed(result: _LoadResult, advice: OllamaAdvice) -> Iterator[str]:
    """Yield what the server reports of the GPU."""
    # the log counts layers even without a GPU
    if not result.size_vram:
        yield "Ollama reports no GPU memory for it: it runs on the CPU"
        return
    if result.offloaded:
        yield (
            f"the server's log: {result.offloaded[0]} of {result.offloaded[1]} layers on the GPU"
        )
    if result.size == result.size_vram:
        yield f"fully on the GPU: {human(result.size_vram)}"
    else:
        yield f"partly on the GPU: {human(result.size_vram)} of {human(result.size)}"
    if not advice.devices:
        yield "it is on a GPU that was not found here: describe it with --gpu SIZE"
