"""What a log says of the machine, the program, the model and the launch, whatever went wrong.

    facts = Facts.of(lines(data))
    facts.devices["CUDA0"].free, facts.build, facts.offloaded, facts.splits

Formats of ggml_cuda_init, ggml_vulkan, ggml_metal, common_params_print_info, llama_model_load, common/fit.cpp and of
Ollama's server, 2023 to b11549.
"""

from __future__ import annotations

import re
import shlex

from ..backends import HOST, backend, canonical
from ..backends.logs import BUILT_FROM, DEVICE_LINES, OLLAMA, WORDS
from ..devices.names import described, find
from ..errors import UsageError
from ..machine import Device
from ..records import dataclass, field
from ..units import GiB, MiB
from .log import LaunchLog, LogReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backends import Backend
    from .lines import Line

_N = r"\d{1,12}"
_FREE = re.compile(rf"using device (\S{{1,60}}) \((.{{0,90}}?)\)(?: \(.{{0,60}}\))? - ({_N}) MiB free")
_LISTED = re.compile(rf"^\s*(?:- )?((?!{HOST}\b)[A-Z][A-Za-z]{{1,11}}\d{{1,3}}) *: (.{{1,120}}) "
                     rf"\(({_N}) MiB(?:, ({_N}) MiB free)?\)")
_OLLAMA = re.compile(r'msg="inference compute" (.{1,600})')
_FIELD = re.compile(r'(\w{1,20})=("(?:[^"\\]|\\.){0,200}"|\S{0,200})')
_SIZE = re.compile(r"^([\d.]{1,12}) ?(B|KiB|MiB|GiB|TiB)$")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MiB, "GiB": GiB, "TiB": GiB << 10}
_RAM = re.compile(rf"^\s*(?:- )?{HOST} *: .{{1,120}} \(({_N}) MiB, ({_N}) MiB free\)")
_OLLAMA_RAM = re.compile(r'msg="system memory" total="([\d.]{1,9} [KMGT]?i?B)" free="([\d.]{1,9} [KMGT]?i?B)"')
_BUILD = re.compile(r"\b(?:build|version|build_info)\b *[:=] *"
                    r"(?:\S{1,12} \(build (\d{3,6})|b?(\d{3,6})(?: \(|-)[0-9a-f]{7,12})")
_MODEL = re.compile(r"(?:loaded meta data with .{1,60} from |loading model '|failed to load model '|"
                    r"failed to load model,? '|failed to load model from )([^'\n]{1,300}?\.gguf)\b")
_VALUE = re.compile(rf"(?:llama_context|llama_new_context_with_model|llama_init_from_model|llama_model_loader|"
                    rf"print_info|llm_load_print_meta): +(?:- )?(n_ctx|n_ctx_seq|n_ctx_per_seq|n_batch|n_ubatch|"
                    rf"n_seq_max|n_ctx_train|n_layer|flash_attn|kv_unified) += +({_N}|\w{{1,9}})\b")
# What it says of the model: printed by print_info, and as the header's own keys
_PRINTED = re.compile(r"(?:print_info|llm_load_print_meta): +(arch|n_layer|n_embd|n_ff|n_expert|n_ctx_train|"
                      r"general\.name|file type|model ftype) += +(\S.{0,80})")
_KEY = re.compile(r"- kv +\d{1,4}: +(?:general\.|[\w-]{2,40}\.)(architecture|name|block_count|embedding_length|"
                  r"feed_forward_length|expert_count|context_length) +\w{3,4} += +(\S.{0,80})")
_NAMES = {"general.name": "name", "file type": "ftype", "model ftype": "ftype", "architecture": "arch",
          "block_count": "n_layer", "embedding_length": "n_embd", "feed_forward_length": "n_ff",
          "expert_count": "n_expert", "context_length": "n_ctx_train"}
