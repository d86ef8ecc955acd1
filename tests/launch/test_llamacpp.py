"""The real llama-server would not start with what was planned.

`autolayers run` with the real llama-server; its GPUs are ggml-rpc-servers, or CUDA devices that
are not there (mock_cuda.py).

Binaries: $AUTOLAYERS_LLAMACPP_BIN, or tests/build_llamacpp.sh builds them (about 15 minutes, once).
"""

from __future__ import annotations

import ast
import functools
import json
import os
import pathlib
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import launch_targets
import pytest
from random_launches import written
from support import FIXTURES, free_port, requested, until

import autolayers
from autolayers.cli import main
from autolayers.detect import detect
from autolayers.devices.cluster_file import asked, read
from autolayers.flags.parse import lookup, parse
from autolayers.flags.policy import read as read_flags
from autolayers.planner.compare.cluster import use_of

sys.path.insert(0, str(FIXTURES))

from recorder import tree

pytestmark = [
    pytest.mark.llamacpp,
    pytest.mark.skipif(sys.platform != "linux", reason="process checks read /proc"),
]
CHAT = FIXTURES / "tiny" / "chat.gguf"
MiB = 1 << 20


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# The end of --verify's own request. A signal while b11549 works on a task may find its main thread
# with the queue's mutex, which its handler then waits for (server_queue::terminate).
MEASURED = "tokens of it: "


class Rpc:
    """A ggml-rpc-server on loopback, with a limit on its address space if one is given."""

    def __init__(self, binaries: pathlib.Path, limit: int | None = None) -> None:
        self.port = free_port()
        lower = (
            None
            if limit is None
            else lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        )
        self.process = subprocess.Popen(
            [binaries / "ggml-rpc-server", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lower,
        )
        until(lambda: answers(self.port))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def rpc(binaries: pathlib.Path) -> Iterator[Rpc]:
    server = Rpc(binaries)
    yield server
    server.end()


class Run:
    """One `autolayers run`; its output in files, so that nothing can block."""

    def __init__(
        self, path: pathlib.Path, words: list[str], environ: dict[str, str] | None = None
    ) -> None:
        self.error = path / "stderr"
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")
        } | (environ or {})
        environ |= {"XDG_STATE_HOME": str(path / "state"), "XDG_CONFIG_HOME": str(path)}
        with open(self.error, "wb") as error:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "autolayers", "run", *words],
                stdout=subprocess.DEVNULL,
                stderr=error,
                env=environ,
            )

    @property
    def log(self) -> str:
        return self.error.read_bytes().decode("utf-8", "replace")

    def ready(self) -> None:
        until(lambda: "model loaded" in self.log or self.process.poll() is not None)
        assert self.process.poll() is None, self.log[-3000:]

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


def children(name: str, port: int) -> list[str]:
    """Running processes of that program that speak of that port."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(name.encode() in word for word in words[:1]) and str(port).encode() in words:
            found.append(path.parent.name)
    return found


# --- a server that people talk to


@pytest.mark.parametrize(
    "flags", [[], ["--verify"], ["--retry", "1"]], ids=["exec", "verify", "retry"]
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_answers_and_ends_cleanly(
    binaries: pathlib.Path, tmp_path: pathlib.Path, flags: list[str], number: int
) -> None:
    port = free_port()
    run = Run(
        tmp_path,
        [*flags, str(binaries / "llama-server"), "-m", str(CHAT), "--port", str(port), "-c", "512"],
    )
    try:
        run.ready()
        body = json.dumps(
            {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
        ).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            body,
            {"Content-Type": "application/json"},
        )
        answer = json.load(urllib.request.urlopen(request, timeout=60))
        assert (
            answer["choices"][0]["message"]["role"] == "assistant"
            and answer["usage"]["completion_tokens"] >= 1
        )
        if "--verify" in flags:
            until(lambda: MEASURED in run.log)
    finally:
        code = run.end(number)
    assert code == 0
    assert children("llama-server", port) == [] and not answers(port)


def test_ctrl_c_ends_the_server_as_if_started_directly(
    binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Ctrl-C on a pseudo-terminal: the whole foreground group gets it, the server ends as if it had
    been started directly."""
    import pty

    port = free_port()
    for flags in ([], ["--verify"]):
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["XDG_STATE_HOME"] = str(tmp_path)
            os.execv(
                sys.executable,
                [
                    sys.executable,
                    "-m",
                    "autolayers",
                    "run",
                    *flags,
                    str(binaries / "llama-server"),
                    "-m",
                    str(CHAT),
                    "--port",
                    str(port),
                    "-c",
                    "512",
                ],
            )
        seen = b""
        while b"listening on" not in seen:
            seen += os.read(terminal, 65536)
        # llama-server forgets an interrupt that comes between this line and its loop
        time.sleep(1)
        os.write(terminal, b"\x03")
        try:
            while select.select([terminal], [], [], 60)[0] and (piece := os.read(terminal, 65536)):
                seen += piece
        except OSError:
            pass
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(status) == 0 and b"second interrupt" not in seen
        assert children("llama-server", port) == []


