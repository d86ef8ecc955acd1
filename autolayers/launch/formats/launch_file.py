"""A launch for the writers: its words as items, read once and without secrets, their Params, and a
name."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial

from ...backends import HOST, backend_of
from ...errors import UsageError
from ...flags.params import Params
from ...flags.parse import Arguments, Item, applied, items, items_of_fork, parse
from ...flags.table import lookup
from ...flags.write import to_words
from ...net import public
from ...quoting import printable
from ...records import dataclass, replace
from ...tables import listed
from ...units import MiB, human
from ...work.figures import DISK, START
from ..command import WrappedCommand
from ..secrets import launcher_without_secrets, public_items
from .reach import Reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

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
    listed("fit fit_target fit_ctx cache_ram ctx_checkpoints cache_reuse warmup")
)


@dataclass(frozen=True)
class SharedMemory:
    """How the models of one file share the memory, models by number. `together`: all fit at once;
    `groups`: those that do; `most`: how many do, whichever they are; `costs`: what it costs to
    evict each, relative to the others; `kept`: those that stay loaded beside each group."""

    together: bool = False
    groups: Sequence[Sequence[int]] = ()
    most: int = 0
    costs: Sequence[int] = ()
    kept: Sequence[int] = ()


ALONE = SharedMemory()


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
        # Its words are read once; from here on they are items
        given = list(items_of_fork(command.words))
        # A service or container starts without this shell's variables and config files
        settings = list(items(_said_elsewhere(given, environ, config_files)))
        planned = list(items(added))
        complete = applied([*given, *settings, *planned])
        if not _downloads(complete.params.model):
            # A token of the Hub is of no use to a program that downloads nothing
            settings = [item for item in settings if item.canonical != "-hft"]
        found = [*given, *settings, *planned]
        if not command.container:  # its launcher has another working directory
            # A service starts in another directory, so a relative path would name nothing
            found = moved(found, lambda path, _: os.path.abspath(path))
        if (complete.params.model or "").startswith("hf:") and not (
            complete.params.mmproj is not None
            or any(complete.value(flag) is not None for flag in ("--mmproj-auto", "--no-mmproj"))
        ):
            # -hf would load a projector that is not in the plan
            found += items(["--no-mmproj"])
        # `names`: e.g. ["LLAMA_API_KEY"], which llama-server reads in place of --api-key
        self.items, names = public_items(found)
        self.launcher, launcher_names = launcher_without_secrets(command)
        self.secrets = list(dict.fromkeys([*names, *launcher_names]))
        # Without the secrets: writers look words up in what they are going to write
        self.arguments = applied(self.items)
        self.params = self.arguments.params
        self.host = self.arguments.value("--host")
        self.port = self.arguments.value("--port") or _PORT
        if not re.fullmatch("[0-9]{1,5}", self.port) or int(self.port) >= 1 << 16:
            raise UsageError(f"--port {self.port}: a port is a number, 0 to 65535")
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
    def words(self) -> list[str]:
        """llama-server's words."""
        return words_of(self.items)

    def without(self, *flags: str) -> list[Item]:
        """Return the items without these arguments of llama-server, by their canonical names."""
        return [item for item in self.items if item.canonical not in flags]

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

    def comments(self, where: str) -> list[str]:
        """Return all comments at the top of a file; `where` its secrets are read."""
        return [*self.notes, *self.secret_notes(where)]

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


def _downloads(model: str | None) -> bool:
    return (model or "").startswith(_ELSEWHERE)


def _said_elsewhere(
    given: Sequence[Item], environ: Mapping[str, str] | None, config_files: Sequence[str]
) -> list[str]:
    """Return the settings of the environment and config files, as words. The plan's flags have all
    that affects memory but the model."""
    flags = {item.canonical for item in given}
    named = applied(given).params.model is not None
    settings: list[str] = []
    for flag, value in parse((), environ, config_files, command=None).given:
        row, _ = lookup(flag) or (None, True)
        # Fields other than the model are the plan's flags already
        if row is None or row.canonical in flags or row.field not in ("", "model"):
            continue
        if row.field == "model" and named:
            continue
        settings.append(flag)
        if row.kind.words > 1:
            # --control-vector-layer-range START END; a variable or config file has both in one text
            settings += value.split(" ", 1)
        elif row.takes_value:
            settings.append(value)
    return settings


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


def moved(found: Iterable[Item], where: Callable[[str, bool], str]) -> list[Item]:
    """Return the items with each path of this machine replaced by `where(path, whether it is
    written to)`."""
    new_items: list[Item] = []
    for item in found:
        kind = item.argument.kind if item.argument else None
        if kind and kind.paths and item.value and not item.value.startswith(_ELSEWHERE):
            # `paths` is the kind's own way to find paths in a value, e.g. FILE:SCALE of
            # --lora-scaled
            value = kind.paths(item.value, partial(_new_path, where, kind.written))
            item = Item(item.flag, item.name, [item.words[0], value], value, item.positive)
        new_items.append(item)
    return new_items


def paths_in(found: Iterable[Item]) -> list[tuple[str, bool]]:
    """Return the paths of this machine, each with whether it is written to."""
    paths: list[tuple[str, bool]] = []

    def seen(path: str, written: bool) -> str:
        paths.append((path, written))
        return path

    moved(found, seen)
    return paths


def words_of(found: Iterable[Item]) -> list[str]:
    """Return the words of items, as llama-server reads them."""
    return [word for item in found for word in item.words]


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
