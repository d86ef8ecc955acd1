"""autolayers' commands and its own flags: one row each. Help, completion, man page and README are
made from them.

    own_flags("run")["--retry"].read("2")      # 2
    takers("--retry")                          # ["run"]
"""

from __future__ import annotations

from ..errors import UsageError
from ..machine import OF_PEAK
from ..units import MiB, parse_memory, parse_size, with_unit
from .formats import FORMATS
from .kinds import CACHE_TYPES, Bad, number, one_of, tokens
from .params import FIT_PARAMS_MIN_CTX
from .releases import RELEASES, build_of
from .workload import WORKLOADS, workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Command:
    """`usage`: what follows the word autolayers. `llama`: it reads llama-server's flags too."""

    __slots__ = ("about", "llama", "name", "summary", "usage")

    def __init__(
        self, name: str, usage: str, summary: str, about: str = "", llama: bool = False
    ) -> None:
        self.name = name
        self.usage = usage
        self.summary = summary
        self.about = about
        self.llama = llama


class OwnFlag:
    """One of autolayers' own flags, and the commands that have it (a + in a command's name is a
    space). Without a metavar it is a switch whose value is `value`, or one of `choices` after a
    "="; else `read` converts its text, or raises Bad. `adds`: what joins repeated values. `key`:
    its name in Arguments.own."""

    __slots__ = ("adds", "choices", "commands", "help", "key", "metavar", "names", "read", "value")

    def __init__(
        self,
        names: str,
        commands: str,
        metavar: str,
        help: str,
        read: Callable[[str], Any] = str,
        *,
        choices: tuple[str, ...] = (),
        adds: str = "",
        key: str = "",
        value: object = True,
    ) -> None:
        self.names = tuple(names.split())
        self.commands = tuple(commands.replace("+", " ") for commands in commands.split())
        self.metavar = metavar
        self.help = help
        self.read = (lambda text: one_of(text, choices)) if choices and read is str else read
        self.choices = choices
        self.adds = adds
        self.key = key or self.names[0].lstrip("-")
        self.value = value

    @property
    def takes_value(self) -> bool:
        return bool(self.metavar)

    def __repr__(self) -> str:
        return f"OwnFlag({' '.join(self.names)!r}, {' '.join(self.commands)!r})"


# --- readers

# e.g. `--ctx 16`, meant as 16k
LEAST_CTX = 512  # less most likely lacks its k
_TOKENS = "a number of tokens such as 8192 or 16k"


def _ctx(text: str, what: str = _TOKENS) -> int:
    """Return the tokens of a context."""
    n_ctx = tokens(text, 1, what)
    if n_ctx < LEAST_CTX:
        raise Bad(f"{LEAST_CTX} tokens or more: {text}k?")
    return n_ctx


def _ctx_or_max(text: str) -> int | str:
    return text if text == "max" else _ctx(text, f"{_TOKENS}, or max")


def _num_ctx(text: str) -> int | str:
    """Return the context of Ollama; 0 is the trained one."""
    return 0 if text == "0" else _ctx_or_max(text)


def _list(read: Callable[[str], Any], separator: str = ",") -> Callable[[str], tuple[Any, ...]]:
    def read_all(text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(separator) if part.strip()]
        if not parts:
            raise Bad("a value")
        return tuple(map(read, parts))

    return read_all


def _cache_type(text: str) -> str:
    if text not in CACHE_TYPES:
        raise Bad(f"cache types, which {text!r} is not: choose from {', '.join(CACHE_TYPES)}")
    return text


def _size(text: str) -> int:
    """Return the bytes of memory. A small number without a unit means GiB or MiB, never bytes."""
    try:
        # "24GB" of memory is 24 GiB: chips are sold in powers of two
        size = parse_memory(text)
    except UsageError:
        raise Bad("a size such as 24GiB or 512MiB") from None
    bare = text.strip()
    # `--margin 512` is meant in MiB, `--ram 64` in GiB: nobody has 64 bytes
    if 0 < size < MiB and not bare[-1].isalpha():
        raise Bad(f"a size with its unit: {with_unit(bare)}?")
    return size


def _ram(text: str) -> tuple[int, float | None]:
    # (bytes, bytes per second or None)
    size, at, rate = text.partition("@")
    if not at:
        return _size(text), None
    if modules := _modules(rate):
        return _size(size), modules
    try:
        bandwidth = parse_size(rate.strip().removesuffix("/s"), 10**9)  # "300" means GB/s
    except UsageError:
        bandwidth = 0
    # Outside of this no RAM is: a typing error of a factor of 1000
    if not 1e9 <= bandwidth <= 1e13:
        raise Bad(
            "a size and the bandwidth of reading it, or its modules: 768GiB@300GB/s, "
            "64GiB@ddr5-6000x2"
        )
    return _size(size), float(bandwidth)