_OFFLOADED = re.compile(r"offloaded (\d{1,5})/(\d{1,5}) layers to GPU")
_OLLAMA_OFFLOAD = re.compile(r"layers\.model=(\d{1,5}) layers\.offload=(\d{1,5})")
_SPLITS = re.compile(r"graph splits = (\d{1,6})")
_REDUCED = re.compile(r"context size reduced from (\d{1,9}) to (\d{1,9})")
_SWAP = re.compile(r'free_swap="([\d.]{1,9} (?:[KMGT]i)?B)"')
_SLOTS = re.compile(r"n_slots = (\d{1,4}), n_ctx_slot = (\d{1,9})")
_SHARED = re.compile(r'\d = (.{1,60}?) \(.{0,80}uma: 1|name=("[^"]{1,60}"|\S{1,60}) .{0,300}type=iGPU')
_CACHE_TYPE = re.compile(r"\b([KV]) \((f32|f16|bf16|q\d_\d|iq4_nl)\)")
_PROGRAM = re.compile(r"(?:^|[\s\"'=/])((?:\S{0,200}/)?(?:llama-(?:server|cli|bench|perplexity|simple)|server|main)"
                      r"(?:\.exe)? +-[^\n]{1,3000})")


@dataclass
class Facts:
    """None or empty where the log does not say."""

    launch: LaunchLog
    devices: dict[str, Device] = field(default_factory=dict)      # free 0: not said; total 0: neither
    ram: tuple[int, int] | None = None                            # total, available
    build: int = 0
    model: str = ""
    values: dict[str, int | str] = field(default_factory=dict)    # n_ctx, n_batch, ... as llama_context prints them
    printed: dict[str, str] = field(default_factory=dict)         # of the model: arch, name, ftype, n_layer, ...
    cache_types: dict[str, str] = field(default_factory=dict)     # K, V
    offloaded: tuple[int, int, int] | None = None                 # layers, of so many, line
    splits: tuple[int, int] | None = None                         # graph splits, line
    words: tuple[str, ...] = ()                                   # of the command, where the log has it
    reduced: tuple[int, int] | None = None                        # contexts, before and after --fit
    swap: int | None = None                                       # bytes of it that are free
    shared: str = ""                                              # a GPU without memory of its own
    ready: int = 0                                                # the line that says that it serves
    backends: tuple[str, ...] = ()                                # named anywhere
    ollama: bool = False
    era: str = ""                                                 # A to about January 2025, B to April 2026, C after

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Facts:
        reader = LogReader()
        for line in lines:
            if any(word in line.text for word in _OF_BUFFERS):
                reader.feed(line.text.encode() + b"\n")
        facts = cls(reader.finish())
        named: dict[str, None] = {}
        for line in lines:
            facts._line(line, named)
        facts.backends = tuple(named)
        facts._complete()
        return facts

    def gpu(self, index: int = 0, printed_by: Sequence[str] = ()) -> str:
        """llama.cpp's name of the GPU of that number: of the backends that print such a line, else of the one that the
        log shows."""
        names = [name for name in self.devices if name.rstrip("0123456789") + str(index) == name]
        theirs = [name for name in names if self.devices[name].backend in printed_by]
        if theirs or names:
            return (theirs or names)[0]
        known = [name for name in self.backends if canonical(name) in printed_by] or self.backends or printed_by
        return f"{known[0]}{index}" if known else ""

    # --- one line

    def _line(self, line: Line, named: dict[str, None]) -> None:
        text = line.text
        hidden = [b.built_from for b, _ in BUILT_FROM if b.name in named]
        for word, name in WORDS:
            if word in text and name not in hidden:
                named.setdefault(name)
        for b, pattern in BUILT_FROM:
            if b.name not in named and b.log_not not in named and pattern.search(text):
                named.pop(b.built_from, None)
                named[b.name] = None
        if "MiB" in text or "GiB" in text or "inference compute" in text:
            self._memory(text)
        for word, pattern, listed in DEVICE_LINES:
            if word in text and (match := pattern.search(text)):
                self._listed(listed, match.groupdict(), text)
        if not self.build and ("build" in text or "version" in text) and (match := _BUILD.search(text)):
            self.build = int(match[1] or match[2])
        if ".gguf" in text and (match := _MODEL.search(text)):
            self.model = self.model or match[1]
        if "= " in text and (match := (_KEY if "- kv " in text else _PRINTED).search(text)):
            self.printed[_NAMES.get(match[1], match[1])] = match[2].strip()
        if "= " in text and (match := _VALUE.search(text)):
            self.values[match[1]] = int(match[2]) if match[2].isdigit() else match[2]
        if "offloaded" in text and (match := _OFFLOADED.search(text)):
            self.offloaded = int(match[1]), int(match[2]), line.number
        elif "layers.offload" in text and (match := _OLLAMA_OFFLOAD.search(text)):
            self.offloaded = int(match[2]), int(match[1]), line.number
        if "graph splits" in text and (match := _SPLITS.search(text)):
            self.splits = int(match[1]), line.number
        if "self size" in text or "size =" in text:
            self.cache_types.update(dict(_CACHE_TYPE.findall(text)))
        if "context size reduced" in text and (match := _REDUCED.search(text)):
            self.reduced = int(match[1]), int(match[2])
        if "free_swap" in text and (match := _SWAP.search(text)):
            self.swap = size_of(match[1])
        if "n_slots" in text and (match := _SLOTS.search(text)):
            self.values |= {"n_slots": int(match[1]), "n_ctx_slot": int(match[2])}
        if not self.shared and (match := _SHARED.search(text) if "uma: 1" in text or "type=iGPU" in text else None):
            self.shared = (match[1] or match[2] or "").strip('"')[:60]
        if not self.words and " -" in text and (match := _PROGRAM.search(text)):
            self.words = _words(match[1])
        if any(word in text for word in _READY) and not self.ready:
            self.ready = line.number
        self.ollama = self.ollama or "ollama" in text or "level=" in text[:80]
        self.era = self.era or next((era for era, words in _ERAS if any(word in text for word in words)), "")

    def _memory(self, text: str) -> None:
        if match := _FREE.search(text):
            self._device(match[1], match[2], free=int(match[3]) * MiB)
        elif match := _LISTED.search(text):
            free = int(match[4]) * MiB if match[4] else 0
            self._device(match[1], match[2], int(match[3]) * MiB, free)
        elif match := _OLLAMA.search(text):
            self._ollama(dict(_FIELD.findall(match[1])))
        elif match := _RAM.search(text):
            self.ram = int(match[1]) * MiB, int(match[2]) * MiB
        elif match := _OLLAMA_RAM.search(text):
            self.ram = size_of(match[1]), size_of(match[2])

    def _listed(self, of: type[Backend], said: dict[str, str | None], text: str) -> None:
        """A device as its backend lists it when it starts."""
        size = int(said.get("mib") or 0) * MiB
        free = int(int(said.get("mb") or 0) * 1e6)       # of what shares the system's memory
        name = f"{of.name}{said.get('index') or 0}"
        if of.old_name and (self.era == "A" or f"ggml_{of.old_name.lower()}_init" in text if "mb" not in said
                            else of.old_name in self.devices or name not in self.devices):
            name = of.old_name
        major, minor = said.get("major"), said.get("minor")
        self._device(name, said.get("description") or "", size or free, free,
                     (int(major), int(minor)) if major and minor else None)

    def _ollama(self, fields: dict[str, str]) -> None:
        said = {key: value.strip('"') for key, value in fields.items()}
        library = said.get("library", "")
        if library.lower() in ("", HOST.lower()):
            return
        of, name = OLLAMA.get(library.lower()), said.get("name", "")
        if not re.fullmatch(r"[A-Za-z]{2,12}\d{1,3}", name):
            prefix = (of.old_name or of.name) if of else library[:12]
            index = sum(device.startswith(prefix) for device in self.devices)
            name, said["description"] = f"{prefix}{index}", said.get("description") or name
        capability = said.get("compute", "").split(".")
        pair = (int(capability[0]), int(capability[1])) if len(capability) == 2 and all(
            part.isdecimal() and len(part) < 4 for part in capability) and of and of.nvidia else None
        self._device(name, said.get("description", "")[:90], size_of(said.get("total", "")),
                     size_of(said.get("available", "")), pair)

    def _device(self, name: str, description: str = "", total: int = 0, free: int = 0,
                capability: tuple[int, int] | None = None) -> None:
        old = self.devices.get(name)
        if old is None and len(self.devices) >= 64:
            return
        description = description or (old.description if old else "")
        prefix = canonical(name.rstrip("0123456789").partition("[")[0])
        of = backend(prefix)
        total, free = total or (old.total if old else 0), free or (old.free if old else 0)
        self.devices[name] = Device(
            name, max(total, free), free, description, prefix, "rpc" if of.remote else "gpu",
            compute_capability=capability or (old.compute_capability if old else None), source="log",
            includes_context=of.nvidia)

    def _complete(self) -> None:
        """Sizes of cards that are known by their names, and the devices of a backend that calls them as the one that it
        is built from."""
        for name, device in list(self.devices.items()):
            if not device.total and device.description:
                card = _card(device.description)
                if card:
                    self._device(name, total=card)
        for b, _ in BUILT_FROM:
            if b.name in self.backends and b.built_from not in self.backends:
                for name in [name for name in self.devices if name.startswith(b.built_from)]:
                    device = self.devices.pop(name)
                    self._device(b.name + name[len(b.built_from):], device.description, device.total, device.free)

    @property
    def weights(self) -> int:
        """Bytes of the weights' buffers that the log shows, of the model that was loaded last."""
        load = self.launch.loads[-1] if self.launch.loads else None
        return int(sum(map(sum, load.buffers.get("model", {}).values())) * MiB) if load else 0

    def held(self, device: str) -> int:
        """Bytes of the buffers that the log shows on a device, of the model that was loaded last."""
        load = self.launch.loads[-1] if self.launch.loads else None
        if load is None:
            return 0
        of = self.launch.device_of
        return int(sum(size for sizes in load.buffers.values() for name, found in sizes.items()
                       if of(name) == of(device) for size in found) * MiB)