def test_wait_returns_when_the_server_is_ready(
    binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    port = free_port()
    run = Run(
        tmp_path,
        [
            "--wait",
            str(binaries / "llama-server"),
            "-m",
            str(CHAT),
            "--port",
            str(port),
            "-c",
            "512",
        ],
    )
    assert run.process.wait(90) == 0
    ready = re.search(
        rf"autolayers: ready at http://127.0.0.1:{port}, [\d.]+ tokens/s, process "
        rf"(\d+)",
        run.log,
    )
    assert ready
    os.kill(int(ready[1]), signal.SIGTERM)
    until(lambda: children("llama-server", port) == [])


# --- the numbers

# Complete small models, and headers with the same small number for every weight (zeros would end in
# a NaN, which asserts)
MODELS = [
    "chat",
    "dense",
    "moe",
    "split-00001-of-00003",
    "qwen3-dense",
    "gemma2-dense",
    "gemma3-dense",
    "llama-moe",
    "qwen2-dense",
    "phi3-dense",
    "olmo2-dense",
    "mamba-dense",
    "gpt-oss-moe",
    "qwen2moe-moe",
]
VARIANTS = [
    ["-ngl", "all", "-c", "1024"],
    ["-ngl", "1", "-c", "2048", "-np", "2", "-fa", "off"],
    ["-ngl", "2", "-c", "4096", "-ctk", "QUANTISED", "-ctv", "QUANTISED", "-ub", "128", "-kvu"],
]


def real(name: str, path: pathlib.Path) -> pathlib.Path:
    """A file that llama.cpp loads: a complete one, or a header with bytes that are 0.065 as f16 and
    tiny as f32."""
    tiny = FIXTURES / "tiny" / f"{name}.gguf"
    if tiny.exists():
        return tiny
    sizes = json.loads((FIXTURES / "headers" / "sizes.json").read_text())
    copy = path / f"{name}.gguf"
    header = (FIXTURES / "headers" / f"{name}.gguf").read_bytes()
    copy.write_bytes(header + b"\x2c" * (sizes[name] - len(header)))
    return copy


_LINE = re.compile(r"\w+: +(\S+) +(model|KV|RS|compute) buffer size = +([\d.]+) MiB")


def remote(*names: str) -> list[autolayers.Device]:
    return [
        replace(autolayers.Device.hypothetical("64GiB", name=name), backend="RPC-CPU", kind="rpc")
        for name in names
    ]


@functools.cache
def its_build(binaries: pathlib.Path) -> tuple[str, str]:
    """The words that plan for the llama.cpp of these programs."""
    return "--llama-build", f"b{detect([str(binaries / 'llama-server')], os.environ).rules.number}"


def check(
    run: Run, file: pathlib.Path, flags: list[str], gpus: list[autolayers.Device], spare: float = 0
) -> None:
    """The log, read here without the package's own reader, against the plan of the same flags."""
    names = {
        endpoint: name
        for name, endpoint in re.findall(
            r"using device (\S+) "
            r"\((\S+)\)",
            run.log,
        )
    }
    seen: dict[tuple[str, str], list[float]] = {}
    for where, part, size in _LINE.findall(run.log):
        device = (
            names[where.partition("[")[2].rstrip("]")] if where.startswith("RPC") else where
        )  # each server counts from RPC0
        device = device if device in {gpu.name for gpu in gpus} else "Host"
        seen.setdefault((device, {"KV": "context", "RS": "context"}.get(part, part)), []).append(
            float(size)
        )
    plan = autolayers.plan(autolayers.read_model(str(file)), flags, devices=gpus)
    peak = plan.breakdown.runtime_peak or {}
    grown = False
    offloaded = re.search(r"offloaded (\d+)/(\d+) layers", run.log)
    assert offloaded and int(offloaded[1]) == min(plan.n_gpu_layers, int(offloaded[2]))
    for device, usage in [*plan.breakdown.devices.items(), ("Host", plan.breakdown.host)]:
        for part in ("model", "context", "compute"):
            sizes = seen.get((device, part), [])
            # each line is rounded to 0.01 MiB on its own
            above, rounding = getattr(usage, part) / MiB - sum(sizes), 0.00501 * max(1, len(sizes))
            if part == "compute" and abs(above) > rounding:
                # pipelined, a launch takes less than llama.cpp measures; in use it may grow
                grown = True
                assert (
                    0 < above <= spare + rounding
                    or abs(above + peak.get(device, 0) / MiB) <= rounding
                ), (
                    device,
                    sizes,
                    usage,
                    peak,
                )
            else:
                assert abs(above) <= rounding, (device, part, sizes, usage)
    if grown:
        return
    start = run.log.index("autolayers: prediction")
    table = run.log[start:].splitlines()[2 : 2 + 3 * (len(gpus) + 1)]
    assert len(table) == 3 * (len(gpus) + 1) and all(line.endswith("equal") for line in table), (
        table
    )
    assert plan.breakdown.exact


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("name", MODELS)
def test_buffers_are_the_predicted_ones(
    binaries: pathlib.Path, rpc: Rpc, tmp_path: pathlib.Path, name: str, variant: int
) -> None:
    file = real(name, tmp_path)
    cache = "bf16" if file.parent.name == "tiny" else "q8_0"  # tiny heads are smaller than a block
    flags = [
        *(word.replace("QUANTISED", cache) for word in VARIANTS[variant]),
        "--rpc",
        f"127.0.0.1:{rpc.port}",
        "-lm",
        "none",
        "-nr",
        "--no-warmup",
    ]
    launch_and_check(binaries, file, flags, remote("RPC0"), tmp_path)


def launch_and_check(
    binaries: pathlib.Path,
    file: pathlib.Path,
    flags: list[str],
    gpus: list[autolayers.Device],
    path: pathlib.Path,
    spare: float = 0,
    environ: dict[str, str] | None = None,
) -> None:
    there = (
        ["--gpu", ",".join(str(gpu.total) for gpu in gpus)] if environ else []
    )  # NVML does not know devices that are not there
    run = Run(
        path,
        [
            "--verify",
            *there,
            str(binaries / "llama-server"),
            "-m",
            str(file),
            "--port",
            str(free_port()),
            *flags,
        ],
        environ,
    )
    try:
        run.ready()
        until(lambda: "autolayers: prediction" in run.log)
    finally:
        run.end()  # the code is not tested here: see MEASURED
    check(run, file, [*flags, *its_build(binaries)], gpus, spare)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chat", "-ngl all -ts 1,2"),
        ("chat", "-ngl 2 -np 2 -ub 128"),
        # with all layers its rows would be cut, and llama.cpp ends as it decodes
        ("qwen3-dense", "-ngl 2 -np 2 -ub 128"),
        ("llama-moe", "-ngl all -ts 1,2"),
        ("llama-moe", "-ngl 2 -np 2 -ub 128"),
    ],
)
def test_two_devices_as_one_log_what_is_predicted(
    binaries: pathlib.Path, tmp_path: pathlib.Path, name: str, words: str
) -> None:
    """-sm tensor: the log has the most that a device has of each part."""
    servers = [Rpc(binaries), Rpc(binaries)]
    try:
        endpoints = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        flags = [
            "-sm",
            "tensor",
            "-c",
            "1024",
            *words.split(),
            "--rpc",
            endpoints,
            "-nr",
            "--no-warmup",
        ]
        server, model, port = (
            str(binaries / "llama-server"),
            str(real(name, tmp_path)),
            str(free_port()),
        )
        run = Run(tmp_path, ["--verify", server, "-m", model, "--port", port, *flags])
        try:
            run.ready()
            until(lambda: "autolayers: prediction" in run.log and "output buffer" in run.log)
        finally:
            assert run.end() == 0
        rows = re.findall(r"^Meta\(\) (\w+) +[\d.]+ MiB +[\d.]+ MiB +(\w+)$", run.log, re.MULTILINE)
        assert rows == [("model", "equal"), ("context", "equal"), ("compute", "equal")]
    finally:
        for each in servers:
            each.end()


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("name", ["chat", "qwen3-dense", "gemma3-dense"])
def test_two_devices_are_filled_as_predicted(
    binaries: pathlib.Path, tmp_path: pathlib.Path, name: str, pipeline: bool
) -> None:
    servers = [Rpc(binaries), Rpc(binaries)]
    try:
        endpoints = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        flags = [
            "-ngl",
            "all",
            "-c",
            "1024",
            "-ts",
            "1,2",
            "--rpc",
            endpoints,
            "-lm",
            "none",
            "-nr",
            "--no-warmup",
        ]
        if not pipeline:
            flags += ["-ot", "no_such_tensor=CPU"]  # any override ends pipeline parallelism
        # With it the launch takes less than llama.cpp's own measuring says, which the prediction
        # equals: four hidden states
        launch_and_check(
            binaries,
            real(name, tmp_path),
            flags,
            remote("RPC0", "RPC1"),
            tmp_path,
            2 if pipeline else 0,
        )
    finally:
        for server in servers:
            server.end()