def _modules(text: str) -> float | None:
    """Return the bytes per second that reading RAM reaches, of "ddr5-6000x2": its kind, 10**6
    transfers a second and channels of 64 bits (two if none are given). None if it is no such text.
    """
    import re  # few calls

    match = re.fullmatch(r"(?:lp)?ddr[2-6]x?-(\d{3,5})(?:x([1-9]\d?))?", text.strip().lower())
    # 8 bytes a transfer and channel; reading reaches OF_PEAK of it
    return None if match is None else int(match[1]) * 1e6 * 8 * int(match[2] or 2) * OF_PEAK


def _ram_alone(text: str) -> tuple[int, float | None]:
    return _size(text), None


def _budget(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not (name and size):
        raise Bad("a device and a size, such as CUDA0=10GiB")
    return name, _size(size)


def _build(text: str) -> int:
    if known := build_of(text):
        return known
    what = f"a build number such as b10488, or a release: {', '.join(RELEASES)}"
    return number(text.removeprefix("b"), 1, what=what)


def _attempts(text: str) -> int:
    return number(text, 0, 100, "a number of attempts, 0 to 100")


def _port(text: str) -> int:
    return number(text, 0, 65535, "a port, 0 to 65535")


def _time(text: str) -> float:
    """Return seconds."""
    # "90s", "10m"; a bare number counts seconds
    units = {"s": 1, "m": 60, "h": 3600}
    digits, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    return float(
        number(digits, 1, 86400 // unit, "a time such as 300, 90s or 10m, a day at most") * unit
    )


def _users(text: str) -> int:
    # llama.cpp's LLAMA_MAX_SEQ: each user is a slot
    return number(text, 1, 256, "a number of users, 1 to 256")


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise Bad("a share from 0 to 1, such as 0.72")
    return share


def _positive(text: str) -> int:
    return number(text, 1, what="a whole number, 1 or more")


def _rate(text: str, what: str = "tokens per second, such as 20") -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise Bad(what)
    return rate


def _seconds(text: str) -> float:
    return _rate(text, "seconds, more than 0, such as 2")


# --- rows

_OLLAMA_ABOUT = """\
Other flags are llama-server's, such as -fitt 512, for the plan. OLLAMA_HOST, OLLAMA_MODELS, \
OLLAMA_NUM_PARALLEL, OLLAMA_CONTEXT_LENGTH, OLLAMA_KV_CACHE_TYPE, OLLAMA_FLASH_ATTENTION and \
OLLAMA_SCHED_SPREAD are read as Ollama's server reads them: set them here as they are set there."""

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "plan",
            "MODEL...|DIR [llama-server flags] [own flags]",
            "the plan; several models are planned to be loaded together, a directory's in groups "
            "that fit together",
            "llama-server's flags that touch memory (-ngl -c -b -ub -np -kvu -fa -ctk -ctv -ts -sm "
            "-ot -ncmoe ...) and its LLAMA_ARG_* variables are constraints: given flags stay, the "
            "others are solved. -ngl alone is taken literally; with --strategy auto the rest is "
            "solved around it. Other llama-server flags are passed on. With several models, "
            "MODEL@3 gives a model three times the weight of the others.",
            True,
        ),
        Command(
            "run",
            "run [own flags] llama-server -m MODEL [llama-server flags]",
            "plan, then start that command",
            "The plan's flags are added to the command; given flags are never changed. Own flags "
            "go before the program. Any program that takes llama-server's flags works; after a "
            "script, -- marks where they begin.",
        ),
        Command(
            "ollama",
            "ollama COMMAND ...",
            "Modelfiles and the Ollama server",
            "The right num_gpu, num_ctx and num_batch for Ollama.",
        ),
        Command(
            "ollama modelfile",
            "ollama modelfile MODELFILE|MODEL.gguf|NAME [flags]",
            "set the planned parameters in a Modelfile, or write one",
            "MODELFILE may be - for standard input. " + _OLLAMA_ABOUT,
            True,
        ),
        Command(
            "ollama plan",
            "ollama plan NAME|MODEL.gguf|MODELFILE [flags]",
            "print what num_gpu, num_ctx and num_batch should be, and when to leave them alone",
            _OLLAMA_ABOUT,
            True,
        ),
        Command(
            "ollama create",
            "ollama create NAME --as NEW [flags]",
            "make a model with the planned parameters on the server; no weights are copied",
            _OLLAMA_ABOUT,
            True,
        ),
        Command(
            "ollama verify",
            "ollama verify NAME [flags]",
            "load a model with the planned parameters and compare with what Ollama reports",
            _OLLAMA_ABOUT,
            True,
        ),
        Command(
            "ollama list",
            "ollama list [flags]",
            "num_gpu, num_ctx and num_batch for every model of the server or store",
            _OLLAMA_ABOUT,
            True,
        ),
        Command(
            "devices",
            "devices [flags]",
            "the memory of this machine, its source, and how reliable the numbers are",
        ),
        Command(
            "inspect",
            "inspect MODEL [flags] [llama-server flags]",
            "the facts in the header, and the size of each layer",
            "Cache sizes are for -c N cells (default: the trained context), with the types of -ctk "
            "and -ctv.",
            True,
        ),
        Command(
            "sweep",
            "sweep MODEL... [flags] [llama-server flags]",
            "compare contexts, cache types and machines",
            "One plan per model (or quantisation), machine, cache type and context: layers on the "
            "GPU, memory and predicted speed as tables, with --plot as bars. The default is this "
            "machine; see --gpus and --gpu.",
            True,
        ),
        Command(
            "choose",
            "choose hf:USER/REPO|DIRECTORY|MODEL...|ollama: [flags] [llama-server flags]",
            "which file to take for a machine",
            "Every quantisation of a repository, every model of a directory or of Ollama's store "
            "(ollama:), planned from its header: size, whether it is fully offloaded with the "
            "wanted context, its largest context and predicted speed; and which one to take. With "
            "--for cards: the smallest GPUs, pairs of GPUs and machines with unified memory that "
            "run one model.",
            True,
        ),
        Command(
            "best",
            "best [--for chat|code|documents|pictures|agents] [flags] [llama-server flags]",
            "which model to take for a machine",
            "The models of today, each in the quantisation that choose takes, all with the context "
            "of the job; what runs well first, the best by a published index first, then what is "
            "slow. No file and no network are needed: the models' headers come with the package.",
            True,
        ),
        Command(
            "cluster",
            "cluster FILE MODEL [flags] [llama-server flags]",
            "one llama-server over several machines, by RPC",
            "FILE lists the machines, their GPUs and the network between them (docs/cluster.md). "
            "The plan uses the machines that answer a request fastest, with network and loading "
            "counted, and leaves out the others.",
            True,
        ),
        Command(
            "fleet",
            "fleet FILE|DIRECTORY MODEL[@WEIGHT]... [llama-server flags] [own flags]",
            "which of several machines serves which model, for how many users",
            "FILE lists machines (docs/fleet.md), or is what kubectl get nodes -o json prints; "
            "DIRECTORY has what devices --json printed on each. The answer: replicas, slots and "
            "context of each model on each machine, the speed for each user, the cost of a failed "
            "machine, and the machine to buy next. MODEL@3 has three times the users of the "
            "others. pip install autolayers[fleet] adds a solver that proves the answer.",
            True,
        ),
        Command(
            "rules",
            "rules [MODEL] [flags]",
            "rules of thumb for models that have no file yet, and their error for those that do",
            "With MODEL, each rule's figure is printed next to the exact one.",
        ),
        Command(
            "check",
            "check [flags]",
            "does the installed llama.cpp allocate as predicted?",
            "Loads a tiny model of each architecture with llama-server and compares the sizes in "
            "its log with the prediction. The result is kept: later plans for that program say "
            "that it was checked, and no longer call the sizes of architectures that differ exact.",
        ),
        Command(
            "compare",
            "compare [own flags] -- llama-server -m MODEL [llama-server flags]",
            "a command that you have, next to a better one for the same wishes",
            "Both keep the context, slots, cache types, devices and files of the command; the "
            "better one places weights and caches, and chooses micro-batches, as a plan does. "
            "Nothing is started.",
        ),
        Command(
            "prove",
            "prove [own flags] llama-server -m MODEL [llama-server flags]",
            "start the planned launch, fill its context to the end, and see whether it holds",
            "Every slot is filled at once with real requests, an image is asked about if there is "
            "a projector, and the memory of the process and the devices is watched. 0 if it "
            "held.",
        ),
        Command(
            "tune",
            "tune [own flags] llama-server -m MODEL [llama-server flags]",
            "measure the launches that predictions cannot tell apart, and keep the fastest",
            "Measures with llama-bench only the launches whose predictions overlap with the best "
            "one's: at most five, and all fit. The result is kept: later plans with the same flags "
            "for this model, machine and build use it and say so. Own flags go before the program. "
            "Ctrl-C keeps the results so far. Every measurement also corrects the predicted speeds "
            "of all models on this machine, with this build and driver; `autolayers devices` lists "
            "them. tune --quick MODEL and tune --bench FILE [MODEL] only correct the predictions.",
        ),
        Command(
            "measured",
            "measured [CARD] [MODEL] [flags]",
            "speeds that people measured, next to the prediction",
            "CARD is a name of --gpu, or cpu; MODEL is part of a model's name. Without either, the "
            "rows of this machine's cards (if there are none, all rows), and the missing row that "
            "would help most. A plan shows the nearest row.",
        ),
        Command(
            "explain",
            "explain LOG...|PID|MODEL [flags] [llama-server flags]",
            "why a launch failed or is slow, from its log; what a running server holds; why this "
            "plan",
            "LOG is the output of llama-server, llama-cli, llama-bench or Ollama, copied or as "
            "journald or Docker stores it; - is standard input; several files are parts of one "
            "log. Nothing is sent anywhere. The launch that works is planned for the devices and "
            "the free memory in the log, or for --gpu and --machine, if the model's file is here "
            "(-m). llama-server's flags are those of the launch, if its command is not in the log. "
            "Exit code 0: explained, 1: unknown, 3: no log.",
            True,
        ),
        Command(
            "ps",
            "ps [flags]",
            "what running servers hold, next to the prediction",
            "Every llama-server on this machine, including those of Ollama and llama-swap: its "
            "launch, the memory that the driver reports, the predicted memory, what may still "
            "grow and whether it is busy.",
        ),
        Command(
            "web",
            "web [MODEL...] [flags]",
            "the planner as a page in the browser",
            "Serves the page on 127.0.0.1, with this machine's devices and each MODEL open. Other "
            "models open by name. `python -m autolayers.web build DIR` writes the same page as "
            "static files.",
        ),
        Command(
            "serve",
            "serve [--port N]",
            "the same JSON over HTTP on loopback, for front ends",
            "POST /plan, /explain and /choose on 127.0.0.1 answer what --json prints; GET "
            "/openapi.json describes them. Requests need a bearer token: the printed one, or "
            "AUTOLAYERS_TOKEN.",
        ),
        Command(
            "completion",
            "completion bash|zsh|fish|powershell",
            "a completion script for your shell",
            "In ~/.bashrc, in ~/.zshrc after compinit, in PowerShell's $PROFILE, or once for "
            "fish:\n"
            '\n  eval "$(autolayers completion bash)"'
            '\n  eval "$(autolayers completion zsh)"'
            "\n  autolayers completion powershell | Out-String | Invoke-Expression"
            "\n  autolayers completion fish > ~/.config/fish/completions/autolayers.fish",
        ),
    )
}

