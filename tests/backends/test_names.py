"""Anyone who adds a backend would have to look for its name in the whole package.

Nothing outside autolayers/backends knows a backend by name, but for the tables of measured
rates.
"""

from __future__ import annotations

import re

from support import ROOT, strings

from autolayers.backends import ALIASES, BACKENDS, DEFAULT, HOST
from autolayers.flags.params import HOST_BUFFER
from autolayers.machine import Device

PACKAGE = ROOT / "autolayers"
# Tables of measurements, with a row for each backend
FITTED = {PACKAGE / "work" / name for name in ("rates.py", "streams.py", "drafts.py")}
# other programs' words
FORMATS = {PACKAGE / "launch" / "formats" / name for name in ("llmkube.py", "nixos.py")}
BELOW = {
    (PACKAGE / "flags" / "params.py", HOST),
    (PACKAGE / "machine.py", DEFAULT.name),
    # these two: a class of launches
    (PACKAGE / "machine.py", HOST),
    (PACKAGE / "work" / "speed.py", HOST),
}
NAMES = sorted({*BACKENDS, *ALIASES}, key=len, reverse=True)
# a backend, one of its devices ("CUDA0", also the first piece of f"CUDA{i}") or one of its buffer
# types
NAMED = re.compile(rf"({'|'.join(map(re.escape, NAMES))})(\d+|_Host|_REPACK|_Mapped)?")


def named(text: str) -> list[tuple[int, str]]:
    """(line, string) of a module's strings that name a backend; docstrings may."""
    return [(line, string) for line, string in strings(text, NAMES) if NAMED.fullmatch(string)]


def test_no_backend_is_named_outside_its_folder() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {string!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if PACKAGE / "backends" not in path.parents and path not in FITTED | FORMATS
        for line, string in named(path.read_text())
        if (path, string) not in BELOW
    ]
    assert not found, "\n".join(found)


def test_what_is_named_below_the_backends_is_theirs() -> None:
    """The buffer type of -cmoe, and the backend of a Device of which none is given."""
    assert HOST_BUFFER == HOST
    assert Device("X0", 1, 1).backend == DEFAULT.name


def test_the_search_finds_what_it_must() -> None:
    text = (
        '"""CUDA"""\nx = f"CUDA{i}"\n'
        'y = ["CUDA_VISIBLE_DEVICES", "Vulkan0", "CPU_REPACK", "a CUDA context"]\n'
    )
    assert named(text) == [(2, "CUDA"), (3, "Vulkan0"), (3, "CPU_REPACK")]
