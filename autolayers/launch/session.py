"""One command on one machine: its words read once, its plan, corrected by what was observed of it before."""

from __future__ import annotations

from ..backends import HOST
from ..builds import TODAY, Build
from ..errors import UsageError
from ..flags.check import refuse_contradictions, refuse_of_program
from ..flags.params import N_PARALLEL
from ..flags.parse import config_files, parse
from ..flags.policy import read_policy
from ..output import say
from ..records import dataclass, replace
from ..units import mib
from . import command as commands
from .log import META

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..flags.parse import Arguments
    from ..machine import Device, Host
    from ..model import Model
    from ..planner import Plan
    from .command import WrappedCommand
    from .observations import Observation

    Planner = Callable[..., Plan]


@dataclass(frozen=True)
class LaunchMachine:
    """What is planned for. `host` None: RAM without a limit."""

    devices: tuple[Device, ...]
    host: Host | None


class Session:
    """Everything that does not change between attempts. `own` are the flags of autolayers before the command, read.

    Raises UsageError for words that make no sense, ModelError for an unreadable model, DeviceError.
    """

    def __init__(self, command: WrappedCommand, own: Mapping[str, Any], environ: Mapping[str, str],
                 planner: Planner) -> None:
        self.command = command
        self.environ = environ
        self.planner = planner
        self.files = config_files(environ) if not command.container else ()
        # A container does not see this environment, only what its command gives it
        self.seen = {**({} if command.container else environ), **command.environ}
        read = parse(command.plannable, self.seen, self.files, command=None)
        self.projector: str | None = None        # that -hf loads, where it is in a cache of this machine
        self.model_path = self._model_path(read)
        self.model = self._model(read)
        asked = read_policy(own).build
        self.build = self._build(asked)
        self.another_build = asked is not None       # than the program's, perhaps
        self._check(read, own)
        self.machine = self._machine(read, own)
        # From here on the plan names what this build would do without a flag
        params = read.params
        if params.n_parallel is None and self.build.default_slots != N_PARALLEL:
            params = replace(params, n_parallel=self.build.default_slots)
        if self.projector and params.mmproj is None:
            params = replace(params, mmproj=self.projector)
        if command.mounts:
            params = command.files_here(params)
        own = {key: value for key, value in own.items() if key not in ("gpu", "ram", "machine")}
        if self.build is not TODAY:
            own["llama-build"] = self.build if self.build.doubt else self.build.number or self.build
        self.arguments = replace(read, params=params, own=own, positional=())

    def plan(self, machine: LaunchMachine | None = None) -> tuple[Plan, list[str]]:
        """(the plan for `machine`; the words it adds to the command). Without `machine` it is for this one, and says
        what would fit where it does not."""
        advise, machine = machine is None, machine or self.machine
        plan = self._checked(self._corrected(self._measured(self._plan(machine, advise), machine), machine, advise))
        added, notes = commands.additions(self.command, plan.flags, self.build, self.seen, self.files)
        for note in notes:
            say(note)
        return plan, added

    def digest(self) -> str:
        """Of the model's header, for what is kept of its launches; "" if it cannot be read."""
        from .observations import digest

        return digest(self.model_path, self.model.header.data_offset)

    def _model_path(self, read: Arguments) -> str:
        from ..gguf import first_part
        from ..sources import needs_download

        model = read.params.model
        if model is None:
            raise UsageError(f"no model in the command: add -m MODEL after {self.command.program}")
        if first := first_part(model):
            raise UsageError(f"{self.command.program} loads a split model by its first part: -m {first}")
        if not needs_download(model):
            return self.command.here(model)
        if not model.startswith("hf:"):
            raise UsageError(f"autolayers run needs a local file, not {model}: download it and give -m FILE, or launch "
                             f"by hand with the flags that `autolayers {model}` prints")
        return model if self.command.container else self._cached(model, read)

    def _cached(self, name: str, read: Arguments) -> str:
        """The file that -hf takes from a cache of this machine; the name where it has yet to be downloaded."""
        from ..sources.hf_cache import look_up, projector

        found, path, notes = look_up(name, self.seen)
        if not path:
            return name
        for note in notes:
            say(note)
        if read.value("--no-mmproj") is None:
            self.projector = projector(found, path) or None
        return found.files[path]

    def _model(self, read: Arguments) -> Model:
        from ..model import read_model
        from ..sources import network_environ, open_source

        return read_model(open_source(self.model_path, network_environ(self.seen, read)))

    def _build(self, number: int | None) -> Build:
        if number is not None:
            return Build(number)
        if self.program() is None:
            return TODAY
        from .detect import detect

        return detect(self.command.launcher, self.environ)

    def program(self) -> str | None:
        """The path of a llama.cpp program, whatever starts it; None for a script or container, which may do anything
        when asked."""
        import shutil

        if self.command.container or not self.command.program.startswith("llama-"):
            return None
        return shutil.which(self.command.executable)

    def _check(self, read: Arguments, own: Mapping[str, Any]) -> None:
        """Refuses flags that nobody knows, and contradictions; what this very llama.cpp has is passed on."""
        refuse_contradictions(own, parse(self.command.plannable, command=None).params)
        for name in read.unknown:
            if name.partition("=")[0] in (self.build.flags or ()):
                say(f"{name} is newer than autolayers: passed on, and not part of the plan")
            elif own.get("strict-flags") != "off":
                refuse_of_program(name, self.command.program)

    def _machine(self, read: Arguments, own: Mapping[str, Any]) -> LaunchMachine:
        from ..devices import Host, described, discover, hypothetical, remote

        policy = read_policy(own)
        host = None if policy.ram is None else Host(policy.ram, policy.ram, "given")
        notes: list[str] = []
        if policy.machine is not None:
            if policy.gpu is not None:
                raise UsageError("--machine and --gpu both say the devices: give one of them")
            listed, there = described(policy.machine)
            devices, host = tuple(listed), host or there
        elif policy.gpu is not None:
            servers, notes = remote(read.params.rpc)
            devices = (*servers, *hypothetical(policy.gpu))
        else:
            program = self.program() if len(self.command.launcher) == 1 else None
            found = discover(self.environ, program, read.params.rpc)
            devices, notes, host = found.devices, list(found.notes), host or found.host
        for note in notes:
            say(note)
        return LaunchMachine(devices, host)

    def _plan(self, machine: LaunchMachine, advise: bool) -> Plan:
        return self.planner(self.model, self.arguments, devices=machine.devices, host=machine.host, advise=advise)

    def _measured(self, plan: Plan, machine: LaunchMachine) -> Plan:
        """The plan that `autolayers tune` measured to be the fastest, where it did."""
        from .tuned import key, measured_plan

        def again(arguments: Arguments) -> Plan:
            return self.planner(self.model, arguments, devices=machine.devices, host=machine.host)

        plan, line = measured_plan(plan, self.model, machine.devices, self.arguments, key(self.build), self.environ,
                                   again)
        if line:
            say(line)
        return plan

    def _corrected(self, plan: Plan, machine: LaunchMachine, advise: bool) -> Plan:
        """Planned again where an earlier launch with these flags took more than predicted."""
        found = self._observed(plan)
        worse = {device: size for device, size in (found.differences if found else {}).items() if size > 0}
        if found is None or not worse:
            return plan
        for device, size in worse.items():
            say(f"observed {found.date[:10] or 'before'}: {device} takes {mib(size)} more than predicted with these "
                "flags; planned with that")
        devices = tuple(replace(d, free=max(0, d.free - worse.get(d.name, worse.get(META, 0))))
                        for d in machine.devices)
        return self._plan(LaunchMachine(devices, machine.host), advise)

    def _checked(self, plan: Plan) -> Plan:
        """The plan with what `autolayers check` found of this very program."""
        from .checked_builds import load

        program = None if self.another_build else self.program()
        known = load(program, self.environ) if program else None
        differs = known.architectures.get(self.model.architecture) if known else None
        if known is None or differs is None:
            return plan
        if not differs:
            say(f"checked on this build on {known.date[:10]}: {self.model.architecture} allocates as predicted")
            return plan
        parts = ", ".join(f"{part} {'+' if size > 0 else ''}{mib(size)}" for part, size in differs.items())
        warning = (f"checked on this build on {known.date[:10]}: {self.model.architecture} does not allocate as "
                   f"predicted ({parts})")
        return replace(plan, breakdown=replace(plan.breakdown, exact=False), warnings=(*plan.warnings, warning))

    def _observed(self, plan: Plan) -> Observation | None:
        from .observations import find, load

        digest = self.digest()
        return find(load(digest, self.environ), self.build.number, backend(plan), plan.flags) if digest else None


def backend(plan: Plan) -> str:
    """The backend of the first device: "CUDA", "Vulkan", ..., "CPU"."""
    return next((name.rstrip("0123456789") for name in plan.breakdown.devices), HOST)
