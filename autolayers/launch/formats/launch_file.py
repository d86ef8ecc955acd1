"""A launch for the writers: words without secrets, their Params, and a name."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial

from ...backends import HOST, backend_of
from ...errors import UsageError
from ...flags.params import Params
from ...flags.parse import Arguments, items, parse
from ...flags.table import Argument, lookup
from ...flags.write import to_words
from ...net import public
from ...quoting import printable
from ...records import replace
from ...units import MiB, human
from ...work.figures import DISK, START
from ..command import WrappedCommand
from ..secrets import launcher_without_secrets, without_secrets
from .reach import Reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from ...planner import Plan
    from ...planner.plan import DeviceRow

_PORT = "8080"  # of llama.cpp's images, for any build
# Of a slow start: seconds of a driver that compiles its kernels first; bytes per second of a hard
# disk or a network's, and of a slow line
_START, _SLOW, _DOWNLOAD = 300, 100_000_000, 4_000_000
_ELSEWHERE = ("hf:", "docker:", "http://", "https://")
_HERE = ("", "127.0.0.1", "localhost", "::1")  # addresses that only this machine reaches
# fields of llama-server's own features, which programs that ignore these fields lack
# (--fit, saved prompts and checkpoints are its own code, not the library's)
_OF_THE_SERVER = frozenset(
    ("fit", "fit_target", "fit_ctx", "cache_ram", "ctx_checkpoints", "cache_reuse", "warmup")
)


class LaunchFile:
    """A command with the words added to it. `secrets`: the environment variables that carry the
    words left out; `warnings`: notes for the file's user."""

    def __init__(
        self,
        command: WrappedCommand,
        added: Sequence[str],
        plan: Plan,
        environ: Mapping[str, str] | None = None,
        config_files: Sequence[str] = (),
    ) -> None:
        self.command = command
        self.plan = plan
        gpus = own_gpus(plan)
        # The backend of this machine's first device.
        # An RPC device is another machine's GPU: it needs no driver in this file
        own = (name for name in plan.breakdown.devices if not backend_of(name).remote)
        self.reach = Reach(backend_of(next(own, HOST)), gpus[0].description if gpus else "")
        self.image = ""  # of a container, empty: llama.cpp's own
        self.shares = ""  # what divides its GPU by memory: --gpumem
        self.build = 0  # the one that its plan is for, where it was said
        # A service or container starts without this shell's variables and config files
        # The settings of the environment and config files, as words. The plan's flags
        # have all that affects memory but the model.
        typed = parse(command.words, command=None)
        rows = {row[0].canonical for flag, _ in typed.given if (row := lookup(flag))}
        settings: list[str] = []
        for flag, value in parse((), environ, config_files, command=None).given:
            row = lookup(flag)
            if row is None or row[0].canonical in rows or row[0].field not in ("", "model"):
                continue
            if row[0].field != "model" or typed.params.model is None:
                # Fields other than the model are the plan's flags already
                settings += [flag, *_values(row[0], value)]
        complete = parse([*command.words, *settings, *added], command=None)
        if not _downloads(complete.params.model):
            # A token of the Hub is of no use to a program that downloads nothing
            settings = without(settings, "-hft")
        words = [*command.words, *settings, *added]
        if not command.container:  # its launcher has another working directory
            # A service starts in another directory, so a relative path would name nothing
            words = moved(words, lambda path, _: os.path.abspath(path))
        if (complete.params.model or "").startswith("hf:") and not _settles_projector(complete):
            # -hf would load a projector that is not in the plan
            words.append("--no-mmproj")
        # `names`: e.g. ["LLAMA_API_KEY"], which llama-server reads in place of --api-key
        self.words, names = without_secrets(words)
        self.launcher, launcher_names = launcher_without_secrets(command)
        self.secrets = list(dict.fromkeys([*names, *launcher_names]))
        # Parsed again: writers look words up in what they are going to write
        self.arguments = parse(self.words, command=None)
        self.params = self.arguments.params
        self.host = self.arguments.value("--host")
        self.port = self.arguments.value("--port") or _PORT
        # Raise UsageError for what is no port.
        port = self.port
        if not re.fullmatch("[0-9]{1,5}", port) or int(port) >= 1 << 16:
            raise UsageError(f"--port {port}: a port is a number, 0 to 65535")
        self.warnings: list[str] = []
        self.ram = plan.ram
        if self.ram.limit is None:
            self.warnings.append(
                "--cache-ram -1 saves prompts without end, so no limit of memory is written"
            )
        self._model = complete.params.model

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        arguments: Arguments,
        model: str | None,
        environ: Mapping[str, str] | None = None,
        config_files: Sequence[str] = (),
    ) -> LaunchFile:
        """Return a llama-server with a plan's flags; `model` as the user named it, None: as the
        plan does."""
        words = [] if "-m" in plan.flags else to_words(Params(model=model or plan.model.path))
        command = WrappedCommand(("llama-server",), (*words, *arguments.rest), "llama-server")
        return cls(command, plan.flags, plan, environ, config_files)

    def refuse_unreached(self, kind: str) -> None:
        """Raise UsageError for GPUs that a format cannot give to its program."""
        if own_gpus(self.plan) and not self.image:
            self.reach.refuse(kind)

    @property
    def name(self) -> str:
        """The alias, or the model's file name without directory, ending and part number, other
        characters as dashes."""
        if alias := self.arguments.value("-a"):
            return alias.split(",")[0]
        model = self._model or "llama-server"
        # `public` drops user, password and query of a link: a name must not give them away
        base = (public(model) if "://" in model else model).replace("\\", "/").rpartition("/")[2]
        # e.g. "Qwen3-8B-Q4_K_M-00001-of-00002.gguf" -> "Qwen3-8B-Q4_K_M"
        return plain_name(re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", base)) or "model"

    @property
    def program(self) -> list[str]:
        """The launcher with an absolute path: services do not search the user's PATH."""
        first, *others = self.launcher
        path = shutil.which(first)
        if path is None and not self.command.container:
            self.warnings.append(f"{first} is not in PATH here: write its full path into the file")
        return [os.path.abspath(path) if path else first, *others]

    @property
    def model(self) -> str:
        """The model's file or place. Raises UsageError without one."""
        if self.params.model is None:
            raise UsageError("no model in the command: add -m MODEL")
        return self.params.model

    @property
    def hub_file(self) -> tuple[str, str] | None:
        """(USER/NAME, the file in it) of a model of the Hub, whose file is the one that was read
        where the command names a quantisation or none; None for other models."""
        name = self.params.model or ""
        found = re.fullmatch(r"hf:([^/]+/[^/:]+)(?:/(.+\.gguf)|:.*)?", name)
        if not found or found[2]:
            return (found[1], found[2]) if found else None
        # e.g. .../models--USER--NAME/snapshots/HASH/folder/file.gguf
        read = self.plan.model.path.replace("\\", "/")
        file = re.search(r"(?:/snapshots/[^/]+/|/resolve/[^/]+/|^hf:[^/]+/[^/]+/)(.+)", read)
        return (found[1], file[1]) if file and file[1].endswith(".gguf") else None

    def unseen_files(self, words: Sequence[str]) -> list[str]:
        """Return the paths of this machine in words for a pod that mounts none of them."""
        paths: list[str] = []

        def seen(path: str, _: bool) -> str:
            paths.append(path)
            return path

        moved(words, seen)
        return paths

    @property
    def downloads(self) -> bool:
        """Whether the program itself downloads the model, to its cache."""
        return _downloads(self.params.model)

    @property
    def private(self) -> bool:
        """Whether only this machine may reach the server."""
        return (self.host or "") in _HERE

    @property
    def notes(self) -> list[str]:
        """Comments at the top of a file."""
        return [] if self.plan.fits else ["# the plan does not fit: it may run out of memory"]

    @property
    def request(self) -> int:
        """MiB of RAM that a scheduler should keep for it."""
        return self.ram.request // MiB

    @property
    def limit(self) -> int | None:
        """MiB of RAM that it never exceeds; None: there is no such limit."""
        return None if self.ram.limit is None else self.ram.limit // MiB

    @property
    def patience(self) -> int:
        """Seconds after which a start has failed: what is not read or downloaded by then never
        will be."""
        rate = _DOWNLOAD if self.downloads else _SLOW
        return _START + -(-self.plan.model.size // rate)

    @property
    def idle(self) -> int:
        """Seconds without a request after which it may be unloaded: to start it and to read a
        prompt again costs a sixtieth of them."""
        speed = self.plan.speed
        prompt = speed.workload.prompt / speed.prompt if speed.prompt else 0
        return round(60 * (START + self.plan.model.size / DISK + prompt))

    @property
    def health(self) -> tuple[str, str]:
        """(http or https, the path that answers once the model is loaded)."""
        # llama-server puts --api-prefix before each of its routes (tools/server/server-http.cpp)
        prefix = (self.arguments.value("--api-prefix") or "").strip("/")
        path = f"/{prefix}/health" if prefix else "/health"
        return "https" if self.arguments.value("--ssl-cert-file") else "http", path

    def secret_notes(self, where: str) -> list[str]:
        """Return a comment for each omitted secret."""
        return [f"# {name} is read from {where}" for name in self.secrets]

    def starts_keyless(self, way: str) -> None:
        """Warn of a key that was given, where the target cannot fail without it; `way`: how it
        can."""
        if "LLAMA_API_KEY" in self.secrets:
            self.warnings.append(f"LLAMA_API_KEY: nothing stops a start without it: {way}")

    def check_expressed(self, fields: Container[str], flags: Container[str], target: str) -> None:
        """Raise UsageError for settings that affect memory and are not in `fields`; warns of all
        others not in `flags`."""
        params = self.params
        for name in Params.__dataclass_fields__:
            value = getattr(params, name)
            # Whether a field of Params says something; an expert cache of 0 MiB is
            # none
            if (
                name in fields
                or name in _OF_THE_SERVER
                or not (
                    False
                    if value is None or value == ()
                    else name != "moe_cache_mib" or bool(value)
                )
            ):
                continue
            # The flag's name is the first word, e.g. "-ot" of ["-ot", "exps=CPU"]
            flag_name = next(iter(to_words(Params(**{name: value}))), name)
            raise UsageError(f"{target} has nothing like {flag_name}: plan without it")
        given = [
            flag
            for flag, _ in self.arguments.given
            if (row := lookup(flag)) and not row[0].field and row[0].canonical not in flags
        ]
        for flag in dict.fromkeys((*given, *self.arguments.unknown)):
            self.warnings.append(f"{target} has nothing like {flag}: left out")


def _settles_projector(arguments: Arguments) -> bool:
    """Return whether a projector is named, wanted or refused."""
    if arguments.params.mmproj is not None:
        return True
    return any(arguments.value(flag) is not None for flag in ("--mmproj-auto", "--no-mmproj"))


def _downloads(model: str | None) -> bool:
    return (model or "").startswith(_ELSEWHERE)


def _values(argument: Argument, text: str) -> list[str]:
    """Return the words behind a flag."""
    if argument.kind.words > 1:
        # --control-vector-layer-range START END; a variable or config file has both in one text
        return text.split(" ", 1)
    return [text] if argument.takes_value else []


def own_gpus(plan: Plan) -> list[DeviceRow]:
    """Return the GPUs of this machine up to the last that is used: a container that has fewer would
    call them otherwise."""
    rows = [row for row in plan.devices if not backend_of(row.name).remote]
    # E.g. only CUDA1 is used: with one GPU in the container it would be CUDA0, which the flags do
    # not name; so both are taken
    last = max([at for at, row in enumerate(rows, 1) if row.used], default=0)
    return rows[:last]


def one_sequence(arguments: Arguments, target: str) -> Params:
    """Return the parameters for a program that runs one sequence. Raises UsageError if more are
    given."""
    given = arguments.params.n_parallel
    if given is not None and given > 1:
        raise UsageError(f"{target} runs one sequence, but -np {given} requests {given}")
    return replace(arguments.params, n_parallel=1)


def moved(words: Sequence[str], where: Callable[[str, bool], str]) -> list[str]:
    """Return the words with each path of this machine replaced by `where(path, whether it is
    written to)`."""
    new_words: list[str] = []
    for item in items(words):
        kind = item.flag.kind if isinstance(item.flag, Argument) else None
        if (
            kind is None
            or kind.paths is None
            or not item.value
            or item.value.startswith(_ELSEWHERE)
        ):
            new_words += item.words
        else:
            new_words += [
                # `paths` is the kind's own way to find paths in a value, e.g. FILE:SCALE of
                # --lora-scaled
                item.words[0],
                kind.paths(item.value, partial(_new_path, where, kind.written)),
            ]
    return new_words


def _new_path(where: Callable[[str, bool], str], written: bool, path: str) -> str:
    """Return where a path of this machine is on the other one."""
    return where(path, written)


def plain_name(text: str) -> str:
    """Return the text with dashes for characters that a file's or service's name should not
    have."""
    # \w keeps letters of all languages
    return re.sub(r"[^\w.+-]+", "-", text)


def named(launches: Sequence[LaunchFile]) -> Iterator[tuple[str, LaunchFile]]:
    """Yield the launches under distinct names: numbered if two are the same."""
    seen: set[str] = set()
    for launch in launches:
        name, number = launch.name, 1
        # A router or llama-swap reads names as keys: of two equal ones the first would be lost
        while name in seen:
            number += 1
            name = f"{launch.name}-{number}"
        seen.add(name)
        yield name, launch


def sizes_note(launch: LaunchFile) -> str:
    """Return the launch's memory per device, margins included, and what loading it costs."""
    plan = launch.plan
    parts = [
        f"{device.name} {human(device.used + device.margin)}"
        for device in plan.devices
        if device.used
    ]
    host = plan.host
    return printable(
        ", ".join(
            [*parts, f"RAM {human(host.resident)}, {human(host.resident + host.growing)} at most"]
        )
        + f"; a swap reads {plan.model.size / DISK:.1f} s at {DISK / 1e9:g} GB/s"
    )


def without(words: Sequence[str], *flags: str) -> list[str]:
    """Return the words without these arguments of llama-server, by their canonical names."""
    return [
        word
        for item in items(words)
        if not (isinstance(item.flag, Argument) and item.flag.canonical in flags)
        for word in item.words
    ]
