"""Where llama.cpp puts each weight, and what the buffers then take.

    place = place_weights(model, params, devices)
    place.dev_layer[3], place.dev_output      # "CUDA0", or "CPU"
    place.lookup("blk.3.attn_q.weight")       # its buffer type: "CUDA0", "CUDA_Host", "CPU_REPACK", "CPU"
    place.buffers                             # {"CUDA0": bytes, "CUDA_Host": bytes}

Mirrors llama_prepare_model_devices (src/llama.cpp), llama_model_base::load_tensors, make_cpu_buft_list and make_gpu_buft_list
(src/llama-model.cpp), llama_model_loader::create_tensor and ggml_backend_alloc_ctx_tensors_from_buft of 2026-10-01. Host
buffers are counted as without mmap, as llama.cpp's own measuring pass does.
"""

from __future__ import annotations

from bisect import bisect_right

from ..backends import CPU, Backend, backend
from ..backends.cpu import repacks
from ..errors import LaunchRefused, UsageError
from ..gguf import BY_NAME, TensorInfo, row_size
from ..model.lazy import lazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Sequence
    from dataclasses import dataclass, field

    from ..devices.device import Device
    from ..model import Model, Weight
    from ..params import Params
else:
    from ..records import dataclass, field

HOST = "CPU"                     # the device name of everything that is not offloaded
LAZY_MIN_SIZE = 4 << 30          # smaller tensors are not worth reading lazily


@dataclass(frozen=True)
class Placed:
    """One created tensor. `copy` marks the second and later ones of the same file tensor (tied output, rope factors)."""

    name: str
    info: TensorInfo
    buffer: str      # buffer type: a device's name, CPU, CPU_REPACK, CUDA_Host...
    size: int        # with padding and alignment
    copy: bool = False
    block: int = -1  # the layer it is part of

    @property
    def type(self) -> str:
        return self.info.type

    @property
    def ne(self) -> tuple[int, int, int, int]:
        return self.info.ne


class Lot:
    """Tensors that are placed together, mostly those of one layer. One and the same object in all placements of a model
    that put them in the same buffers, so that what is found out about it is found out once."""

    __slots__ = ("buffers", "resident", "tensors")

    def __init__(self) -> None:
        self.tensors: dict[str, Placed] = {}   # by name
        self.buffers: dict[str, int] = {}      # buffer type -> bytes
        self.resident = 0                      # bytes of host weights that must be in RAM even if they are mapped


@dataclass(frozen=True)
class Placement:
    devices: tuple[Device, ...]          # those the model uses, in llama.cpp's order
    n_gpu_layers: int                    # effective: 0 to n_layer + 1
    dev_layer: tuple[str, ...]           # per block, MTP blocks included
    dev_output: str
    lots: tuple[Lot, ...]
    buffers: dict[str, int]              # buffer type -> bytes of all its tensors
    resident: int                        # bytes of host weights that must be in RAM even if they are mapped
    exact: bool = True
    warnings: tuple[str, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)   # of split modes row and tensor: what part of a matrix a device has
    _devices: dict[str, Device] = field(default_factory=dict, repr=False)
    target: Placement | None = None      # of the model a draft works for: it may use that one's embeddings and head

    @lazy
    def tensors(self) -> tuple[Placed, ...]:
        return tuple([placed for lot in self.lots for placed in lot.tensors.values()])

    @lazy
    def _by_name(self) -> dict[str, Placed]:
        found: dict[str, Placed] = {}
        for lot in reversed(self.lots):
            found.update(lot.tensors)
        return found

    @lazy
    def output(self) -> Placed | None:
        """The matrix of the output layer: output.weight, or the copy of token_embd that stands in for it."""
        name = "output.weight" if "output.weight" in self._by_name else "token_embd.weight"
        return next((lot.tensors[name] for lot in reversed(self.lots) if name in lot.tensors), None)

    def lookup(self, name: str, block: int | None = None) -> Placed | None:
        """The created tensor `name`, None if the file has none or it was skipped. Of rope factors the copy beside `block`."""
        found = self._by_name.get(name)
        if found is not None and block is not None and name.startswith("rope_f"):
            here = self.dev_layer[block]
            return next((p for p in self.tensors if p.name == name and self.is_host(p.buffer) == (here == HOST)
                         and (here in (HOST, p.buffer))), found)
        return found

    def is_host(self, buffer: str) -> bool:
        return buffer not in self._devices

    def device(self, name: str) -> Device:
        return self._devices[name]

    @lazy
    def host(self) -> int:
        """Bytes of all buffers in host memory."""
        return sum(size for name, size in self.buffers.items() if self.is_host(name))


