"""The request: words, environment, program and devices, resolved once and alike for every command
and the library.

    request = Request.of(["-c", "8192", "--gpu", "24GiB"])
    request.params.n_ctx, request.machine.limits["CUDA0"], request.notes
"""

from __future__ import annotations

import itertools
import os

from .backends import on
from .builds import TODAY, Build, Rules
from .devices import Inventory, completed, described, discover, numbered, of_one_machine, remote
from .devices.assumed import host_of
from .devices.calibrated import with_beside
from .engines import LLAMA_SERVER, Engine, engine
from .engines.ik_llama import IK_LLAMA
from .errors import LaunchRefused, UsageError, WrongType
from .flags.params import Params
from .flags.parse import Arguments, items, items_of_fork
from .flags.policy import Policy, arguments_of, read_policy
from .flags.table import Argument, lookup
from .flags.write import to_words
from .gguf import Header, read_header
from .machine import Device, Host, Machine, Ratio, ratios
from .memory.companions import NONE, Companions
from .memory.ram import within
from .model import Model, is_adapter, is_control_vector, is_projector, read_model
from .output import say
from .records import dataclass, replace
from .units import human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    Found = tuple[Sequence[Device], Host | None, Sequence[str]]  # devices, RAM, notes

# Read only if named, and again only if another one is named (`asking`). fields of Params: files
# loaded with the model
_FILES = ("mmproj", "model_draft", "lora", "control_vector")