# + stands for the space in a command's name, because spaces separate the commands
_OLLAMA = "ollama+modelfile ollama+plan ollama+create ollama+verify ollama+list"
_EVERY = " ".join(name.replace(" ", "+") for name in COMMANDS)

# A name may have several rows, each for other commands: --ctx of plan is not that of choose
FLAGS = (
    OwnFlag(
        "--gpu",
        f"plan run compare sweep choose best explain {_OLLAMA}",
        "SIZE|NAME,...",
        "plan for hypothetical GPUs: 24GiB, rtx-3090, 2x24GiB; list: the known names",
        adds=",",
    ),
    OwnFlag(
        "--backend",
        f"plan run compare sweep choose best {_OLLAMA}",
        "NAME",
        "plan for this backend of llama.cpp: cuda, rocm, vulkan, metal, sycl, cann, opencl, musa "
        "or cpu",
    ),
    OwnFlag(
        "--ram",
        f"plan run compare prove sweep choose best explain {_OLLAMA}",
        "SIZE[@RATE]",
        "the RAM to plan for, with its read bandwidth or its modules and channels: 64GiB, "
        "768GiB@300GB/s, 64GiB@ddr5-6000x2",
        _ram,
    ),
    # Each machine of a cluster file has its own bandwidth
    OwnFlag("--ram", "cluster", "SIZE", "the RAM to plan for", _ram_alone),
    OwnFlag(
        "--ram-limit",
        "plan run compare prove cluster fleet",
        "SIZE",
        "the memory limit of the container, service or pod; the launch stays within it, growth "
        "included",
        _size,
    ),
    OwnFlag(
        "--cores",
        f"plan run compare prove sweep choose best explain {_OLLAMA}",
        "N",
        "physical CPU cores (default: this machine's; for another one, a guess from its RAM)",
        _positive,
    ),
    OwnFlag(
        "--machine",
        f"plan run compare sweep choose best explain {_OLLAMA}",
        "FILE",
        "plan for the machine in this file, which devices --json prints",
    ),
    OwnFlag(
        "--workload",
        "plan run compare prove sweep tune choose best cluster fleet",
        "NAME|P+G@D",
        f"the request to compare placements by: {', '.join(WORKLOADS)}, or tokens of the prompt, "
        "of the answer, and in the cache already: 4096+512@16k; x4 appended means four requests at "
        "once (default chat, 2048+512@0)",
        workload,
        # For completion alone: any P+G@D is read, too
        choices=tuple(WORKLOADS),
    ),
    OwnFlag(
        "--users",
        "fleet",
        "N",
        "users to serve at once, shared among the models by weight (default: as many as the "
        "machines can serve)",
        lambda text: number(text, 1, 1_000_000, "a number of users, 1 to 1000000"),
    ),
    OwnFlag(
        "--users",
        "plan run prove",
        "N",
        "plan one slot and context per user; report each user's speed and the largest number of "
        "users",
        _users,
    ),
    OwnFlag(
        "--ctx-per-user",
        "plan run prove fleet",
        "TOKENS",
        "the context of each user (default: the length of --workload, 4096 or more)",
        _ctx,
    ),
    OwnFlag(
        "--min-rate",
        "plan run prove fleet",
        "T/S",
        "minimum tokens per second for each user; without --users, serve as many users as that "
        "allows",
        _rate,
    ),
    OwnFlag(
        "--ttft",
        "plan run prove fleet",
        "SECONDS",
        "maximum seconds to the first token, for 19 in 20 requests",
        _seconds,
    ),
    OwnFlag(
        "--acceptance",
        "plan run prove",
        "SHARE",
        "the share of drafted tokens that are accepted, as llama-server prints it: 0.72 (default: "
        "from published measurements of code and prose)",
        _share,
    ),
    OwnFlag(
        "--strategy",
        "plan run prove sweep tune choose best cluster",
        "auto|layers",
        "auto: experts or FFN weights may go to RAM; layers: whole layers only, the largest -ngl",
        # layers: -ngl alone, which every program and build understands
        choices=("layers", "auto"),
    ),
    OwnFlag(
        "--ctx",
        "plan run prove tune cluster",
        "N|max",
        "the context (8192, 16k); max: the largest that keeps all layers on the GPUs",
        _ctx_or_max,
    ),
    OwnFlag(
        "--ctx-min",
        "plan run prove tune cluster",
        "N",
        f"the smallest context to plan (default {FIT_PARAMS_MIN_CTX})",
        _ctx,
    ),
    OwnFlag(
        "--agents",
        "plan run prove",
        "N",
        # A conversation that is saved in RAM is not read again when its turn comes
        "size --cache-ram for N conversations of the workload's length (fewer checkpoints if RAM "
        "is short)",
        lambda text: number(text, 1, 4096),
    ),
    OwnFlag(
        "--quality",
        "choose",
        "FILE",
        "output of llama-perplexity --kl-divergence for these files, from one run or several",
    ),
    OwnFlag(
        "--ctx",
        "choose",
        "N",
        "the smallest context wanted (default 8192, or the workload's)",
        _ctx,
    ),
    OwnFlag(
        "--kv-types",
        "plan run prove tune choose best cluster fleet",
        "A,B,...",
        "allowed cache types, in order of preference: f16,q8_0,q4_0",
        _list(_cache_type),
    ),
    OwnFlag(
        "--budget",
        f"plan run compare prove sweep tune choose best cluster {_OLLAMA}",
        "DEVICE=SIZE,...",
        "use at most this much of a device",
        _list(_budget),
        adds=",",
    ),
    OwnFlag(
        "--margin",
        f"plan run compare prove sweep tune choose best cluster {_OLLAMA}",
        "SIZE,...",
        "leave exactly this free on each device (as --fit-target MiB does)",
        _list(_size),
    ),
    OwnFlag(
        "--llama-build",
        f"plan run compare prove sweep tune choose best cluster fleet explain {_OLLAMA}",
        "N",
        "plan for this build of llama.cpp: b10488, or 1.0.0",
        _build,
    ),
    OwnFlag(
        "--engine",
        "plan run prove",
        "NAME",
        "plan for a program other than llama-server (run detects it): llama-bench, "
        "llama-completion, llama-cpp-python, koboldcpp, ik_llama.cpp, ...",
    ),
    OwnFlag(
        "--strict-flags",
        f"plan run compare prove sweep tune choose best cluster fleet inspect explain {_OLLAMA}",
        "on|off",
        "off: pass unknown flags on, such as those of a newer llama.cpp (default on)",
        choices=("on", "off"),
    ),
    OwnFlag(
        "--format",
        "plan",
        "FORM",
        "text (on a terminal), flags (on a pipe), number, json, or a launch file: "
        + ", ".join(FORMATS),
        choices=("text", "flags", "number", "json", *FORMATS),
    ),
    OwnFlag(
        "--format",
        "run",
        "FORM",
        "write a launch file instead of starting: " + ", ".join(FORMATS),
        choices=tuple(FORMATS),
    ),
    OwnFlag("--format", "best inspect explain", "FORM", "text or json", choices=("text", "json")),
    OwnFlag("--format", "sweep", "FORM", "text, json or csv", choices=("text", "json", "csv")),
    OwnFlag(
        "--format",
        "choose",
        "FORM",
        "text, json, or hf: llama-server's flags for the file to take",
        choices=("text", "json", "hf"),
    ),
    OwnFlag(
        "--format",
        "cluster",
        "FORM",
        "text (on a terminal), flags (on a pipe), json, or files for each machine: compose, "
        "systemd, kubernetes, lws",
        choices=("text", "flags", "json", "compose", "systemd", "kubernetes", "lws"),
    ),
    OwnFlag(
        "--format",
        "fleet",
        "FORM",
        "text (on a terminal), flags (on a pipe), json, or the files of each machine: compose, "
        "kubernetes, llmkube, llama-swap, or of a balancer before them: litellm, nginx, haproxy",
        choices=(
            "text",
            "flags",
            "json",
            "compose",
            "kubernetes",
            "llmkube",
            "llama-swap",
            "litellm",
            "nginx",
            "haproxy",
        ),
    ),
    OwnFlag(
        "--gpumem",
        "plan run cluster fleet",
        "NAME",
        "the scheduler that divides a GPU by memory, with --format kubernetes, or lws of "
        "autolayers cluster: hami (nvidia.com/gpumem) or kai (gpu-memory)",
        choices=("hami", "kai"),
    ),
    OwnFlag(
        "--ask",
        "cluster",
        "",
        "ask the running servers; those that do not answer, or report impossible sizes, are listed "
        "and skipped",
    ),
    OwnFlag(
        "--image",
        "cluster fleet",
        "NAME",
        "the container image; RPC needs a llama.cpp built with -DGGML_RPC=ON",
    ),
    OwnFlag(
        "-o --output",
        "cluster fleet",
        "DIRECTORY",
        "write the files to this directory instead of standard output",
        key="output",
    ),
    OwnFlag(
        "--for",
        "choose",
        "JOB|cards",
        "with the context, workload and least speed of a job of best: chat, code, documents or "
        "agents; cards: list the GPUs that run MODEL, instead of the models that a machine runs",
        choices=("cards", "chat", "code", "documents", "agents"),
    ),
    OwnFlag(
        "--for",
        "best",
        "JOB",
        "what the model is for, which sets the context: chat (16k), code (32k), documents (64k), "
        "pictures (8k) or agents (64k); default chat",
        choices=("chat", "code", "documents", "pictures", "agents"),
    ),
    OwnFlag(
        "--speed",
        "choose",
        "N",
        "with --for cards: only GPUs with a predicted N tokens per second",
        _rate,
    ),
    # Switches with the key of another flag: they may agree with it, and not contradict it
    OwnFlag("--csv", "sweep", "", "the same as --format csv", key="format", value="csv"),
    OwnFlag(
        "--json",
        "plan sweep choose best cluster fleet inspect explain",
        "",
        "the same as --format json",
        key="format",
        value="json",
    ),
    OwnFlag(
        "--json",
        # Commands without other formats
        "devices check compare prove tune measured rules ps ollama+plan ollama+verify ollama+list",
        "",
        "the answer as JSON",
    ),
    OwnFlag(
        "-q --quiet",
        "plan",
        "",
        "the same as --format number: n_gpu_layers alone",
        key="format",
        value="number",
    ),
    OwnFlag("-q --quiet", "ollama+plan", "", "num_gpu alone (-1: leave it to Ollama)", key="quiet"),
    OwnFlag(
        "--swap",
        "plan",
        "",
        "the models need not be loaded together: find groups that fit (a directory's models always "
        "take turns)",
    ),
    OwnFlag(
        "--stay",
        "plan ollama+plan",
        "NAMES",
        "these models stay loaded, and the others take turns with what they leave: "
        "nomic-embed-text-v1.5-f16,qwen3-0.6b-q8_0",
    ),
    OwnFlag(
        "--why",
        "plan",
        "",
        "how this plan was chosen: the candidates, and what ruled each out; --why=all: all that "
        "was measured, and what was promised and never measured",
        choices=("all",),
    ),
    OwnFlag(
        "--why",
        "explain",
        "",
        "of a log: the rule that counted on each line, and what overruled it",
    ),
    OwnFlag(
        "--table",
        "plan",
        "",
        "print the memory of every part and all reasons, on a terminal too",
    ),
    OwnFlag("--picture", "plan", "FILE", "write the summary as a picture, FILE.svg or FILE.png"),
    OwnFlag("--watch", "ps", "", "print it again every two seconds, until Ctrl-C"),
    OwnFlag("--dry-run", "run", "", "print the command and do not start it"),
    OwnFlag(
        "--verify",
        "run",
        "",
        "compare llama-server's buffer sizes with the prediction, and remember the difference",
    ),
    OwnFlag(
        "--retry",
        "run",
        "N",
        "if memory runs out while loading, plan smaller and start again, at most N times",
        _attempts,
    ),
    OwnFlag(
        "--confirm",
        "plan run",
        "",
        "ask the installed llama-fit-params whether the plan is right; run does where it "
        "stands next to the server",
    ),
    OwnFlag("--no-confirm", "plan run", "", "do not ask it", key="confirm", value=False),
    OwnFlag(
        "--llama-server",
        "plan",
        "PATH",
        "the llama-server to plan for: its build, its devices without --gpu, and the "
        "llama-fit-params next to it, which is asked (default: the one in PATH)",
    ),
    OwnFlag("--replan", "run", "", "plan again; otherwise an unchanged launch keeps its plan"),
    OwnFlag(
        "--wait",
        "run",
        "",
        "start it in the background; return when it is ready, with its address, speed and process "
        "id",
    ),
    OwnFlag(
        "--contexts",
        "sweep",
        "N,N,...",
        "contexts: 8192,32k (default: powers of two from 4096 to the trained one)",
        _list(_ctx),
    ),
    OwnFlag(
        "--types", "sweep", "A,B,...", "cache types (default f16,q8_0,q4_0)", _list(_cache_type)
    ),
    OwnFlag(
        "--gpus",
        "sweep",
        "SPECS",
        "machines, each written as for --gpu: '8GiB 24GiB 24GiB,24GiB'",
        _list(str, " "),
        # Blanks separate machines, because commas separate the GPUs of one
        adds=" ",
    ),
    OwnFlag("--plot", "sweep", "", "bars instead of tables"),
    OwnFlag("--plot", "measured", "", "measured / predicted as a plot"),
    OwnFlag(
        "--llama-server", "devices", "PROGRAM", "ask this llama.cpp program (--list-devices) first"
    ),
    OwnFlag(
        "--llama-server", "check", "PROGRAM", "the program to check (default: llama-server in PATH)"
    ),
    OwnFlag("--quick", "prove", "", "fill a quarter of each slot's context"),
    OwnFlag("--quick", "check", "", "one launch of each model instead of two or three"),
    OwnFlag(
        "--llama-bench",
        "tune",
        "PROGRAM",
        "the llama-bench to use (default: next to llama-server, or in PATH)",
    ),
    OwnFlag(
        "--limit",
        "tune",
        "TIME",
        "stop measuring after this time: 300, 90s, 10m (default 5m)",
        _time,
    ),
    OwnFlag(
        "--quick",
        "tune",
        "",
        "measure one launch of each kind of placement within two minutes, for the predictions "
        "of every model",
    ),
    OwnFlag(
        "--bench", "tune", "FILE", "take the measurements from this file of llama-bench -o json"
    ),
    OwnFlag(
        "--machine",
        "tune",
        "FILE",
        "with --bench: the machine that was measured, printed with the results",
    ),
    OwnFlag("--forget", "tune", "", "forget this machine's measured speeds"),
    OwnFlag(
        "--share",
        "tune",
        "FILE",
        "write the measurements as rows for the table that predictions are fitted to (- for "
        "stdout), without names of files, users or machines",
    ),
    OwnFlag(
        "--rpc",
        "devices",
        "HOST:PORT,...",
        "also list the devices of these RPC servers",
        _list(str),
        adds=",",
    ),
    OwnFlag(
        "--measure",
        "devices",
        "",
        "measure the bandwidth of RAM and PCIe for a few seconds and keep it for speed predictions",
    ),
    OwnFlag(
        # llama-server's names of the three too, so that a pasted command works
        "-c --ctx --ctx-size --num-ctx",
        _OLLAMA,
        "N|max",
        "num_ctx; max: the largest that keeps the model fully on the GPU",
        _num_ctx,
        key="num-ctx",
    ),
    OwnFlag("-b --num-batch --batch-size", _OLLAMA, "N", "num_batch", _positive, key="num-batch"),
    OwnFlag(
        "-np --parallel",
        _OLLAMA,
        "N",
        "OLLAMA_NUM_PARALLEL of the server",
        _positive,
        key="parallel",
    ),
    OwnFlag("--kv-type -ctk --cache-type-k", _OLLAMA, "TYPE", "OLLAMA_KV_CACHE_TYPE of the server"),
    OwnFlag("--pin", _OLLAMA, "", "write num_gpu even where leaving it to Ollama is better"),
    OwnFlag(
        "-o --output",
        "ollama+modelfile",
        "FILE",
        "write here instead of to standard output",
        key="output",
    ),
    OwnFlag("-i --in-place", "ollama+modelfile", "", "change the Modelfile itself", key="in-place"),
    OwnFlag("--backup", "ollama+modelfile", "", "keep the old file as FILE.bak"),
    OwnFlag(
        "--model",
        "ollama+modelfile",
        "PATH",
        "the GGUF that FROM names, if it cannot be found here",
    ),
    OwnFlag("--as", "ollama+create", "NEW", "the new model's name (with --auto it may be NAME)"),
    OwnFlag(
        "--auto",
        "ollama+create ollama+modelfile",
        "",
        "plan nothing: leave the number of layers to Ollama (num_gpu -1)",
    ),
    OwnFlag("--force", "ollama+create", "", "replace NEW if it exists"),
    OwnFlag("--write", "ollama+verify", "", "store what worked in the model"),
    OwnFlag("--log", _OLLAMA, "FILE", "the server's log, if it is not in the usual place"),
    # Texts: rules.inputs reads them, as the library's numbers
    OwnFlag("--params", "rules", "N", "parameter count: 7B, 350M, 1.5e9"),
    OwnFlag("--bits --type", "rules", "N|TYPE", "bits per weight, or a type: 16, int4, q4_k_m"),
    OwnFlag("--layers", "rules", "N", "number of layers"),
    OwnFlag("--hidden", "rules", "N", "hidden size"),
    OwnFlag("--intermediate", "rules", "N", "feed-forward size"),
    OwnFlag("--heads", "rules", "N", "attention heads"),
    OwnFlag(
        "--kv-heads",
        "rules",
        "N",
        "KV heads: 1 for MQA, fewer than the heads for GQA (default: all heads)",
    ),
    OwnFlag("--sequence", "rules", "N", "tokens per sequence"),
    OwnFlag("--batch", "rules", "N", "sequences at once (default 1)"),
    OwnFlag("--optimizer", "rules", "NAME", "adamw or sgd (default adamw)"),
    OwnFlag(
        "--scheme",
        "rules",
        "NAME",
        "show only this training scheme: fp32, mixed, fp16, lora, qlora",
    ),
    OwnFlag(
        "--overhead", "rules", "N|N%", "the margin added for serving and training (default 20%)"
    ),
    OwnFlag("--gpu", "rules", "SIZE|NAME", "memory of one GPU, or its name: 80GiB"),
    OwnFlag("--extra", "rules", "SIZE", "memory kept for everything but layers: 4GB (default 0)"),
    OwnFlag(
        "--layer-size",
        "rules",
        "SIZE",
        "memory of one layer, if not parameters x bits / layers: 400MB",
    ),
    OwnFlag("--explain", "rules", "", "show formulas, assumptions and what each rule leaves out"),
    OwnFlag("--port", "web serve", "N", "listen on this port (default: a free one)", _port),
    OwnFlag("--no-browser", "web", "", "print the page's address and open no browser"),
    OwnFlag("-h --help", _EVERY, "", "this help", key="help"),
    OwnFlag("--version", "plan", "", "the version"),
)


def own_flags(command: str) -> dict[str, OwnFlag]:
    """Return the flags of a command, by each of their names."""
    # e.g. {"-q": ..., "--quiet": ...}: both names of one flag
    return {name: flag for flag in FLAGS if command in flag.commands for name in flag.names}


def takers(name: str) -> list[str]:
    """Return the commands that have an own flag of this name."""
    # For messages: which command has the flag that this one refuses
    return [
        command
        for command in COMMANDS
        for flag in FLAGS
        if name in flag.names and command in flag.commands
    ]
