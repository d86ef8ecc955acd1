"""What helps against a cause on the very machine that a log shows: rows of a cause, a condition and
remedies.

    for advice in of(verdict, facts):
        advice.remedies, advice.instead          # tried first; instead of the cause's own remedies

The rows are facts of vendors and of llama.cpp's releases: which CUDA has which cards, which library
is whose.
"""

from __future__ import annotations

import re

from ..backends import METAL, canonical
from ..builds import NEWEST, Build
from ..flags.check import flag_meant
from ..ggml.types import BY_ID, IK_NAMES
from ..records import dataclass
from .causes import CauseRemedy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .facts import Facts
    from .hits import Verdict


@dataclass(frozen=True)
class Advice:
    """`remedies`: in the order to try. `instead`: whether the cause's own are then of no use."""

    remedies: tuple[CauseRemedy, ...]
    instead: bool = False


# GPUs whose memory is the system's, beside NVIDIA's driver: Jetson, DGX Spark
_UNIFIED = re.compile(r"\b(?:Orin|Xavier|Thor|Tegra|GB10|NvMap)\b")
_PORT_BEFORE = 8080
_TURING = (7, 5)  # the oldest cards that CUDA 13 compiles for
_BLACKWELL = (10, 0)  # CUDA 12.8 is the first with code for these
# the first build whose prompts stay fused with layers in RAM (builds: stays_fused)
_FUSED = 10679
# AMD's chips that ROCm's libraries have no code for, and the sibling whose code they run
# The values are HSA_OVERRIDE_GFX_VERSION's: 10.3.0 is gfx1030, 11.0.0 gfx1100
SIBLINGS = {
    **dict.fromkeys(("gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"), "10.3.0"),
    **dict.fromkeys(("gfx1101", "gfx1102", "gfx1103"), "11.0.0"),
}
# A library's name -> what brings it
LIBRARIES = (
    (
        r"LLM engine",
        "LM Studio's runtime for this GPU is cut or lacks its own libraries: remove and install it "
        "again (Settings, Runtime), or take the CPU or Vulkan one; Microsoft's Visual C++ "
        "Redistributable (x64)",
    ),
    (
        r"(?:lib)?ggml-cuda",
        "the file is there, what it needs is not: CUDA's runtime (on Windows the zip "
        "cudart-llama-bin-win-cuda-... of the same release, unpacked next to it) or Microsoft's "
        "Visual C++ Redistributable (x64)",
    ),
    (
        r"(?:lib)?ggml-hip",
        "the file is there, what it needs is not: ROCm (on Windows the HIP SDK) of the build's "
        "version, or the Vulkan build",
    ),
    (
        r"(?:lib)?ggml-vulkan",
        "the file is there, what it needs is not: the Vulkan loader, which the GPU's driver brings",
    ),
    (
        r"(?:lib)?ggml-sycl",
        "the file is there, what it needs is not: Intel's oneAPI (setvars.sh, setvars.bat)",
    ),
    (
        r"(?:lib)?(?:cudart|cublas)",
        "CUDA's runtime of that version: on Windows the zip cudart-llama-bin-win-cuda-... of the "
        "same release, unpacked next to llama-server.exe; on Linux the CUDA runtime's package, or "
        "a container image",
    ),
    (
        r"libcuda\.so|nvcuda",
        "NVIDIA's driver brings it: install it; in a container start that with --gpus all",
    ),
    (
        r"libvulkan|vulkan-1",
        "the Vulkan loader: the GPU's driver has it on Windows, the package libvulkan1 on Linux",
    ),
    (
        r"(?:lib)?(?:amdhip|hipblas|rocblas|hsa-runtime)",
        "ROCm (on Windows the HIP SDK) of the build's version; or the Vulkan build",
    ),
    (
        r"(?:lib)?(?:sycl|ze_loader|mkl|svml|dnnl)",
        "Intel's oneAPI: source /opt/intel/oneapi/setvars.sh (setvars.bat) before the start",
    ),
    (r"(?i:msvcp|vcruntime|vcomp)", "Microsoft's Visual C++ Redistributable (x64)"),
    (
        r"GLIBC|CXXABI",
        "this build is made for a newer system: a container image "
        "(ghcr.io/ggml-org/llama.cpp:server), a build made on this machine, or a newer system",
    ),
    (
        r"(?:lib)?(?:llama|ggml|mtmd)",
        "it is part of llama.cpp: keep all files of the release together, or set LD_LIBRARY_PATH "
        "to their folder",
    ),
    (
        r"lib(?:gomp|curl|ssl|crypto|stdc|c\.|m\.)",
        "a package of the system; a GLIBC or GLIBCXX that is too old needs another build or a "
        "container image",
    ),
)