@dataclass(frozen=True)
class Request:
    """The constraints (`params`), the goals (`policy`), and the machine and build they are for.
    `host` is the RAM of `machine`, None if unknown; `notes` are lines that a user should read."""

    arguments: Arguments
    policy: Policy
    build: Build
    machine: Machine
    host: Host | None
    companions: Companions = NONE
    notes: tuple[str, ...] = ()
    verbatim: bool = False  # the program gets the given words too, so none can be left out

    @classmethod
    def of(
        cls,
        words: Sequence[str] | Params | Arguments = (),
        environ: Mapping[str, str] | None = None,
        *,
        devices: Sequence[Device | str] | None = None,
        host: Host | None = None,
        program: Sequence[str] = (),
        verbatim: Sequence[str] | None = None,
        checked: bool = True,
        amend: Callable[[Inventory], Inventory] | None = None,
        of_program: Engine = LLAMA_SERVER,
        max_devices: int = 0,
    ) -> Request:
        """Resolve the words, and detect what they leave open.

        `environ` adds LLAMA_ARG_* variables and config files to words that are not parsed yet, and
        decides which devices are visible. `devices` (and `host`) replace the machine's. `program`
        starts a llama.cpp: it is asked for its build, and for its devices if it is one word.
        `verbatim`: words that the program gets unchanged, besides the plan's flags. Not `checked`:
        the words are not for a llama-server, so the build need not know them. `amend` changes what
        was found on this machine. `of_program`: what the program is, if neither --engine nor its
        own --help says another. `max_devices`: those of a machine that comes later (`on`).

        Raises UsageError (also for flags that the build lacks), LaunchRefused and ModelError for
        files of --mmproj, -md or --lora, DeviceError.
        """
        if isinstance(words, (list, tuple)):
            # ik_llama.cpp's words mean other things, so they are translated before anything reads
            # them
            words, words_engine = meant(words)
            of_program = words_engine or of_program
        arguments = arguments_of(words, environ)
        policy = read_policy(arguments.own)
        # refuse if a flag and `devices` both set the devices
        # neither would be the one that was meant
        for name, value in (("--gpu", policy.gpu), ("--machine", policy.machine)):
            if value is not None and devices is not None:
                raise UsageError(f"{name} and devices= both set the devices: give one of them")
        # the build decides which flags there are, so it comes before them
        build = _of_engine(_build(policy, program, environ), policy, of_program)
        policy = replace(policy, build=_planned_for(build))
        arguments = _by_default(arguments, build)
        arguments, doubts = _known(arguments, build, verbatim) if checked else (arguments, [])
        params = arguments.params
        # a library or a front end has no --list-devices
        lister = () if build.engine.lists_nothing else program
        inventory: Found = (
            (_named(devices, policy.ram or 0), None, ())
            if devices is not None
            else _found(policy, params, environ, lister, amend)
        )
        machine_devices, machine_host, notes = inventory
        # measured rates of another build are left out, and said
        machine_devices, machine_host, old = _calibrated(
            machine_devices, machine_host if host is None else host, build
        )
        if devices is None and policy.gpu is None and policy.machine is None:
            machine_devices = with_beside(machine_devices, build.number or 0, environ or {})
        machine_devices = _under_backend(machine_devices, policy)
        # reading a library of several hundred MiB: only where it decides something
        if program and _needs_quants(params, policy, build):
            machine_devices = _with_quants(machine_devices, program[-1])
        host = _host(machine_host, machine_devices, policy, params)
        # a note if --ram is more than the machine has whose RAM the GPU shares
        shared = _shared(machine_devices) if machine_host is None else None
        more_than_shared = []
        if shared and policy.ram and policy.ram > shared:
            counted = f"a machine with this GPU counts {human(shared)}, which the GPU shares"
            more_than_shared = [f"--ram {human(policy.ram)}: {counted}"]
        notes = (
            *_without_gpus(notes, build, machine_devices, params, policy),
            *old,
            *doubts,
            *more_than_shared,
            *_cores_here(machine_host, host, policy),
        )
        return cls(
            arguments,
            policy,
            build,
            _machine(machine_devices, host, policy, max_devices),
            host,
            companions_of(params, arguments),
            notes,
            verbatim is not None,
        )

    @property
    def params(self) -> Params:
        return self.arguments.params

    def with_flags(self, **changes: Any) -> Request:
        """Return the same with other constraints: fields of Params."""
        return self.with_params(replace(self.params, **changes))

    def with_params(self, params: Params) -> Request:
        """Return the same with these constraints."""
        return replace(self, arguments=replace(self.arguments, params=params))

    def with_goals(self, **changes: Any) -> Request:
        """Return the same with other goals: fields of Policy."""
        return replace(self, policy=replace(self.policy, **changes))

    def asking(self, arguments: Arguments) -> Request:
        """Return the same machine and build with other flags. Raises as `of` does."""
        policy = read_policy(arguments.own)
        build = _of_engine(self.build, policy, self.build.engine)
        policy = replace(
            policy, build=self.policy.build if build is self.build else _planned_for(build)
        )
        # files are read again only if another one is named
        same = all(getattr(arguments.params, name) == getattr(self.params, name) for name in _FILES)
        return replace(
            self,
            arguments=_by_default(arguments, build),
            policy=policy,
            build=build,
            machine=_machine(self.machine.devices, self.host, policy),
            companions=self.companions if same else companions_of(arguments.params, arguments),
        )

    def on(self, devices: Sequence[Device], host: Host | None) -> Request:
        """Return the same with other memory."""
        return replace(self, machine=_machine(devices, host, self.policy), host=host)

    def less(self, taken: Mapping[str, int], ram: int = 0) -> Request:
        """Return the same with less free: the bytes `taken` of each device, and `ram` of RAM."""
        devices = tuple(
            replace(device, free=max(0, device.free - taken.get(device.name, 0)))
            for device in self.machine.devices
        )
        host = self.host
        if host is not None:
            host = replace(host, available=max(0, host.available - ram))
        return self.on(devices, host)

    def said(self) -> Request:
        """Return the same without its notes, which are printed now: commands that print several
        plans would repeat them."""
        for note in self.notes:
            say(note)
        return replace(self, notes=())


