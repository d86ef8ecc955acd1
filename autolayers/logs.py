"""What llama.cpp and Ollama print while they start and load, one row a line: a word, a pattern, a
field.

    for name, found in fields("load_tensors: offloaded 33/33 layers to GPU"):
        name, found                  # "offloaded", {"layers": "33", "of": "33"}

A row's word is looked for first, because that is cheap; the named groups of its pattern are what
the line says. What failed and why is no row of this table but a sign: diagnosis/signs.tsv and the
backends'.

Formats of src/llama-model.cpp, llama-context.cpp, llama-kv-cache.cpp, llama-memory-recurrent.cpp,
tools/mtmd/clip.cpp, common/fit.cpp, ggml_cuda_init, ggml_vulkan and ggml_metal, of builds from 2023
to b11549, and of Ollama to 0.33. The function names before the colon change often and are ignored
where the words around the numbers are enough.
"""

from __future__ import annotations

import re

from .backends import HOST
from .backends.logs import DEVICE_LINES, WORDS
from .records import dataclass
from .units import GiB, MiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True)
class LogRow:
    """A kind of line. `pattern` "": the word alone is the sign; `value`: what the row itself says
    of the line."""

    field: str
    word: str
    pattern: str = ""
    value: str = ""

    def match(self, text: str) -> dict[str, str] | None:
        """Return the figures in a line, None where it is not of this kind."""
        # Most lines are of no kind, and `in` is much faster than a pattern.
        if self.word not in text:
            return None
        matched = re.search(self.pattern, text)
        if matched is None:
            return None
        figures = {name: group for name, group in matched.groupdict().items() if group is not None}
        return {**figures, "value": self.value} if self.value else figures


# Bounded numbers: a log is text from anywhere, and int() refuses more than 4,300 digits.
_MIB = r"\d{1,15}\.\d+"
_N = r"\d{1,12}"
_CELL = r"\d{1,15}"
_TYPES = r"(?:f32|f16|bf16|q\d_\d|iq4_nl)"

# What a launch allocates, and whether it serves
LAUNCH = (
    # "sched_reserve:      CUDA0 compute buffer size =   304.75 MiB", "llm_load_tensors:  CPU buffer
    # size = 4165.37 MiB"
    LogRow(
        "buffer",
        "buffer size",
        r"(?P<where>\w{1,60}): +(?P<name>[^\s:]\S{0,80}) +"
        r"(?P<what>model|KV|RS|LoRA|output|compute|DSV4 \S{1,60} state)? ?"
        rf"buffer size = +(?P<mib>{_MIB}) MiB",
    ),
    LogRow(
        "offloaded", "offloaded", r"offloaded (?P<layers>\d{1,9})/(?P<of>\d{1,9}) layers to GPU"
    ),
    # "clip_ctx: CLIP using CUDA0 backend", then "load_hparams: model size:         811.82 MiB"
    LogRow("projector", "CLIP using", r"CLIP using (?P<backend>\S+) backend"),
    LogRow("projector", " model size: ", rf"\w{{1,60}}: model size: +(?P<mib>{_MIB}) MiB"),
    # "using device CUDA0 (NVIDIA RTX A2000) (0000:01:00.0) - 23306 MiB free"
    # ik_llama.cpp: "CUDA0: using device CUDA0 - 24576 MiB free"
    LogRow(
        "device",
        "using device",
        r"using device (?P<name>\S{1,60})(?: "
        r"\((?P<description>.{0,200}?)\))?"
        rf"(?: \((?P<bus>.{{0,60}})\))? - (?P<mib>{_N}) MiB free",
    ),
    # "| - CUDA0 (RTX 4090)  | 24077 = 17900 + (5430 = 4403 + 1024 + 3) + 747 |", "| - Host |  345 =
    # 281 + 0 + 64 |"
    LogRow(
        "breakdown",
        "| ",
        rf"\| +- (?P<name>\S{{1,60}}) .{{0,200}}\| +(?P<total>{_CELL}) = (?P<free>{_CELL}) \+ "
        rf"\( *{_CELL} = +(?P<model>{_CELL}) \+ +(?P<context>{_CELL}) \+ +(?P<compute>{_CELL})\) "
        rf"\+ "
        rf"+(?P<unaccounted>-?{_CELL}) \|",
    ),
    LogRow(
        "host",
        "| ",
        rf"\| +- Host +\| +{_CELL} = +(?P<model>{_CELL}) \+ +(?P<context>{_CELL}) \+ "
        rf"+(?P<compute>{_CELL}) +\|",
    ),
    # builds of 2023: "llm_load_tensors: VRAM used: 4095.05 MB", "kv self size  =  256.00 MB"
    *(
        LogRow("old", word, rf"{word} *[:=] +(?P<mib>{_MIB}) Mi?B", word)
        for word in ("VRAM used", "kv self size", "mem required")
    ),
    LogRow("load", "llama_model_loader: loaded meta data"),
    LogRow("load", "loading model tensors"),
    LogRow("context", "constructing llama_context"),
    LogRow("context", "n_ctx", r"(?:llama_new_context_with_model|llama_init_from_model): n_ctx +="),
    # not "HTTP server is listening": builds of 2024 and 2025 print that before they load
    LogRow("ready", "model loaded"),
    *(
        LogRow("ready", word, rf"{word}(?: ?(?P<url>https?://\S+))?")
        for word in (": listening on ", "server is listening on", "llama server listening at")
    ),
)