def of(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    """Yield what the rows have for this cause here."""
    rule = _RULES.get(verdict.cause)
    if rule is not None:
        yield from rule(verdict, facts)


def _remedy(flags: str, why: str) -> CauseRemedy:
    return CauseRemedy(tuple(flags.split()), why)


def _library(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    name = verdict.detail.get("library", "")
    if "symbol" in verdict.detail:
        yield Advice(
            (
                _remedy(
                    "",
                    "libraries of another build are found first: ldd llama-server names them "
                    "(often /usr/local/lib, or LD_LIBRARY_PATH); remove those, or keep all files "
                    "of one release together",
                ),
            ),
            instead=True,
        )
        return
    # re.match: names begin with these, e.g. "libcudart.so.12"
    for pattern, why in LIBRARIES:
        if re.match(pattern, name):
            yield Advice((_remedy("", why),), instead=True)
            return


def _cpu(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    if "made" in verdict.detail:
        yield Advice(
            (
                _remedy(
                    "",
                    "the release for this CPU: -x64 for Intel and AMD, -arm64 for Apple's and ARM; "
                    "with Python, a Python for this CPU, and the package installed for it",
                ),
            ),
            instead=True,
        )


def _no_gpu(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    why = verdict.detail.get("why", "")
    if re.search(r"driver version is insufficient|driver too old", why):
        yield Advice(
            (
                _remedy(
                    "",
                    "a newer NVIDIA driver: CUDA 12 builds need 525 or later, CUDA 13 builds 580 "
                    "(nvidia-smi names it)",
                ),
                _remedy("", "or the build for an older CUDA, or the Vulkan build"),
            ),
            instead=True,
        )
    elif library := re.match(r"(lib\S{1,40}): cannot open", why):
        for pattern, brings in LIBRARIES:
            if re.match(pattern, library[1]):
                yield Advice((_remedy("", brings),))
                return
    # On Windows the -cpu zip is taken by mistake: releases have one zip for each backend
    elif verdict.detail.get("part") == "backends":
        yield Advice(
            (
                _remedy(
                    "",
                    "the build with your GPU's backend: the -cuda or -vulkan zip of the "
                    "release, not -cpu; for "
                    "CUDA unpack the zip cudart-llama-bin-... of the same release next to it",
                ),
                _remedy("--list-devices", "what the program sees then"),
            ),
            instead=True,
        )


def _gpu_build(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    named = facts.devices.get(verdict.device or "")
    # of several cards the oldest, where the line does not say which
    cards = [named] if named is not None else [*facts.devices.values()]
    capability = min(
        (card.compute_capability for card in cards if card.compute_capability), default=None
    )
    chip = facts.chip
    if chip in SIBLINGS:
        yield Advice(
            (
                _remedy(
                    "",
                    f"HSA_OVERRIDE_GFX_VERSION={SIBLINGS[chip]} in the environment (Linux): {chip} "
                    "then runs its sibling's code",
                ),
                _remedy("", f"a build whose AMDGPU_TARGETS and rocBLAS have {chip}"),
                _remedy("", "the Vulkan build runs on any GPU"),
            ),
            instead=True,
        )
    elif capability is not None and capability < _TURING:
        yield Advice(
            (
                _remedy(
                    "",
                    "the CUDA 12 build of the same release: CUDA 13 has no code for Maxwell, "
                    f"Pascal and Volta (compute capability {capability[0]}.{capability[1]}); a "
                    "newer driver does not help",
                ),
                _remedy("", "the Vulkan build runs on any GPU"),
            ),
            instead=True,
        )
    elif capability is not None and capability >= _BLACKWELL:
        yield Advice(
            (
                _remedy(
                    "", "a build with CUDA 12.8 or later, the first that has code for Blackwell"
                ),
                _remedy("", "the Vulkan build runs on any GPU"),
            ),
            instead=True,
        )


def _file(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    """Advise on a model's file that is missing, gated or only a part."""
    # e.g. "model-00002-of-00003.gguf" -> "model-00001-of-00003.gguf"
    first = _first_part(verdict.detail.get("split", ""))
    status = verdict.detail.get("status", "")
    missing = verdict.detail.get("path", "")
    if _PART.search(missing):
        yield Advice(
            (
                _remedy("", f"download {missing} into the folder of the others"),
                _remedy("", "parts stay apart, with their own names; -m names the first"),
            ),
            instead=True,
        )
        return
    # llama_model_loader reads parts from the first one on
    if "idx" in verdict.detail:
        yield Advice(
            (
                _remedy(
                    f"-m {first}" if first else "",
                    "the first part: it finds the others, which lie in the same folder",
                ),
            ),
            instead=True,
        )
    elif status in ("401", "403"):
        gated = "the model is gated: accept its licence on its page, and set HF_TOKEN"
        yield Advice((_remedy("", gated),), instead=True)
    elif status:
        name = (
            "compare the name of the repository and of the file with the page: capitals count, and "
            "a private one is not found without HF_TOKEN"
        )
        yield Advice((_remedy("", name),), instead=True)


_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def _first_part(name: str) -> str:
    return re.sub(r"-\d{5}-of-", "-00001-of-", name)


def _full(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    """Advise on a full GPU where less of the model on it is not what helps."""
    part, device = verdict.detail.get("part", ""), verdict.device or ""
    described = [device_.description for device_ in facts.devices.values()]
    if any(_UNIFIED.search(text) for text in (facts.shared, *described)):
        yield Advice(
            (
                _remedy(
                    "",
                    "the GPU's memory is the system's, and files that were read fill it: sync, "
                    "then echo 3 > /proc/sys/vm/drop_caches as root, before the start; or -lm none",
                ),
            )
        )
    if part == "probe":
        yield Advice(
            (
                _remedy(
                    "",
                    "other programs hold the GPU: end them (nvidia-smi, autolayers ps); no flag of "
                    "this launch makes room",
                ),
            ),
            instead=True,
        )
    elif part == "warmup":
        yield Advice(
            (
                _remedy("-ub 256", "smaller graphs: the warm-up computes one"),
                _remedy("-fitt 2048", "more of the GPU left free by --fit"),
                _remedy("", "one layer less on the GPU, where -ngl is given"),
            )
        )
    # It reserves logits of a whole micro-batch: vocabulary x -ub x 4 bytes
    if facts.ik and verdict.phase == "compute":
        yield Advice(
            (
                _remedy(
                    "-wgt 1",
                    "ik_llama.cpp then keeps the logits of the tokens that need them alone",
                ),
            )
        )
    if part == "pipeline":
        yield Advice(
            (
                _remedy(
                    "-ub 256", "smaller graph buffers: four copies of them are kept for pipelining"
                ),
                _remedy("", "nothing, where the speed is enough: prompts alone are slower"),
            ),
            instead=True,
        )
    elif part.startswith("projector"):
        yield Advice(
            (
                _remedy(
                    "--no-mmproj-offload",
                    "the projector in RAM: images take seconds more, text is as fast",
                ),
                _remedy("--image-max-tokens 1024", "smaller images, whose graph is smaller"),
                _remedy("-fitt 2048", "more room next to the model"),
            ),
            instead=True,
        )
    # The GPU's limit is a share of the system's memory, which a system setting raises
    elif canonical(device.rstrip("0123456789")) == METAL:
        yield Advice(
            (
                _remedy(
                    "-c 8192", "a smaller context: the cache is the part that a flag shrinks most"
                ),
                _remedy(
                    "",
                    "sudo sysctl iogpu.wired_limit_mb=N: what macOS lets the GPU have, until the "
                    "next start; leave 4 to 8 GiB to the system",
                ),
                _remedy("", "close what else uses memory: the GPU's is the system's"),
                _remedy("-ub 256", "smaller graph buffers"),
            ),
            instead=True,
        )


def _fit(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    given = verdict.detail.get("flag", "")
    if facts.reduced:
        longer = f"-c {facts.reduced[0]}"
        yield Advice(
            (
                _remedy("-ctk q8_0 -ctv q8_0", "half the KV cache: about twice that context"),
                _remedy(
                    f"{longer} -ngl auto", "that context, with as many layers as fit beside it"
                ),
            ),
            instead=True,
        )
        return
    # fit.cpp takes any -ngl but auto for the user's choice
    if given == "-ngl":
        yield Advice(
            (_remedy("", "leave -ngl out, or -ngl auto: -ngl all counts as given"),), instead=True
        )
    elif given:
        yield Advice(
            (
                _remedy("", f"leave {given} out: --fit then places the layers and experts itself"),
                _remedy("-ub 256", f"or keep {given}, with smaller graph buffers"),
                _remedy("-c 8192", f"or keep {given}, with a smaller context"),
            ),
            instead=True,
        )


def _in_ram(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    yield from _unfused(verdict, facts)
    yield from _none_fits(verdict, facts)


def _unfused(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    # Older builds compute a delta net's prompts by single
    # operations where layers are in RAM and slots are several
    if not facts.unfused or facts.build >= _FUSED:
        return
    yield Advice(
        (
            _remedy(
                "-np 1",
                "the fused delta net stays on with layers in RAM: prompts are read 10 "
                "times faster or more",
            ),
            _remedy(
                "--no-op-offload", "the same with several slots, where the layers in RAM are few"
            ),
            _remedy("", f"a build from b{_FUSED} on keeps it fused"),
        ),
        instead=verdict.cause == "op_unsupported",
    )


def _template(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    why = verdict.detail.get("why", "")
    if "--jinja" in why:
        yield Advice(
            (_remedy("--jinja", "tools need it; builds since November 2025 have it on"),),
            instead=True,
        )
    elif re.search(r"[Ss]ystem message|[Uu]ser query|roles? must|alternate|[Oo]nly user|role", why):
        yield Advice(
            (
                _remedy(
                    "",
                    "the client's messages: one system message at the beginning, then user and "
                    "assistant in turn",
                ),
                _remedy("--chat-template-file FILE", "a template that takes what the client sends"),
            ),
            instead=True,
        )


# What sets the layers' places itself, which --fit then leaves alone (common/fit.cpp)
_PLACES = {"-ngl", "--n-gpu-layers", "--gpu-layers", "-ts", "--tensor-split", "-ot"}
_MEMORY = ("oom_device", "oom_host", "buffer_limit")


def vain(remedy: CauseRemedy, verdict: Verdict, facts: Facts) -> bool:
    """Return whether a remedy for memory changes nothing in the launch that the log shows: it has
    that already, or less."""
    if verdict.cause not in _MEMORY or len(remedy.flags) < 1:
        return False
    flag, value = remedy.flags[0], "".join(remedy.flags[1:2])
    figure = {"-c": ("n_ctx",), "-ub": ("n_ubatch",), "-np": ("n_seq_max", "n_slots")}.get(flag)
    if figure is not None and value.isdecimal():
        return 0 < facts.number(*figure) <= int(value)
    if flag == "-ctk":
        return facts.cache_types.get("K", "f16").startswith(("q", "iq"))
    if flag == "-cmoe":
        return facts.printed.get("n_expert") == "0"
    placed = _PLACES & {*facts.words} and not {"auto", "-2", "-1"} & {*facts.words}
    return bool(flag == "-fitt" and placed)


def context_needed(verdict: Verdict, facts: Facts) -> int:
    """Return -c for the request that was refused and 1024 tokens of an answer, twice the slot's
    where it was full; for each slot, where they do not share it. 0 where the log does not say."""
    requested, slot = (int(verdict.detail.get(key, 0)) for key in ("asked", "has"))
    need = (
        requested + 1024
        if requested
        else 2 * (facts.number("n_ctx_slot", "n_ctx_seq", "n_ctx_per_seq", "n_ctx") or slot)
    )
    # Rounded up to 1024; -c is divided among slots without a unified cache
    return -(-need // 1024) * 1024 * _apart(facts) if verdict.phase == "run" else 0


def _apart(facts: Facts) -> int:
    """Return the number of slots that have a context of their own."""
    return (
        1
        if facts.values.get("kv_unified") in ("true", 1)
        else max(1, facts.number("n_seq_max", "n_slots"))
    )


def _combined(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    part, cache = verdict.detail.get("part", ""), verdict.detail.get("cache", "").lower()
    # -fa takes a value since b6325
    flash = "-fa" if facts.build and Build(facts.build).bare_flash else "-fa on"
    helps = {
        "v cache": (
            _remedy(flash, "flash attention, which reads a quantised V cache"),
            _remedy("-ctv f16", "where flash attention cannot be had"),
        ),
        # e.g. a head of 80 values, and q8_0's blocks of 32
        "blocks": (_remedy(f"-ct{cache} f16", "a type without blocks"),),
        "split": (_remedy("-sm layer", "the split that every model and backend has"),),
        "-kvu": (_remedy("-kvu", "one cache for all slots"),),
        "tensor": (
            _remedy("-sm layer", "the split that every model and backend has"),
            _remedy(
                "", "or two equal GPUs (-dev), whose number divides the model's heads and rows"
            ),
        ),
        "tensor cache": (
            _remedy("-sm layer", "the split that goes with a quantised cache"),
            _remedy("-ctk f16 -ctv f16", "or a cache that is not quantised"),
            _remedy("", "a newer build: b11549 has both together"),
        ),
        "tensor flash": (
            _remedy(flash, "flash attention, which -sm tensor needs"),
            _remedy("-sm layer", "the split that goes without it"),
        ),
        "fit": (_remedy("", "leave out --fit, or -ncmoe and -ot: both place the weights"),),
    }
    if part in helps:
        yield Advice(helps[part], instead=True)


def _types(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    """Yield the program whose types of tensors a file has."""
    if ik_type(verdict.detail.get("type", "")):
        yield Advice(
            (
                _remedy("", "ik_llama.cpp, which the file was made for"),
                _remedy("", "a file without ik_llama.cpp's own types"),
            ),
            instead=True,
        )


def ik_type(number: str) -> str:
    """Return the name of a type of ik_llama.cpp alone, by its number in a log; "" for others."""
    kind = BY_ID.get(int(number)) if number.isdecimal() else None
    return kind.name if kind is not None and kind.name in IK_NAMES else ""


def _flag(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    """Yield the flag that took the place of one, has a value today, or is most like one that no
    build has."""
    refused, why = verdict.detail.get("flag", ""), verdict.detail.get("why", "")
    if verdict.detail.get("part"):
        yield Advice(
            (_remedy("", "mend the line of the configuration that it names"),), instead=True
        )
        return
    # the program's own words name what took its place
    if named := re.search(r"has been removed.{0,20} use (--[\w-]{2,40})", why):
        yield Advice((_remedy(named[1], f"in place of {refused[:40]}"),), instead=True)
        return
    if meant := flag_meant(refused):
        yield Advice((_remedy(" ".join(meant), f"instead of {refused[:40]}, if that is meant"),))


def _context(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    whole, requested = context_needed(verdict, facts), verdict.detail.get("asked")
    if not whole:
        return
    why = (
        f"takes the request of {requested} tokens and 1024 of an answer"
        if requested
        else "twice the context"
    )
    apart, slots = _apart(facts), facts.number("n_seq_max", "n_slots")
    each = f", in each of {apart} slots" if apart > 1 else ""
    yield Advice(
        (
            _remedy(f"-c {whole}", why + each),
            *([_remedy("-np 1", "one slot has all of -c")] if apart > 1 or not slots else []),
            _remedy("-ctk q8_0 -ctv q8_0", "half the cache, where that does not fit"),
            _remedy("", "or let the client send less: fewer tools, files or turns"),
        ),
        instead=True,
    )


def _batch(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    """Yield the micro-batch that takes the request: the next power of two."""
    asked = int(verdict.detail.get("asked", 0)) or facts.number("n_ctx")
    if not 0 < asked < 1 << 24:
        return
    size = 1 << (asked - 1).bit_length()
    yield Advice(
        (
            _remedy(f"-ub {size} -b {size}", f"a micro-batch of at least {asked} tokens"),
            _remedy("", "or shorter pieces of text: fewer tokens than -ub"),
        ),
        instead=True,
    )


def _prompts(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    """Yield --cache-ram for two conversations of that size."""
    if verdict.detail.get("part"):
        yield Advice(
            (
                _remedy("--swa-full", "a model with sliding windows keeps its whole cache"),
                _remedy("-ctxcp 64", "more checkpoints in RAM: it goes on from the last that fits"),
                _remedy("", "a client that changes nothing at the beginning of its requests"),
            ),
            instead=True,
        )
    elif verdict.bytes:
        each = verdict.bytes >> 20
        room = -(-2 * each // 1024) * 1024
        yield Advice(
            (
                _remedy(
                    f"--cache-ram {room}", f"two conversations of {each} MiB, where RAM has that"
                ),
                _remedy("-ctxcp 4", "fewer checkpoints of each conversation, which are much of it"),
                _remedy("-ctk q8_0 -ctv q8_0", "half the state of each"),
            ),
            instead=True,
        )


def _host(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    if "resources" in verdict.detail.get("part", ""):
        yield Advice(
            (
                _remedy(
                    "", "a shorter context or fewer layers on the GPU, in the model's settings"
                ),
                _remedy("", "unload the other models: their memory counts"),
                _remedy(
                    "",
                    "Settings, Hardware, model loading guardrails: Relaxed or Custom, where the "
                    "estimate is too high",
                ),
            ),
            instead=True,
        )


def _faulty(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    if verdict.detail.get("part") == "seq_id cannot be larger than n_tokens":
        yield Advice((_remedy("-np 1", "one slot: no input is shorter than that"),))
        return
    given = {"-nkvo", "--no-kv-offload"} & set(facts.words)
    yield Advice(
        (
            _remedy("", "a build from b10840 on: a split has as many inputs as it needs"),
            *([_remedy("-kvo", "the KV cache on the GPU, next to its layers")] if given else []),
            _remedy("-ngl auto -fitt 2048", "another split, whose pieces have fewer inputs"),
        ),
        instead=True,
    )


def _listening(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    """Yield the port of older builds, which clients may ask, where none is given."""
    port = Build(facts.build or NEWEST).default_port
    if port == _PORT_BEFORE or "--port" in facts.words:
        return
    if (facts.launch.url or "").endswith(f":{port}"):
        why = f"for clients that ask the port of older builds: it listens on {port}"
        yield Advice((_remedy(f"--port {_PORT_BEFORE}", why),))


def _starter(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    if verdict.detail.get("part") == "upstream":
        yield Advice(
            (
                _remedy(
                    "",
                    "the log of the program itself: llama-swap's /logs page (logToStdout: both), "
                    "LM Studio's Developer page, Ollama's server log",
                ),
                _remedy("", "or start its command by hand, and paste what it prints"),
            ),
            instead=True,
        )


def _late(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    if "after" in verdict.detail:
        yield Advice(
            (
                _remedy("", "llama-swap: healthCheckTimeout: 600 at the top of its configuration"),
                _remedy("", "its upstream log says how far the load came: /logs"),
            ),
            instead=True,
        )


def _none_fits(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    if verdict.detail.get("part") != "none":
        return
    smaller = (
        _remedy("", "OLLAMA_CONTEXT_LENGTH=32768, or num_ctx: the context fills the GPU")
        if facts.ollama
        else _remedy("-c 32768", "a smaller context: the present one fills the GPU")
    )
    yield Advice(
        (
            smaller,
            _remedy("", "without a draft (MTP), whose cache takes room too")
            if facts.ollama
            else _remedy("-ctk q8_0 -ctv q8_0", "half the KV cache"),
        ),
        instead=True,
    )


def _request(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    why = verdict.detail.get("why", "")
    if "input is not supported" in why or "multimodal" in why:
        yield Advice(
            (
                _remedy("--mmproj FILE", "the projector of this model, or -hf, which brings it"),
                _remedy("", "or no images and sound in the request"),
            ),
            instead=True,
        )
    elif re.search("rammar|repetition|rules|schema", why):
        yield Advice(
            (
                _remedy(
                    "",
                    "the tools' schemas: no maxLength, maxItems or pattern with large numbers, "
                    "fewer tools in one request",
                ),
                _remedy("", "a newer llama.cpp, which turns more schemas into a grammar"),
            ),
            instead=True,
        )


# cause -> its rows
_RULES: dict[str, Callable[[Verdict, Facts], Iterator[Advice]]] = {
    "missing_library": _library,
    "cpu_build": _cpu,
    "no_gpu": _no_gpu,
    "gpu_build": _gpu_build,
    "bad_file": _file,
    "bad_flag": _flag,
    "bad_combo": _combined,
    "bad_model": _types,
    "oom_device": _full,
    "fit_gave_up": _fit,
    "op_unsupported": _unfused,
    "partial_offload": _in_ram,
    "slow": _unfused,
    "template": _template,
    "context_limit": _context,
    "batch_limit": _batch,
    "prompt_cache": _prompts,
    "oom_host": _host,
    "program_fault": _faulty,
    "unknown": _starter,
    "healthy": _listening,
    "start_timeout": _late,
    "bad_request": _request,
}
