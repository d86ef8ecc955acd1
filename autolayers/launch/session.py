"""One command on one machine: its parsed words and its plan, corrected by earlier observations."""

from __future__ import annotations

import shutil

from .. import store
from ..backends import HOST
from ..detect import digest as program_digest
from ..diagnosis.log import META
from ..engines import LLAMA_SERVER, of_program
from ..errors import DeviceError, UsageError
from ..flags.check import refuse_contradictions, refuse_of_program
from ..flags.params import N_PARALLEL
from ..flags.parse import Arguments, items, parse
from ..gguf import first_part
from ..model import read_model
from ..output import say, say_all
from ..planner import Plan, plan_request
from ..quoting import shell
from ..records import lazy, replace
from ..request import Request, for_model
from ..sources import hf_cache, needs_download, network_environ, open_source
from ..store import CheckedBuild, Observation
from ..units import mib
from . import command as commands
from . import kept, tuned
from .confirm import TOOL, Referee, beside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..builds import Build
    from .command import WrappedCommand

    Planner = Callable[..., Plan]


class Session:
    """Everything that stays the same between attempts. `own` are the parsed own flags before the
    command.

    Raises UsageError for words that make no sense, ModelError for an unreadable model, DeviceError.
    """

    def __init__(
        self,
        command: WrappedCommand,
        own: dict[str, Any],
        environ: Mapping[str, str],
        planner: Planner = plan_request,
    ) -> None:
        self.command = command
        self.environ = environ
        self.planner = planner
        self.seen, self.files = command.read_besides(environ)
        read = parse(command.plannable, self.seen, self.files, command=None)
        models = [value for flag, value in read.given if flag in ("-m", "--model")]
        if len(models) > 1:
            say(
                f"{command.program} loads one model, the last -m: {models[-1]}, not "
                f"{', '.join(models[:-1])}"
            )
        # the file of -hf, if it is in a cache of this machine
        self.projector: str | None = None
        self.model_path = self._model_path(read)
        self.model = read_model(open_source(self.model_path, network_environ(self.seen, read)))
        self.another_build = "llama-build" in own  # perhaps not the program's
        refuse_contradictions(own, parse(command.plannable, command=None).params)
        starts = not command.container and not own.keys() & {"format", "dry-run"}
        if starts and read.params.rpc:
            from ..devices.rpc import unavailable

            # a launch would wait for RPC servers that are busy or dead, or abort
            if lines := unavailable(read.params.rpc):
                raise DeviceError(
                    "; ".join(lines) + ": end what uses it, start it, or leave it out of --rpc"
                )
        # With the model's own projector, and a container's files as paths of this machine.
        params = read.params
        if self.projector and params.mmproj is None:
            params = replace(params, mmproj=self.projector)
        files_here = self.command.files_here(params) if self.command.mounts else params
        request = Request.of(
            replace(read, params=files_here, own=own, positional=()),
            environ,
            # Its --version and --help are read; a script or a container is not safe to query
            program=() if self.program() is None else command.launcher,
            verbatim=command.words,
            checked=not command.bench,  # its flags differ
            of_program=command.engine or of_program(command.program),
        )
        # Refuse unknown flags; those that this llama.cpp has are passed on
        for name in read.unknown:
            # In the program's own --help, so it will not refuse the flag
            fork = request.build.fork
            if fork or name.partition("=")[0] in (request.build.flags or ()):
                whose = f"of {fork}" if fork else "newer than autolayers"
                say(f"{name} is {whose}: passed on, not part of the plan")
            elif own.get("strict-flags") != "off":
                refuse_of_program(name, self.command.program)
        # Flags that no build of this program has; of a script or an image nothing says which
        # program it starts
        build, known = request.build, command.program.startswith("llama-")
        of_script = command.container or not known
        if not (of_script or command.bench or build.fork or own.get("strict-flags") == "off"):
            for item in items(command.words):
                if item.argument is None or item.name in (build.flags or ()):
                    continue
                if why := build.has_not(item.argument, item.name):
                    raise UsageError(f"{why} (--strict-flags off passes it on)")
        # `said` prints the notes of the request, such as where the devices are from
        self.request = for_model(self.model, request).said()
        if self.referee is not None:
            self.model = self.referee.measured(self.model, self.request.params)
        slots = request.build.default_slots
        # this build's behaviour without a flag
        if request.params.n_parallel is None and slots != N_PARALLEL:
            self.ask_for(
                replace(request.arguments, params=replace(request.params, n_parallel=slots))
            )

    @property
    def build(self) -> Build:
        return self.request.build

    @property
    def arguments(self) -> Arguments:
        return self.request.arguments

    def ask_for(self, arguments: Arguments) -> None:
        """Use these flags for later plans."""
        self.request = self.request.asking(arguments)

    def plan(self, request: Request | None = None) -> tuple[Plan, list[str]]:
        """Return (the plan, the words it adds to the command). Without a `request` with less memory
        it is for this machine, with remedies if it does not fit."""
        # Advice costs a search and is of use only in the first plan
        advise, request = request is None, request or self.request
        plan = (
            self._kept_or_new(request)
            if advise
            else self.planner(self.model, request, advise=False)
        )
        # In this order: a tuned launch is corrected by what it used, and then judged
        plan = self._checked(self._corrected(self._measured(plan, request), request, advise))
        if self.referee is not None:
            # With what the llama-fit-params beside the program says of it
            plan, line = self.referee.on(request).confirmed(
                plan, lambda less: self.planner(self.model, less, advise=False)
            )
            say_all([line] if line else [])
        added, notes = commands.additions(
            self.command, plan.flags, self.build, self.seen, self.files
        )
        say_all(notes)
        # ik_llama.cpp has no --list-devices, so no GPU seen is no proof that there is none: -ngl 0
        # would turn off one that it would use
        unseen = self.build.engine.lists_nothing and request.params.device != ()
        if unseen and not plan.devices and added[:2] == ["-ngl", "0"]:
            say(
                f"no GPU found here, and {self.build.engine.name} lists none: planned for the CPU, "
                f"-ngl is left to it"
            )
            added = added[2:]
        return plan, added

    def _kept_or_new(self, request: Request) -> Plan:
        """Return the plan of an earlier launch that is unchanged, or a new one, which is kept."""
        digest = self.digest
        if digest and "replan" not in request.arguments.own:
            plan = kept.find(
                digest,
                request,
                self.environ,
                lambda planned: self.planner(self.model, planned, advise=False),
            )
            if plan is not None:
                return plan
        # Only the first plan is kept: later ones are for a machine with less memory than this one
        plan = self.planner(self.model, request, advise=True)
        if digest:
            kept.keep(digest, request, plan, self.environ)
        return plan

    @lazy
    def digest(self) -> str:
        """The digest of the model's header, for kept results; "" if it cannot be read."""
        return store.digest(self.model_path, self.model.header.data_offset)

    def _model_path(self, read: Arguments) -> str:
        model = read.params.model
        if model is None:
            raise UsageError(f"no model in the command: add -m MODEL after {self.command.program}")
        if first := first_part(model):
            raise UsageError(
                f"{self.command.program} loads a split model by its first part: -m {shell([first])}"
            )
        if not needs_download(model):
            return self.command.here(model)
        if not model.startswith("hf:"):
            raise UsageError(
                f"autolayers run needs a local file, not {model}: download it and give -m FILE, or "
                f"launch by hand with the flags that `autolayers {shell([model])}` prints"
            )
        # A container has a cache of its own
        if self.command.container:
            return model
        # The file that -hf uses from a cache of this machine; the name if it is not downloaded yet
        cached, path, notes = hf_cache.look_up(model, self.seen)
        if not path:
            return model
        say_all(notes)
        if read.value("--no-mmproj") is None:
            self.projector = hf_cache.projector(cached, path) or None
        return cached.files[path]

    def program(self) -> str | None:
        """Return the path of the llama.cpp program, whatever starts it; None for a script or
        container, which are not safe to query."""
        if self.command.container or not self.command.program.startswith("llama-"):
            return None
        return shutil.which(self.command.executable)

    def _measured(self, plan: Plan, request: Request) -> Plan:
        """Return the plan that `autolayers tune` measured to be the fastest, if it did."""

        def again(arguments: Arguments) -> Plan:
            return self.planner(self.model, request.asking(arguments))

        plan, line = tuned.measured_plan(
            plan,
            self.model,
            request.machine.devices,
            request.arguments,
            tuned.key(self.build),
            self.environ,
            again,
        )
        if line:
            say(line)
        return plan

    def _corrected(self, plan: Plan, request: Request, advise: bool) -> Plan:
        """Plan again if an earlier launch with these flags used more than predicted."""
        if self.build.engine is not LLAMA_SERVER:
            observation = None  # its own launches are not verified
        else:
            launch = (self.build.number, backend(plan), plan.flags)
            seen = store.read(Observation, self.environ, self.digest) if self.digest else []
            observation = next((row for row in seen if row.key == launch), None)
        worse = {
            device: size
            for device, size in (observation.differences if observation else {}).items()
            if size > 0
        }
        if observation is None or not worse:
            return plan
        for device, size in worse.items():
            say(
                f"observed {observation.date[:10] or 'before'}: {device} uses {mib(size)} more "
                "than predicted with these flags; the plan includes it"
            )
        # META: -sm tensor has one line for all devices, so each may have taken it
        everywhere = worse.get(META, 0)
        taken = {d.name: worse.get(d.name, everywhere) for d in request.machine.devices}
        return self.planner(self.model, request.less(taken), advise=advise)

    def _checked(self, plan: Plan) -> Plan:
        """Return the plan with the results of `autolayers check` for this program."""
        program = None if self.another_build else self.program()
        known = store.read(CheckedBuild, self.environ, store.of_path(program)) if program else []
        # Another build may stand at this path now: what was checked is not that one
        checked = next((row for row in known if row.digest == program_digest(program or "")), None)
        # {} or None: no difference, or not checked
        differs = checked.architectures.get(self.model.architecture) if checked else None
        if checked is None or not differs:
            return plan
        parts = ", ".join(
            f"{part} {'+' if size > 0 else ''}{mib(size)}" for part, size in differs.items()
        )
        warning = (
            f"checked on this build on {checked.date[:10]}: {self.model.architecture} does not "
            f"allocate as predicted ({parts})"
        )
        return replace(
            plan, breakdown=replace(plan.breakdown, exact=False), noted=(*plan.noted, warning)
        )

    @lazy
    def referee(self) -> Referee | None:
        """Who asks the llama-fit-params beside the program; None without one."""
        asked = self.arguments.own.get("confirm")
        tool = None if asked is False or self.another_build else beside(self.program())
        if tool is None:
            if asked:
                say(f"--confirm: no {TOOL} beside {self.command.program}")
            return None
        return Referee(tool, self.model_path, self.digest, self.request, self.environ)


def backend(plan: Plan) -> str:
    """Return the backend of the first device: "CUDA", "Vulkan", ..., "CPU"."""
    return next((name.rstrip("0123456789") for name in plan.breakdown.devices), HOST)