def place_weights(model: Model, params: Params, devices: Sequence[Device], load_mtp: bool = False) -> Placement:
    """The Placement of `model` on `devices` (all the machine has, in registry order). None in params: llama-server's default,
    and n_gpu_layers None, -1 or -2: everything. `load_mtp`: the MTP blocks are wanted too (Context.load_mtp).

    Raises LaunchRefused where llama.cpp would not load the model, UsageError for names of devices it does not have.
    """
    hp = model.hparams
    used, exact, warnings = _model_devices(params, devices)
    n = hp.n_layer_all + 1
    wanted = params.n_gpu_layers if params.n_gpu_layers is not None and params.n_gpu_layers >= 0 else n
    offloaded = min(wanted, n) if used else 0
    dev_of = _layers(n, wanted, used, params.tensor_split or ())
    known = {device.name: device for device in devices}
    shares = _shares(params, used) if params.split_mode in ("row", "tensor") else {}

    created = _created(model, load_mtp)
    rows = {device.name: backend(device.backend) for device in devices}
    host_row = None
    if not params.no_host:
        host_row = next((rows[device.name] for device in used if rows[device.name].host_buffer), None)
    entries = _entries(model, created, load_mtp, tuple(sorted({rows[d.name].name for d in used} | _targets(params, rows))))
    groups = _groups(model, entries, load_mtp)
    targets = _overridden(model, created, groups, load_mtp, params.overrides, known) if params.overrides else {}
    host_of = _host_buffers(model, entries, load_mtp, host_row, params.repack is not False)
    use_mmap = (params.load_mode or "auto") in ("auto", "mmap", "mmap+mlock") and all(
        rows[device.name].mmap and (device.kind != "igpu" or rows[device.name].igpu_mmap) for device in used)
    lazily = params.lazy_mode or "auto"
    always_copy = model.row.tied == "first"
    mine = {device.name for device in used}
    seen: dict[str, set[str]] = {}       # of tensors created more than once: where they are already
    mapped: set[str] = set()

    def put(lot: Lot, i: int, device: str, target: str | None) -> None:
        weight, _, duplicate, twin, sizes, supported = entries[i]
        info = weight.info
        buffer = host_of[i] if target == HOST else target
        if buffer is None:
            buffer = device if device != HOST and supported[rows[device].name] else host_of[i]
        on_device = buffer in known
        if on_device and buffer not in mine:
            raise LaunchRefused(f"tensor {info.name} is overridden to {buffer}, which the model does not use; llama.cpp aborts")
        if twin:
            there = seen.setdefault(info.name, set())
            if duplicate and buffer in there and not (always_copy and info.name == "token_embd.weight"):
                return
            there.add(buffer)
        size = sizes[rows[buffer].name] if on_device else sizes["CPU"]
        parts = split(shares, info.type, info.ne, size, weight.op.startswith("MUL_MAT")) if on_device and shares else [(buffer, size)]
        for name, part in parts:
            lot.buffers[name] = lot.buffers.get(name, 0) + part
        lot.tensors[info.name] = Placed(info.name, info, buffer, size, duplicate, -1 if weight.op == "ROPE" else weight.block)
        if on_device:
            return
        if info.name == "per_layer_token_embd.weight" and lazily != "off" and model.row.name in ("gemma4", "qwen4exp") \
                and (lazily == "on" or info.n_bytes > LAZY_MIN_SIZE):
            return                           # read row by row from the file
        if use_mmap and buffer != "CPU_REPACK":
            if info.name not in mapped:      # copies of a mapped tensor are the same pages
                lot.resident += info.n_bytes
                mapped.add(info.name)
        else:
            lot.resident += size

    settings = (load_mtp, tuple([(device.name, device.backend, device.name in mine) for device in devices]), host_row and host_row.name,
                params.repack is not False, use_mmap, lazily, tuple(shares.items()))
    kept: dict[object, Lot] = model.memo.setdefault(("lots", settings), {})
    lots: list[Lot] = []
    for number, (where, members) in enumerate(groups):
        device = HOST if where < 0 else dev_of[where]
        wishes = targets.get(number, ())
        alone = entries[members[0]][3]       # a twin: what becomes of it depends on the other
        lot = None if alone else kept.get((number, device, wishes))
        if lot is None:
            lot = Lot()
            for i, target in zip(members, wishes or [None] * len(members), strict=True):
                put(lot, i, device, target)
            if not lot.tensors:
                continue
            lot = kept.setdefault((number, *lot.buffers, lot.resident) if alone else (number, device, wishes), lot)
        lots.append(lot)
    buffers: dict[str, int] = {}
    for lot in lots:
        for name, size in lot.buffers.items():
            buffers[name] = buffers.get(name, 0) + size
    return Placement(used, offloaded, tuple(dev_of[:-1]), dev_of[-1], tuple(lots), buffers, sum([lot.resident for lot in lots]), exact,
                     warnings, shares, known)


