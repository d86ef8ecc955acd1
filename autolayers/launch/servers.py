"""The llama-servers that run on this machine: how each was started, what it says of itself, and
what it should hold.

    for server in servers():
        server.pid, server.words, server.of          # 4242, ("-m", ...), "ollama"
    running = look(server, inventory)
    running.state, running.rows, running.grows
"""

from __future__ import annotations

import json
import os
import re

from ..builds import TODAY
from ..devices.held import held
from ..errors import AutolayersError
from ..flags.parse import Arguments, parse
from ..memory.estimate import Estimator
from ..model import read_model
from ..net import Limit, NetError, request
from ..planner import fit_choice
from ..records import dataclass, field, replace
from ..request import Request, companions_of
from .secrets import without_secrets
from .wait import Address, authorization, listening

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ..devices import Inventory
    from ..machine import Device
    from ..memory.breakdown import Breakdown

# At the end: a wrapper may add its own beginning, e.g. ".llama-server"
_NAMES = re.compile(r"llama-server(?:\.exe)?$")
# of --api-prefix: a path, and nothing that ends an address
_PREFIX = re.compile(r"(?:/[\w.~-]+)+")
_ANSWER = 4 << 20  # bytes of an answer
_PATIENCE = 2.0  # seconds for it


@dataclass(frozen=True)
class Server:
    """`of`: the program that started it: ollama, llama-swap, llama-server (the router), or "".
    `rss`: bytes of RAM, mapped weights with it."""

    pid: int
    words: tuple[str, ...]
    program: str
    folder: str = "/"
    environ: dict[str, str] = field(default_factory=dict)
    of: str = ""
    rss: int = 0
    started: float = 0.0

    def path(self, name: str) -> str:
        """Return a file of its command as it is called from here."""
        return os.path.join(self.folder, name)


@dataclass(frozen=True)
class ServerRow:
    """Bytes on one device, None where nothing tells."""

    name: str
    held: int | None
    predicted: int | None

    @property
    def unaccounted(self) -> int | None:
        return None if self.held is None or self.predicted is None else self.held - self.predicted


@dataclass(frozen=True)
class Running:
    """`state`: loading, idle, busy, or what keeps it from being known. `grows`: what may come to it
    while it serves."""

    server: Server
    model: str
    state: str
    slots: tuple[int, int] | None  # busy, all
    n_ctx: int | None
    build: int
    rows: tuple[ServerRow, ...]
    grows: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        words, _ = without_secrets(self.server.words)
        return {
            "pid": self.server.pid,
            "started_by": self.server.of,
            "words": words,
            "model": self.model,
            "build": self.build or None,
            "state": self.state,
            "slots": None if self.slots is None else {"busy": self.slots[0], "all": self.slots[1]},
            "n_ctx": self.n_ctx,
            "devices": [{**vars(row), "unaccounted": row.unaccounted} for row in self.rows],
            "grows": dict(self.grows),
            "notes": list(self.notes),
        }


def servers(only: int | None = None) -> Iterator[Server]:
    """Yield every llama-server that this user may see, `only` the one of that process id."""
    import psutil

    for process in psutil.process_iter(["pid", "cmdline"]):
        if only is not None and process.info["pid"] != only:
            continue
        words = process.info["cmdline"] or []
        # The first words alone, behind a shell or a loader: later ones are arguments
        first = list(map(os.path.basename, words[:3]))
        at = next((i for i, word in enumerate(first) if _NAMES.search(word)), None)
        if at is None and " ".join([*first[:1], *words[1:2]]) == "llama serve":
            at = 1
        if at is not None:
            yield _server(process, words[at], tuple(words[at + 1 :]))


def _server(process: Any, program: str, words: tuple[str, ...]) -> Server:
    import psutil

    def answer_of(question: Any, otherwise: Any) -> Any:
        try:
            return question()
        except (psutil.Error, OSError):
            return otherwise

    environ = {
        name: value
        for name, value in answer_of(process.environ, {}).items()
        # Not the rest: other programs' secrets stay where they are
        if name.startswith(("LLAMA_ARG_", "LLAMA_API_KEY"))
    }
    # Process 1 adopts those whose parent has ended
    parent = (
        answer_of(lambda: process.parent().name(), "") if answer_of(process.ppid, 0) > 1 else ""
    )
    starters = ("ollama", "llama-swap", "llama-server")
    return Server(
        process.info["pid"],
        words,
        program,
        answer_of(process.cwd, "/"),
        environ,
        # Linux cuts a process's name off after 15 characters
        next((name for name in starters if parent.startswith(name[:15])), ""),
        answer_of(lambda: process.memory_info().rss, 0),
        answer_of(process.create_time, 0.0),
    )


def look(server: Server, inventory: Inventory) -> Running:
    """Return what a server is and should be."""
    notes: list[str] = []
    try:
        arguments = parse(server.words, server.environ, command=None)
    except AutolayersError as error:
        return Running(
            server, "", "unknown", None, None, 0, (), (), (f"its words cannot be read: {error}",)
        )
    props: dict[str, Any] = {}
    state = _stranger(server)
    busy: tuple[int, int] | None = None
    if not state:
        props, slots = _props_and_slots(server, arguments)
        state = "up" if props else "does not answer"
        if props.get("loading"):
            state = "loading"
        elif slots and all(isinstance(slot, dict) for slot in slots):
            busy = sum(bool(slot.get("is_processing")) for slot in slots), len(slots)
            state = "busy" if busy[0] else "idle"
    # e.g. "b11549-0a1b2c3d"
    number = re.match(r"b(\d{3,6})", str(props.get("build_info", "")))
    build = int(number[1]) if number else 0
    # -hf names no file, but /props does
    name = arguments.params.model or str(props.get("model_path") or "")
    driver = held(server.pid)
    devices = [device for device in inventory.devices if device.kind != "rpc"]
    use = _predicted(server, arguments, name, build, devices, driver, inventory, notes)
    rows = _rows(devices, driver, use)
    # rss counts mapped weights as far as they are in memory
    rows.append(ServerRow("RAM", server.rss or None, use.resident if use else None))
    extras = use.extras if use else ()
    settings = props.get("default_generation_settings")
    said = settings.get("n_ctx") if isinstance(settings, dict) else None
    return Running(
        server,
        os.path.basename(name) or "(router)",
        state,
        busy,
        # A slot's context in tokens, from the server's /props or the prediction
        said if isinstance(said, int) else use.n_ctx_seq if use else None,
        build,
        tuple(rows),
        tuple((extra.name, extra.size) for extra in extras if extra.upper_limit),
        tuple(notes),
    )