def _calibrated(
    devices: Sequence[Device], host: Host | None, build: Build
) -> tuple[Sequence[Device], Host | None, list[str]]:
    """Return the machine with what was measured with this build, or where none is known with the
    newest, and a note if that was another one."""
    # what tune and check have measured here
    rates = ratios(devices, host)
    if not rates:
        return devices, host, []
    number = build.number if build is not TODAY else max(row.build or 0 for row in rates)

    def holds(row: Ratio) -> bool:
        return row.build is None or row.build == number

    notes = [] if any(map(holds, rates)) else [_old_speeds(rates, number)]
    devices = [
        replace(device, measured=tuple(filter(holds, device.measured))) for device in devices
    ]
    if host is not None:
        host = replace(host, measured=tuple(filter(holds, host.measured)))
    return devices, host, notes


def _old_speeds(old: Sequence[Ratio], number: int) -> str:
    """Say that all speeds were measured with another build than that of this number."""
    last = max(old, key=lambda row: row.date)
    when = f" of {last.date[:10]}" if last.date else ""
    return (
        f"the measured speeds{when} are old: of b{last.build}, not of "
        f"{f'b{number}' if number else 'this build'} (tune --quick measures again)"
    )


def _under_backend(devices: Sequence[Device], policy: Policy) -> Sequence[Device]:
    """Return the devices as --backend drives them."""
    if policy.backend is None:
        return devices
    from .devices.driven import driven

    return driven(devices, policy.backend)


def _without_gpus(
    notes: Sequence[str],
    build: Build,
    devices: Sequence[Device],
    params: Params,
    policy: Policy,
) -> Sequence[str]:
    """Return the notes, without that on missing GPUs if the program cannot list any, or if none is
    wanted."""
    wanted = params.device != ()
    if policy.backend == "cpu":
        return [note for note in notes if "no GPU found" not in note]
    if wanted and (devices or not build.engine.lists_nothing):
        return notes
    others = [note for note in notes if "no GPU found" not in note]
    asked = others if wanted else [*others, "-dev none: no GPU is used, plans are for the CPU"]
    return asked if len(others) < len(notes) else notes


def _needs_quants(params: Params, policy: Policy, build: Build) -> bool:
    """Return whether the pairs of cache types with flash attention depend on how the program was
    built."""
    types = params.cache_type_k or params.cache_type_v or policy.kv_types
    # later builds compile every pair
    return bool(types) and build.rules.number < Rules.mixed_cache_types.first


def _with_quants(devices: Sequence[Device], program: str) -> Sequence[Device]:
    """Return the devices, CUDA's with whether the program has flash attention for all pairs of
    cache types."""
    import shutil

    from .backends.cuda import ALL_QUANTS, Cuda
    from .detect import all_quants

    path = shutil.which(program)
    every_pair = None if path is None else all_quants(path)
    if every_pair is None:
        return devices
    return [
        replace(device, limits={**(device.limits or {}), ALL_QUANTS: int(every_pair)})
        if isinstance(on(device), Cuda)
        else device
        for device in devices
    ]


# --- the build and its flags


def _build(policy: Policy, program: Sequence[str], environ: Mapping[str, str] | None) -> Build:
    if policy.build is not None:
        return policy.build if isinstance(policy.build, Build) else Build(policy.build)
    if not program:
        return TODAY
    from .detect import detect

    return detect(program, os.environ if environ is None else environ)


def meant(words: Sequence[str]) -> tuple[Sequence[str], Engine | None]:
    """Return the words after --engine ik_llama.cpp as llama.cpp's, and the program with what they
    say of it; None: another one's. Raises UsageError."""
    name = IK_LLAMA.name
    apart = any(word == name and before == "--engine" for before, word in itertools.pairwise(words))
    named = apart or f"--engine={name}" in words
    if not named:
        return words, None
    from .engines.ik_llama import words as ik_words

    return ik_words.meant(words)[:2]


