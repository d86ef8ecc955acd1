"""The page's form as a request, and its errors in the page's words.

    # sizes in GiB; "" or "none": no GPU
    request_of({"gpu": "rtx-3060", "ram": "32", "ctx": "16,384"})
    error_of(error, question)          # {"error": "GPU: ...", "kind": "UsageError", "field": "gpu"}

A question's launch is the content of the form, all text: model, path, machine (a machine file's
text) or gpu, ram, ctx, np, ctk, ctv, ub, fa, strategy, workload, flags.
"""

from __future__ import annotations

import re
import shlex

from ..devices import hypothetical, machine_file
from ..devices.cards import CARDS
from ..devices.given import NO_GPU
from ..errors import AutolayersError, UsageError
from ..flags.check import read
from ..flags.own import LEAST_CTX
from ..flags.parse import items
from ..flags.table import Argument
from ..launch.secrets import without_secrets
from ..planner.compare.best import JOBS
from ..planner.compare.yours import MEANS
from ..quoting import posix
from ..records import replace
from ..request import Request
from ..units import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..flags.parse import Item

    Question = Mapping[str, Any]

# characters of a field: a machine file is the longest
_MAX_TEXT = 1 << 16
# in a pattern of -ot: 40 letters in up to 4 ways are a second for all tensors of a model
_MOST_REPEATS = 4
_MOST_GIB = 256  # of a GPU without a unit
NEAR = 12  # cards that are offered for a name that is none
# Form field -> its flag (llama-server's, or autolayers' own) and its label
FIELDS = {
    "gpu": ("--gpu", "GPU"),
    "ram": ("--ram", "RAM"),
    "ctx": ("-c", "Context"),
    "np": ("-np", "Slots"),
    "ctk": ("-ctk", "K cache"),
    "ctv": ("-ctv", "V cache"),
    "ub": ("-ub", "Micro-batch"),
    "fa": ("-fa", "Flash attention"),
    "strategy": ("--strategy", "Strategy"),
    "workload": ("--workload", "Workload"),
}
# What a launch's flags name -> the form's field for its file
_DROPPED = {"mmproj": "mmproj", "model_draft": "draft"}
# The program of a pasted command
_PROGRAM = re.compile(r"(?:.*/)?llama(?:-[\w-]+(?:\.exe)?|\.cpp(?::[\w.-]+)?)?", re.ASCII)
# a wish of Params -> its field
_FIELD_OF = {"n_ctx": "ctx", "n_parallel": "np", "cache_type_k": "ctk", "cache_type_v": "ctv"}
# Hints that name flags, and what stands for them on the page
_HERE = (
    ("--gpu list shows them all; or write its memory: 24GiB", "or write its memory in GiB: 24"),
    ("write for example 24GiB,12GiB or 2x24GiB", "write its name, or its memory in GiB"),
    ("write for example 24GiB or 512MiB", "write for example 24 or 24GiB"),
    (" of autolayers MODEL: see autolayers --help", ""),
)


def text(question: Question, key: str, longest: int = _MAX_TEXT) -> str:
    """Return a field's text, "" if it is not there. Raises UsageError."""
    value = question.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > longest:
        raise UsageError(f"{key}: not a text")
    return value.strip()


def texts(question: Question, key: str) -> list[str]:
    """Return the texts of a list. Raises UsageError."""
    values = question.get(key) or []
    if not isinstance(values, list) or len(values) > _MAX_TEXT:
        raise UsageError(f"{key}: not a list")
    # A client may send anything: what is no text is left out
    return [value for value in values if isinstance(value, str)]


