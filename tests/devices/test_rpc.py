"""A plan would wait for a server that does not answer, or believe one that lies.

RPC servers asked for their memory: by protocol, by every command that has --rpc, and when they
lie.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_rpc import FakeRpc, answer
from support import HEADERS, ROOT, slow

import autolayers
from autolayers.cli import main
from autolayers.devices import discover, list_devices, remote, rpc_protocol
from autolayers.devices.rpc import refine
from autolayers.devices.rpc_protocol import ServedDevice, ask
from autolayers.errors import DeviceError, UsageError

MiB, GiB = 1 << 20, 1 << 30
LLAMA = str(HEADERS / "llama-3.1-8b-q4_k_m.gguf")
CUDA = (128, 23 * GiB, 24 * GiB)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may keep all processors busy."""
    monkeypatch.setattr(rpc_protocol, "PATIENCE", 60.0)


@pytest.fixture
def nobody() -> str:
    """An endpoint where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_a_server_says_what_it_has() -> None:
    with FakeRpc([CUDA, (32, 60 * GiB, 64 * GiB)]) as server:
        assert ask(server.endpoint) == [
            ServedDevice(128, 23 * GiB, 24 * GiB),
            ServedDevice(32, 60 * GiB, 64 * GiB),
        ]
    with FakeRpc([(128, 30 * GiB, 24 * GiB)], version=(4, 0, 1)) as server:
        # no more free than there is
        assert ask(server.endpoint) == [ServedDevice(128, 24 * GiB, 24 * GiB)]


def test_devices_are_numbered_through_all_servers(nobody: str) -> None:
    with FakeRpc([CUDA, (32, 60 * GiB, 64 * GiB)]) as first, FakeRpc([CUDA]) as last:
        devices, notes = remote([first.endpoint, nobody, last.endpoint])
    assert [(d.name, d.backend, d.free, d.total, d.description) for d in devices] == [
        ("RPC0", "RPC", 23 * GiB, 24 * GiB, first.endpoint),
        ("RPC1", "RPC-CPU", 60 * GiB, 64 * GiB, first.endpoint),
        ("RPC2", "RPC", 0, 0, nobody),
        ("RPC3", "RPC", 23 * GiB, 24 * GiB, last.endpoint),
    ]
    assert all(d.kind == "rpc" and d.includes_context for d in devices)
    assert notes == [
        f"{nobody}: not a usable RPC server (Connection refused): the plan does not "
        f"use it; to use only "
        f"the others: --rpc {first.endpoint},{last.endpoint}"
    ]
    assert remote([]) == ([], [])


@pytest.mark.parametrize(
    "bad", ["host", ":1", "host:x", "host:70000", "host:0", "host:²", "", "host:" + "9" * 5000]
)
def test_what_is_no_endpoint(bad: str) -> None:
    with pytest.raises(UsageError, match=r"--rpc .*: not host:port"):
        remote([bad])


Script = Callable[[socket.socket, int, bytes], None]


def lie(answers: dict[int, bytes]) -> Script:
    """A server that answers some commands with these bytes, the others as it should."""
    return lambda connection, command, data: connection.sendall(
        answers.get(command) or answer([CUDA], command, data)
    )


def sized(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def trickle(connection: socket.socket, command: int, data: bytes) -> None:
    connection.sendall(b"\x1c")
    while True:
        connection.sendall(b"\0")
        threading.Event().wait(0.02)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (lambda c, *_: c.shutdown(socket.SHUT_RDWR), "it closed the connection"),
        (lambda c, *_: c.recv(1), "it did not answer within 0.3 s"),
        (lie({14: sized(bytes((3, 6, 0)) + bytes(25))}), "its version 3.6 is too old"),
        (
            lie({14: struct.pack("<Q", 1 << 63)}),
            "an answer of 9223372036854775808 bytes where 28 were expected",
        ),
        (lie({14: b"HTTP/1.1 400 Bad Request\r\n\r\n"}), "bytes where 28 were expected"),
        (lie({15: sized(struct.pack("<I", 0))}), "it has 0 devices"),
        (
            lie({15: sized(struct.pack("<I", 0xFFFFFFFF))}),
            "it has 4294967295 devices; 1 to 16 are possible",
        ),
        (lie({11: sized(struct.pack("<QQ", 0, 0))}), "its device 0 has 0 bytes"),
        (
            lie({11: sized(struct.pack("<QQ", 1, (1 << 64) - 1))}),
            "its device 0 has 18446744073709551615 bytes",
        ),
        (lie({11: sized(b"short")}), "an answer of 5 bytes where 16"),
    ],
)
def test_a_server_that_lies_or_breaks_off_is_one_line(script: Script, words: str) -> None:
    limit = 0.3 if "did not answer" in words else 300.0
    with FakeRpc([CUDA], script=script) as server, pytest.raises(DeviceError, match=words) as error:
        ask(server.endpoint, limit)
    text = str(error.value)
    assert text.isprintable() and text.startswith(f"{server.endpoint}: not a usable RPC server (")


def test_one_limit_of_time_holds_for_all_questions() -> None:
    with (
        FakeRpc([CUDA], script=trickle) as server,
        pytest.raises(
            DeviceError,
            match=r"not answer "
            r"within 0\.3 "
            r"s",
        ),
    ):
        ask(server.endpoint, 0.3)

    def slow(connection: socket.socket, command: int, data: bytes) -> None:
        threading.Event().wait(0.2)
        connection.sendall(answer(busy.devices, command, data))

    with FakeRpc([CUDA] * 16, script=slow) as busy:
        with pytest.raises(DeviceError, match=r"it did not answer within 0\.5 s"):
            ask(busy.endpoint, 0.5)
        assert len(busy.asked) <= 3


def test_a_listing_is_completed_by_the_servers(nobody: str) -> None:
    listed, _ = list_devices.parse(
        "Available devices:\n  RPC0: a (24576 MiB, 23552 MiB free)\n  RPC1: a (65536 MiB, 1000 MiB "
        "free)\n"
        "  RPC2: b (8192 MiB, 8000 MiB free)\n  CUDA0: NVIDIA X (8192 MiB, 8000 MiB free)\n"
    )
    with FakeRpc([CUDA, (32, 60 * GiB, 64 * GiB)]) as server:
        refined = refine(listed, [server.endpoint, nobody])
    assert [(d.name, d.backend, d.free // MiB) for d in refined] == [
        ("RPC0", "RPC", 23552),
        ("RPC1", "RPC-CPU", 1000),
        ("RPC2", "RPC", 8000),
        ("CUDA0", "CUDA", 8000),
    ]


@pytest.mark.skipif(os.name != "posix", reason="the fake llama-server is a shell script")
def test_discover_asks_the_servers_also_of_a_llama_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "llama-server"
    program.write_text(
        "#!/bin/sh\necho 'Available devices:'; echo '  RPC0: x (65536 MiB, 60000 MiB free)'\n"
    )
    program.chmod(0o755)
    with FakeRpc([(32, 60 * GiB, 64 * GiB)]) as server:
        found = discover(os.environ, str(program), [server.endpoint])
        assert [(d.name, d.backend, d.free // MiB) for d in found.devices] == [
            ("RPC0", "RPC-CPU", 60000)
        ]
        # busy: the program would wait for it
        with socket.create_connection(rpc_protocol.address(server.endpoint)):
            monkeypatch.setattr(rpc_protocol, "PATIENCE", 0.5)
            program.write_text(
                '#!/bin/sh\nwhile [ -n "$1" ]; do [ "$1" != --rpc ] || sleep 60; '
                "shift; done\n"
                "echo '  CUDA0: X (8192 MiB, 8000 MiB free)'\n"
            )
            found = discover(
                {**os.environ, "LLAMA_ARG_RPC": server.endpoint}, str(program), [server.endpoint]
            )
            assert [(d.name, d.free // MiB) for d in found.devices] == [
                ("RPC0", 0),
                ("CUDA0", 8000),
            ]
            assert "perhaps it serves another llama-server" in found.notes[0]
            monkeypatch.setattr(rpc_protocol, "PATIENCE", 60.0)
        program.write_text("#!/bin/sh\nexit 1\n")
        found = discover({}, str(program), [server.endpoint], root="/nowhere")
        assert [(d.name, d.backend, d.free) for d in found.devices] == [
            ("RPC0", "RPC-CPU", 60 * GiB)
        ]


# --- the commands


@pytest.mark.slow
def test_a_plan_knows_the_servers_memory(capfd: pytest.CaptureFixture[str]) -> None:
    with FakeRpc([CUDA]) as server:
        words = [LLAMA, "--gpu", "4GiB", "--ram", "64GiB", "-c", "8192", "--rpc", server.endpoint]
        assert main([*words, "--json"]) == 0
        planned = json.loads(capfd.readouterr().out)
        assert main(["plan", LLAMA, LLAMA, *words[1:], "--format", "flags"]) == 0
        on_server, on_gpu = capfd.readouterr().out.splitlines()
        assert " -ngl 33 " in on_server and on_server.endswith("-dev RPC0")
        assert " -dev CUDA0" in on_gpu and "--rpc" not in on_gpu
        library = autolayers.plan(autolayers.read_model(LLAMA), words[1:])
    assert [(d["name"], d["total"], d["free"]) for d in planned["devices"]] == [
        ("RPC0", 24 * GiB, 23 * GiB),
        ("CUDA0", 4 * GiB, 4 * GiB),
    ]
    assert (
        planned["launch"]["n_gpu_layers"] == library.n_gpu_layers == 33
        and planned["devices"][0]["used"] > 2 * GiB
    )
    assert not any("asked" in warning for warning in planned["warnings"])


def test_a_plan_on_the_command_line_asks_the_rpc_server(capfd: pytest.CaptureFixture[str]) -> None:
    with FakeRpc([CUDA]) as server:
        assert main([LLAMA, "-c", "8192", "--rpc", server.endpoint, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["devices"][0]["total"] == 24 * GiB


def test_a_dead_server_is_one_line_and_nothing_is_planned_for_it(
    nobody: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [LLAMA, "--gpu", "24GiB", "--ram", "64GiB", "-c", "8192", "--rpc", nobody]
    assert main(words) == 0
    said = capfd.readouterr()
    assert said.err.count(f"{nobody}: not a usable RPC server") == 1 and "-ngl 33" in said.out
    # what its owner knows of it counts
    assert main([*words, "--budget", "RPC0=8GiB", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["devices"][0]["free"] == 8 * GiB


def test_devices_lists_them(nobody: str, capfd: pytest.CaptureFixture[str]) -> None:
    with FakeRpc([CUDA]) as server:
        assert main(["devices", "--rpc", f"{server.endpoint},{nobody}"]) == 0
    said = capfd.readouterr()
    rows = [line for line in said.out.splitlines() if line.startswith("RPC")]
    assert rows[0].split()[1:5] == ["24.00", "GiB", "23.00", "GiB"] and rows[0].endswith(
        "from the RPC server"
    )
    assert rows[1].split()[1:3] == ["?", "?"] and rows[1].endswith(
        "it does not answer: its memory is unknown"
    )
    assert f"{nobody}: not a usable RPC server" in said.err


@pytest.mark.skipif(os.name != "posix", reason="the fake llama-server is a shell script")
@pytest.mark.parametrize("gpu", [(), slow(("--gpu", "4GiB"))])
def test_run_plans_with_them(
    gpu: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with FakeRpc([CUDA]) as server:
        assert (
            main(
                [
                    "run",
                    *gpu,
                    "--dry-run",
                    str(program),
                    "-m",
                    LLAMA,
                    "-c",
                    "8192",
                    "--rpc",
                    server.endpoint,
                ]
            )
            == 0
        )
    assert "-ngl 33" in capfd.readouterr().out


# --- a real server


@pytest.mark.llamacpp
def test_a_real_server_answers_as_the_fake_one(binaries: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [binaries / "ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            devices, notes = remote([f"127.0.0.1:{port}"])
            if not notes:
                break
            time.sleep(0.1)
        host = discover().host
        assert [(d.name, d.backend) for d in devices] == [("RPC0", "RPC-CPU")] and notes == []
        assert abs(devices[0].total - host.total) < GiB and 0 < devices[0].free <= devices[0].total
        plan = autolayers.plan(
            autolayers.read_model(LLAMA), ["-c", "512", "--rpc", f"127.0.0.1:{port}"]
        )
        assert plan.devices[0].name == "RPC0" and plan.devices[0].total == devices[0].total
    finally:
        process.kill()
        process.wait()


def test_the_documentation_says_so() -> None:
    text = (ROOT / "docs" / "devices.md").read_text()
    assert "only a llama-server can ask them" not in text and "--rpc host:port" in text
