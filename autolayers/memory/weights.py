"""Where llama.cpp puts each weight, and what the buffers then take.

    placement = WeightPlacer(model).place(params, devices)
    placement.dev_layer[3], placement.dev_output   # "CUDA0", or "CPU"
    # its buffer type: "CUDA0", "CUDA_Host", "CPU_REPACK", "CPU"
    placement.lookup("blk.3.attn_q.weight")
    placement.buffers                              # {"CUDA0": bytes, "CUDA_Host": bytes}

Mirrors make_cpu_buft_list and make_gpu_buft_list (src/llama-model.cpp),
llama_model_loader::create_tensor and ggml_backend_alloc_ctx_tensors_from_buft, as modelled. Host
buffers are counted as without mmap, as llama.cpp's own measuring pass does.
"""

from __future__ import annotations

from ..backends import CPU, HOST, REPACK, Backend, Cpu, on, together
from ..builds import NEWEST_RULES, Rules
from ..errors import LaunchRefused
from ..ggml.tensor import Buffer, Ne
from ..gguf import BY_NAME, TensorInfo, n_bytes
from ..records import dataclass, field, lazy, replace
from .slices import Slices
from .split import layer_devices, model_devices, shares_of, split_rows
from .weight_op import weight_supported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from typing import Any

    from ..flags.params import Params
    from ..machine import Device
    from ..model import Model, Weight
    from ..model.architectures import Architecture
    from .ecmascript import TensorMatcher

    # groups by what they depend on; a tensor that may be created twice also by what is known of it
    # then
    Placed = dict[tuple[object, ...], "WeightGroup"]
    Twins = dict[tuple[object, ...], tuple["WeightGroup", tuple[str, ...], bool]]

_LAZY_MIN_SIZE = 4 << 30  # smaller tensors are not worth reading lazily
REPACKED = Buffer(REPACK, -1, CPU.alignment, host=False, repack=True)


@dataclass(frozen=True)
class PlacedTensor:
    """One created tensor. `copy` marks the second and later ones of the same file tensor (tied
    output, rope factors)."""

    name: str
    info: TensorInfo
    buffer: str  # buffer type: a device's name, CPU, CPU_REPACK, CUDA_Host...
    size: int  # with padding and alignment
    copy: bool = False

    @property
    def type(self) -> str:
        return self.info.type

    @property
    def ne(self) -> Ne:
        return self.info.ne


class WeightGroup:
    """Tensors that are placed together, mostly those of one layer. Placements of a model that put
    them in the same buffers share the object, so that derived facts are computed once."""

    def __init__(self, layer: int) -> None:
        self.layer = layer  # -1 the input, n_layer_all the output
        self.rows: list[tuple[Created, str, int]] = []  # tensor, buffer type, bytes in it
        self.buffers: dict[str, int] = {}  # buffer type -> bytes
        # bytes of host weights that must be in RAM even if mapped
        self.resident = 0
        self.mapped = 0  # those of them that are the file's pages

    @lazy
    def tensors(self) -> dict[str, PlacedTensor]:
        """By name; many launches of a search are only summed."""
        return {
            item.weight.info.name: PlacedTensor(
                item.weight.info.name, item.weight.info, buffer, size, item.duplicate
            )
            for item, buffer, size in self.rows
        }


