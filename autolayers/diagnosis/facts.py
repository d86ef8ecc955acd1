"""What a log says of the machine, the program, the model and the launch, whatever went wrong.

    facts = Facts.of(lines(data))
    facts.devices["CUDA0"].free, facts.build, facts.offloaded, facts.splits

The lines are those of logs.py; what follows here is what they say together.
"""

from __future__ import annotations

import re
import shlex

from ..backends import HOST, backend, canonical
from ..backends.logs import BUILT_FROM, OLLAMA
from ..devices.names import boards, find
from ..errors import UsageError
from ..logs import capability_of, fields, pairs, size_of
from ..machine import Device
from ..records import dataclass, field
from ..units import MiB, whole
from .log import LaunchLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .lines import Line

# Fewer tokens of a request than this take less time than the clock can tell
_FEW_TOKENS = 16
# The header's own keys and what print_info prints -> the name here
_NAMES = {
    "general.name": "name",
    "file type": "ftype",
    "model ftype": "ftype",
    "architecture": "arch",
    "block_count": "n_layer",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_ff",
    "expert_count": "n_expert",
    "context_length": "n_ctx_train",
}


@dataclass
class Facts:
    """None or empty where the log does not say."""

    launch: LaunchLog
    # free 0: not said; total 0: neither
    devices: dict[str, Device] = field(default_factory=dict)
    # Bytes, of a device whose name alone tells its memory and is sold with several; the smallest is
    # its `total`
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ram: tuple[int, int] | None = None  # total, available
    build: int = 0
    model: str = ""
    # n_ctx, n_batch, ... as llama_context prints them
    values: dict[str, int | str] = field(default_factory=dict)
    # of the model: arch, name, ftype, n_layer, ...
    printed: dict[str, str] = field(default_factory=dict)
    cache_types: dict[str, str] = field(default_factory=dict)  # K, V
    offloaded: tuple[int, int, int] | None = None  # layers, of how many, line
    splits: tuple[int, int] | None = None  # graph splits, line
    # of the command, where the log has it
    words: tuple[str, ...] = ()
    reduced: tuple[int, int] | None = None  # contexts, before and after --fit
    fits: bool = False  # --fit compared a GPU's memory with what is needed
    swap: int | None = None  # bytes of it that are free
    shared: str = ""  # a GPU without memory of its own
    # the line that says that it serves
    ready: int = 0
    measured: int = 0  # the last line with a rate
    # the line that says that a fused operation is off
    unfused: int = 0
    # tokens/s of "prompt" and "answer", the last of each, and of how many tokens
    rates: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    backends: tuple[str, ...] = ()  # named anywhere
    threads: tuple[int, int] = (0, 0)  # that compute, of the CPU's
    # of an AMD GPU, as the compiler calls it: gfx1031
    chip: str = ""
    # ik_llama.cpp, which prints keys of its own
    ik: bool = False
    ollama: bool = False
    # A to about January 2025, B to April 2026, C after
    era: str = ""

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Facts:
        facts = cls(LaunchLog())
        named: dict[str, None] = {}
        for line in lines:
            # ROCm's backend is CUDA's source, whose words its log has too
            hidden = [b.built_from for b, _ in BUILT_FROM if b.name in named]
            for name, groups in fields(line.text):
                facts.launch.take(name, groups)
                if name == "backend":
                    if groups["value"] not in hidden:
                        named.setdefault(groups["value"])
                else:
                    take = _TAKEN.get(name)
                    if take is not None:
                        take(facts, groups, line)
            _name_built_from(line.text, named)
        facts.backends = tuple(named)
        facts._complete()
        return facts

    def gpu(self, index: int = 0, printed_by: Sequence[str] = ()) -> str:
        """Return llama.cpp's name of the GPU of that number: of the backends that print such a
        line, otherwise of the one that the log shows."""
        # e.g. index 1: "CUDA1", "Vulkan1"
        names = [name for name in self.devices if name.rstrip("0123456789") + str(index) == name]
        printing = [name for name in names if self.devices[name].backend in printed_by]
        if printing or names:
            return (printing or names)[0]
        return self._by_backend(index, printed_by)

    def _by_backend(self, index: int, printed_by: Sequence[str]) -> str:
        """Name a GPU that the log does not show, "" where it shows no backend either."""
        printing = [name for name in self.backends if canonical(name) in printed_by]
        backends = printing or self.backends or printed_by
        if not backends:
            return ""
        return f"{backends[0]}{index if backend(canonical(backends[0])).numbered else ''}"

    # --- one line: a method for each field

    def _free(self, groups: dict[str, str], _: Line) -> None:
        self._device(groups["name"], groups.get("description", ""), free=int(groups["mib"]) * MiB)

    def _listed(self, groups: dict[str, str], _: Line) -> None:
        self._device(
            groups["name"],
            groups["description"],
            int(groups["mib"]) * MiB,
            int(groups.get("free", 0)) * MiB,
        )

    def _started_device(self, groups: dict[str, str], line: Line) -> None:
        """Take a device as its backend lists it when it starts."""
        of = backend(groups["value"])
        size = int(groups.get("mib", 0)) * MiB
        # Metal prints recommendedMaxWorkingSetSize in MB of 10^6 bytes
        free = int(int(groups.get("mb", 0)) * 1e6)  # of what shares the system's memory
        name = f"{of.name}{groups.get('index', 0)}"
        if of.old_name and self._is_old(of.old_name, name, groups, line.text):
            name = of.old_name
        capability = (
            (int(groups["major"]), int(groups["minor"]))
            if "major" in groups and "minor" in groups
            else None
        )
        self._device(name, groups.get("description", ""), size or free, free, capability)

    def _is_old(self, old_name: str, name: str, groups: dict[str, str], text: str) -> bool:
        """Return whether a line is of a build that calls its only device by the backend's old
        name."""
        if "mb" in groups:
            return old_name in self.devices or name not in self.devices
        return self.era == "A" or f"ggml_{old_name.lower()}_init" in text

    def _gpu(self, groups: dict[str, str], _: Line) -> None:
        """Take a GPU as Ollama's server lists it."""
        values = pairs(groups["fields"])
        library = values.get("library", "")
        if library.lower() in ("", HOST.lower()):
            return
        of, name, description = (
            OLLAMA.get(library.lower()),
            values.get("name", ""),
            values.get("description", ""),
        )
        # A card's name in place of llama.cpp's, e.g. "NVIDIA RTX A4000": numbered as it comes
        if not re.fullmatch(r"[A-Za-z]{2,12}\d{1,3}", name):
            prefix = (of.old_name or of.name) if of else library[:12]
            index = sum(device.startswith(prefix) for device in self.devices)
            name, description = f"{prefix}{index}", description or name
        capability = capability_of(values.get("compute", "")) if of and of.nvidia else None
        self._device(
            name,
            description[:90],
            size_of(values.get("total", "")),
            size_of(values.get("available", "")),
            capability,
        )

    def _ram(self, groups: dict[str, str], _: Line) -> None:
        self.ram = int(groups["mib"]) * MiB, int(groups["free"]) * MiB

    def _system_memory(self, groups: dict[str, str], _: Line) -> None:
        self.ram = size_of(groups["total"]), size_of(groups["free"])

    def _swap(self, groups: dict[str, str], _: Line) -> None:
        self.swap = size_of(groups["free"])

    def _build(self, groups: dict[str, str], _: Line) -> None:
        # The first of each figure counts: a log may go on with another start
        self.build = self.build or int(groups.get("new") or groups["old"])

    def _model(self, groups: dict[str, str], _: Line) -> None:
        self.model = self.model or groups["path"]

    def _printed(self, groups: dict[str, str], _: Line) -> None:
        self.printed[_NAMES.get(groups["key"], groups["key"])] = groups["said"].strip()

    def _figure(self, groups: dict[str, str], _: Line) -> None:
        value = groups["said"]
        # The last one that is printed counts
        self.values[groups["key"]] = value if (number := whole(value)) is None else number

    def _offloaded(self, groups: dict[str, str], line: Line) -> None:
        self.offloaded = int(groups["layers"]), int(groups["of"]), line.number

    def _splits(self, groups: dict[str, str], line: Line) -> None:
        self.splits = int(groups["n"]), line.number

    def _cache_types(self, groups: dict[str, str], _: Line) -> None:
        self.cache_types.update(groups)

    def _reduced(self, groups: dict[str, str], _: Line) -> None:
        self.reduced = int(groups["before"]), int(groups["after"])

    def _fits(self, *_: object) -> None:
        self.fits = True

    def _slots(self, groups: dict[str, str], _: Line) -> None:
        self.values.update({key: int(value) for key, value in groups.items()})

    def _shared(self, groups: dict[str, str], _: Line) -> None:
        self.shared = self.shared or groups["name"].strip('"')[:60]

    def _program(self, groups: dict[str, str], _: Line) -> None:
        self.words = self.words or _words(groups["command"])

    def _serving(self, _: dict[str, str], line: Line) -> None:
        self.ready = self.ready or line.number

    def _rate(self, groups: dict[str, str], line: Line) -> None:
        """Take what a request took; a rate of a handful of tokens says nothing."""
        self.measured = line.number
        if "n" in groups and int(groups["n"]) >= _FEW_TOKENS:
            self.rates[groups["value"]] = float(groups["rate"])
            self.counts[groups["value"]] = int(groups["n"])

    def _threads(self, groups: dict[str, str], _: Line) -> None:
        self.threads = int(groups["n"]), int(groups["total"])

    def _chip(self, groups: dict[str, str], _: Line) -> None:
        self.chip = self.chip or groups["chip"]

    def _unfused(self, groups: dict[str, str], line: Line) -> None:
        self.unfused = self.unfused or line.number

    def _of_ik(self, *_: object) -> None:
        self.ik = True

    def _of_ollama(self, *_: object) -> None:
        self.ollama = True

    def _era(self, groups: dict[str, str], _: Line) -> None:
        self.era = self.era or groups["value"]

    # ---

    def _device(
        self,
        name: str,
        description: str = "",
        total: int = 0,
        free: int = 0,
        capability: tuple[int, int] | None = None,
    ) -> None:
        old = self.devices.get(name)
        # A damaged log could name any number of devices
        if old is None and len(self.devices) >= 64:
            return
        prefix = canonical(name.rstrip("0123456789").partition("[")[0])
        of = backend(prefix)
        if old is not None:
            description, total = description or old.description, total or old.total
            free, capability = free or old.free, capability or old.compute_capability
        self.devices[name] = Device(
            name,
            # Lines that say only what is free make that the total too
            max(total, free),
            free,
            description,
            prefix,
            "rpc" if of.remote else "gpu",
            compute_capability=capability,
            source="log",
            includes_context=of.nvidia,
        )

    def _complete(self) -> None:
        """Add the sizes of cards that are known by their names, and rename the devices of a backend
        that calls them as the one that it is built from."""
        for name, device in list(self.devices.items()):
            if device.total or not device.description:
                continue
            sizes = _sizes(device.description)
            # What the log shows on it is no more than it has
            possible = [size for size in sizes if size >= self.held(name)] or sizes[-1:]
            if possible:
                self._device(name, total=possible[0])
            if len(possible) > 1:
                self.sizes[name] = tuple(possible)
        for b, _ in BUILT_FROM:
            if b.name in self.backends and b.built_from not in self.backends:
                self._rename_devices(b.built_from, b.name)

    def _rename_devices(self, old: str, new: str) -> None:
        """Give the devices of one backend the name of another."""
        for name in [name for name in self.devices if name.startswith(old)]:
            device = self.devices.pop(name)
            self._device(new + name[len(old) :], device.description, device.total, device.free)

    @property
    def sees_gpu(self) -> bool:
        """Whether a line proves that the program has a GPU: a buffer that lies there, or what --fit
        compared with."""
        names = {
            name
            for load in self.launch.loads
            for buffers in load.buffers.values()
            for name in buffers
        }
        return self.fits or any(
            self.launch.device_of(name) != "Host" for name in (*names, *self.launch.breakdown)
        )

    @property
    def all_offloaded(self) -> bool:
        """Whether a line says that every layer is on the GPU."""
        return bool(self.offloaded and 0 < self.offloaded[0] == self.offloaded[1])

    @property
    def weights(self) -> int:
        """Bytes of the weights' buffers that the log shows, of the model that was loaded last."""
        return int(sum(map(sum, self._buffers("model").values())) * MiB)

    def _buffers(self, part: str) -> dict[str, list[float]]:
        """Return the buffers of a part, of the model that was loaded last: name -> MiB of each."""
        if not self.launch.loads:
            return {}
        return self.launch.loads[-1].buffers.get(part, {})

    def number(self, *keys: str) -> int:
        """Return the first of these figures that the log has, 0 without."""
        return next((value for key in keys if isinstance(value := self.values.get(key), int)), 0)

    def share_of_host(self, part: str) -> float:
        """Return the share of a part's buffers that the host has, of the model that was loaded
        last; 0 where there are none."""
        whole = host = 0.0
        for name, sizes in self._buffers(part).items():
            whole += sum(sizes)
            if self.launch.device_of(name) == "Host":
                host += sum(sizes)
        return host / whole if whole else 0.0

    def held(self, device: str) -> int:
        """Return the bytes of the buffers that the log shows on a device, of the model that was
        loaded last."""
        if not self.launch.loads:
            return 0
        wanted, mib = self.launch.device_of(device), 0.0
        for buffers in self.launch.loads[-1].buffers.values():
            for name, sizes in buffers.items():
                if self.launch.device_of(name) == wanted:
                    for size in sizes:
                        mib += size
        return int(mib * MiB)


