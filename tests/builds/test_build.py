"""Anyone who has an older or newer program would get the plan of another one, called exact.

Which build a program is: dated by its flags, and named where it is none of llama.cpp's.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import model

from autolayers import estimate
from autolayers.builds import NEWEST, Build
from autolayers.builds.build import dates
from autolayers.detect import detect, read_version
from autolayers.errors import LaunchRefused, UsageError
from autolayers.flags.parse import parse
from autolayers.flags.policy import read
from autolayers.flags.table import ARGUMENTS, LEGACY
from autolayers.machine import Device
from autolayers.model.architectures import NAMES, architecture


def help_of(number: int) -> frozenset[str]:
    """The names in the --help of a build, as far as the table says."""
    rows = [row for row in (*ARGUMENTS, *LEGACY) if row.first <= number <= (row.last or NEWEST)]
    return frozenset(name for row in rows for name in (*row.names, *row.negated))


@pytest.mark.parametrize(
    "number", [6000, 8000, 9093, 9600, 10435, 10680, 10868, 11311, 11434, NEWEST]
)
def test_flags_date_a_build(number: int) -> None:
    low, high = dates(help_of(number))
    assert low <= number <= high
    rules = Build(0, flags=help_of(number)).rules
    assert (
        low <= rules.number <= high
        and not rules.exact
        and f"build, {rules.number}" in rules.warning
    )


def program(folder: Path, version: str, *flags: str) -> list[str]:
    path = folder / "llama-server"
    lines = "\n".join(f"{flag}   what it does" for flag in flags)
    path.write_text(
        f"#!/bin/sh\ncase $1 in --version) echo '{version}';; *) cat <<'EOF'\n{lines}\nEOF\nesac\n"
    )
    path.chmod(0o755)
    return [str(path)]


@pytest.mark.parametrize(
    ("version", "flags", "said"),
    [
        ("version: 0.5.0 (build 11434, commit abcdef12)", ("-ngl, --n-gpu-layers N",), ""),
        ("version: 1 (abcdef12)", ("-ngl, --n-gpu-layers N", "--moe-cache-mib N"), "by its flags"),
        (
            "version: 0 (unknown)",
            ("-ngl, --n-gpu-layers N", "-lm, --load-mode M", "--mmap"),
            "by its flags",
        ),
        (
            "version: 4012 (abcdef12)",
            ("-ngl, --n-gpu-layers N", "-rtr, --run-time-repack"),
            "ik_llama.cpp",
        ),
        ("", ("--gpulayers [L]", "--contextsize N"), "KoboldCpp"),
        ("GNU cat 9.4", ("--show-all",), "does not answer"),
        (
            "version: 0.9.0 (build 99999, commit abcdef12)",
            ("-ngl, --n-gpu-layers N",),
            "newer than the rules known",
        ),
    ],
)
def test_a_program_is_dated_or_named(
    tmp_path: Path, version: str, flags: tuple[str, ...], said: str
) -> None:
    build = detect(program(tmp_path, version, *flags), {"PATH": "/usr/bin:/bin"})
    words = parse(["-ngl", "99", "-c", "4096"]).params
    found = estimate(model("llama-3.2-1b-q8_0"), words, [Device.hypothetical("24GiB")], build=build)
    assert found.exact is not bool(said)
    assert not said or any(said in warning for warning in found.warnings)


@pytest.mark.parametrize("number", [9713, 10435, 10566, 11063])
def test_the_names_in_its_library_date_a_build(tmp_path: Path, number: int) -> None:
    """The linker keeps some strings as the end of a longer one: those are neither there nor
    missing."""
    words = [name for name in NAMES if architecture(name).after < number]
    kept = b"\0".join(
        b"chat" + name.encode() if name == "glm4" else name.encode() for name in words
    )
    (tmp_path / "libllama.so.0").write_bytes(b"\x7fELF\0" + kept + b"\0")
    path = program(
        tmp_path, "version: 1 (abcdef12)", "-ngl, --n-gpu-layers N", *sorted(help_of(number))
    )
    build = detect(path, {"PATH": "/usr/bin:/bin"})
    assert build.between is not None
    low, high = build.between
    assert low <= number <= high and high - low < 300
    assert low <= build.rules.number <= high and not build.rules.exact


def test_the_default_port_follows_the_build() -> None:
    assert [Build(number).default_port for number in (9093, 11434, NEWEST)] == [8080, 8080, 9931]


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("version: 1.0.0\nbuilt with GNU 15.2 for Linux x86_64\n", 12274),
        ("version: v0.9.0\n", 12110),
        ("version: 0.4.1-dev (build 11467, commit 88f7578db)\n", 11467),
        ("version: 0.6.0\n", 0),
        ("version: 11549 (abcdef12)\n", 11549),
    ],
)
def test_a_release_is_a_build(said: str, number: int) -> None:
    """Packages of distributions name the release alone."""
    assert read_version(said)[0] == number


def test_a_plan_may_be_for_a_release() -> None:
    names = ("1.0.0", "v1.0.0", "b12274", "v0.9.0")
    found = [read(["--llama-build", name], None)[1].build for name in names]
    assert found == [12274, 12274, 12274, 12110]
    with pytest.raises(UsageError, match=r"or a release: 0\.9\.0, 1\.0\.0"):
        read(["--llama-build", "0.6.0"], None)


def test_flags_of_the_releases() -> None:
    assert "which came with b11930" in Build(11549).lacks("--models-memory-margin")
    assert not Build(12110).lacks("--models-memory-margin")


def test_caches_of_fp8_came_with_b12274() -> None:
    words = ["-c", "8192", "-ngl", "99", "-ctk", "f8_e4m3", "-ctv", "f8_e4m3", "-fa", "on"]
    found = estimate(model("llama-dense"), words, ["24GiB"], 12274)
    half = estimate(model("llama-dense"), [*words[:4], "-fa", "on"], ["24GiB"], 12274)
    use, full = found.devices["CUDA0"], half.devices["CUDA0"]
    assert use.context * 2 == full.context and not found.exact
    with pytest.raises(LaunchRefused, match="f8_e4m3"):
        estimate(model("llama-dense"), words, ["24GiB"], 11549)