def request_of(question: Question, here: bool = False, trained: int = 0) -> Request:
    """Return the request of the form and its machine; `here`: an empty field is this machine, and
    "none" this one's processor; otherwise both are a machine without a GPU. `trained`: the
    model's context, 0 if unknown. Raises AutolayersError."""
    # the fields as the words of a command line, read as those are
    try:
        # Quotes as in a shell: people paste a part of their command
        flags = shlex.split(text(question, "flags"))
    except ValueError as error:
        raise UsageError(f"flags: {error}") from None
    fields = [word for field in FIELDS for word in _words(question, field)]
    # what a job asks for where the form's fields say nothing else
    job = JOBS.get(text(question, "for"))
    if job is None:
        of_job = []
    else:
        n_ctx = min(job.n_ctx, trained or job.n_ctx)
        least = [] if text(question, "ctx") else ["--ctx-min", str(n_ctx)]
        of_job = [*least, *([] if text(question, "workload") else ["--workload", job.workload])]
    arguments = read("plan", [*fields, *of_job, *flags])
    if arguments.positional:
        raise UsageError(f"not a flag: {arguments.positional[0]!r}")
    # The page's server must not be a way to its files
    if "machine" in arguments.own:
        raise UsageError(
            "--machine reads a file of the machine that serves this page: open it in the page"
        )
    # -m among the flags would be another model than the one shown
    if arguments.params.model is not None:
        raise UsageError("-m: the model has a field of its own")
    # A pattern is tried on all tensors, and each repetition multiplies its time
    for pattern, _ in arguments.params.overrides:
        if len(re.findall(r"(?<!\\)[*+{]", pattern)) > _MOST_REPEATS:
            raise UsageError(
                f"-ot {pattern}: at most {_MOST_REPEATS} repetitions in a pattern here"
            )
    if file := text(question, "machine"):
        devices, host = machine_file.parse(file, "machine file")
        return Request.of(arguments, devices=devices, host=host)
    gpu = text(question, "gpu").lower()
    # Its RAM and cores, without its GPUs
    if gpu in NO_GPU and here:
        return Request.of(arguments, amend=lambda inventory: replace(inventory, devices=()))
    if gpu in NO_GPU or not (gpu or here or "gpu" in arguments.own):
        return Request.of(arguments, devices=[])
    return Request.of(arguments)


def command(typed: str) -> dict[str, str] | None:
    """Return what a pasted command of llama.cpp says: its "model", and the form's fields with its
    wishes; "yours" has the flags for how it meets them. None where it is no command, or names no
    model. A command of Ollama is its model's name (names.understood)."""
    try:
        # A path of Windows has backslashes, which a shell takes away
        plain = typed.replace("\\", "/") if re.search(r"[A-Za-z]:\\", typed) else typed
        words = shlex.split(plain)
        start = next((i for i, word in enumerate(words) if _PROGRAM.fullmatch(word)), -1)
        if start < 0 and not typed.startswith(("-m ", "-hf ")):
            return None
        found = list(items(words[start + 1 :]))
    except (ValueError, AutolayersError):
        return None
    said = dict.fromkeys(("model", "path", "flags", "yours", *_FIELD_OF.values()), "")
    others: dict[str, list[str]] = {"flags": [], "yours": []}
    for item in found:
        field = item.flag.field if isinstance(item.flag, Argument) else ""
        if field == "model":
            said["model"] = f"hf:{item.value}" if item.name.startswith("-hf") else item.value
            said["path"] = "" if item.name.startswith("-hf") else item.value
        elif field in _FIELD_OF:
            said[_FIELD_OF[field]] = item.value
        # A key of a server is nobody's business, and a word alone is the program's own command
        elif item.name:
            others["yours" if field in MEANS else "flags"] += item.words
    said |= {name: posix(without_secrets(found)[0]) for name, found in others.items()}
    return said if said["model"] else None


def flags_to_try(question: Question, flags: Sequence[str]) -> list[str]:
    """Return all flags of another launch as the flags' field takes them: without the files that
    were dropped on the page, and with the field's words that they do not say: those that touch no
    memory, and autolayers' own but the context and the types of caches."""
    dropped = [field for field, name in _DROPPED.items() if text(question, name)]
    words = shlex.split(text(question, "flags"))
    return [
        *(word for item in items(flags) if _field(item) not in dropped for word in item.words),
        *(word for item in items(words, "plan") if not _field(item) for word in item.words),
    ]