def _of_engine(build: Build, policy: Policy, of_program: Engine) -> Build:
    """Return the build as the one that --engine names, or that its program is. Raises
    UsageError."""
    named = of_program if policy.engine in ("", of_program.name) else engine(policy.engine)
    another = build.fork and not policy.engine and named.name != build.engine.name
    if named is build.engine or another:
        return build
    if named.is_llama_cpp:
        return replace(build, engine=named)
    return replace(
        build, engine=named, fork=named.name, doubt=build.doubt or f"{named.name} is not llama.cpp"
    )


def _planned_for(build: Build) -> Build | int | None:
    """Return what Policy.build says of a build."""
    # None stands for the newest known build.
    if build is TODAY:
        return None
    return build if build.doubt or build.engine is not LLAMA_SERVER else build.number or build


def _by_default(arguments: Arguments, build: Build) -> Arguments:
    """Return the arguments with a program's own numbers where none is given: one sequence, the
    context of a chunk."""
    params = arguments.params
    engine = build.engine
    # E.g. llama-bench runs one sequence, llama-perplexity chunks of a context.
    own: dict[str, Any] = {}
    if params.n_parallel is None and engine.one_sequence:
        own["n_parallel"] = 1
    if params.n_ctx is None and engine.chunk and "ctx" not in arguments.own:
        own["n_ctx"] = engine.chunk
    return replace(arguments, params=replace(params, **own)) if own else arguments


def _known(
    arguments: Arguments, build: Build, verbatim: Sequence[str] | None
) -> tuple[Arguments, list[str]]:
    """Return the arguments without the variables and config-file keys that the build ignores, and
    notes. Raises UsageError for a flag that the build refuses, unless --strict-flags is off."""
    notes: list[str] = []
    if verbatim is None:
        arguments = _in_todays_words(arguments, build)
    for why in _lacking(arguments, build, verbatim):
        if arguments.own.get("strict-flags") != "off":
            raise UsageError(f"{why} (--strict-flags off passes it on)")
        notes.append(f"{why}: passed on")
    ignored = {}
    for name, (flag, _) in zip(arguments.written, arguments.given, strict=False):
        # a variable that a build does not know is never read, so it cannot be refused
        if not name.startswith("-") and (why := build.lacks(flag, verbatim is None)):
            ignored[name] = f"{name} is ignored: {why}"
    return arguments.without(ignored) if ignored else arguments, [*notes, *ignored.values()]


def _in_todays_words(arguments: Arguments, build: Build) -> Arguments:
    """Return the arguments with the flags of today for those that the build no longer has."""

    def today(name: str) -> str:
        row, _ = lookup(name) or (None, True)
        return row.now if row is not None and row.now and not build.knows(name) else name

    names = {name: today(name) for name in arguments.written if name.startswith("-")}
    if all(name == now for name, now in names.items()):
        return arguments
    return replace(
        arguments,
        rest=tuple(names.get(word, word) for word in arguments.rest),
        given=tuple((today(flag), value) for flag, value in arguments.given),
        written=tuple(names.get(name, name) for name in arguments.written),
    )


def _lacking(arguments: Arguments, build: Build, verbatim: Sequence[str] | None) -> Iterator[str]:
    """Yield why the build refuses a flag: each word of a verbatim command, otherwise what none of
    its flags can express."""
    if verbatim is not None:
        names = [item.name for item in items_of_fork(verbatim) if isinstance(item.flag, Argument)]
    else:
        # of a plan's words what counts is that the build can say the same
        names = [name for name in arguments.written if name.startswith("-")]
    for name in dict.fromkeys(names):
        why = build.lacks(name, planned=verbatim is None)
        if why and (verbatim is not None or not _has_another_way(name, arguments.params, build)):
            yield why