@dataclass(frozen=True)
class Placement:
    devices: tuple[Device, ...]  # those that the model uses, in llama.cpp's order
    n_gpu_layers: int  # effective: 0 to n_layer + 1
    dev_layer: tuple[str, ...]  # per block, MTP blocks included
    dev_output: str
    groups: tuple[WeightGroup, ...]
    buffers: dict[str, int]  # buffer type -> bytes of all its tensors
    resident: int  # bytes of host weights that must be in RAM even if mapped
    exact: bool = True
    warnings: tuple[str, ...] = ()
    # split modes row, tensor: a device's part of the weights
    shares: dict[str, float] = field(default_factory=dict)
    # split mode tensor: each device's part of what is on the first, which stands for all of them
    slices: Slices | None = None
    _devices: dict[str, Device] = field(default_factory=dict, repr=False)
    # of a draft's target, whose embeddings and head the draft may use
    target: Placement | None = None
    # of a program that cuts layers: what each device keeps in its cache
    heads: Hashable = None

    @lazy
    def tensors(self) -> tuple[PlacedTensor, ...]:
        return tuple([placed for group in self.groups for placed in group.tensors.values()])

    @property
    def mapped(self) -> int:
        """Bytes of `resident` that are pages of the file, which a system may drop and read
        again."""
        return sum(group.mapped for group in self.groups)

    @lazy
    def _by_name(self) -> dict[str, PlacedTensor]:
        # name -> its first tensor
        tensors: dict[str, PlacedTensor] = {}
        # backwards, so that the first tensor of a name wins: later ones are copies
        for group in reversed(self.groups):
            tensors.update(group.tensors)
        return tensors

    @lazy
    def output(self) -> PlacedTensor | None:
        """The matrix of the output layer: output.weight, or the copy of token_embd that replaces
        it."""
        # a matrix of the file's own goes first
        own = any("output.weight" in group.tensors for group in reversed(self.groups))
        name = "output.weight" if own else "token_embd.weight"
        return next(
            (group.tensors[name] for group in reversed(self.groups) if name in group.tensors), None
        )

    def lookup(self, name: str, block: int | None = None) -> PlacedTensor | None:
        """Return the created tensor `name`; None if the file lacks it or it was skipped. Of rope
        factors, the copy on the device of `block`."""
        first = self._by_name.get(name)
        # rope factors are duplicated to each device that has layers
        if first is not None and block is not None and name.startswith("rope_f"):
            # rope_freqs, rope_factors_long: read by every layer, on its own device
            here = self.dev_layer[block]
            return next(
                (
                    p
                    for p in self.tensors
                    if p.name == name
                    and self.is_host(p.buffer) == (here == HOST)
                    and (here in (HOST, p.buffer))
                ),
                first,
            )
        return first

    def is_host(self, buffer: str) -> bool:
        return buffer not in self._devices

    def device(self, name: str) -> Device:
        return self._devices[name]

    @lazy
    def host(self) -> int:
        """Bytes of all buffers in host memory."""
        return sum(size for name, size in self.buffers.items() if self.is_host(name))


@dataclass(frozen=True)
class Created:
    """A tensor that llama.cpp creates. A `duplicate` is created only if its buffer does not have
    the tensor yet."""

    weight: Weight
    layer: int  # -1 the input, n_layer_all the output
    duplicate: bool


