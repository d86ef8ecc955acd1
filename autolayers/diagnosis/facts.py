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
                elif name in _VALUES:
                    attribute, is_first, value = _VALUES[name]
                    # a log may go on with another start
                    if not (is_first and getattr(facts, attribute)):
                        setattr(facts, attribute, value(groups, line))
                elif name in _TAKEN:
                    _TAKEN[name](facts, groups, line)
            # a backend that is built from another's source instead of that one
            for b, pattern in BUILT_FROM:
                if b.name not in named and b.log_not not in named and pattern.search(line.text):
                    named.pop(b.built_from, None)
                    named[b.name] = None
        facts.backends = tuple(named)
        # the sizes of cards that are known by their names
        for name, device in list(facts.devices.items()):
            if device.total or not device.description:
                continue
            cards = boards(device.description)
            try:
                cards = cards or [find(device.description)]
            except UsageError:
                continue
            # with which a card of that name is sold
            sizes = sorted({card.usable * MiB for card in cards})
            # What the log shows on it is no more than it has
            possible = [size for size in sizes if size >= facts.held(name)] or sizes[-1:]
            if possible:
                facts._device(name, total=possible[0])
            if len(possible) > 1:
                facts.sizes[name] = tuple(possible)
        # a backend that calls its devices as the one that it is built from
        for b, _ in BUILT_FROM:
            if b.name in facts.backends and b.built_from not in facts.backends:
                for name in [name for name in facts.devices if name.startswith(b.built_from)]:
                    device = facts.devices.pop(name)
                    renamed = b.name + name[len(b.built_from) :]
                    facts._device(renamed, device.description, device.total, device.free)
        return facts

    def gpu(self, index: int = 0, printed_by: Sequence[str] = ()) -> str:
        """Return llama.cpp's name of the GPU of that number: of the backends that print such a
        line, otherwise of the one that the log shows."""
        # e.g. index 1: "CUDA1", "Vulkan1"
        names = [name for name in self.devices if name.rstrip("0123456789") + str(index) == name]
        printing = [name for name in names if self.devices[name].backend in printed_by]
        if printing or names:
            return (printing or names)[0]
        backends = [name for name in self.backends if canonical(name) in printed_by]
        shown = next(iter(backends or self.backends or printed_by), "")
        return f"{shown}{index if backend(canonical(shown)).numbered else ''}" if shown else ""

    def take_started_device(self, groups: dict[str, str], line: Line) -> None:
        """Take a device as its backend lists it when it starts."""
        of = backend(groups["value"])
        size = int(groups.get("mib", 0)) * MiB
        # Metal prints recommendedMaxWorkingSetSize in MB of 10^6 bytes
        free = int(int(groups.get("mb", 0)) * 1e6)  # of what shares the system's memory
        name = f"{of.name}{groups.get('index', 0)}"
        old = of.old_name
        # a build that calls its only device by the backend's old name
        if old and (
            (old in self.devices or name not in self.devices)
            if "mb" in groups
            else self.era == "A" or f"ggml_{old.lower()}_init" in line.text
        ):
            name = old
        capability = (
            (int(groups["major"]), int(groups["minor"]))
            if "major" in groups and "minor" in groups
            else None
        )
        self._device(name, groups.get("description", ""), size or free, free, capability)

    def take_gpu(self, groups: dict[str, str], _: Line) -> None:
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

    def take_rate(self, groups: dict[str, str], line: Line) -> None:
        """Take what a request took; a rate of a handful of tokens says nothing."""
        self.measured = line.number
        if "n" in groups and int(groups["n"]) >= _FEW_TOKENS:
            self.rates[groups["value"]] = float(groups["rate"])
            self.counts[groups["value"]] = int(groups["n"])

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


def _layers(said: dict[str, str], line: Line) -> tuple[int, int, int]:
    return int(said["layers"]), int(said["of"]), line.number


# fmt: off
# field of logs.ROWS -> its attribute, whether the first line that has it counts, and its value
_VALUES: dict[str, tuple[str, bool, Callable[[dict[str, str], Line], object]]] = {
    "ram": ("ram", False, lambda said, _: (int(said["mib"]) * MiB, int(said["free"]) * MiB)),
    "system_memory": ("ram", False,
                      lambda said, _: (size_of(said["total"]), size_of(said["free"]))),
    "swap": ("swap", False, lambda said, _: size_of(said["free"])),
    "build": ("build", True, lambda said, _: int(said.get("new") or said["old"])),
    "model": ("model", True, lambda said, _: said["path"]),
    "offloaded": ("offloaded", False, _layers),
    "offload": ("offloaded", False, _layers),
    "splits": ("splits", False, lambda said, line: (int(said["n"]), line.number)),
    "reduced": ("reduced", False, lambda said, _: (int(said["before"]), int(said["after"]))),
    "fits": ("fits", False, lambda *_: True),
    "shared": ("shared", True, lambda said, _: said["name"].strip('"')[:60]),
    "program": ("words", True, lambda said, _: _words(said["command"])),
    "threads": ("threads", False, lambda said, _: (int(said["n"]), int(said["total"]))),
    "chip": ("chip", True, lambda said, _: said["chip"]),
    "unfused": ("unfused", True, lambda _, line: line.number),
    "ready": ("ready", True, lambda _, line: line.number),
    "serving": ("ready", True, lambda _, line: line.number),
    "ik": ("ik", False, lambda *_: True),
    "ollama": ("ollama", False, lambda *_: True),
    "era": ("era", True, lambda said, _: said["value"]),
}
# ... -> what becomes of it, where it is more
_TAKEN: dict[str, Callable[[Facts, dict[str, str], Line], object]] = {
    "device": lambda facts, said, _: facts._device(
        said["name"], said.get("description", ""), free=int(said["mib"]) * MiB),
    "listed": lambda facts, said, _: facts._device(
        said["name"], said["description"], int(said["mib"]) * MiB, int(said.get("free", 0)) * MiB),
    "started_device": Facts.take_started_device,
    "gpu": Facts.take_gpu,
    "printed": lambda facts, said, _: facts.printed.update(
        {_NAMES.get(said["key"], said["key"]): said["said"].strip()}),
    # the last one that is printed counts
    "figure": lambda facts, said, _: facts.values.update(
        {said["key"]: said["said"] if (n := whole(said["said"])) is None else n}),
    "cache_types": lambda facts, said, _: facts.cache_types.update(said),
    "slots": lambda facts, said, _: facts.values.update({k: int(v) for k, v in said.items()}),
    "rate": Facts.take_rate,
}
# fmt: on


def _words(text: str) -> tuple[str, ...]:
    """Return a command's words; a line that was cut or is quoted strangely is split at blanks."""
    text = text.replace('\\"', '"').rstrip('"')
    try:
        return tuple(shlex.split(text))[1:]
    except ValueError:
        return tuple(text.split())[1:]
