"""What helps against a cause on the very machine that a log shows: rows of causes and conditions,
whose remedies are those of advice.tsv.

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
from ..tables import rows
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


def of(verdict: Verdict, facts: Facts) -> Iterator[Advice]:
    """Yield what the rows have for this cause here."""
    for causes, case, when in _RULES:
        if verdict.cause in causes.split() and (found := when(verdict, facts)):
            figures = found if isinstance(found, dict) else {}
            remedies, instead = [], False
            for row in _TEXTS:
                if row["case"] == case.lstrip("+"):
                    flags, text = (row[key].format(**figures) for key in ("flags", "text"))
                    instead = instead or row["instead"] in ("yes", verdict.cause)
                    if flags or not row["flags"]:
                        remedies.append(CauseRemedy(tuple(flags.split()), text))
            yield Advice(tuple(remedies), instead)
            if case[0] != "+":
                return


_TEXTS = rows("diagnosis/advice.tsv")
_LIBRARIES = rows("diagnosis/libraries.tsv")


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


def ik_type(number: str) -> str:
    """Return the name of a type of ik_llama.cpp alone, by its number in a log; "" for others."""
    kind = BY_ID.get(int(number)) if number.isdecimal() else None
    return kind.name if kind is not None and kind.name in IK_NAMES else ""


def _brings(name: str) -> dict[str, str] | None:
    """Return what brings a library: names begin with the pattern, e.g. "libcudart.so.12"."""
    return next(
        ({"brings": row["brings"]} for row in _LIBRARIES if re.match(row["name"], name)), None
    )


def _oldest(verdict: Verdict, facts: Facts) -> tuple[int, int] | None:
    """Return the compute capability of the card; of several the oldest, where the line does not say
    which."""
    named = facts.devices.get(verdict.device or "")
    cards = [named] if named is not None else [*facts.devices.values()]
    return min((card.compute_capability for card in cards if card.compute_capability), default=None)


def _longer(verdict: Verdict, facts: Facts) -> dict[str, object] | None:
    whole, requested = context_needed(verdict, facts), verdict.detail.get("asked")
    if not whole:
        return None
    apart, slots = _apart(facts), facts.number("n_seq_max", "n_slots")
    tokens = f"takes the request of {requested} tokens and 1024 of an answer"
    each = f", in each of {apart} slots" if apart > 1 else ""
    return {
        "whole": whole,
        "why": (tokens if requested else "twice the context") + each,
        "one": "-np 1" if apart > 1 or not slots else "",
    }


def _is(part: str) -> Callable[[Verdict, Facts], object]:
    """Return the condition that the verdict is of that part."""
    return lambda verdict, facts: (
        verdict.detail.get("part") == part
        and {
            # -fa takes a value since b6325
            "flash": "-fa" if facts.build and Build(facts.build).bare_flash else "-fa on",
            "cache": verdict.detail.get("cache", "").lower(),
        }
    )


def _says(pattern: str, key: str = "why") -> Callable[[Verdict, Facts], object]:
    """Return the condition that the sign's detail has such words."""
    return lambda verdict, facts: re.search(pattern, verdict.detail.get(key, ""))