class WeightPlacer:
    """Places the weights of one model. Launches share what does not depend on their flags."""

    by_context = False  # whether the context decides too

    def __init__(self, model: Model, rules: Rules = NEWEST_RULES) -> None:
        self.model, self.rules = model, rules
        self._tables: dict[bool, _Table] = {}
        # here, not in the table that each of them has: a cycle would outlive its plan
        # by all that decides where tensors go but the devices of their layers and the overrides
        self._placings: dict[Hashable, _Placing] = {}

    def place(self, params: Params, devices: Sequence[Device], load_mtp: bool = False) -> Placement:
        """Return the Placement on `devices` (all of the machine's, in registry order). None in
        params: llama-server's default; n_gpu_layers None, -1 or -2: everything. `load_mtp`: the MTP
        blocks are wanted too (Context.load_mtp).

        Raises LaunchRefused if llama.cpp would not load the model, or has no device of a given
        name.
        """
        # the order below is load_tensors': devices, layers, then tensors
        used, exact, warnings = model_devices(params, devices, self.rules)
        n = self.model.hparams.n_layer_all + 1
        wanted = params.layers_wanted(n)
        shares = shares_of(params, used) if params.split_mode == "row" else {}
        slices = None
        if params.split_mode == "tensor" and used:
            names, split = [device.name for device in used], params.tensor_split or ()
            slices = Slices(self.model, self._table(load_mtp).names, names, split, self.rules)
        if slices and not slices.exact:
            exact = False
            warnings += (
                "split mode tensor: the devices' slices are an upper bound for this build",
            )
        # e.g. ["CPU", "CPU", "CUDA0", "CUDA0"]: the last entry is the output layer
        dev_of = layer_devices(
            # the first device stands for all of them, which hold slices of each layer
            n,
            wanted,
            used[:1] if slices else used,
            params.tensor_split or (),
            self.rules,
        )
        groups = self._groups(params, load_mtp, devices, used, dev_of, shares, slices)
        # one buffer per type: ggml_backend_alloc_ctx_tensors_from_buft, of one context each
        buffers: dict[str, int] = {}
        for group in groups:
            for name, size in group.buffers.items():
                buffers[name] = buffers.get(name, 0) + size
        if slices:
            # each device's share of the weights under -sm tensor: the meta device holds each tensor
            # once, `buffers` the parts that the real devices hold
            whole = 0
            for group in groups:
                tensors = group.tensors.values()
                whole += sum([tensor.size for tensor in tensors if tensor.buffer == used[0].name])
            if not whole:
                shares = {}
            else:
                shares = {device.name: buffers.get(device.name, 0) / whole for device in used}
        return Placement(
            used,
            wanted if used else 0,
            tuple(dev_of[:-1]),
            dev_of[-1],
            tuple(groups),
            buffers,
            sum([group.resident for group in groups]),
            exact,
            warnings,
            shares,
            slices,
            {device.name: device for device in devices},
        )

    def by_layer(self, params: Params, device: Device, load_mtp: bool = False) -> list[int]:
        """Return the bytes that each layer (the output last) takes on `device` if it alone is
        there: with its own copy of what every device copies, and without what overrides send to a
        named device."""
        n = self.model.hparams.n_layer_all + 1
        # a device of that name may be another one: its weights are not this one's
        others = [
            replace(device, name=name)
            for name in {target for _, target in params.overrides} - {HOST}
        ]
        devices = [device, *others]
        sizes = [0] * n
        # the input layer (-1) is never on a device
        homes = [device.name] * n
        for group in self._groups(params, load_mtp, devices, devices, homes, every_copy=True):
            if group.layer >= 0:
                sizes[group.layer] += group.buffers.get(device.name, 0)
        return sizes

    def _groups(
        self,
        params: Params,
        load_mtp: bool,
        devices: Sequence[Device],
        used: Sequence[Device],
        dev_of: Sequence[str],
        shares: dict[str, float] | None = None,
        slices: Slices | None = None,
        every_copy: bool = False,
    ) -> list[WeightGroup]:
        """Return all nonempty groups of a launch, with their layers on the devices of `dev_of`.
        `every_copy`: each layer gets its own copy of a tensor that every device copies."""
        table = self._table(load_mtp)
        parts = {device.name: on(device, rules=self.rules) for device in devices}
        backends = dict(parts)
        # -sm tensor: one meta backend for all devices
        if slices:
            # the first device's name stands for all: `dev_of` names no other one
            backends[used[0].name] = together(used, self.rules)
        pinned = None
        if not params.no_host:
            # make_cpu_buft_list: pinned memory of the first device that has such a type; GPUs that
            # compute large batches with weights in RAM copy them faster from it
            leading = used[:1] if slices else used
            pinned = next((backends[d.name] for d in leading if backends[d.name].host_buffer), None)
        use_mmap = _stays_mapped(params, [(parts[d.name], d) for d in used], slices is not None)
        # refuse an override to another buffer type, as llama.cpp's handler of -ot refuses it
        names = [HOST, *backends]
        for _, target in params.overrides:
            if target not in names:
                raise LaunchRefused(
                    f"unknown buffer type: {target} (there are: {', '.join(names)})"
                )
        mine = () if slices else tuple([device.name for device in used])
        how = params.repack is not False, use_mmap, params.lazy_mode or "auto"
        # launches that differ in layers or overrides alone share all the rest
        key = (
            load_mtp,
            tuple([(name, backend.kind) for name, backend in backends.items()]),
            tuple([backend.kind for backend in parts.values()]),
            mine,
            pinned and pinned.kind,
            how,
            tuple((shares or {}).items()),
            slices and slices.key,
        )
        placing = self._placings.get(key)
        if placing is None:
            placing = self._placings[key] = _Placing(
                table, backends, parts, mine, pinned, *how, shares or {}, slices
            )
        targets = table.overridden(params.overrides) if params.overrides else {}
        return placing.groups(dev_of, targets, every_copy)

    def _table(self, load_mtp: bool) -> _Table:
        if load_mtp not in self._tables:
            self._tables[load_mtp] = _Table(self.model, load_mtp, self.rules)
        return self._tables[load_mtp]