def test_a_cluster_of_four_servers_comes_up_and_so_do_its_survivors(
    binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Four servers that get so much memory and no more: the plan comes up and takes what was
    predicted, a server that dies is named, and the plan for the other three comes up too."""
    # MiB; a server also needs memory for itself and for the tensor that it receives
    sizes = [850, 550, 450, 350]
    servers = [Rpc(binaries, (size + 420) * MiB) for size in sizes]
    file = real("llama-3.2-1b-q8_0", tmp_path)
    model = autolayers.read_model(str(file))
    boxes = {
        f"box{i}": {
            "devices": [{"name": "CPU0", "backend": "CPU", "total": 1 << 45}],
            "address": "127.0.0.1",
            "port": server.port,
        }
        for i, server in enumerate(servers)
    }
    links = [
        {"between": ["head", name], "bandwidth": "1Gbit/s", "latency": "0.1ms"} for name in boxes
    ]
    head = {"devices": [], "host": {"total": 1 << 36}}
    (tmp_path / "home.json").write_text(
        json.dumps({"head": "head", "boxes": {"head": head, **boxes}, "links": links})
    )
    given = [
        "-ngl",
        "all",
        "-c",
        "2048",
        "-lm",
        "none",
        "-nr",
        "--no-warmup",
        "-ot",
        "no_such_tensor=CPU",
    ]
    try:
        for lost in ([], [1]):
            for i in lost:
                servers[i].end()
            found, notes = asked(read(str(tmp_path / "home.json")))
            assert [note.partition(":")[0] for note in notes] == [f"box box{i}" for i in lost]
            left = [size for i, size in enumerate(sizes) if i not in lost]
            budget = ",".join(f"RPC{i}={size}MiB" for i, size in enumerate(left))
            params, policy = read_flags(
                [*given, *its_build(binaries), "-fitt", "0", "--budget", budget], None
            )
            plan = use_of(model, requested(params, policy), found, found.boxes).plan
            assert (
                plan.fits
                and sum(row.used > 0 for row in plan.devices) >= 3
                and plan.breakdown.exact
            )
            assert plan.params.rpc == tuple(
                endpoint for box in found.boxes for endpoint in box.endpoints
            )
            gpus = remote(*(f"RPC{i}" for i in range(len(left))))
            launch_and_check(binaries, file, list(plan.flags), gpus, tmp_path)
            wrong = Run(
                tmp_path,
                [
                    str(binaries / "llama-server"),
                    "-m",
                    str(file),
                    "--port",
                    str(free_port()),
                    *given,
                    "--rpc",
                    ",".join(plan.params.rpc),
                    "-ts",
                    ",".join("0" * len(left[1:])) + ",1",
                ],
            )
            until(lambda wrong=wrong: wrong.process.poll() is not None)  # type: ignore[misc]
            assert wrong.process.wait() != 0  # everything on the smallest
    finally:
        for server in servers:
            server.end()


def test_a_device_of_this_machine_may_come_before_one_of_a_server(
    mock_cuda: Callable[..., dict[str, str]],
    binaries: pathlib.Path,
    rpc: Rpc,
    tmp_path: pathlib.Path,
) -> None:
    gpu = autolayers.Device.hypothetical("16GiB")
    flags = [
        "-ngl",
        "all",
        "-c",
        "1024",
        "-ts",
        "1,2",
        "--rpc",
        f"127.0.0.1:{rpc.port}",
        "-dev",
        "CUDA0,RPC0",
        "-lm",
        "none",
        "-nr",
        "--no-warmup",
        "-ot",
        "no_such_tensor=CPU",
    ]
    file = real("qwen3-dense", tmp_path)
    spare = 512 * autolayers.read_model(file).hparams.n_embd * 4 / MiB
    launch_and_check(binaries, file, flags, [*remote("RPC0"), gpu], tmp_path, spare, mock_cuda(gpu))


def test_models_that_are_loaded_together_with_one_server(
    binaries: pathlib.Path, rpc: Rpc, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both commands come up: a llama-server that names the other's server waits for it."""
    names = [str(FIXTURES / "tiny" / f"{name}.gguf") for name in ("chat", "dense")]
    endpoint = f"127.0.0.1:{rpc.port}"
    words = ["--rpc", endpoint, "-c", "256", "-ngl", "99"]  # the processor is faster alone
    assert main(["plan", *names, *words, "--format", "flags"]) == 0
    commands = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [endpoint in words for words in commands].count(True) == 1
    ports = [free_port() for _ in commands]
    servers = [
        subprocess.Popen(
            [binaries / "llama-server", *words, "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for words, port in zip(commands, ports, strict=True)
    ]
    try:
        for port in ports:
            until(lambda port=port: healthy(port))  # type: ignore[misc]
    finally:
        for server in servers:
            server.kill()
            server.wait()


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


CUDA = [
    (["16GiB"], ["-ngl", "all", "-c", "4096"]),
    (["16GiB"], ["-ngl", "1", "-c", "2048", "-np", "2", "-fa", "off"]),
    (["16GiB"], ["-ngl", "2", "-c", "4096", "-nkvo", "-fa", "on", "-ub", "256"]),
    (["8GiB", "16GiB"], ["-ngl", "all", "-c", "2048", "-ot", "ffn_down=CPU"]),
    (
        ["8GiB", "8GiB", "8GiB"],
        ["-ngl", "all", "-c", "2048", "-np", "1", "-ot", "no_such_tensor=CPU"],
    ),
    (["8GiB", "16GiB"], ["-ngl", "all", "-c", "2048"]),  # pipelined
]


@pytest.mark.parametrize("variant", range(len(CUDA)))
@pytest.mark.parametrize(
    "name",
    [
        "chat",
        "qwen3-dense",
        "gemma3-dense",
        "llama-moe",
        "gpt-oss-moe",
        "qwen2moe-moe",
        "mamba-dense",
        "llama-3.2-1b-q8_0",
    ],
)
def test_cuda_buffers_are_the_predicted_ones(
    mock_cuda: Callable[..., dict[str, str]],
    binaries: pathlib.Path,
    tmp_path: pathlib.Path,
    name: str,
    variant: int,
) -> None:
    sizes, flags = CUDA[variant]
    gpus = [autolayers.Device.hypothetical(size, f"CUDA{i}") for i, size in enumerate(sizes)]
    file = real(name, tmp_path)
    # between devices a launch may need a hidden state less than llama.cpp's own measuring says;
    # pipelined, four
    copies = 0 if len(gpus) == 1 else 1 if "-ot" in flags else 4
    spare = copies * 512 * autolayers.read_model(file).hparams.n_embd * 4 / MiB
    launch_and_check(
        binaries,
        file,
        [*flags, "-lm", "none", "-nr", "--no-warmup"],
        gpus,
        tmp_path,
        spare,
        mock_cuda(*gpus),
    )


# --- running out of memory


def test_a_launch_that_cannot_get_its_memory_comes_up_smaller(
    binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    # 3 layers of 64 MiB of cache each; the server may map 400 MiB more than it needs for itself
    port, limited = free_port(), Rpc(binaries, limit=700 * MiB)
    try:
        words = [
            str(binaries / "llama-server"),
            "-m",
            str(CHAT),
            "--port",
            str(port),
            "-c",
            "2097152",
            "-np",
            "1",
            "-ub",
            "32",
            "--no-warmup",
            "--rpc",
            f"127.0.0.1:{limited.port}",
            "-lm",
            "none",
        ]
        run = Run(tmp_path, ["--retry", "5", *words])
        try:
            run.ready()
            log = run.log
        finally:
            assert run.end() == 0
    finally:
        limited.end()
    assert "autolayers: out of memory on RPC0 while loading" in log and "attempt 2 of 6" in log
    last = log[log.rindex("autolayers: attempt") :].splitlines()[0]
    before = re.search(r"-ngl (\d+)", last)
    assert before and 0 <= int(before[1]) < 4
    assert children("llama-server", port) == []


# --- the table of arguments


def test_every_argument_of_this_build_is_in_the_table(binaries: pathlib.Path) -> None:
    build = detect([str(binaries / "llama-server")], os.environ)
    assert build.flags is not None and build.flash_takes_word and build.buffers_need_trace
    assert {name for name in build.flags if lookup(name) is None} == set()
    assert (
        not build.knows("--no-mmap")
        and build.knows("-ncffn")
        and parse(["-c", "1"]).params.n_ctx == 1
    )


def test_presets_are_read_back_by_the_router(
    binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Random launches as sections of one file: llama-server renders each as the words that it would
    start it with."""
    found = {seed: launch for seed in range(60) if (launch := written("preset", seed))}
    lines = ["version = 1"]
    for seed, (_, text, _, _) in found.items():
        entries = [
            line
            for line in text.splitlines()
            if " = " in line and not line.startswith(("version", "alias"))
        ]
        # a flag of a newer llama.cpp is written too, and refused by this one
        lines += [f"[case-{seed}]", *(line for line in entries if not line.startswith("md-is-new"))]
    (tmp_path / "presets.ini").write_text("\n".join(lines) + "\n")
    port = free_port()
    router = subprocess.Popen(
        [
            binaries / "llama-server",
            "--models-preset",
            tmp_path / "presets.ini",
            "--port",
            str(port),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: answers(port) or router.poll() is not None)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/models", timeout=30) as answer:
            models = {
                model["id"]: model["status"]["args"][1:] for model in json.load(answer)["data"]
            }
    finally:
        router.terminate()
        router.wait()
    for seed, (plan, _, _, command) in found.items():
        wanted = replace(parse(plan.flags, command=None).params, model=command.words[1])
        assert parse(models[f"case-{seed}"], command=None).params == wanted, seed


def test_a_router_s_directory_is_planned_and_each_model_once(
    binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The preset's sections and the router's own models are the same ones, so that none is listed
    twice."""
    (tmp_path / "models" / "inside").mkdir(parents=True)
    for name in ("chat.gguf", "inside/other.gguf"):
        shutil.copy(CHAT, tmp_path / "models" / name)
    port = free_port()
    router = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "autolayers",
            "run",
            binaries / "llama-server",
            "--models-dir",
            tmp_path / "models",
            "--port",
            str(port),
            "-c",
            "1024",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    try:
        until(lambda: answers(port) or router.poll() is not None)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/models", timeout=30) as answer:
            models = [
                (model["id"], model["status"]["args"][1:]) for model in json.load(answer)["data"]
            ]
        body = json.dumps({"model": "inside", "prompt": "a", "n_predict": 1}).encode()
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/completion", body, timeout=60
        ) as answer:
            assert json.load(answer)["tokens_predicted"] == 1
    finally:
        router.terminate()
        router.wait()
    for name, path in (("chat", "chat.gguf"), ("inside", "inside/other.gguf")):
        (words,) = [words for model, words in models if model == name]
        params = parse(words, command=None).params
        assert params.model == str(tmp_path / "models" / path)
        assert (params.n_gpu_layers, params.n_ctx) == (0, 1024)


def test_the_router_keeps_as_many_models_of_a_library_as_fit(
    binaries: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a directory's preset any --models-max models are loaded at once, and no more."""
    for name in "abcd":
        shutil.copy(FIXTURES / "tiny" / "dense.gguf", tmp_path / f"{name}.gguf")
    assert (
        main(
            [
                "plan",
                str(tmp_path),
                "--gpu",
                "1400MiB",
                "--ram",
                "8GiB",
                "-c",
                "512",
                "--format",
                "preset",
            ]
        )
        == 0
    )
    text = capfd.readouterr().out
    (tmp_path / "presets.ini").write_text(text)
    most = int(re.findall(r"--models-max (\d+)", text)[0])
    assert most == 2
    port = free_port()
    router = subprocess.Popen(
        [
            binaries / "llama-server",
            "--models-preset",
            tmp_path / "presets.ini",
            "--models-max",
            str(most),
            "--port",
            str(port),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ask(path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return cast("dict[str, Any]", json.load(answer))

    def loaded() -> list[str]:
        return [
            model["id"] for model in ask("/models")["data"] if model["status"]["value"] == "loaded"
        ]

    try:
        until(lambda: answers(port) or router.poll() is not None)
        for name in "abc":
            ask("/models/load", {"model": name})
            until(lambda name=name: name in loaded())  # type: ignore[misc]
            assert len(loaded()) <= most
        assert len(loaded()) == most
    finally:
        router.terminate()
        router.wait()


def of_llama_cpp_python(version: int, name: str) -> str:
    """A file of the package's sources of 0.3.`version`, from PyPI."""
    url = tree.files("llama-cpp-python", rf"llama_cpp_python-0\.3\.({version})\.tar\.gz")[version]
    with (
        urllib.request.urlopen(url, timeout=60) as answer,
        tarfile.open(fileobj=answer, mode="r|gz") as archive,
    ):
        for member in archive:
            if member.name.partition("/")[2] == name and (file := archive.extractfile(member)):
                return file.read().decode()
    raise FileNotFoundError(name)


def test_what_is_known_of_llama_cpp_python_is_its_own_signature() -> None:
    """The names and defaults of Llama.__init__ of the version that docs/launch-files.md names."""
    source = of_llama_cpp_python(36, "llama_cpp/llama.py")
    (found,) = [
        part
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "Llama"
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name == "__init__"
    ]
    names = [argument.arg for argument in found.args.kwonlyargs]
    assert ["model_path", *names] == list(launch_targets.LLAMA)
    for name, default in zip(names, found.args.kw_defaults, strict=True):
        try:
            assert launch_targets.LLAMA[name] == ast.literal_eval(default)  # type: ignore[arg-type]
        except ValueError:  # a constant of llama.cpp
            continue