# How Ollama's server starts, and llama-server by it
SERVER = (
    LogRow("settings", 'msg="server config"', r'env="map\[(?P<map>(?:[^"\\]|\\.)*)\]"'),
    LogRow("gpu", 'msg="inference compute"', r'msg="inference compute" (?P<fields>.{1,2000})'),
    LogRow(
        "started",
        'msg="starting llama-server"',
        r'msg="starting llama-server" cmd="(?P<command>(?:[^"\\]|\\.){0,30000})"',
    ),
)

# What else the lines say of the machine, the program, the model and the launch
_REST = (
    *(LogRow("backend", word, "", name) for word, name in WORDS),
    LogRow(
        "listed",
        "MiB",
        # "common_params_print_info:   - CUDA0 : NVIDIA ...", and without the function's name
        r"^(?:[DIWE] )?\s*(?:\w{2,40}: +)?(?:- )?"
        rf"(?P<name>(?!{HOST}\b)[A-Z][A-Za-z]{{1,11}}\d{{1,3}}) *: "
        rf"(?P<description>.{{1,120}}) \((?P<mib>{_N}) MiB(?:, (?P<free>{_N}) MiB free)?\)",
    ),
    LogRow(
        "ram",
        HOST,
        rf"^\s*(?:- )?{HOST} *: .{{1,120}} \((?P<mib>{_N}) MiB, (?P<free>{_N}) MiB free\)",
    ),
    LogRow(
        "system_memory",
        'msg="system memory"',
        r'total="(?P<total>[\d.]{1,9} [KMGT]?i?B)" free="(?P<free>[\d.]{1,9} [KMGT]?i?B)"',
    ),
    LogRow("swap", "free_swap", r'free_swap="(?P<free>[\d.]{1,9} (?:[KMGT]i)?B)"'),
    *(LogRow("started_device", word, pattern, b.name) for word, pattern, b in DEVICE_LINES),
    *(
        LogRow(
            "build",
            word,
            rf"\b{word} *[:=] *(?:\S{{1,12}} \(build (?P<new>\d{{3,6}})"
            r"|b?(?P<old>\d{3,6})(?: \(|-)[0-9a-f]{7,12})",
        )
        for word in ("build", "version", "build_info")
    ),
    LogRow(
        "model",
        ".gguf",
        r"(?:loaded meta data with .{1,60} from |loading model '|failed to load "
        r"model '|"
        r"failed to load model,? '|failed to load model from )(?P<path>[^'\n]{1,300}?\.gguf)\b",
    ),
    # what it says of the model: printed by print_info, and as the header's own keys
    LogRow(
        "printed",
        "= ",
        r"(?:print_info|llm_load_print_meta): "
        r"+(?P<key>arch|n_layer|n_embd|n_ff|n_expert|n_ctx_train|"
        r"general\.name|file type|model ftype) += +(?P<said>\S.{0,80})",
    ),
    LogRow(
        "printed",
        "- kv ",
        r"- kv +\d{1,4}: "
        r"+(?:general\.|[\w-]{2,40}\.)(?P<key>architecture|name|block_count|"
        r"embedding_length|feed_forward_length|expert_count|context_length) +\w{3,4} += "
        r"+(?P<said>\S.{0,80})",
    ),
    LogRow(
        "figure",
        "= ",
        r"(?:llama_context|llama_new_context_with_model|llama_init_from_model|llama_model_loader|"
        r"print_info|llm_load_print_meta): +(?:- "
        r")?(?P<key>n_ctx|n_ctx_seq|n_ctx_per_seq|n_batch|n_ubatch|"
        rf"n_seq_max|n_ctx_train|n_layer|flash_attn|kv_unified) += +(?P<said>{_N}|\w{{1,9}})\b",
    ),
    LogRow(
        "offload",
        "layers.offload",
        r"layers\.model=(?P<of>\d{1,5}) layers\.offload=(?P<layers>\d{1,5})",
    ),
    # --fit's trials name a device by its number, and what they compare with
    LogRow(
        "fits",
        "_fit_impl: ",
        r"_fit_impl: (?:id=\d{1,3}, n_layer=|projected to use \d{1,9} MiB of device)",
    ),
    LogRow("shared", "NvMapMem", r"(?P<name>NvMap)MemAlloc"),
    LogRow("splits", "graph splits", r"graph splits = (?P<n>\d{1,6})"),
    LogRow(
        "cache_types",
        "K (",
        rf"size +=.{{0,200}}?\bK \((?P<K>{_TYPES})\)(?:.{{0,200}}?\bV \((?P<V>{_TYPES})\))?",
    ),
    LogRow(
        "reduced",
        "context size reduced",
        r"context size reduced from (?P<before>\d{1,9}) to (?P<after>\d{1,9})",
    ),
    LogRow(
        "slots", "n_slots", r"n_slots = (?P<n_slots>\d{1,4}), n_ctx_slot = (?P<n_ctx_slot>\d{1,9})"
    ),
    LogRow("shared", "uma: 1", r"\d = (?P<name>.{1,60}?) \(.{0,80}uma: 1"),
    LogRow("shared", "type=iGPU", r'name=(?P<name>"[^"]{1,60}"|\S{1,60}) .{0,300}type=iGPU'),
    LogRow(
        "program",
        " -",
        r"(?:^|[\s\"'=/])(?P<command>(?:\S{0,200}/)?(?:llama-(?:server|cli|bench|perplexity|simple)"
        r"|server|main)(?:\.exe)? +-[^\n]{1,3000})",
    ),
    # "prompt eval time = 2034.21 ms / 612 tokens (...)", llama-bench's "| pp512 | 123.45 ± 0.67 |"
    LogRow(
        "rate",
        "prompt eval time",
        r"prompt eval time = +[\d.]{1,20} ms / +(?P<n>\d{1,9}) tokens "
        r".{0,60}?"
        r"(?P<rate>\d{1,7}\.\d{1,4}) tokens per second",
        "prompt",
    ),
    LogRow(
        "rate",
        " eval time",
        r"(?<!prompt)(?<!\s)\s+eval time = +[\d.]{1,20} ms / +(?P<n>\d{1,9}) "
        r"(?:tokens|runs) .{0,60}?"
        r"(?P<rate>\d{1,7}\.\d{1,4}) tokens per second",
        "answer",
    ),
    LogRow("rate", "±", r"\| +(?:pp|tg)\d{1,6}\b.{0,40}\| +\d{1,7}\.\d\d ± ", "bench"),
    # "system_info: n_threads = 8 (n_threads_batch = 8) / 16 | ..."
    LogRow(
        "threads",
        "n_threads = ",
        r"n_threads = (?P<n>\d{1,5}) (?:\(n_threads_batch = \d{1,5}\) )?/ (?P<total>\d{1,5})",
    ),
    LogRow("chip", "gfx", r"Device \d{1,2}: .{1,80}?, (?P<chip>gfx[0-9a-f]{3,5})\b"),
    LogRow("chip", "GPU arch", r"GPU arch : (?P<chip>gfx[0-9a-f]{3,5})\b"),
    *(LogRow("ik", word) for word in ("attn_max_b", "ik_llama")),
    LogRow(
        "unfused", "not supported, set to disabled", r"fused .{1,60} not supported, set to disabled"
    ),
    *(
        LogRow("serving", word)
        for word in (
            "all slots are idle",
            "llama runner started",
            "slot      release",
            "slot launch_slot_",
            "update_slots",
            "log_server_r",  # log_server_request, whose name newer builds cut
        )
    ),
    # of a request; the others are of the start
    LogRow("serving", "slot ", r"\bslot +(?!load_model|init\b)\w{2,20}: +id +\d"),
    LogRow("ollama", "ollama"),
    LogRow("ollama", "level=", r"^.{0,74}level="),
    # A to about January 2025, B to April 2026, C after
    *(
        LogRow("era", word, "", era)
        for era, words in (
            ("C", ("cmn  ", "common_fit_params", "srv  llama_server")),
            (
                "A",
                (
                    "llm_load_",
                    "llama_new_context_with_model",
                    "llama_kv_cache_init:",
                    "llama_init_from_gpt_params",
                    "llama_load_model_from_file:",
                ),
            ),
            (
                "B",
                (
                    "load_tensors:",
                    "print_info:",
                    "llama_context:",
                    "llama_model_load_from_file_impl",
                    "llama_kv_cache_unified",
                    "llama_params_fit",
                    "common_init_from_params",
                ),
            ),
        )
        for word in words
    ),
)
ROWS = (*LAUNCH, *SERVER, *_REST)