def place_weights(
    model: Model,
    params: Params,
    devices: Sequence[Device],
    load_mtp: bool = False,
    rules: Rules = NEWEST_RULES,
) -> Placement:
    """Place weights for a single launch (WeightPlacer.place)."""
    return WeightPlacer(model, rules).place(params, devices, load_mtp)


def _stays_mapped(params: Params, devices: Sequence[tuple[Backend, Device]], sliced: bool) -> bool:
    """Whether weights in RAM may be the file's own pages.

    One device that cannot leave the file mapped turns mmap off for all, but not a mode that is
    given (load_tensors asks the devices with LLAMA_LOAD_MODE_AUTO alone).
    """
    if params.load_mode in (None, "auto"):
        # a meta device has no kind of its own
        return all(
            backend.mmap and (sliced or device.kind != "igpu" or backend.igpu_mmap)
            for backend, device in devices
        )
    return params.load_mode in ("mmap", "mmap+mlock")


class _Table:
    """The tensors of a model that llama.cpp creates, and their facts for each backend and set of
    overrides."""

    def __init__(self, model: Model, load_mtp: bool, rules: Rules) -> None:
        self.model, self.rules = model, rules
        # decided once per model: launches differ only in where these go
        self.created = _created_tensors(model, load_mtp, rules)
        self.names = {item.weight.info.name for item in self.created}
        # a tied output matrix, rope factors: made again where their buffer lacks them
        twins = {item.weight.info.name for item in self.created if item.duplicate}
        # may be created twice
        self.twin = [item.weight.info.name in twins for item in self.created]
        # members of a group are always placed the same way, so they are summed once
        # key -> (layer, positions in `created`)
        together: dict[object, tuple[int, list[int]]] = {}
        for i, item in enumerate(self.created):
            together.setdefault(("twin", i) if self.twin[i] else item.layer, (item.layer, []))[
                1
            ].append(i)
        # (layer, positions in `created`); a twin is a group by itself
        self.groups = list(together.values())
        self._sizes: dict[Hashable, list[int]] = {}
        self._supported: dict[Hashable, list[bool]] = {}
        self._host: dict[Hashable, list[str]] = {}
        self._overridden: dict[tuple[tuple[str, str], ...], dict[int, tuple[str | None, ...]]] = {}
        self._matcher: TensorMatcher | None = None

    def sizes(self, backend: Backend) -> list[int]:
        """Return the bytes that each tensor takes in a buffer of this backend."""
        if backend.kind not in self._sizes:
            infos = [item.weight.info for item in self.created]
            self._sizes[backend.kind] = [
                backend.padded(info.type, info.ne, info.n_bytes) for info in infos
            ]
        return self._sizes[backend.kind]

    def supported(self, backend: Backend, buffer: Buffer) -> list[bool]:
        """Return whether this backend can run the op that reads each tensor from such a buffer. An
        unknown type is assumed to be supported, but not repacked."""
        key = (backend.kind, buffer.host, buffer.repack)
        if not self.rules.engine.is_llama_cpp:  # ik_llama.cpp asks no backend
            return [not buffer.repack] * len(self.created)
        if key not in self._supported:
            hp = self.model.hparams
            alike: dict[Hashable, bool] = {}  # layers repeat
            answers = []
            for item in self.created:
                op, info = item.weight.op, item.weight.info
                shape = (op, info.type, info.ne)
                if shape not in alike:
                    is_known = info.type in BY_NAME
                    alike[shape] = (
                        weight_supported(backend, buffer, op, info, hp)
                        if is_known
                        else not buffer.repack
                    )
                answers.append(alike[shape])
            self._supported[key] = answers
        return self._supported[key]

    def host_buffers(self, pinned: Backend | None, repack: bool) -> list[str]:
        """Return the buffer type that each tensor gets in host memory: pinned if its device can
        read it, repacked, or plain; builds with `repacks_first` try repacking first."""
        key = (pinned and pinned.kind, repack)
        # the order of make_cpu_buft_list: pinned, repacked, plain
        if key not in self._host:
            # plain memory takes whatever the others refuse
            buffers = [HOST] * len(self.created)
            if repack:
                buffers = [
                    REPACK if yes else HOST
                    for yes in self.supported(Cpu(rules=self.rules), REPACKED)
                ]
            buffer = pinned and pinned.host_buffer_type()
            if pinned and buffer:
                # older builds put repacked buffers before pinned ones
                first = REPACK if self.rules.repacks_first else None
                buffers = [
                    buffer.name if yes and other != first else other
                    for yes, other in zip(self.supported(pinned, buffer), buffers, strict=True)
                ]
            self._host[key] = buffers
        return self._host[key]

    def overridden(
        self, overrides: tuple[tuple[str, str], ...]
    ) -> dict[int, tuple[str | None, ...]]:
        """Return, by nonempty group and for each member, the buffer type of the first override
        whose pattern matches its name. Raises UsageError."""
        if overrides not in self._overridden:
            if self._matcher is None:
                # imports re, which only launches with overrides need
                from .ecmascript import TensorMatcher

                self._matcher = TensorMatcher([item.weight.info.name for item in self.created])
            targets: dict[int, str] = {}
            # llama.cpp stops at the first pattern that matches: in reverse, the first wins here too
            for pattern, target in reversed(overrides):
                targets.update(dict.fromkeys(self._matcher.find(pattern), target))
            # only groups with an overridden member differ from the table's own
            by_group: dict[int, tuple[str | None, ...]] = {}
            for number, (_, members) in enumerate(self.groups):
                if not targets.keys().isdisjoint(members):
                    by_group[number] = tuple([targets.get(i) for i in members])
            self._overridden[overrides] = by_group
        return self._overridden[overrides]


