"""Which llama.cpp a program is: its --version and --help, and the architectures that its library
has.

Formats (common/build-info.cpp, common/arg.cpp, as modelled and before):
    version: 0.5.0 (build 10912, commit 1652066e)        today
    version: 6789 (abcdef12)                             2023 to mid-2026
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
from contextlib import suppress

from .builds import Build
from .builds.build import dates, oldest_with
from .builds.sources import following, seen
from .engines import ENGINES, LLAMA_SERVER
from .flags.releases import build_of
from .model.architectures import NAMES, architecture
from .programs import NoAnswer, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VERSION = re.compile(
    r"version: \S{1,80} \(build (\d{1,9}), commit (\w{1,40})\)"
    r"|version: (\d{1,9}) \((\w{1,40})\)"
)
_RELEASE = re.compile(r"version: (v?\d{1,4}\.\d{1,4}\.\d{1,4})[ \t]{0,9}$", re.MULTILINE)
_FLAGS = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")
_INDENTED = re.compile(r" {2,9}(-{1,2}[A-Za-z].*)")
_EXPLAINED = re.compile(r"(?<! ) {2,}[^- ]")
_OF_GPUS = frozenset(("-ngl", "--gpu-layers", "--n-gpu-layers", "-sm", "-ts", "-mg", "-dev"))
_FIRST = 500  # smaller numbers are not releases: they count the commits of a shallow clone
_OFF = 500  # builds by which a release may have a flag before the table has it
_TIMEOUT = 30  # a CUDA build initialises every GPU before it answers
_LIBRARIES = ("libllama", "libggml", "libmtmd", "llama.", "llama-", "ggml", "mtmd")
_ENDINGS = (".so", ".dylib", ".dll")
_OF_LLAMA = ("libllama.", "llama.dll")  # the library that names the architectures
_OF_CUDA = re.compile(r"^(lib)?ggml-(cuda|hip|musa)\.")
_LARGEST = 1 << 27  # bytes; larger files are not read

# words in their --help that llama.cpp never had
_FORKS = {
    "ik_llama.cpp": (
        "-fmoe",
        "--fused-moe",
        "-rtr",
        "--run-time-repack",
        "-amb",
        "--attention-max-batch",
    ),
    "KoboldCpp": ("--usecublas", "--usecuda", "--gpulayers", "--contextsize"),
    "llamafile": ("--nobrowser", "--recompile"),
    "ollama": ("--ollama-engine",),
}


def detect(launcher: Sequence[str], environ: Mapping[str, str]) -> Build:
    """Return the Build of a program, from its --version and --help. A program that fails, hangs,
    answers something else or is a fork has a `doubt`."""
    version = _ask(launcher, "--version", environ)
    number, commit = read_version(version or "")
    # one that does not end is not asked again
    text = "" if version is None else _ask(launcher, "--help", environ) or ""
    words = frozenset(_FLAGS.findall(text))
    fork = next((name for name, its in _FORKS.items() if not words.isdisjoint(its)), "")
    flags, flash, traces = read_help(text, bool(fork))
    fork, doubt = _doubt(launcher[-1], fork, number, flags)
    if fork:
        return Build(
            0,
            commit,
            flags,
            flash,
            traces,
            doubt,
            fork=fork,
            engine=ENGINES.get(fork, LLAMA_SERVER),
        )
    # distributions may build from a tarball, whose build number is 0
    range_ = None
    if not number and flags is not None and (path := shutil.which(launcher[-1])):
        range_ = between(path, flags)
    return Build(number, commit, flags, flash, traces, doubt, range_)


def help_words(launcher: Sequence[str], environ: Mapping[str, str]) -> frozenset[str]:
    """Return the words of a program's --help, in lower case, such as the cache types that it
    lists."""
    return frozenset(re.findall(r"[a-z0-9_]+", (_ask(launcher, "--help", environ) or "").lower()))


def read_version(text: str) -> tuple[int, str]:
    """Return (build number, commit) from --version's output; 0 and "" if unknown."""
    if named := _RELEASE.search(text):
        return build_of(named[1]), ""
    match = _VERSION.search(text)
    number, commit = (int(match[1] or match[3]), match[2] or match[4]) if match else (0, "")
    return (number if number >= _FIRST else 0), commit


def _doubt(program: str, fork: str, number: int, flags: frozenset[str] | None) -> tuple[str, str]:
    """Return (fork, doubt): what a program is besides llama.cpp, and why it is not sure."""
    if fork:
        return fork, f"{program} is {fork}, which is not llama.cpp"
    # a build cannot have a flag that came hundreds of builds later
    if number and flags and oldest_with(flags) > number + _OFF:
        return "a fork", (
            f"{program} says build {number} and has flags of build {oldest_with(flags)}: "
            "a fork of llama.cpp that counts its own builds"
        )
    if flags is None and not number:
        return "", f"{program} does not answer --version and --help as llama.cpp does"
    return "", ""