def _has_another_way(name: str, params: Params, build: Build) -> bool:
    """Return whether the build has other flags for the same: -lm none is --no-mmap, -ncmoe is
    -ot."""
    row, _ = lookup(name) or (None, True)
    if row is None or not row.field:
        return False
    words = to_words(replace(Params(), **{row.field: getattr(params, row.field)}), build.knows)
    return all(build.knows(item.name) for item in items(words))


# --- the machine


def _found(
    policy: Policy,
    params: Params,
    environ: Mapping[str, str] | None,
    program: Sequence[str],
    amend: Callable[[Inventory], Inventory] | None,
) -> Found:
    """Return the devices that --machine or --gpu describe, otherwise this machine's as the program
    sees them."""
    if policy.machine is not None:
        # a plan for another machine: nothing of this one is read
        if policy.gpu is not None:
            raise UsageError("--machine and --gpu both set the devices: give one of them")
        return (*described(policy.machine), ())
    if policy.gpu is not None:
        # RPC servers are not part of the planned machine: they are asked as they are.
        servers, notes = remote(params.rpc)
        return [*servers, *of_one_machine(policy.gpu, policy.ram or 0)], None, notes
    lister = None
    if len(program) == 1:
        import shutil

        lister = shutil.which(program[0])
    # --list-devices of that very program: its backends decide what there is.
    inventory = discover(environ, lister, params.rpc)
    if amend is not None:
        inventory = amend(inventory)
    return inventory.devices, inventory.host, inventory.notes


def _host(
    host: Host | None, devices: Sequence[Device], policy: Policy, params: Params
) -> Host | None:
    """Return the RAM and the processor with what --ram, --cores and -t say."""
    shared = _shared(devices) if host is None else None
    # the machine around a GPU that shares its RAM has no more than that
    size = min(policy.ram or shared, shared) if shared else policy.ram
    if size is not None:
        host = _of_size(size, host, devices, policy, params)
    if host is None:
        return None
    if policy.ram_bandwidth is not None:
        host = replace(host, bandwidth=policy.ram_bandwidth, bandwidth_source="given")
    return replace(host, cores=policy.cores, threads=None) if policy.cores is not None else host


def _of_size(
    size: int, host: Host | None, devices: Sequence[Device], policy: Policy, params: Params
) -> Host:
    """Return RAM of this size. Less than there is limits this machine; more is that of another one,
    as is the RAM that a GPU of another one shares."""
    # The part of this machine: its rates and cores stay.
    if host is not None and (size <= host.total or policy.machine is not None):
        return replace(host, total=size, available=size, source="given")
    other = host_of(size, devices, host)
    return replace(other, cores=max(other.cores or 0, params.n_threads or 0) or None)


def _shared(devices: Sequence[Device]) -> int | None:
    """Return the bytes of the RAM that a GPU shares, which are all that its machine has; None if
    unknown."""
    return next((device.ram for device in devices if device.in_ram and device.ram), None)


def _cores_here(here: Host | None, host: Host | None, policy: Policy) -> list[str]:
    """Return a note if a machine with more RAM than this one is planned with the cores of this
    one."""
    if here is None or host is None or host.total <= here.total:
        return []
    decided = policy.cores is not None or policy.machine is not None
    if decided or not host.cores or host.cores != here.cores:
        return []
    return [
        f"--ram is more than the {human(here.total)} here: planned with the {host.cores} cores "
        f"here (--cores N)"
    ]


def _machine(
    devices: Sequence[Device], host: Host | None, policy: Policy, max_devices: int = 0
) -> Machine:
    """Return the machine within --budget and --margin, which may be for as many as `max_devices`
    devices."""
    # raises for a list longer than the devices
    policy.margins(max(max_devices, len(devices)))
    budget = dict(policy.budget)
    # for an RPC server that does not answer, only the budget is known
    devices = [
        replace(device, total=budget[device.name], free=budget[device.name])
        if device.name in budget and not device.total
        else device
        for device in devices
    ]
    machine = Machine.of(devices, host, None, budget)
    return machine if policy.ram_limit is None else machine.limited(within(policy.ram_limit))


