"""The launch that works on the machine that a log shows: planned with its devices, free memory,
build and flags.

    found = working(verdict, facts, Inputs(model))       # a Launch, or what is missing for one
    found.words, found.plan.fits
"""

from __future__ import annotations

import os
import re

from ..backends import HOST
from ..errors import AutolayersError, UsageError
from ..flags.parse import Arguments, Item, items, parse
from ..flags.table import Argument
from ..machine import Device, Host
from ..memory.estimate import Estimator
from ..model import Model, read_model
from ..planner import Plan, plan_request
from ..records import dataclass, replace
from ..request import Request
from ..units import GiB
from .advice import context_needed
from .bundled_header import bundled_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ..flags.params import Params
    from ..memory.breakdown import Usage
    from .facts import Facts
    from .hits import Verdict

# Fields of Params that say where the model lies: None and () leave them to the plan
PLACING = {
    "n_gpu_layers": None,
    "tensor_split": None,
    "overrides": (),
    "split_mode": None,
    "main_gpu": None,
    "fit": None,
    "fit_target": None,
}
_CONTEXT = {"n_ctx": None, "n_parallel": None}
BUFFERS = {"n_batch": None, "n_ubatch": None}
# Causes that another placement helps against
_MEMORY = ("oom_device", "oom_host", "buffer_limit", "partial_offload", "vram_spill", "fit_gave_up")
# of memory, by the phase of their refusal
_PARTS = {"load": "model", "cache": "context", "compute": "compute"}
_MODELS = {
    "-m",
    "--model",
    "-hf",
    "-hfr",
    "--hf-repo",
    "-mu",
    "--model-url",
    "-dr",
    "--docker-repo",
}
SECRET = ("--api-key", "-hft", "-mu", "-mmu")


@dataclass(frozen=True)
class LogInputs:
    """What is known besides the log: the model, own flags (--gpu, --ram, --machine), the machine.
    `files`: whether a model's file that the log names may be read."""

    model: Model | None = None
    own: Mapping[str, Any] | None = None
    devices: tuple[Device, ...] | None = None
    host: Host | None = None
    files: bool = True


@dataclass(frozen=True)
class ChangedCommand:
    """`words`: of the command, with as few changes as may be. `changed`: those that are new;
    `dropped`: the command's that they take the place of. `predicted`: bytes of the part that was
    refused, as the launch was given; None where not all of its flags are known. `header`: the
    bundled one that stands for the model's, "" where its own was read."""

    build: int
    words: tuple[str, ...]
    devices: tuple[Device, ...]
    plan: Plan
    changed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    predicted: int | None = None
    header: str = ""

    def to_dict(self) -> dict[str, object]:
        return {
            "build": self.build or None,
            "words": list(self.words),
            "devices": [
                {
                    "name": device.name,
                    "description": device.description,
                    "total": device.total,
                    "free": device.free,
                }
                for device in self.devices
            ],
            "without": list(self.dropped),
            "fits": self.plan.fits,
            "exact": self.plan.exact and not self.header,
            "header": self.header or None,
        }


_NO_MODEL = "-m FILE or a model's name: the launch that works is planned with its header"
_NO_GPU = (
    "--gpu NAME or SIZE: the log does not say how much memory there is, for the launch that works"
)
_NO_RAM = "--ram SIZE: the log does not say how much there is, for the launch that works"
_NO_LAUNCH = (
    "no launch of this model fits the memory that the log shows: a smaller file, or more memory"
)
_NO_SUCH = "no launch is planned: the command's flags are not for this machine or build"
_OF_ANOTHER = "the log is not of this model: more was refused than it has, so no launch is planned"


def working(verdict: Verdict, facts: Facts, inputs: LogInputs) -> ChangedCommand | str:
    """Return the launch that works, what is missing to plan one, or "" where no launch helps."""
    # not a lack of memory: the context itself must grow
    if verdict.cause == "context_limit":
        return _longer(verdict, facts, inputs)
    if verdict.cause not in _MEMORY:
        return ""
    try:
        given = prepared(verdict, facts, inputs)
        return given if isinstance(given, str) else _fitting_launch(given, verdict, facts)
    except UsageError:
        return _NO_SUCH
    except (AutolayersError, OSError, ValueError, RecursionError, MemoryError):
        return ""