# field of logs.ROWS -> what becomes of it
_TAKEN: dict[str, Callable[[Facts, dict[str, str], Line], None]] = {
    "device": Facts._free,
    "listed": Facts._listed,
    "started_device": Facts._started_device,
    "gpu": Facts._gpu,
    "ram": Facts._ram,
    "system_memory": Facts._system_memory,
    "swap": Facts._swap,
    "build": Facts._build,
    "model": Facts._model,
    "printed": Facts._printed,
    "figure": Facts._figure,
    "offloaded": Facts._offloaded,
    "offload": Facts._offloaded,
    "splits": Facts._splits,
    "cache_types": Facts._cache_types,
    "reduced": Facts._reduced,
    "slots": Facts._slots,
    "fits": Facts._fits,
    "shared": Facts._shared,
    "program": Facts._program,
    "rate": Facts._rate,
    "unfused": Facts._unfused,
    "chip": Facts._chip,
    "threads": Facts._threads,
    "ik": Facts._of_ik,
    "ready": Facts._serving,
    "serving": Facts._serving,
    "ollama": Facts._of_ollama,
    "era": Facts._era,
}


def _name_built_from(text: str, named: dict[str, None]) -> None:
    """Name a backend that is built from another's source instead of that one."""
    for b, pattern in BUILT_FROM:
        if b.name not in named and b.log_not not in named and pattern.search(text):
            named.pop(b.built_from, None)
            named[b.name] = None


def _sizes(description: str) -> list[int]:
    """Return the sizes of memory, bytes, with which a card of that name is sold, smallest first."""
    cards = boards(description)
    if not cards:
        try:
            cards = [find(description)]
        except UsageError:
            return []
    return sorted({card.usable * MiB for card in cards})


def _words(text: str) -> tuple[str, ...]:
    """Return a command's words; a line that was cut or is quoted strangely is split at blanks."""
    text = text.replace('\\"', '"').rstrip('"')
    try:
        return tuple(shlex.split(text))[1:]
    except ValueError:
        return tuple(text.split())[1:]