_READY = ("model loaded", "server is listening on", ": listening on ", "all slots are idle", "llama runner started",
          "slot      release", "slot launch_slot_", "update_slots", "llama server listening at", "log_server_request")
# Of the lines that LogReader knows
_OF_BUFFERS = ("buffer", "size", "offloaded", "using device", "| ", "model", "llama_context", "llama_new_context",
               "n_ctx", "loading", "listening", "CLIP", "VRAM")
_ERAS = (("C", ("cmn  ", "common_fit_params", "srv  llama_server")),
         ("A", ("llm_load_", "llama_new_context_with_model", "llama_kv_cache_init:", "llama_init_from_gpt_params",
                "llama_load_model_from_file:")),
         ("B", ("load_tensors:", "print_info:", "llama_context:", "llama_model_load_from_file_impl",
                "llama_kv_cache_unified", "llama_params_fit", "common_init_from_params")))


def _card(description: str) -> int:
    known = described(description, 0)
    try:
        return (known or find(description)).usable * MiB
    except UsageError:
        return 0


def size_of(text: str) -> int:
    """Bytes of Ollama's "11.5 GiB", 0 of anything else."""
    match = _SIZE.match(text)
    try:
        return int(float(match[1]) * _UNITS[match[2]]) if match else 0
    except ValueError:
        return 0


def _words(text: str) -> tuple[str, ...]:
    """A command's words; a line that was cut or is quoted strangely is split at blanks."""
    text = text.replace('\\"', '"').rstrip('"')
    try:
        return tuple(shlex.split(text))[1:]
    except ValueError:
        return tuple(text.split())[1:]