# devices and layers


def _model_devices(params: Params, devices: Sequence[Device]) -> tuple[tuple[Device, ...], bool, tuple[str, ...]]:
    """llama_prepare_model_devices: what of the machine this model uses."""
    by_name = {device.name: device for device in devices}
    if params.device is not None:
        for name in params.device:
            if name not in by_name:
                raise UsageError(f"invalid device: {name} (there are: {', '.join(by_name) or 'none'})")
        used = [by_name[name] for name in params.device]
    else:
        gpus: list[Device] = []
        for device in devices:
            if device.kind == "gpu" and (device.pci_id is None or device.pci_id not in {gpu.pci_id for gpu in gpus}):
                gpus.append(device)
        used = [device for device in devices if device.kind == "rpc"] + gpus
        if not gpus:
            used += [device for device in devices if device.kind == "igpu"]
    mode = params.split_mode or "layer"
    if mode == "none" and used:
        main = params.main_gpu or 0
        if main < 0:
            used = []
        elif main >= len(used):
            raise LaunchRefused(f"invalid value for main_gpu: {main} (available devices: {len(used)})")
        else:
            used = [used[main]]
    if mode == "row":
        for device in used:
            if not backend(device.backend).split_rows:
                raise LaunchRefused(f"device {device.name} does not support split buffers")
    warnings = [f"split mode {mode}: the shares of the devices are an upper bound"] if mode in ("row", "tensor") and used else []
    for name in dict.fromkeys(device.backend for device in used if not backend(device.backend).proven):
        warnings.append(f"backend {name}: alignment and padding are an upper bound, not compared with llama.cpp yet")
    return tuple(used), not warnings, tuple(warnings)


def _layers(n: int, n_gpu_layers: int, devices: Sequence[Device], tensor_split: Sequence[float]) -> list[str]:
    """The device of each of the `n` layers, the output layer last; in float32, whose rounding decides at the boundaries."""
    start = max(n - n_gpu_layers, 0)
    count = min(n_gpu_layers, n) if devices else 0
    layers = [HOST] * n
    if not count:
        return layers
    from array import array

    splits = _splits(devices, tensor_split)
    cum = array("f")
    total = array("f", [0.0])
    for share in splits:
        total[0] = total[0] + array("f", [share])[0]
        cum.append(total[0])
    if total[0] == 0:
        return layers if not devices else _all_on_last(layers, start, count, devices)
    points = list(array("f", (x / total[0] for x in cum)))
    fractions = array("f", (i / count for i in range(count)))
    for i, fraction in enumerate(fractions):
        layers[start + i] = devices[min(bisect_right(points, fraction), len(devices) - 1)].name
    return layers