def read_help(
    text: str, fork: bool = False
) -> tuple[frozenset[str] | None, bool | None, bool | None]:
    """Return (all flags, whether -fa takes a value, whether buffer sizes need -lv 4), None if
    unknown. A `fork` that its words show leaves -ngl out of the help of a build without GPUs, and
    takes it."""
    # forks of 2024 indent every line, and explain a flag two blanks after it
    lines = [
        _EXPLAINED.split(match[1], maxsplit=1)[0] if (match := _INDENTED.match(line)) else line
        for line in text.splitlines()
    ]
    names = frozenset(
        name for line in lines if line.startswith("-") for name in _FLAGS.findall(line)
    )
    if fork:
        names |= _OF_GPUS
    if "-ngl" not in names and "--n-gpu-layers" not in names:
        return None, None, None  # not llama.cpp's help
    traces = any(line.strip().startswith("- 4: trace") for line in lines)
    # Whether -fa takes a value; None without such a flag.
    flash = next((line for line in lines if line.startswith("-fa")), None)
    flash_takes_word = None if flash is None else "on|off" in flash or "<0|1>" in flash
    return names, flash_takes_word, traces


def _ask(launcher: Sequence[str], flag: str, environ: Mapping[str, str]) -> str | None:
    """Return what it prints; "" if it fails, None if it does not end."""
    # an invalid LLAMA_ARG_ value would end it before it answers
    quiet = {name: value for name, value in environ.items() if not name.startswith("LLAMA_ARG_")}
    try:
        answer = ask([*launcher, flag], quiet, _TIMEOUT)
    except NoAnswer as error:
        return None if error.hangs else ""
    return answer.out + answer.err


# --- the program and its libraries on disk


def files(program: str) -> list[str]:
    """Return the program with links resolved, then llama.cpp's libraries next to it or in
    ../lib."""
    # package managers put links into the PATH
    real = os.path.realpath(program)
    folder = os.path.dirname(real)
    paths = [real]
    for place in (folder, os.path.join(os.path.dirname(folder), "lib")):
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        paths += [
            os.path.join(place, name)
            for name in names
            if name.startswith(_LIBRARIES) and any(ending in name for ending in _ENDINGS)
        ]
    return paths


def digest(program: str) -> str:
    """SHA-256 over the names, sizes and times of a program and of llama.cpp's libraries with it; ""
    where there is no such file."""
    import hashlib

    sum_ = hashlib.sha256()
    try:
        for path in files(program):
            facts = os.stat(path)
            # Sizes and times, not contents: libraries have hundreds of MB, and each launch asks
            sum_.update(
                f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
            )
    except OSError:
        return ""
    return sum_.hexdigest()


def all_quants(program: str) -> bool | None:
    """Return whether its CUDA library was built with GGML_CUDA_FA_ALL_QUANTS: whether it has the
    word that it prints as a feature (system_info). None: no such library is there."""
    for path in files(program):
        if _OF_CUDA.search(os.path.basename(path)):
            with (
                suppress(OSError, ValueError),
                open(path, "rb") as file,
                # hundreds of MiB: mapped, not read
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
            ):
                return text.find(b"\0FA_ALL_QUANTS\0") >= 0
    return None


def between(program: str, flags: frozenset[str]) -> tuple[int, int]:
    """Return (first, last) build that the program may be, by its flags and the architectures that
    its library names."""
    low, high = dates(flags)
    others = files(program)
    text = _read(
        next((path for path in others if os.path.basename(path).startswith(_OF_LLAMA)), others[0])
    )
    # the names are in another file
    if b"\0llama\0" not in text or b"\0gpt2\0" not in text:
        return low, high  # no names of architectures there
    first, last = _with_architectures(text, low, high)
    return (first, last) if first <= last else (low, high)


def _with_architectures(text: bytes, first: int, last: int) -> tuple[int, int]:
    """Return (first, last) build of these that has the architectures whose names are in a library,
    and no others."""
    for row in map(architecture, NAMES):
        # no dates for this architecture
        if not (following(row.after) and seen(row.after)):
            continue
        name = row.name.encode()
        # it has this architecture, so it is newer than the last build without it
        if b"\0%s\0" % name in text:
            first = max(first, row.after + 1)
        elif b"%s\0" % name not in text:  # a linker may keep a string as the end of a longer one
            last = min(last, following(row.after) - 1)
    return first, last


def _read(path: str) -> bytes:
    """Return a file's bytes, b"" if it cannot be read or is too large."""
    try:
        if os.path.getsize(path) <= _LARGEST:
            with open(path, "rb") as file:
                return file.read()
    except OSError:
        pass
    return b""