def _fitting_launch(given: Prepared, verdict: Verdict, facts: Facts) -> ChangedCommand | str:
    """Return the launch that fits the memory that the log shows, or what is missing."""
    model, request = given.model, given.request
    # the pool grew while serving, beyond what was planned for: keep more free
    grew = verdict.phase == "run" and verdict.cause == "oom_device"
    if grew and request.params.fit_target is None:
        # --fit-target in MiB; 2 GiB is twice the usual margin
        request = asking(request, fit_target=(2048,))
    usage = _usage(verdict, model, request)
    # what the memory model says of the refused part, for the flags as they were
    predicted = None if usage is None else getattr(usage, _PARTS[verdict.phase or ""])
    devices = _refused(request.machine.devices, verdict, facts, usage)
    request = request.on(devices, request.host)
    size = verdict.bytes or 0
    # more was refused than this model has; a tenth for builds of other sizes
    if predicted is not None and verdict.phase != "compute" and size > 1.1 * predicted:
        return _OF_ANOTHER
    largest = "", 0
    if verdict.cause == "buffer_limit" and verdict.phase == "load" and size:
        # One tensor over the limit, such as a large vocabulary's: it stays in RAM. A backend splits
        # its buffers there, and no tensor
        overrides = tuple(
            (f"^{re.escape(name)}$", HOST)
            for name, info in model.header.tensors.items()
            if info.n_bytes >= size
        )
        if not overrides:
            return _OF_ANOTHER
        request = asking(request, overrides=(*overrides, *request.params.overrides))
    elif verdict.cause == "buffer_limit" and verdict.phase in ("compute", "run"):
        # drivers' limits are 4, 2 or 1 GiB
        size = size or 4 * GiB
        limit = next((limit for limit in (4 * GiB, 2 * GiB, GiB) if limit < size), size)
        largest = verdict.device or "", limit
    for plan in _fitting(model, request, largest):
        launch = changed_launch(given, plan, predicted)
        # what failed as it was given does not work
        # A plan without changes is the launch that died
        if launch.changed or not verdict.fatal:
            return replace(launch, devices=tuple(devices))
    return _NO_LAUNCH


def asking(request: Request, **changes: Any) -> Request:
    """Return the request with other values of some fields of Params."""
    params = replace(request.params, **changes)
    return request.asking(replace(request.arguments, params=params))


def _longer(verdict: Verdict, facts: Facts, inputs: LogInputs) -> ChangedCommand | str:
    """Return the launch with a context for what was asked; "" where the log says too little, or
    none fits."""
    need = context_needed(verdict, facts)
    try:
        given = prepared(verdict, facts, inputs) if need else ""
        if isinstance(given, str):
            return ""
        for plan in _fitting(given.model, asking(given.request, n_ctx=need), ("", 0)):
            if plan.params.n_ctx == need:
                return changed_launch(given, plan)
    except (AutolayersError, OSError, ValueError, RecursionError, MemoryError):
        pass
    return ""


@dataclass(frozen=True)
class Prepared:
    """The launch of a log as it was given: its words, the model (`header`: the bundled one that
    stands for it) and the request for the machine."""

    words: tuple[str, ...]
    arguments: Arguments
    model: Model
    header: str
    request: Request


def prepared(verdict: Verdict, facts: Facts, inputs: LogInputs) -> Prepared | str:
    """Return the launch as it was given, or what is missing for planning it. Raises UsageError for
    a command that no build reads, other AutolayersErrors for a model that cannot be read."""
    path = facts.model or (inputs.model.path if inputs.model is not None else "")
    # the command if the log shows it, otherwise what the context printed of itself
    words = with_model(facts.words or _logged_words(facts), path)
    arguments = parse(words, command=None)
    # The given model first, the log's file next, a bundled header last
    # none of another machine's: \\server\share would send the user's credentials there
    model, header = inputs.model, ""
    for name in (arguments.params.model or "", facts.model) if inputs.files else ():
        is_local = "://" not in name and not name.startswith(("\\\\", "//"))
        if model is None and is_local and os.path.isfile(name):
            model = read_model(name)
    if model is None:
        # without the file, a bundled header of the same model will do
        bundled = bundled_header(facts, words)
        if bundled is None:
            return _NO_MODEL
        model, header = bundled.model, bundled.name
    arguments = replace(
        arguments,
        # flags that the build lacks are the log's own business here
        # The log's build decides which flags and sizes hold
        own={
            **({"llama-build": facts.build} if facts.build else {}),
            **{
                key: value
                for key, value in (inputs.own or {}).items()
                if key not in ("gpu", "machine", "format")
            },
            "strict-flags": "off",
        },
        positional=(),
    )
    # None: nothing says what memory there is
    devices, host = _machine(verdict, facts, inputs)
    if devices is None:
        # What the user is asked to add
        return _NO_RAM if verdict.cause == "oom_host" else _NO_GPU
    request = Request.of(
        replace(arguments, params=_without_files(arguments.params, inputs.files)),
        devices=devices,
        host=host,
        checked=False,
    )
    return Prepared(words, arguments, model, header, request)


