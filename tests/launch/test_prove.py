"""A server would start, and die when its context fills.

`autolayers prove` with the real llama-server, on the processor and on simulated devices: one that
holds, one that is too small, one that is interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from cli.test_run import FINE, Fake, fake  # noqa: F401
from support import FIXTURES, HEADERS, says

from autolayers.cli import main
from autolayers.launch.prove import Proof, ProvedRow

CHAT = str(FIXTURES / "tiny" / "chat.gguf")
GiB = 1 << 30
T = TypeVar("T", bound=Callable[..., object])


def real(test: T) -> T:
    """Mark what needs the real llama-server."""
    marked: T = pytest.mark.llamacpp(test)
    return pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")(marked)


def proved(place: Path, words: list[str], **environ: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the JSON, and what was said."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    done = subprocess.run(
        [sys.executable, "-m", "autolayers", "prove", "--json", *words],
        env={**plain, **environ, "XDG_STATE_HOME": str(place), "XDG_CONFIG_HOME": str(place)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def mocked(binaries: Path, size: int) -> dict[str, str]:
    return {"LD_PRELOAD": str(binaries / "libmockcuda.so"), "MOCK_CUDA": str(size)}


@real
@pytest.mark.parametrize("where", [None, 24])
def test_every_slot_is_filled_to_its_end(where: int | None, binaries: Path, tmp_path: Path) -> None:
    environ = {} if where is None else mocked(binaries, where * GiB)
    model = str(shutil.copy(CHAT, tmp_path))
    words = [str(binaries / "llama-server"), "-m", model, "-c", "2048", "-np", "2"]
    code, found, said = proved(tmp_path, words, **environ)
    assert code == 0 and found["held"] and found["filled"] == found["tokens"] == 2048, said
    assert found["slots"] == 2 and found["failed"] is None
    rows = found["memory"]
    assert rows["RAM"]["end"] >= rows["RAM"]["start"] > 0 and rows["RAM"]["left"] > 0
    if where is not None:
        assert abs(rows["CUDA0"]["predicted"] - rows["CUDA0"]["end"]) < 4 << 20
    # no process is left
    running = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not any(model in words for words in running)


@real
def test_a_quarter_is_a_quarter(binaries: Path, tmp_path: Path) -> None:
    words = ["--quick", str(binaries / "llama-server"), "-m", CHAT, "-c", "2048", "-np", "1"]
    code, found, _ = proved(tmp_path, words)
    assert code == 0 and found["tokens"] == 512


@real
def test_a_device_that_is_too_small_is_found_out(binaries: Path, tmp_path: Path) -> None:
    """It says 24 GiB when it is asked, and has 15 MB when the model is loaded."""
    program = tmp_path / "llama-server"
    program.write_text(
        "#!/bin/sh\n"
        'case " $* " in *" --list-devices "*|*" --version "*|*" --help "*) size=25769803776;; '
        "*) size=15000000;; esac\n"
        f"export MOCK_CUDA=$size LD_PRELOAD={binaries}/libmockcuda.so\n"
        f'exec {binaries}/llama-server "$@"\n'
    )
    program.chmod(0o755)
    code, found, said = proved(tmp_path, [str(program), "-m", CHAT, "-c", "8192", "-np", "4"])
    assert code == 1 and not found["held"] and found["filled"] == 0
    assert "CUDA0 ran out of memory" in said and "ended before it answered" in found["failed"]


@real
def test_an_interrupt_has_what_was_seen_so_far(binaries: Path, tmp_path: Path) -> None:
    words = [str(binaries / "llama-server"), "-m", CHAT, "-c", "65536", "-np", "1"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-m", "autolayers", "prove", "--json", *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    until = time.monotonic() + 60
    while time.monotonic() < until:
        names = [each.name() for each in psutil.Process(child.pid).children(recursive=True)]
        if "llama-server" in names:
            break
        time.sleep(0.05)
    time.sleep(1.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    found = json.loads(out)
    assert child.returncode == 130 and found["interrupted"] and not found["held"]


@pytest.mark.skipif(sys.platform != "linux", reason="whose port it is")
@pytest.mark.parametrize(
    ("scenario", "words", "code", "said"),
    [
        ({"serve": True}, "", 0, "held, filled to the end\n1024 of 1024 tokens in 2 slots"),
        ({"serve": True}, "--quick", 0, "held, filled to a quarter\n256 of 256 tokens in 2 slots"),
        ({"code": 1}, "", 1, "did not hold: the server ended before it answered"),
    ],
)
def test_every_slot_is_asked_until_it_is_full(
    fake: Fake,  # noqa: F811
    scenario: dict[str, object],
    words: str,
    code: int,
    said: str,
) -> None:
    log = FINE.format(host=0, gpu=0) if scenario.get("serve") else "main: loading model\n"
    fake.scenario({"log": log, **scenario})
    line = f"{words} llama-server -m MODEL -c 1024 -np 2"
    done = says("prove", *fake.words(line), environ=fake.environ())
    assert done.returncode == code and done.stdout.startswith(said), done.stderr
    (call,) = fake.calls()
    assert "--port" in call["words"] and not psutil.pid_exists(int(str(call["pid"])))


@pytest.mark.skipif(sys.platform != "linux", reason="whose port it is")
@pytest.mark.parametrize(
    ("words", "environ"), [("--api-key hush,other", {}), ("", {"LLAMA_API_KEY": "hush"})]
)
def test_a_server_with_a_key_is_asked_with_it(
    fake: Fake,  # noqa: F811
    words: str,
    environ: dict[str, str],
) -> None:
    fake.scenario({"log": FINE.format(host=0, gpu=0), "serve": True})
    line = f"llama-server -m MODEL -c 1024 -np 2 {words}"
    done = says("prove", *fake.words(line), environ=fake.environ(**environ))
    assert done.returncode == 0 and "1024 of 1024 tokens" in done.stdout, done.stderr
    assert "hush" not in done.stdout + done.stderr


def test_what_took_more_than_it_has_did_not_hold() -> None:
    fits, short = ProvedRow("CUDA0", 10, 20, 9, 19), ProvedRow("CUDA1", 10, 20, 9, 21)
    assert Proof(1, 8, 8, "", False, (fits,)).held
    proof = Proof(1, 8, 8, "", False, (fits, short))
    assert not proof.held and proof.short == (short,)
    assert not Proof(1, 8, 7, "", False, (fits,)).held
    assert not Proof(1, 8, 8, "status 500", False, (fits,)).held


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["docker", "run", "image", "-m", CHAT], 2, "prove fills a llama-server"),
        (["llama-server-of-nobody", "-m", CHAT], 127, "not found"),
        (["--gpu", "24GiB", "llama-server", "-m", CHAT], 2, "--gpu"),
    ],
)
def test_only_a_server_of_this_machine_is_proved(
    words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["prove", *words]) == code
    assert said in capfd.readouterr().err and HEADERS.exists()