def _rows(
    devices: Sequence[Device], driver: Mapping[str, int], use: Breakdown | None
) -> list[ServerRow]:
    """Return what the process holds on each device, and what it should hold.

    `driver`: bytes by PCI address; `use`: the prediction, if there is one.
    """
    rows = []
    extras = use.extra_by_device() if use else {}
    for device in devices:
        held_bytes = driver.get(device.pci_id or "")
        predicted = None
        if use and device.name in use.devices:
            predicted = use.devices[device.name].total + extras.get(device.name, 0)
        if held_bytes or predicted:
            rows.append(ServerRow(device.name, held_bytes, predicted))
    return rows


def _stranger(server: Server) -> str:
    """Return why a server is not asked: it belongs to somebody else, or its address means another
    one here; "" if it is this user's own. Its words come from who started it, and its key is for it
    alone."""
    import psutil

    try:
        # Root sees everybody's processes, and must send nobody's key to them
        if os.name == "posix" and psutil.Process(server.pid).uids().effective != os.geteuid():
            return "another user's: not asked"
    except (psutil.Error, OSError):
        return "gone"
    try:
        # e.g. "net:[4026531840]": 127.0.0.1 of another one is another machine's
        here, theirs = os.readlink("/proc/self/ns/net"), os.readlink(f"/proc/{server.pid}/ns/net")
    except OSError:  # no such namespaces on this system
        return ""
    return "" if here == theirs else "in a container's own network: not asked"


def _props_and_slots(server: Server, arguments: Arguments) -> tuple[dict[str, Any], list[Any]]:
    """Return (its /props, its /slots), empty where it does not answer. Only a socket that this
    process itself listens on is asked, and gets the key."""
    at = Address.of(arguments, TODAY.default_port)
    is_socket = (arguments.value("--host") or "").endswith(".sock")
    if is_socket or (at.prefix and not _PREFIX.fullmatch(at.prefix)):
        return {}, []
    host = listening(server.pid, at.port)
    if host is None:
        return {}, []
    base = replace(at, host=host).url
    key = authorization(arguments, server.environ)
    props, slots = _ask(base + "/props", key), _ask(base + "/slots", key)
    return props if isinstance(props, dict) else {}, slots if isinstance(slots, list) else []


def _ask(address: str, authorization: str) -> object:
    try:
        with request(
            "GET", address, Limit(_PATIENCE), authorization=authorization, own=True
        ) as answer:
            parsed: object = json.loads(answer.content(_ANSWER))
            if answer.status == 503:
                return {"loading": True}
            return parsed if answer.status == 200 else None
    except (NetError, ValueError, RecursionError):
        return None


def _predicted(
    server: Server,
    arguments: Arguments,
    name: str,
    build: int,
    devices: list[Device],
    driver: Mapping[str, int],
    inventory: Inventory,
    notes: list[str],
) -> Breakdown | None:
    """Return what the launch allocates; with no -ngl what --fit chose with the memory that was
    free, which is what is free now and what the process holds."""
    path = server.path(name) if name else ""
    if not path or not os.path.isfile(path):
        notes.append(
            "its model's file cannot be read here: nothing is predicted"
            if name
            else "a router loads no model"
        )
        return None
    try:
        model = read_model(path)
        files: dict[str, Any] = {
            key: server.path(getattr(arguments.params, key))
            for key in ("mmproj", "model_draft")
            if getattr(arguments.params, key)
        }
        params = replace(arguments.params, **files)
        then = [
            replace(
                # As if the server did not run: it is planned for what it found
                device,
                free=min(device.total, device.free + driver.get(device.pci_id or "", 0)),
            )
            for device in devices
        ]
        own = {"llama-build": build} if build else {}
        launched = Request.of(
            replace(arguments, params=params, own=own),
            devices=then,
            host=inventory.host,
            checked=False,
        )
        # -1 is auto: llama-server's --fit has chosen
        if params.n_gpu_layers in (None, -1) and params.fit is not False and then:
            chosen = fit_choice(model, launched)
            params = chosen.params if chosen else params
            notes.append("placed as --fit does with the memory that is free without it")
        estimator = Estimator(
            model.overridden(params.override_kv), build or None, companions_of(params)
        )
        return estimator.breakdown(params, then)
    except (AutolayersError, OSError) as error:
        notes.append(f"nothing is predicted: {error}")
        return None


def free_memory(inventory: Inventory, stopped: Running | None = None) -> dict[str, int]:
    """Return the bytes that are free now, or would be without one of the servers: what another
    launch may take."""
    freed = {row.name: row.held or 0 for row in stopped.rows} if stopped else {}
    free = {
        device.name: device.free + freed.get(device.name, 0)
        for device in inventory.devices
        if device.kind != "rpc"
    }
    return {**free, "RAM": inventory.host.available + freed.get("RAM", 0)}
