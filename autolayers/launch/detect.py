"""Which llama.cpp a program is: its --version and --help.

Formats (common/build-info.cpp, common/arg.cpp, as modelled and before):
    version: 0.5.0 (build 10912, commit 1652066e)        today
    version: 6789 (abcdef12)                             2023 to mid-2026
"""

from __future__ import annotations

import re
import shutil

from ..builds import Build
from ..programs import NoAnswer, ask
from .libraries import between

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VERSION = re.compile(r"version: \S+ \(build (\d+), commit (\w+)\)|version: (\d+) \((\w+)\)")
_FLAGS = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")
_FIRST = 500        # less is no release: the number counts commits, and a shallow clone has few
_TIMEOUT = 30      # a CUDA build initialises every GPU before it answers


# words of their --help that llama.cpp never had
_FORKS = {
    "ik_llama.cpp": ("-fmoe", "--fused-moe", "-rtr", "--run-time-repack", "-amb", "--attention-max-batch"),
    "KoboldCpp": ("--usecublas", "--usecuda", "--gpulayers", "--contextsize"),
    "llamafile": ("--nobrowser", "--recompile"),
    "ollama": ("--ollama-engine",),
}


def detect(launcher: Sequence[str], environ: Mapping[str, str]) -> Build:
    """The Build of a program, by asking it twice. One that fails, hangs, answers something else or is a fork of
    llama.cpp has a `doubt`."""
    number, commit = read_version(_ask(launcher, "--version", environ))
    text = _ask(launcher, "--help", environ)
    flags, flash, traces = read_help(text)
    words = frozenset(_FLAGS.findall(text))
    fork = next((name for name, its in _FORKS.items() if not words.isdisjoint(its)), "")
    doubt = ""
    if fork:
        doubt = f"{launcher[-1]} is {fork}, which is not llama.cpp"
    elif flags is None and not number:
        doubt = f"{launcher[-1]} does not answer --version and --help as llama.cpp does"
    range_ = None
    if not number and flags is not None and (path := shutil.which(launcher[-1])):
        range_ = between(path, flags)
    return Build(number, commit, flags, flash, traces, doubt, range_)


def read_version(text: str) -> tuple[int, str]:
    """(build number, commit) of --version's answer; 0 and "" where they are not known."""
    match = _VERSION.search(text)
    number, commit = (int(match[1] or match[3]), match[2] or match[4]) if match else (0, "")
    return (number if number >= _FIRST else 0), commit


def read_help(text: str) -> tuple[frozenset[str] | None, bool | None, bool | None]:
    """(names of all flags, whether -fa takes a word, whether buffer sizes need -lv 4), None where it is not known."""
    lines = text.splitlines()
    names = frozenset(name for line in lines if line.startswith("-") for name in _FLAGS.findall(line))
    if "-ngl" not in names and "--n-gpu-layers" not in names:
        return None, None, None       # not llama.cpp's help
    flash = next((line for line in lines if line.startswith("-fa")), None)
    return (names, None if flash is None else "[on|off|auto]" in flash or "<on|off|auto>" in flash or "<0|1>" in flash,
            any(line.strip().startswith("- 4: trace") for line in lines))


def _ask(launcher: Sequence[str], flag: str, environ: Mapping[str, str]) -> str:
    # A LLAMA_ARG_ value that does not parse would end it before it answers
    quiet = {name: value for name, value in environ.items() if not name.startswith("LLAMA_ARG_")}
    try:
        answer = ask([*launcher, flag], quiet, _TIMEOUT)
    except NoAnswer:
        return ""
    return answer.out + answer.err