def _all_on_last(layers: list[str], start: int, count: int, devices: Sequence[Device]) -> list[str]:
    for i in range(count):
        layers[start + i] = devices[-1].name
    return layers


def _splits(devices: Sequence[Device], tensor_split: Sequence[float]) -> list[float]:
    given = list(tensor_split[:len(devices)]) + [0.0] * max(0, len(devices) - len(tensor_split))
    return given if any(given) else [float(device.free) for device in devices]


def _shares(params: Params, used: Sequence[Device]) -> dict[str, float]:
    splits = _splits(used, params.tensor_split or ())
    total = sum(splits) or 1.0
    return {device.name: share / total for device, share in zip(used, splits, strict=True)}


def split(shares: dict[str, float], type_: str, ne: tuple[int, int, int, int], size: int, divisible: bool,
          granule: int = 512) -> list[tuple[str, int]]:
    """(device, bytes) of a tensor that split mode row or tensor spreads: at most its share and one granule of rows, or all of
    it on every device. An upper bound: llama.cpp's own cuts (llama_meta_device_get_split_state) are not followed."""
    if not divisible:
        return [(name, size) for name in shares]
    extra = row_size(type_, ne[0]) * granule * ne[2] if type_ in BY_NAME else size
    return [(name, min(size, int(size * share) + extra)) for name, share in shares.items() if share > 0]


# which tensors are created, for which layers


def _created(model: Model, load_mtp: bool) -> list[tuple[Weight, int, bool]]:
    """(weight, layer, duplicate) of every tensor llama.cpp creates: layer -1 is the input, n_layer_all the output.
    A duplicate is created only where its buffer has not got the tensor yet."""
    key = ("created", load_mtp)
    if key in model.memo:
        found: list[tuple[Weight, int, bool]] = model.memo[key]
        return found
    hp, row = model.hparams, model.row
    output = hp.n_layer_all
    skip_from = hp.n_layer if hp.n_layer_nextn and hp.router_layer < 0 else hp.n_layer_all
    if load_mtp and row.mtp_graph:
        skip_from = hp.n_layer_all
    leaks = _compile(row.mtp_leaks) if row.mtp_leaks and skip_from < hp.n_layer_all else None
    created: list[tuple[Weight, int, bool]] = []
    embedding = None
    for weight in model.weights:
        name = weight.info.name
        if weight.op == "NONE":
            continue
        if weight.layer == "repeating":
            if weight.op == "ROPE":
                users = _rope_users(model)
                created += [(weight, il, i > 0) for i, il in enumerate(users)]
                continue
            if skip_from <= weight.block < hp.n_layer_all and not (leaks and leaks.search(name)):
                continue
            block = weight.block
            if name.startswith(("dec.", "convnext.", "posnet.")) or block >= hp.n_layer_all:
                block = min(block, hp.n_layer_all - 1)
            created.append((weight, block, False))
        else:
            created.append((weight, -1 if weight.layer == "input" else output, False))
        if name == "token_embd.weight":
            embedding = weight
    if embedding is not None and row.tied != "never" and (row.tied == "always" or "output.weight" not in model.tensors):
        created.append((_as_output(embedding), output, True))
    elif embedding is None and row.name == "codeshell":
        created += [item for item in created if item[0].info.name == "output.weight"]
    model.memo[key] = created
    return created


def _as_output(weight: Weight) -> Weight:
    return type(weight)(weight.info, "output", -1, "MUL_MAT", weight.known)


def _rope_users(model: Model) -> list[int]:
    hp = model.hparams
    users = model.row.rope_users
    layers = range(hp.n_layer_all if users in ("all", "full-all") else hp.n_layer_phys if users == "physical" else hp.n_layer)
    if users.startswith("full"):
        return [il for il in layers if not hp.is_swa(il)]
    return list(layers)