def _field(item: Item) -> str:
    """Return what a flag sets of a launch, "" for nothing."""
    if isinstance(item.flag, Argument):
        return item.flag.field
    return item.flag.key if item.flag is not None and item.flag.key in ("ctx", "kv-types") else ""


def _words(question: Question, field: str) -> list[str]:
    """Return a field as a flag and its value. Raises UsageError."""
    value = text(question, field)
    if field == "gpu":
        value = (
            ""
            # The machine file has the devices
            if text(question, "machine") or value.lower() in NO_GPU
            else ",".join(map(_in_gib, value.split(",")))
        )
    elif field == "ram":
        value = re.sub(r"^(\d+),(\d{1,2})$", r"\1.\2", value)  # a decimal comma
        value = value and re.sub(r"^\d{1,4}$", r"\g<0>GiB", _in_gib(value))
    elif field in ("ctx", "ub", "np"):
        # "16,384", "16 384" and "16'384", as people of several countries write it
        value = re.sub(r"(?<=[\d])[ ,_'\u202f\u00a0](?=[\dkKmM])", "", value)
    if field == "ctx" and 0 < (whole(value) or 0) < LEAST_CTX:
        raise UsageError(f"-c {value}: {value}k?")
    return [FIELDS[field][0], value] if value else []


def _in_gib(value: str) -> str:
    """Return the value with GiB after a bare number; larger ones are GPUs' names."""
    value = value.strip()
    # "24", "24 g", "2x24", "2 × 12.5"
    match = re.fullmatch(
        r"(\d{1,2} *[x×] *)?(\d{1,3}(?:\.\d{1,2})?) *g?", value, re.ASCII | re.IGNORECASE
    )
    # "3090" is a card
    if not match or float(match[2]) > _MOST_GIB:
        return value
    return f"{(match[1] or '').replace('×', 'x')}{match[2]}GiB"


def error_of(error: AutolayersError, question: Question) -> dict[str, Any]:
    """Return the error as one line in the page's words, and the field that it is about ("" for
    none); of GPUs the cards that could be meant, as "near"."""
    # Some errors have several lines; the page has one
    line = " ".join(str(error).split())
    field = _field_of(error, question) if isinstance(error, UsageError) else ""
    for flag, here in _HERE:
        line = line.replace(flag, here)
    if field:
        flag, label = FIELDS[field]
        # "--gpu: no such card" becomes "GPU: no such card"
        line = line.removeprefix(flag).lstrip(" :")
        line = f"{label}: {line}"
    near = _cards_near(text(question, "gpu")) if field == "gpu" else []
    return {
        "error": line,
        "kind": type(error).__name__,
        "field": field,
        **({"near": near} if near else {}),
    }


def _cards_near(gpus: str) -> list[str]:
    """Return the cards whose name has what the first unknown one of `gpus` says, desktop cards
    first."""
    for part in map(_in_gib, gpus.split(",")):
        try:
            hypothetical(part)
        except AutolayersError:
            wanted = _letters(part)
            cards = [name for name in CARDS if wanted and wanted in _letters(name)]
            # The shortest name is the plain card: rtx-4060 before rtx-4060-ti-16g
            return sorted(cards, key=lambda name: ("laptop" in name, len(name), name))[:NEAR]
    return []


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _field_of(error: AutolayersError, question: Question) -> str:
    """Return the field that is wrong by itself."""
    for field, (flag, _) in FIELDS.items():
        try:
            # Each field by itself: two right ones may still contradict each other
            words = _words(question, field)
            if field == "gpu" and words:
                hypothetical(words[1])
            elif words:
                read("plan", words)
        except AutolayersError:
            return field
        if words and str(error).startswith((f"{flag} ", f"{flag}:")):
            return field
    return ""