def _named(given: Sequence[Device | str], ram: int) -> Sequence[Device]:
    """Return devices, completed from the table of cards, or --gpu values for them; hypothetical
    ones of the same name are numbered. Raises UsageError."""
    if isinstance(given, str):
        return of_one_machine(given, ram)
    if isinstance(given, Device):
        raise WrongType("devices are a list, such as [device]")
    for device in given:
        if not isinstance(device, (Device, str)):
            raise UsageError(
                f"a device is a Device, a size such as '24GiB' or a GPU's name, not {device!r:.60}"
            )
    devices = [
        completed(device) if isinstance(device, Device) else Device.hypothetical(device, ram=ram)
        for device in given
    ]
    return (
        devices if len({device.name for device in devices}) == len(devices) else numbered(devices)
    )


# --- the files that are loaded with the model


def companions_of(params: Params, words: object = ()) -> Companions:
    """Return the headers of the other files that `params` names; -hft and --offline apply to them
    too if `words` are the Arguments. Raises ModelError naming the file, LaunchRefused."""
    if not any(getattr(params, name) for name in _FILES):
        return NONE
    from .sources import network_environ, open_source

    environ = network_environ(os.environ, words) if isinstance(words, Arguments) else os.environ
    projector = _projector(params.mmproj, environ) if params.mmproj else None
    loras = tuple(map(_adapter, params.lora))
    for path in params.control_vector:
        if not is_control_vector(read_header(path)):
            wrong = "not a control vector, whose tensors are named direction.N"
            raise LaunchRefused(f"--control-vector {path}: {wrong}")
    draft = read_model(open_source(params.model_draft, environ)) if params.model_draft else None
    return Companions(projector, draft, loras)


def _projector(path: str, environ: Mapping[str, str]) -> Header:
    from .sources import open_source

    opened: Any = open_source(path, environ)
    projector = read_header(opened)
    if not is_projector(projector):
        raise LaunchRefused(f"--mmproj {path}: not a projector for images or audio")
    return projector


def _adapter(path: str) -> Header:
    adapter = read_header(path)
    if not is_adapter(adapter):
        raise LaunchRefused(f"--lora {path}: not an adapter (general.type is not adapter)")
    return adapter


def for_model(model: Model, request: Request) -> Request:
    """Return the request as its program means it for this model, with its draft checked
    (with_draft_checked)."""
    own_words = request.build.engine.said
    places = getattr(own_words, "fit", False) or getattr(own_words, "moe_layers", 0)
    if places and request.params.n_gpu_layers is None:
        # its own default: these words count
        request = request.asking(
            replace(request.arguments, params=replace(request.params, n_gpu_layers=999))
        )
    return with_draft_checked(model, request)


def with_draft_checked(model: Model, request: Request, used: bool = False) -> Request:
    """Return the request, with a note for a draft whose tokens are translated. `used`: the draft is
    to be used, even if no flag says so. Raises LaunchRefused for one of another vocabulary with
    which llama-server drafts nothing."""
    draft = request.companions.draft
    # where a build is uncertain, the one that drafts
    rules = Rules(request.build.rules.number, changed=True)
    idle = "draft-simple" not in request.params.spec_type and rules.names_draft_type and not used
    if draft is None or draft.row.draft_type or idle:
        return request
    from .model.vocabulary import unlike

    # Imported with the first draft: comparing vocabularies reads them.
    why = unlike(model, draft, only_added=rules.draft_ends_if_added)
    if not why:
        return request
    path = request.params.model_draft
    if not rules.translates_drafts:
        raise LaunchRefused(
            f"-md {path}: llama-server does not draft with another vocabulary: {why}"
        )
    return replace(
        request,
        notes=(*request.notes, f"-md {path}: {why}, so each draft is translated, which is slow"),
    )