class _Seen:
    """What one launch has created so far."""

    __slots__ = ("buffers_of", "every_copy", "mapped")

    def __init__(self, every_copy: bool) -> None:
        self.every_copy = every_copy
        # tensors that may be created twice: where they already exist
        self.buffers_of: dict[str, tuple[str, ...]] = {}
        self.mapped: set[str] = set()


class _Placing:
    """The groups of all launches that differ in the devices of their layers and in overrides
    alone."""

    def __init__(
        self,
        table: _Table,
        devices: dict[str, Backend],
        parts: dict[str, Backend],
        mine: Sequence[str],
        pinned: Backend | None,
        repack: bool,
        use_mmap: bool,
        lazy_mode: str,
        shares: dict[str, float],
        slices: Slices | None,
    ) -> None:
        """`devices`: each one's backend, with -sm tensor the first stands for all; `parts`: the
        same, individually. `mine`: valid targets of overrides. `pinned`: whose pinned memory takes
        the weights that stay in RAM. `shares`: of -sm row."""
        self.table, self.devices, self.parts, self.mine = table, devices, parts, mine
        self.use_mmap, self.lazy_mode = use_mmap, lazy_mode
        self.slices, self.shares = slices, shares
        self.cuts = slices is not None or bool(shares)
        # by device of its layer: the buffer type that each tensor gets
        self.buffers_on = {HOST: table.host_buffers(pinned, repack)}
        # by buffer type: the bytes of each tensor in it; CPU is plain host memory of any name
        self.sizes = {name: table.sizes(backend) for name, backend in self.devices.items()}
        self.sizes[HOST] = table.sizes(CPU)
        if pinned is not None:
            self.sizes[pinned.host_buffer] = table.sizes(Cpu(pinned.host_buffer_type()))
        self.placed: Placed = {}
        self.twins: Twins = {}

    def groups(
        self,
        dev_of: Sequence[str],
        targets: dict[int, tuple[str | None, ...]],
        every_copy: bool,
    ) -> list[WeightGroup]:
        """Return all nonempty groups, with their layers on the devices of `dev_of`; `targets`: the
        overrides."""
        groups: list[WeightGroup] = []
        seen = _Seen(every_copy)
        for number, (layer, members) in enumerate(self.table.groups):
            device = HOST if layer < 0 else dev_of[layer]
            # a group's place follows from its layer's device and the overrides of its members
            key: tuple[object, ...] = (number, device, targets.get(number, ()))
            if self.table.twin[members[0]]:  # its place depends on its twin
                group = self.twin(layer, members[0], key, seen)
            else:
                group = self.placed.get(key) or self.placed.setdefault(
                    key, self.made(layer, members, key, seen)
                )
            if group.rows:
                groups.append(group)
        return groups

    def made(
        self, layer: int, members: list[int], key: tuple[Any, ...], seen: _Seen
    ) -> WeightGroup:
        group = WeightGroup(layer)
        on_layer = self.buffers_of(key[1])
        # no overrides: the third part of the key is empty
        for i, target in zip(members, key[2] or [None] * len(members), strict=True):
            buffer = on_layer[i] if target is None else self.overridden(i, target)
            self.put(group, i, buffer, seen)
        return group

    def twin(self, layer: int, i: int, key: tuple[Any, ...], seen: _Seen) -> WeightGroup:
        """Return a group of only tensor `i`, which may be created twice; empty if its buffer has it
        already."""
        name = self.table.created[i].weight.info.name
        key = (*key, seen.every_copy, seen.buffers_of.get(name), name in seen.mapped)
        if key not in self.twins:
            group = self.made(layer, [i], key, seen)
            # equal groups are one object, whatever device led to them
            alike = self.placed.setdefault((key[0], *group.buffers, group.resident), group)
            self.twins[key] = alike, seen.buffers_of[name], name in seen.mapped
        group, seen.buffers_of[name], mapped = self.twins[key]
        if mapped:
            seen.mapped.add(name)
        return group

    def put(self, group: WeightGroup, i: int, buffer: str, seen: _Seen) -> None:
        """Add tensor `i` to its group, in this buffer type."""
        item = self.table.created[i]
        # counted already: create_tensor returns the tensor that the buffer's context has
        if self.table.twin[i] and self.is_there(item, buffer, seen):
            return
        size = self.sizes.get(buffer, self.sizes[HOST])[i]
        group.rows.append((item, buffer, size))
        on_device = buffer in self.devices
        # host buffers are never cut
        parts = self.cut(item, size) if on_device and self.cuts else None
        for name, part in parts or [(buffer, size)]:
            group.buffers[name] = group.buffers.get(name, 0) + part
        if not on_device:
            needed = self.resident(item.weight.info, buffer, size, seen)
            group.resident += needed
            if self.use_mmap and buffer != REPACK:
                group.mapped += needed

    def overridden(self, i: int, target: str) -> str:
        """Return the buffer type of tensor `i` that is overridden to `target`."""
        # -ot ...=CPU means any buffer of the host: pinned or repacked if possible
        # (select_weight_buft)
        if target == HOST:
            return self.buffers_on[HOST][i]
        # a weight in memory that no backend of this launch can read
        if target in self.devices and target not in self.mine:
            why = (
                "and -sm tensor has no buffers of one device"
                if self.slices
                else "which the model does not use"
            )
            raise LaunchRefused(
                f"tensor {self.table.created[i].weight.info.name} is overridden to {target}, {why};"
                " llama.cpp aborts"
            )
        return target

    def buffers_of(self, device: str) -> list[str]:
        """Return the buffer type that each tensor gets whose layer is on a device: the device's if
        it can run the tensor's op, otherwise host memory."""
        if device not in self.buffers_on:
            backend = self.devices[device]
            self.buffers_on[device] = [
                device if runs else in_ram
                for runs, in_ram in zip(
                    self.table.supported(backend, backend.buffer),
                    self.buffers_on[HOST],
                    strict=True,
                )
            ]
        return self.buffers_on[device]

    def cut(self, item: Created, size: int) -> list[tuple[str, int]]:
        """Return (device, bytes) of a tensor's slices or rows; empty if devices hold it whole."""
        info = item.weight.info
        if self.slices:
            slices = self.slices.of(info.name, info.type, info.ne)
            # an unknown type cannot be sliced: each device counts it whole
            if info.type not in BY_NAME:
                return [(name, size) for name, _ in slices]
            return [
                (name, self.parts[name].padded(info.type, ne, n_bytes(info.type, ne)))
                for name, ne in slices
            ]
        # only -sm row is left: rows of a matrix, everything else whole on each device
        is_matrix = item.weight.op.startswith("MUL_MAT")
        return split_rows(self.shares, info.type, info.ne, size, is_matrix)

    def is_there(self, item: Created, buffer: str, seen: _Seen) -> bool:
        """Return whether an earlier copy in this buffer serves for the tensor; if not, the buffer
        has it now."""
        name = item.weight.info.name
        buffers = seen.buffers_of.setdefault(name, ())
        # created before token_embd, so nothing is there to share with
        always_copied = self.table.model.row.tied == "first" and name == "token_embd.weight"
        shared = item.duplicate and not always_copied and not seen.every_copy
        if buffer in buffers:
            return shared
        seen.buffers_of[name] = (*buffers, buffer)
        return False

    def resident(self, info: TensorInfo, buffer: str, size: int, seen: _Seen) -> int:
        """Return the bytes of RAM that a host tensor needs: none if it is read row by row from the
        file, and once for all copies of a mapped one (they share pages)."""
        # Gemma 3n and 4: a few GB, and a token reads one row of it
        if info.name == "per_layer_token_embd.weight" and self.is_lazy(info):
            return 0
        # without the mapping, and repacked, every copy is memory of its own
        if not self.use_mmap or buffer == REPACK:
            return size
        if info.name in seen.mapped:
            return 0
        seen.mapped.add(info.name)
        return info.n_bytes

    def is_lazy(self, info: TensorInfo) -> bool:
        """Return whether per-layer embeddings are read row by row from the file (--lazy)."""
        mode = self.lazy_mode
        if mode == "off" or not self.table.model.row.lazy_embd:
            return False
        return mode == "on" or info.n_bytes > _LAZY_MIN_SIZE


