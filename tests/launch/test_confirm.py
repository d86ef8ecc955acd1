"""The installed llama-fit-params says whether a plan is right (launch/confirm.py)."""

from __future__ import annotations

import json
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from planner.test_fit import sparse
from support import HEADERS, MiB, retyped, slow

import autolayers
from autolayers.cli import main
from autolayers.launch import confirm
from autolayers.machine import Device
from autolayers.request import Request

MODEL = str(HEADERS / "llama-3.2-1b-q8_0.gguf")
ASKED = ["--gpu", "16GiB", "--ram", "32GiB", "-np", "1", "-c", "4096"]
VERSION = 'echo "version: 12429 (abc123)"'


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def tool(tmp_path: Path) -> Callable[[str], list[str]]:
    """Write a llama-fit-params of these lines of shell beside a llama-server; return the words that
    ask it."""

    def write(lines: str) -> list[str]:
        for name, text in (
            ("llama-server", f'[ "$1" = --version ] && {VERSION}\nexit 1'),
            (
                confirm.TOOL,
                f'[ "$1" = --version ] && {VERSION} && exit\n{lines}',
            ),
        ):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(path.stat().st_mode | stat.S_IEXEC)
        return [MODEL, *ASKED, "--llama-server", str(tmp_path / "llama-server")]

    return write


def answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    confirm = [] if "--no-confirm" in words else ["--confirm"]
    main([*words, *confirm, "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def printed(flags: list[str], **more: int) -> str:
    """What a right tool prints for this launch, and `more` MiB of graph buffers by device."""
    own = ["--engine", confirm.TOOL, *flags]
    gpu = Device.hypothetical("16GiB")
    use = autolayers.estimate(MODEL, own, [gpu], measuring=True)
    rows = {**use.devices, "Host": use.host}
    return "\n".join(
        f"echo '{name} {u.model // MiB} {u.context // MiB} {u.compute // MiB + more.get(name, 0)} '"
        for name, u in rows.items()
    )


def test_a_confirmed_launch_is_exact_whatever_the_build(
    tool: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    newer = ["--llama-build", "12429"]
    plain = answer([*tool("exit 1"), *newer, "--no-confirm"], capsys)
    assert not plain["exact"] and "confirmed" not in plain
    said = answer([*tool(printed(list(plain["flags"]))), *newer], capsys)  # type: ignore[call-overload]
    assert said["exact"] and said["flags"] == plain["flags"]
    assert said["confirmed"] == {
        "program": "llama-fit-params",
        "build": 12429,
        "rounds": 1,
        "equal": True,
        "difference": {
            name: {"model": 0, "context": 0, "compute": 0} for name in ("CUDA0", "Host")
        },
        "unasked": [],
    }
    assert not any("upper bound" in line for line in said["warnings"])  # type: ignore[attr-defined]


def test_the_build_of_the_named_server_is_planned_for(
    tool: Callable[[str], list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With --gpu too: it decides the slots, the flags and the sizes."""
    monkeypatch.setitem(globals(), "VERSION", 'echo "version: 6170 (abc123)"')
    words = [word for word in tool("exit 1") if word not in ("-np", "1")]
    old = answer([*words, "--no-confirm"], capsys)
    named = answer([*words, "--no-confirm", "--llama-build", "12000"], capsys)
    plain = answer([MODEL, *words[1:-2], "--llama-build", "6170", "--no-confirm"], capsys)
    assert (old["flags"], old["devices"]) == (plain["flags"], plain["devices"])
    assert [
        any("build 6170 is older" in line for line in said["warnings"])  # type: ignore[attr-defined]
        for said in (old, plain, named)
    ] == [True, True, False]
    assert main([MODEL, *ASKED, "--llama-server", "/no/such"]) == 2
    assert "--llama-server /no/such: no such program" in capsys.readouterr().err


def test_what_it_prints_more_is_added(
    tool: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = answer([*tool("exit 1"), "--no-confirm"], capsys)
    said = answer(tool(printed(list(plain["flags"]), CUDA0=300)), capsys)  # type: ignore[call-overload]
    before, after = plain["devices"][0], said["devices"][0]  # type: ignore[index]
    added = said["confirmed"]["difference"]["CUDA0"]["compute"]  # type: ignore[index]
    # whole MiB are printed, rounded down
    assert 300 * MiB < added <= 301 * MiB
    # its logits of a micro-batch may hide what llama-server takes more: all that it says counts
    assert before["compute"] + added < after["compute"]
    own = autolayers.estimate(
        MODEL,
        ["--engine", confirm.TOOL, *plain["flags"]],
        [Device.hypothetical("16GiB")],  # type: ignore[misc]
    )
    # and a hidden state of its micro-batch
    assert after["compute"] == own.devices["CUDA0"].compute + added + 4 * 512 * 2048
    assert after["free"] == before["free"]
    assert not said["exact"] and not said["confirmed"]["equal"]  # type: ignore[index]
    # with room for it the launch stays
    assert said["confirmed"]["rounds"] == 1  # type: ignore[index]
    assert said["flags"] == plain["flags"]


def test_what_is_short_is_taken_off_a_budget() -> None:
    """A budget is less than what is free, which the launch would not notice."""
    request = Request.of(["--gpu", "16GiB", "--budget", "CUDA0=3GiB"])
    less = confirm._without(request, {"CUDA0": (0, 0, 1 << 30)})
    assert less.machine.limits["CUDA0"] == 2 << 30
    assert request.machine.limits["CUDA0"] == 3 << 30


def test_it_is_asked_in_its_own_folder(
    tool: Callable[[str], list[str]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Libraries of the current directory could be taken for backends."""
    answer(tool(f"pwd > {tmp_path}/where; exit 1"), capsys)
    assert (tmp_path / "where").read_text().strip() == str(tmp_path.resolve())


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("exec sleep 60", "did not end within 0.5 s"),
        slow("exec yes", "prints more than 1 MiB"),
        slow("echo error: no such model >&2; exit 1", "ended with 1: error: no such model"),
        slow("kill -9 $$", "ended with -9"),
        ("echo hello", "printed no figures"),
        ("echo CUDA0 1 2 3", "not a row a device and one of the host"),
        slow("echo CUDA0 0 0 0; echo Host 0 0 0", "its weights are 0.00 MiB"),
        slow("echo CUDA0 99999999 0 0; echo Host 0 0 0", "its weights are"),
        ("echo Vulkan0 1259 128 254; echo Host 266 0 12", "sees Vulkan0"),
        ("echo Host 1525 128 254", "does not see CUDA0"),
        ("echo CUDA0 1252 999999999 999999999; echo Host 266 0 12", "was not used"),
    ],
)
def test_a_tool_that_hangs_floods_fails_or_lies_changes_nothing(
    lines: str,
    why: str,
    tool: Callable[[str], list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirm, "PATIENCE", 0.5 if "sleep" in lines else 10.0)
    words = tool(lines)
    plain = answer([*words, "--no-confirm"], capsys)
    said = answer(words, capsys)
    first, *reasons = said["reasons"]  # type: ignore[misc]
    assert why in first
    said["reasons"] = reasons
    assert said == plain


def test_a_launch_that_the_tool_finds_no_room_for_is_not_called_exact(
    tool: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same tool says 14 GiB more of every launch, however small."""
    words = [*tool("exit 1"), "--llama-build", "11549", "-ngl", "17"]
    plain = answer([*words, "--no-confirm"], capsys)
    tool(printed([*plain["flags"], "-ngl", "17"], CUDA0=14 << 10))  # type: ignore[misc]
    said = answer(words, capsys)
    assert plain["exact"] and not said["exact"] and "confirmed" not in said
    assert said["flags"] == plain["flags"]
    assert isinstance(said["warnings"], list)
    assert "llama-fit-params says that this launch takes more: it may not start" in said["warnings"]


@pytest.mark.slow
def test_a_second_plan_asks_nothing(
    tool: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = list(answer([*tool("exit 1"), "--no-confirm"], capsys)["flags"])  # type: ignore[call-overload]
    log = tmp_path / "log"
    words = tool(f"echo asked >> {log}\n{printed(flags)}")
    assert answer(words, capsys) == answer(words, capsys)
    assert log.read_text() == "asked\n"


@pytest.mark.llamacpp
@pytest.mark.parametrize("name", ["llama-3.2-1b-q8_0", "qwen3-30b-a3b-q4_k_m", "gpt-oss-20b-mxfp4"])
def test_the_real_tool_confirms(
    name: str,
    binaries: Path,
    mock_cuda: Callable[..., dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gpu = Device.hypothetical("12GiB")
    for key, value in mock_cuda(gpu).items():
        monkeypatch.setenv(key, value)
    server = str(binaries / "llama-server")
    override = ["--override-kv", "tokenizer.ggml.model=str:none"]
    words = [str(sparse(name, tmp_path)), "--gpu", "12GiB", "--ram", "32GiB", "-np", "1"]
    said = answer([*words, *override, "--llama-server", server], capsys)
    assert said["confirmed"]["equal"] and said["exact"]  # type: ignore[index]


# headers that are renamed, and by how much longer the reference request may take than with rules
RENAMED = {
    "llama-3.1-8b-q4_k_m": 1.01,
    "qwen3-30b-a3b-q4_k_m": 1.05,
    "gemma-3-4b-q8_0": 1.01,
    "gpt-oss-20b-mxfp4": 1.01,
    "deepseek-v2-lite-q4_k_m": 1.02,
    "phi-3-mini-q4_k_m": 1.01,
    "llama-3.3-70b-q4_k_m": 1.05,
    "granite-4.0-h-small-q4_k_m": 1.05,
    "mamba2-2.7b-q4_k_m": 1.01,
    "qwen3-next-80b-a3b-q4_k_m": 1.08,
    "gemma-2-9b-q4_k_m": 1.01,
    "llama-4-scout-q4_k_m": 1.25,
}


def disguised(
    binaries: Path, mock_cuda: Callable[..., dict[str, str]], folder: Path, word: str, out: str = ""
) -> str:
    """Write a llama-server and a llama-fit-params: the real ones of an RTX 3060, with a `word` of
    their arguments and of what they print (`out`, as sed's) replaced; each question of the latter
    is a line of `log`."""
    given = mock_cuda(Device.hypothetical("rtx-3060"))
    environ = " ".join(f"{key}={value}" for key, value in given.items())
    tail = f" 2>&1 | sed {out}" if out else ""
    for name, note in (("llama-server", ""), (confirm.TOOL, f"echo asked >> {folder}/log\n")):
        run = f'{note}{environ} {binaries / name} "${{@/{word}}}"{tail}'
        (folder / name).write_text(f"#!/bin/bash\nset -o pipefail\n{run}\n")
        (folder / name).chmod(0o755)
    return str(folder / "llama-server")


def takes_no_more(real: dict[str, object], said: dict[str, object]) -> None:
    """Nothing of what that launch really takes is more than was said, but for a part of a layer."""
    rows = zip(
        (*said["devices"], said["host"]),  # type: ignore[misc]
        (*real["devices"], real["host"]),  # type: ignore[misc]
        strict=True,
    )
    for mine, its in rows:
        for part in ("model", "context", "compute"):
            assert mine[part] >= its[part] - 8192, (part, mine, its)


@pytest.mark.llamacpp
@pytest.mark.parametrize(
    ("name", "longer"),
    [
        ("llama-3.1-8b-q4_k_m", 1.02),
        ("qwen3-30b-a3b-q4_k_m", 1.15),
        ("gpt-oss-20b-mxfp4", 1.02),
        ("granite-4.0-h-small-q4_k_m", 1.12),
    ],
)
def test_a_backend_without_rules_plans_nearly_as_one_with_them(
    name: str,
    longer: float,
    binaries: Path,
    mock_cuda: Callable[..., dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """CUDA under another name: what the tool measures counts, not the most that any takes."""
    words = [str(sparse(name, tmp_path)), "--override-kv", "tokenizer.ggml.model=str:none"]
    # what a driver takes besides is not known either, and the tool does not say it
    words += ["--ram", "64GiB", "-np", "1", "-fitt", "256", "--llama-server"]
    known = [*words, disguised(binaries, mock_cuda, tmp_path, "CUDA0/CUDA0"), "--no-confirm"]
    right = answer(known, capsys)
    (other := tmp_path / "other").mkdir()
    renamed = disguised(binaries, mock_cuda, other, "NewGPU0/CUDA0", "s/CUDA0/NewGPU0/")
    said = answer([*words, renamed], capsys)
    first = said["devices"][0]["name"]  # type: ignore[index]
    assert said["fits"] and not said["exact"] and first == "NewGPU0"
    real = answer([*known, *said["flags"]], capsys)  # type: ignore[misc]
    seconds = [plan["speed"]["seconds"] for plan in (real, right)]  # type: ignore[index]
    assert seconds[0] <= longer * seconds[1]
    takes_no_more(real, said)


@pytest.mark.llamacpp
@pytest.mark.parametrize("slots", [[], ["-np", "1"]], ids=["default", "one"])
def test_rules_of_another_build_are_corrected_on_several_devices(
    slots: list[str],
    binaries: Path,
    mock_cuda: Callable[..., dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server's graph, which has fewer logits, takes a MiB more than the tool's."""
    for key, value in mock_cuda(*[Device.hypothetical("8GiB")] * 2).items():
        monkeypatch.setenv(key, value)
    words = [str(sparse("granite-4.0-h-small-q4_k_m", tmp_path)), "--gpu", "8GiB,8GiB", *slots]
    words += ["--ram", "64GiB", "--override-kv", "tokenizer.ggml.model=str:none"]
    words += ["--llama-server", str(binaries / "llama-server"), "--llama-build"]
    said = answer([*words, "9549"], capsys)
    assert said["confirmed"] and not said["exact"]
    real = answer([*words, "11549", *said["flags"], "--no-confirm"], capsys)  # type: ignore[misc]
    takes_no_more(real, said)


@pytest.mark.llamacpp
@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("llama-3.1-8b-q4_k_m", "q4_K"),
        ("qwen3-30b-a3b-q4_k_m", "q6_K"),
        ("gpt-oss-20b-mxfp4", "mxfp4"),
    ],
)
def test_an_unknown_type_of_tensors_is_confirmed(
    name: str,
    type_: str,
    binaries: Path,
    mock_cuda: Callable[..., dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A type gets an unknown number; the tool is given the known file, which it can load."""
    known, new = sparse(name, tmp_path), retyped(name, type_, tmp_path)
    words = ["--gpu", "rtx-3060", "--ram", "64GiB", "-np", "1"]
    words += ["--override-kv", "tokenizer.ggml.model=str:none", "--llama-server"]
    words.append(disguised(binaries, mock_cuda, tmp_path, f"/new.gguf/{name}.gguf"))
    plain = answer([str(new), *words, "--no-confirm"], capsys)
    said = answer([str(new), *words], capsys)
    newer = any("newer than" in line for line in plain["warnings"])  # type: ignore[attr-defined]
    assert not plain["exact"] and newer
    assert said["confirmed"]["equal"] and said["exact"] and said["fits"]  # type: ignore[index]
    right = answer([str(known), *words], capsys)
    seconds = [plan["speed"]["seconds"] for plan in (said, right)]  # type: ignore[index]
    assert seconds[0] <= 1.06 * seconds[1]
    takes_no_more(answer([str(known), *words, *said["flags"]], capsys), said)  # type: ignore[misc]


@pytest.mark.llamacpp
@pytest.mark.parametrize("slots", [[], ["-np", "1"]], ids=["default", "one"])
@pytest.mark.parametrize("name", RENAMED)
def test_an_unknown_architecture_plans_nearly_as_the_known_one(
    name: str,
    slots: list[str],
    binaries: Path,
    mock_cuda: Callable[..., dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The header renamed; the tool is given the known one, which it can load."""
    known, renamed = sparse(name, tmp_path), tmp_path / "new.gguf"
    arch = autolayers.read_model(known).architecture
    # only the header, which ends far before this
    head = (HEADERS / f"{name}.gguf").read_bytes()
    old, new = arch.encode(), b"x" * len(arch)
    size = len(old).to_bytes(8, "little")
    renamed.write_bytes(head.replace(size + old, size + new).replace(old + b".", new + b"."))
    os.truncate(renamed, known.stat().st_size)
    server = disguised(binaries, mock_cuda, tmp_path, f"/new.gguf/{name}.gguf")
    words = ["--gpu", "rtx-3060", "--ram", "64GiB", *slots]
    words += ["--override-kv", "tokenizer.ggml.model=str:none", "--llama-server", server]
    right = answer([str(known), *words, "--no-confirm"], capsys)
    said = answer([str(renamed), *words], capsys)
    assert said["fits"] and not said["exact"]
    # eight questions, and one for its version
    assert len((tmp_path / "log").read_text().splitlines()) <= 9
    flags = [*said["flags"], *words, "--no-confirm"]  # type: ignore[misc]
    real = answer([str(known), *flags], capsys)
    seconds = [plan["speed"]["seconds"] for plan in (real, right)]  # type: ignore[index]
    assert seconds[0] <= RENAMED[name] * seconds[1]
    takes_no_more(real, said)


@pytest.mark.llamacpp
def test_the_real_tool_confirms_random_launches(
    binaries: Path,
    mock_cuda: Callable[..., dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Models, cards and flags by chance, none of them corrected."""
    dice = random.Random(62)
    names = sorted(json.loads((HEADERS / "sizes.json").read_text()))
    flags = ("", "-c 8192", "-ub 256", "-fa off", "-fa on -ctk q8_0 -ctv q8_0", "-nkvo", "-ngl 0")
    corrected = []
    for _ in range(60):
        name, size, given = (
            dice.choice(names),
            f"{dice.choice((6, 8, 16, 48))}GiB",
            dice.choice(flags),
        )
        for key, value in mock_cuda(Device.hypothetical(size)).items():
            monkeypatch.setenv(key, value)
        words = [str(sparse(name, tmp_path)), "--gpu", size, "--ram", "256GiB", "-np", "1"]
        words += ["--override-kv", "tokenizer.ggml.model=str:none", *given.split()]
        said = answer([*words, "--llama-server", str(binaries / "llama-server")], capsys)
        # llama.cpp refuses it too, e.g. a quantised cache of a model without one
        if "error" in said:
            continue
        if not said.get("confirmed", {}).get("equal"):  # type: ignore[attr-defined]
            corrected.append((name, size, given, said["reasons"][0]))  # type: ignore[index]
    assert not corrected