def changed_launch(given: Prepared, plan: Plan, predicted: int | None = None) -> ChangedCommand:
    """Return the command with what a plan changes, without what may be secret."""
    kept_words: list[str] = []
    dropped: list[str] = []
    kept_fields: set[str] = set()
    for item in items(given.words, None):
        row = item.flag if isinstance(item.flag, Argument) else None
        # addresses may hold keys
        if row is None or row.canonical in SECRET or any("://" in word for word in item.words):
            continue
        # files are the command's own
        if row.field not in ("", "model", "mmproj", "model_draft", "lora", "control_vector") and (
            getattr(plan.params, row.field) != getattr(given.arguments.params, row.field)
        ):
            dropped += item.words
            continue
        kept_words += item.words
        kept_fields.add(row.canonical if not row.field else row.field)
    changed: list[str] = []
    for item in items(plan.flags, None):
        row = item.flag if isinstance(item.flag, Argument) else None
        # Words that the plan adds: fields that no kept word sets
        if row is not None and row.field not in kept_fields:
            changed += item.words
    return ChangedCommand(
        given.request.build.number,
        (*kept_words, *changed),
        tuple(given.request.machine.devices),
        plan,
        tuple(changed),
        tuple(dropped),
        predicted,
        given.header,
    )


def merged(logged: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return the flags of the command that a log shows, and those that are given, which count where
    both have one."""
    try:
        # -c and --ctx-size are one flag
        given_flags = {_canonical(item) for item in items(given)} - {""}
        words = [
            word
            for item in items(logged)
            if _canonical(item) not in given_flags
            for word in item.words
        ]
    except UsageError:  # a command that was cut or has what no build knows
        words = list(logged)
    return (*words, *given)


def _canonical(item: Item) -> str:
    return item.flag.canonical if isinstance(item.flag, Argument) else item.name


def _logged_words(facts: Facts) -> tuple[str, ...]:
    """Return the command that the log shows, otherwise what the context says of itself."""
    if facts.words:
        return facts.words
    values = facts.values
    words: list[str] = []
    for key, flag in (
        ("n_ctx", "-c"),
        ("n_batch", "-b"),
        ("n_ubatch", "-ub"),
        ("n_seq_max", "-np"),
    ):
        value = values.get(key)
        # a damaged log may hold any number
        if isinstance(value, int) and 0 < value < 1 << 31:
            words += [flag, str(value)]
    for which, flag in (("K", "-ctk"), ("V", "-ctv")):
        if facts.cache_types.get(which, "f16") != "f16":
            words += [flag, facts.cache_types[which]]
    return tuple(words)


def with_model(words: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Return the words, and the model's file where they have none."""
    named = {item.name for item in items(words, None)} & _MODELS
    if named or "://" in path or not path.endswith(".gguf"):
        return words
    return "-m", path, *words


def _without_files(params: Params, files: bool) -> Params:
    """Return the parameters without files that are not here, or that may not be read."""
    changes: dict[str, object] = {}
    for name in ("mmproj", "model_draft"):
        path = getattr(params, name)
        if path and not (files and os.path.isfile(path)):
            changes[name] = None
    for name in ("lora", "control_vector"):
        changes[name] = tuple(
            path for path in getattr(params, name) if files and os.path.isfile(path)
        )
    return replace(params, rpc=(), **changes)  # type: ignore[arg-type]


def _machine(
    verdict: Verdict, facts: Facts, inputs: LogInputs
) -> tuple[list[Device] | None, Host | None]:
    """Return the log's devices and RAM; those that are given instead."""
    host = inputs.host or (Host(*facts.ram, "log") if facts.ram else None)
    if inputs.devices is not None:
        return list(inputs.devices), host
    # --gpu and --machine describe the machine for this plan alone
    own = inputs.own or {}
    if own.get("gpu") or own.get("machine"):
        request = Request.of(replace(parse((), command=None), own=dict(own)), checked=False)
        return list(request.machine.devices), inputs.host or request.host or host
    # RPC devices count only if the command reaches their servers
    served = "--rpc" in facts.words
    devices = [
        # Free memory where it is known, otherwise a card's own size
        device if device.free else replace(device, free=device.total, includes_context=False)
        for device in facts.devices.values()
        if device.total and (served or device.kind != "rpc")
    ]
    if verdict.cause != "oom_host":
        return devices or None, host
    # RAM has no more free than its refusal shows: Ollama refuses in advance, and says what there is
    if "gib" in verdict.detail and host is None:
        # "requires more system memory (20.1 GiB) than is available (14.9 GiB)"
        left = int(float(verdict.detail["left"].replace(",", ".")) * GiB)
        host = Host(left, left, "log")
    elif verdict.bytes and verdict.fatal and verdict.phase in _PARTS:
        # what was held, and less than what was refused
        limit = facts.held(HOST) + verdict.bytes - 1
        free = limit if host is None else min(host.available, limit)
        host = Host(limit, limit, "log") if host is None else replace(host, available=free)
    return (None if host is None else devices), host


def _fitting(model: Model, request: Request, largest: tuple[str, int]) -> Iterator[Plan]:
    """Yield plans that fit, and whose graph buffer on a device is smaller than `largest`: first
    those with the fewest of the given flags changed."""
    params = request.params
    tried: list[Params] = []
    refused: UsageError | None = None
    planned = False
    # A smaller micro-batch and flash attention shrink the buffer of scores
    batches = (None, 256, 128, 64) if largest[0] else ()
    small = [{"n_ubatch": n, "flash_attn": "on", "n_batch": None} for n in batches]
    # from none at all to all: the first that fits keeps most of the command. None is a field that
    # the plan chooses again
    each: tuple[Mapping[str, object], ...] = (
        {},
        *small,
        PLACING,
        {**PLACING, **BUFFERS},
        *({**PLACING, **change} for change in small),
        {**PLACING, **BUFFERS, **_CONTEXT},
    )
    for changes in each:
        changed = replace(params, **changes)  # type: ignore[arg-type]
        # flags that were not given change nothing when they are dropped
        if changed in tried:
            continue
        tried.append(changed)
        own = dict(request.arguments.own)
        # --ctx would be a second word on the context
        if changes:
            own.pop("ctx", None)
        again = request.asking(replace(request.arguments, params=changed, own=own))
        try:
            plan = plan_request(model, again)
        except UsageError as error:
            refused = refused or error
            continue
        use = plan.breakdown.devices.get(largest[0])
        # A plan may fit the memory and still have a buffer over the driver's limit
        if plan.fits and (use is None or not largest[0] or use.compute < largest[1]):
            yield plan
        planned = True
    # Only if no change of the command gave a plan at all
    if refused and not planned:
        raise refused


def _refused(
    devices: Sequence[Device], verdict: Verdict, facts: Facts, usage: Usage | None
) -> list[Device]:
    """Return the devices with no more free than the refusal shows: what was there before, as logged
    or as predicted, and what was asked for is more than there is."""
    if not verdict.bytes or verdict.cause != "oom_device" or verdict.phase not in _PARTS:
        return list(devices)
    before = facts.held(verdict.device or "")
    if not before and verdict.phase != "load":
        if usage is None:
            return list(devices)
        # the log shows no sizes at the default level: what was loaded before is predicted
        before = usage.model + (usage.context if verdict.phase == "compute" else 0)
    # One byte less than what would have been held
    limit = before + verdict.bytes - 1
    return [
        replace(device, free=min(device.free, limit)) if device.name == verdict.device else device
        for device in devices
    ]


def _usage(verdict: Verdict, model: Model, request: Request) -> Usage | None:
    """Return what the launch as it was given takes on the device that refused, by the memory model;
    None where its flags are not all known."""
    params = request.params
    if verdict.phase not in _PARTS or not verdict.bytes or params.n_gpu_layers is None:
        return None
    try:
        use = Estimator(model, request.build.number or None, request.companions).breakdown(
            params, request.machine.devices
        )
    except AutolayersError:
        return None
    return use.host if verdict.device == HOST else use.devices.get(verdict.device or "")