def _created_tensors(model: Model, load_mtp: bool, rules: Rules = NEWEST_RULES) -> list[Created]:
    """Return every tensor that llama.cpp creates, in its order (llama_model_base::load_tensors of
    each architecture)."""
    hp, row = model.hparams, model.row
    output = hp.n_layer_all
    skip_from, leaks = hp.n_layer_all, None
    loads_blocks = row.mtp_tensors and _loads_mtp(row, load_mtp, rules)
    if hp.n_layer_nextn and hp.router_layer < 0 and not loads_blocks:
        # the tensors of MTP blocks that llama.cpp creates although it skips the blocks
        import re  # only for MTP blocks

        loaded = [row.mtp_leaks] * bool(row.mtp_leaks)
        loaded += [r"attn_(qkv\.|[qkv]\.bias)"] * rules.loads_skipped_qkv  # create_tensor_qkv
        # create_tensor_gate_up_exps
        loaded += [r"ffn_gate_up_exps\."] * (not rules.skips_gate_up)
        skip_from, leaks = hp.n_layer, re.compile("|".join(loaded), re.ASCII) if loaded else None
    created: list[Created] = []
    for weight in model.weights:
        if weight.op == "NONE":
            continue
        if weight.layer != "repeating":
            created.append(Created(weight, -1 if weight.layer == "input" else output, False))
        elif weight.op == "ROPE":
            # the layers that create rope factors
            users = model.row.rope_users
            physical = hp.n_layer_phys if users == "physical" else hp.n_layer
            layers = range(hp.n_layer_all if users in ("all", "full-all") else physical)
            if users.startswith("full"):
                rope_users = [il for il in layers if not hp.is_swa(il)]
            else:
                rope_users = list(layers)
            created += [Created(weight, il, i > 0) for i, il in enumerate(rope_users)]
        elif not skip_from <= weight.block < hp.n_layer_all or (
            leaks and leaks.search(weight.info.name)
        ):
            # a block beyond the last one has no device of its own
            block = min(weight.block, hp.n_layer_all - 1)
            created.append(Created(weight, block, False))
    return created + _further_outputs(model, created)


def _further_outputs(model: Model, created: list[Created]) -> list[Created]:
    """Return the output matrices that are created once more: of a tied embedding, or twice."""
    row, output = model.row, model.hparams.n_layer_all
    embedding = next(
        (item.weight for item in created if item.weight.info.name == "token_embd.weight"), None
    )
    if embedding is None:
        # its input reads the output matrix then (TENSOR_DUPLICATED)
        twice = [item for item in created if item.weight.info.name == "output.weight"]
        return twice if row.output_twice else []
    untied = row.tied != "always" and "output.weight" in model.tensors
    if untied or row.tied == "never":
        return []
    as_output = type(embedding)(embedding.info, "output", -1, "MUL_MAT", embedding.known)
    return [Created(as_output, output, True)]


def _loads_mtp(row: Architecture, load_mtp: bool, rules: Rules) -> bool:
    """Return whether MTP blocks are loaded: for drafting, or by builds that load them
    unconditionally."""
    return load_mtp or bool(
        rules.engine.is_llama_cpp
        and row.mtp_whole
        and not rules.lacks(row.mtp_after)
        and not rules.has(row.mtp_whole)
    )