# what a tensor takes and who can use it

Entry = tuple["Weight", int, bool, bool, "dict[str, int]", "dict[str, bool]"]


def _entries(model: Model, created: list[tuple[Weight, int, bool]], load_mtp: bool, names: tuple[str, ...]) -> list[Entry]:
    """`created` with, per backend, the bytes each tensor takes there and whether the backend can read it."""
    key = ("entries", load_mtp, names)
    if key not in model.memo:
        hp = model.hparams
        found = [backend(name) for name in names]
        twins = {weight.info.name for weight, _, duplicate in created if duplicate}
        entries = []
        for weight, where, duplicate in created:
            info = weight.info
            sizes = {row.name: row.padded(info.type, info.ne, info.n_bytes) for row in (*found, CPU)}
            supported = {row.name: row.supports(weight.op, info, hp) or info.type not in BY_NAME for row in found}
            entries.append((weight, where, duplicate, info.name in twins, sizes, supported))
        model.memo[key] = entries
    result: list[Entry] = model.memo[key]
    return result


Group = tuple[int, list[int]]


def _groups(model: Model, entries: list[Entry], load_mtp: bool) -> list[Group]:
    """(layer, entries): what always goes together. A tensor that may be created twice is alone."""
    key = ("groups", load_mtp)
    if key not in model.memo:
        together: dict[object, Group] = {}
        for i, (_, where, _, twin, _, _) in enumerate(entries):
            together.setdefault(("twin", i) if twin else where, (where, []))[1].append(i)
        model.memo[key] = list(together.values())
    result: list[Group] = model.memo[key]
    return result


def _host_buffers(model: Model, entries: list[Entry], load_mtp: bool, host: Backend | None, repack: bool) -> list[str]:
    """The buffer type each tensor gets in host memory: pinned if its device can read it, repacked, or plain."""
    key = ("host", load_mtp, host and host.name, repack)
    if key not in model.memo:
        model.memo[key] = [
            host.host_buffer if host and host.supports(weight.op, weight.info, model.hparams)
            else "CPU_REPACK" if repack and repacks(weight.op, weight.info) else HOST
            for weight, *_ in entries]
    result: list[str] = model.memo[key]
    return result


# tensor overrides


def _targets(params: Params, rows: dict[str, Backend]) -> set[str]:
    return {rows[target].name for _, target in params.overrides if target in rows}


def _overridden(model: Model, created: list[tuple[Weight, int, bool]], groups: list[Group], load_mtp: bool,
                overrides: tuple[tuple[str, str], ...], known: dict[str, Device]) -> dict[int, tuple[str | None, ...]]:
    """By group, of those that have any: per member the buffer type of the first override whose regex is found in its name."""
    for _, target in overrides:
        if target != HOST and target not in known:
            raise UsageError(f"unknown buffer type: {target} (there are: {', '.join([HOST, *known])})")
    key = ("overrides", load_mtp, overrides)
    if key not in model.memo:
        matches = model.memo.get(("matches", load_mtp))
        if matches is None:
            matches = model.memo["matches", load_mtp] = _Matches([weight.info.name for weight, _, _ in created])
        found: dict[int, str] = {}
        for text, target in reversed(overrides):                       # the first of several counts
            found.update(dict.fromkeys(matches.of(text), target))
        group_of = {i: number for number, (_, members) in enumerate(groups) for i in members}
        model.memo[key] = {number: tuple([found.get(i) for i in groups[number][1]]) for number in {group_of[i] for i in found}}
    result: dict[int, tuple[str | None, ...]] = model.memo[key]
    return result