# (causes, case of advice.tsv, condition, which may return the case's figures): the first case whose
# condition holds is the last, but for those with a +
# fmt: off
_RULES: tuple[tuple[str, str, Callable[[Verdict, Facts], object]], ...] = (
    ("missing_library", "other build", _says(".", "symbol")),
    ("missing_library", "library",
     lambda verdict, facts: _brings(verdict.detail.get("library", ""))),
    ("cpu_build", "other CPU", _says(".", "made")),
    ("no_gpu", "old driver", _says("driver version is insufficient|driver too old")),
    ("no_gpu", "driver's library", lambda verdict, facts: (
        library := re.match(r"(lib\S{1,40}): cannot open", verdict.detail.get("why", "")))
     and _brings(library[1])),
    # On Windows the -cpu zip is taken by mistake: releases have one zip for each backend
    ("no_gpu", "no GPU backend", _is("backends")),
    ("gpu_build", "AMD sibling", lambda verdict, facts: facts.chip in SIBLINGS
     and {"chip": facts.chip, "version": SIBLINGS[facts.chip]}),
    ("gpu_build", "before Turing",
     lambda verdict, facts: (oldest := _oldest(verdict, facts)) and oldest < _TURING
     and {"capability": f"{oldest[0]}.{oldest[1]}"}),
    ("gpu_build", "Blackwell",
     lambda verdict, facts: (_oldest(verdict, facts) or (0, 0)) >= _BLACKWELL),
    ("bad_file", "missing part",
     lambda verdict, facts: re.search(r"-\d{5}-of-\d{5}\.gguf$", verdict.detail.get("path", ""))
     and {"missing": verdict.detail["path"]}),
    # llama_model_loader reads parts from the first one on
    # e.g. "model-00002-of-00003.gguf" -> "model-00001-of-00003.gguf"
    ("bad_file", "named part", lambda verdict, facts: {"idx", "split"} <= verdict.detail.keys()
     and {"first": re.sub(r"-\d{5}-of-", "-00001-of-", verdict.detail["split"])}),
    ("bad_file", "another part", _says(".", "idx")),
    ("bad_file", "gated", _says("^40[13]$", "status")),
    ("bad_file", "not downloaded", _says(".", "status")),
    ("bad_flag", "configuration", _says(".", "part")),
    # the program's own words name what took its place
    ("bad_flag", "removed flag", lambda verdict, facts: (named := re.search(
        r"has been removed.{0,20} use (--[\w-]{2,40})", verdict.detail.get("why", "")))
     and {"named": named[1], "refused": verdict.detail.get("flag", "")[:40]}),
    # what took the place of one, has a value today, or is most like one that no build has
    ("bad_flag", "meant flag",
     lambda verdict, facts: (meant := flag_meant(refused := verdict.detail.get("flag", "")))
     and {"meant": " ".join(meant), "refused": refused[:40]}),
    *(("bad_combo", name, _is(name)) for name in (
        "v cache", "blocks", "split", "-kvu", "tensor", "tensor cache", "tensor flash", "fit")),
    ("bad_model", "ik type", lambda verdict, facts: ik_type(verdict.detail.get("type", ""))),
    ("oom_device", "+system's memory", lambda verdict, facts: any(
        _UNIFIED.search(text)
        for text in (facts.shared, *(device.description for device in facts.devices.values())))),
    ("oom_device", "+probe", _is("probe")),
    ("oom_device", "+warmup", _is("warmup")),
    # It reserves logits of a whole micro-batch: vocabulary x -ub x 4 bytes
    ("oom_device", "+ik graphs", lambda verdict, facts: facts.ik and verdict.phase == "compute"),
    ("oom_device", "pipeline", _is("pipeline")),
    ("oom_device", "projector", _says("^projector", "part")),
    # The GPU's limit is a share of the system's memory, which a system setting raises
    ("oom_device", "system limit", lambda verdict, facts:
     canonical((verdict.device or "").rstrip("0123456789")) == METAL),
    ("fit_gave_up", "shortened",
     lambda verdict, facts: facts.reduced and {"longer": facts.reduced[0]}),
    # fit.cpp takes any -ngl but auto for the user's choice
    ("fit_gave_up", "-ngl is given", _says("^-ngl$", "flag")),
    ("fit_gave_up", "places are given", lambda verdict, facts: "flag" in verdict.detail
     and {"given": verdict.detail["flag"]}),
    # Older builds compute a delta net's prompts by single
    # operations where layers are in RAM and slots are several
    ("op_unsupported partial_offload slow", "+unfused",
     lambda verdict, facts: facts.unfused and facts.build < _FUSED and {"fused": _FUSED}),
    ("partial_offload", "none fits in Ollama",
     lambda verdict, facts: facts.ollama and _is("none")(verdict, facts)),
    ("partial_offload", "none fits", _is("none")),
    ("template", "tools", _says("--jinja")),
    ("template", "roles",
     _says(r"[Ss]ystem message|[Uu]ser query|roles? must|alternate|[Oo]nly user|role")),
    ("context_limit", "longer", _longer),
    # the next power of two
    ("batch_limit", "micro-batch", lambda verdict, facts:
     0 < (asked := int(verdict.detail.get("asked", 0)) or facts.number("n_ctx")) < 1 << 24
     and {"size": 1 << (asked - 1).bit_length(), "asked": asked}),
    ("pair_mismatch", "saved state", _says("stat|sav|slot|estore|incompatible|session", "part")),
    ("prompt_cache", "read again", _says(".", "part")),
    # two conversations of that size
    ("prompt_cache", "prompt cache", lambda verdict, facts: verdict.bytes
     and {"each": (each := verdict.bytes >> 20), "room": -(-2 * each // 1024) * 1024}),
    ("oom_host", "LM Studio's estimate", _says("resources", "part")),
    ("program_fault", "short input", _is("seq_id cannot be larger than n_tokens")),
    ("program_fault", "many inputs", lambda verdict, facts:
     {"kvo": "-kvo" if {"-nkvo", "--no-kv-offload"} & {*facts.words} else ""}),
    ("unknown", "upstream", _is("upstream")),
    # which clients may ask, where none is given
    ("healthy", "new port", lambda verdict, facts:
     (port := Build(facts.build or NEWEST).default_port) != _PORT_BEFORE
     and "--port" not in facts.words and (facts.launch.url or "").endswith(f":{port}")
     and {"before": _PORT_BEFORE, "port": port}),
    ("start_timeout", "late", _says(".", "after")),
    ("bad_request", "no projector", _says("input is not supported|multimodal")),
    ("bad_request", "grammar", _says("rammar|repetition|rules|schema")),
)
# fmt: on
