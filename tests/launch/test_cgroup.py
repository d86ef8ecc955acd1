"""A container with the written memory limit would be killed.

The real llama-server in a control group with the memory limit of its plan: it loads and answers;
with less than its caches it is killed. docs/rack.md has longer runs.

Binaries: $AUTOLAYERS_LLAMACPP_BIN, or tests/build_llamacpp.sh builds them; llama-swap, or the
program that $AUTOLAYERS_LLAMA_SWAP names. Needs the right to make control groups.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from control_groups import Group, group_of
from support import FIXTURES, free_port

import autolayers
from autolayers.cli import main
from autolayers.memory.ram import ram_of

pytestmark = [
    pytest.mark.llamacpp,
    pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's"),
]
CHAT = str(FIXTURES / "tiny" / "chat.gguf")
# 1.4 GiB of caches, which are written to when they are made
WORDS = ["-c", "4000000", "-np", "1", "-dev", "none", "-cram", "16"]


@pytest.fixture
def group() -> Iterator[Group]:
    made = group_of()
    if made is None:
        pytest.skip("no control group can be made here")
    yield made
    made.remove()


@pytest.mark.parametrize(("share", "serves"), [(1.0, True), (0.2, False)])
def test_a_limit_holds(
    share: float, serves: bool, group: Group, binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    plan = autolayers.plan(CHAT, WORDS, ram="16GiB")
    assert plan.ram.limit is not None and plan.host.context > 1 << 30
    group.holds(int(plan.ram.limit * share))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [binaries / "llama-server", "-m", CHAT, *plan.flags, "--port", port],
            stdout=log,
            stderr=log,
            preexec_fn=group.enter,
        )
    try:
        assert answers(process, port) == serves, (tmp_path / "log").read_text(errors="replace")[
            -2000:
        ]
        assert (process.poll() is None) == serves
    finally:
        process.kill()
        process.wait()


def answers(process: subprocess.Popen[bytes], port: str) -> bool:
    """Whether it completes a prompt before it ends."""
    body = json.dumps({"prompt": [5] * 100, "n_predict": 1}).encode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"}
    )
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            time.sleep(0.2)
    return False


def test_models_swap_within_a_limit(
    group: Group, binaries: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The router and one model at a time: what is loaded before has gone when the next one comes,
    and nothing is killed."""
    for name in "abc":
        shutil.copy(CHAT, tmp_path / f"{name}.gguf")
    words = [*WORDS[:-1], "0", "-ctxcp", "0", "-b", "32", "-ub", "32", "-ctk", "f32", "-ctv", "f32"]
    assert main(["plan", str(tmp_path), "--ram", "16GiB", *words, "--format", "preset"]) == 0
    (tmp_path / "preset.ini").write_text(capfd.readouterr().out)
    plan = autolayers.plan(CHAT, words, ram="16GiB")
    assert plan.ram.limit is not None
    # The router is a llama-server without a model
    limit = plan.ram.limit + ram_of(0, 0, 0).request
    assert limit < 2 * plan.host.context
    group.holds(limit)
    port = free_port()
    router = subprocess.Popen(
        [
            binaries / "llama-server",
            "--models-preset",
            tmp_path / "preset.ini",
            "--models-max",
            "1",
            "--port",
            str(port),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=group.enter,
    )
    try:
        for name in "abca":
            body = json.dumps({"model": name, "prompt": "a", "n_predict": 1}).encode()
            assert answered(port, body) == 1, name
        assert router.poll() is None
        assert group.most() <= limit
    finally:
        router.terminate()
        router.wait()


def answered(port: int, body: bytes) -> int:
    """Tokens of an answer, once the router listens."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/completion", body, timeout=60
            ) as answer:
                return int(json.load(answer)["tokens_predicted"])
        except ConnectionError:
            time.sleep(0.1)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
            time.sleep(0.1)
    return 0


@pytest.mark.parametrize("form", ["llama-swap", "llama-swap-matrix"])
def test_models_swap_under_llama_swap_and_one_stays(
    form: str,
    group: Group,
    binaries: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Three models take turns beside one that stays, with the memory of two: it is never loaded
    again, each other ends before the next one starts, and nothing is killed."""
    program = shutil.which(os.environ.get("AUTOLAYERS_LLAMA_SWAP", "llama-swap"))
    if program is None:
        pytest.skip("AUTOLAYERS_LLAMA_SWAP names no program")
    for name in "abcd":
        shutil.copy(CHAT, tmp_path / f"{name}.gguf")
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    words = ["--ram", "5GiB", *WORDS[:-1], "0", "-ctxcp", "0", "-b", "32", "-ub", "32"]
    assert main(["plan", str(tmp_path), *words, "--stay", "d", "--format", form]) == 0
    (tmp_path / "config.yaml").write_text(capfd.readouterr().out)
    plan = autolayers.plan(CHAT, words[2:], ram="5GiB")
    limit = 2 * plan.host.resident + (256 << 20)  # less than the plans allow
    assert limit < 3 * plan.host.context
    group.holds(limit)
    port = free_port()
    swap = subprocess.Popen(
        [program, "-config", tmp_path / "config.yaml", "-listen", f"127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=group.enter,
    )
    try:
        stays = set()
        for name in "dadbdcda":
            body = json.dumps({"model": name, "prompt": "a", "max_tokens": 1}).encode()
            assert completed(port, body) == 1, name
            loaded = {own[own.index("-m") + 1][-6]: pid for pid, own in children(swap.pid).items()}
            assert "d" in loaded and len(loaded) <= 2, loaded
            stays.add(loaded["d"])
        assert len(stays) == 1 and swap.poll() is None
        assert 2 * plan.host.context < group.most() <= limit
        assert group.killed() == 0
    finally:
        swap.terminate()
        swap.wait()


def completed(port: int, body: bytes) -> int:
    """Tokens of an answer, once llama-swap listens."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    for _ in range(300):
        try:
            with urllib.request.urlopen(asked, timeout=120) as answer:
                return int(json.load(answer)["usage"]["completion_tokens"])
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
            time.sleep(0.1)
    return 0


def children(parent: int) -> dict[int, list[str]]:
    """The words of the llama-servers that a process has started."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_text().split("\0")
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if above == parent and "-m" in words:
            found[int(entry.name)] = words
    return found