class _Matches:
    """Which of a model's tensors a regex is found in. A search for a plan asks with a hundred of them, most of which begin with
    the name of one layer: then only that layer's tensors are looked at, and the rest is often the same."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.known: dict[str, list[int]] = {}
        self.rests: dict[str, re.Pattern[str]] = {}
        self.layers: dict[str, list[tuple[int, int]]] = {}      # "blk.7." -> tensors, and where it ends in their names
        for i, name in enumerate(names):
            at = name.find("blk.")
            while at >= 0:
                end = name.find(".", at + 4) + 1
                if end:
                    self.layers.setdefault(name[at:end], []).append((i, end))
                at = name.find("blk.", at + 1)

    def of(self, text: str) -> list[int]:
        """The tensors, in order. Raises UsageError."""
        if text not in self.known:
            layer, rest = _of_one_layer(text)
            if layer:
                if rest not in self.rests:
                    ecmascript(text)           # an error names the whole
                    self.rests[rest] = ecmascript(rest)
                match = self.rests[rest].match
                self.known[text] = [i for i, end in self.layers.get(layer, ()) if match(self.names[i], end)]
            else:
                search = ecmascript(text).search
                self.known[text] = [i for i, name in enumerate(self.names) if search(name)]
        return self.known[text]


def _of_one_layer(text: str) -> tuple[str, str]:
    """("blk.7.", the rest) of a regex that begins with just that; else ("", text)."""
    begin = _compile(r"blk\\\.(\d+)\\\.(?![*+?{])").match(text)
    if begin is None or "[" in text or r"\(" in text or "|" in _compile(r"\([^()]*\)").sub("", text):
        return "", text
    return f"blk.{begin[1]}.", text[begin.end():]


def _compile(pattern: str) -> re.Pattern[str]:
    import re  # only launches with overrides or MTP blocks pay for it

    return re.compile(pattern, re.ASCII)


_CLASSES = {"alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "digit": "0-9", "lower": "a-z", "upper": "A-Z", "space": r"\s",
            "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9A-Fa-f", "blank": r" \t", "word": r"\w", "d": "0-9", "w": r"\w", "s": r"\s"}


def ecmascript(text: str) -> re.Pattern[str]:
    """std::regex's default grammar as a Python pattern. Raises UsageError for what either does not accept.

    The two agree on what -ot users write; what differs is translated: `$` is only the very end, classes are ASCII, `[[:digit:]]`
    names exist, and Python's own extensions are refused.
    """
    out = []
    i, n, inside = 0, len(text), False
    while i < n:
        c = text[i]
        if c == "\\" and i + 1 < n:
            if text[i + 1] in "AZ":
                raise UsageError(f"invalid regex {text!r}: C++ has no \\{text[i + 1]}")
            out.append(text[i:i + 2])
            i += 2
            continue
        if inside:
            if c == "[" and text[i:i + 2] == "[:":
                name, end, _ = text[i + 2:].partition(":]")
                if not end or name not in _CLASSES:
                    raise UsageError(f"invalid regex {text!r}: unknown character class")
                out.append(_CLASSES[name])
                i += len(name) + 4
                continue
            out.append("\\[" if c == "[" else c)
            inside = c != "]"
        elif c == "[":
            inside = True
            out.append(c)
            if text[i + 1:i + 2] == "^":
                out.append("^")
                i += 1
            if text[i + 1:i + 2] == "]":     # an empty class to C++, an ordinary character to Python
                out[-1 if out[-1] == "[" else -2:] = ["(?!)" if out[-1] == "[" else "[\\s\\S]"]
                inside = False
                i += 1
        elif c == "$":
            out.append("\\Z")
        elif c == "(" and text[i + 1:i + 2] == "?" and text[i + 2:i + 3] not in (":", "=", "!"):
            raise UsageError(f"invalid regex {text!r}: C++ has no {text[i:i + 3]}")
        elif c in "*+?}" and text[i + 1:i + 2] == "+":
            raise UsageError(f"invalid regex {text!r}: nothing to repeat")
        else:
            out.append(c)
        i += 1
    from re import error as RegexError

    try:
        return _compile("".join(out))
    except (RegexError, OverflowError, RecursionError) as error:
        raise UsageError(f"invalid regex {text!r}: {error}") from None