def fields(text: str, rows: Sequence[LogRow] = ROWS) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (field, its figures) of every row that a line is of, in the table's order."""
    for row in rows:
        figures = row.match(text)
        if figures is not None:
            yield row.field, figures


def rows_of(*names: str) -> tuple[LogRow, ...]:
    """Return the rows of these fields."""
    return tuple(row for row in ROWS if row.field in names)


def lines_with(text: str, rows: Iterable[LogRow]) -> Iterator[str]:
    """Yield the lines of a text that have a row's word, in their order: found by the words, of a
    log of any length."""
    # One pass for each word over the whole text, not line by line: logs may have hundreds of MB.
    starts: set[int] = set()
    for word in {row.word for row in rows}:
        at = text.find(word)
        while at >= 0:
            starts.add(text.rfind("\n", 0, at) + 1)
            end = text.find("\n", at)
            at = text.find(word, end) if end >= 0 else -1
    for start in sorted(starts):
        end = text.find("\n", start)
        yield text[start:end] if end >= 0 else text[start:]


# --- what Ollama writes its figures as

_PAIR = re.compile(r'(\w{1,40})=("(?:[^"\\]|\\.){0,2000}"|\S{0,2000})')
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?((?:[KMGT]i)?B)", re.ASCII)
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MiB, "GiB": GiB, "TiB": GiB << 10}


def pairs(text: str) -> dict[str, str]:
    """Return the values of key=value and key="value", without quotes and Go's escapes of them."""
    return {
        key: plain(value[1:-1] if value.startswith('"') else value)
        for key, value in _PAIR.findall(text)
    }


def plain(text: str) -> str:
    """Return the text without Go's escapes of quotes and backslashes."""
    return re.sub(r'\\(["\\])', r"\1", text)


def size_of(text: str) -> int:
    """Return the bytes of "11.5 GiB", 0 of anything else."""
    match = _SIZE.fullmatch(text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else 0


def capability_of(text: str) -> tuple[int, int] | None:
    """Return the compute capability that "8.6" is, None where it is none."""
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", text, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None
