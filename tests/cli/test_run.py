"""`autolayers run` would lose signals, exit codes or output of the program that it starts.

`autolayers run` with a llama-server that replays logs: real processes, real signals, real exit
codes.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_rpc import FakeRpc
from forked import HANGS, forked
from support import HEADERS, TESTS, few, few_rows, free_port, seldom, slow, until
from support import command as here

from autolayers.cli import main as command
from autolayers.cli.run import main
from autolayers.errors import AutolayersError, UsageError
from autolayers.memory.breakdown import Breakdown, Usage
from autolayers.memory.ram import Ram
from autolayers.planner.plan import NO_REASONS, HostRow, Reasons
from autolayers.quoting import systemd
from autolayers.records import dataclass
from autolayers.request import Request

HEADER = TESTS.parent / "fixtures" / "tiny" / "chat.gguf"
MiB = 1 << 20
LAYER = 100  # MiB, of the planner below

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and exec")


@dataclass
class Plan:
    flags: tuple[str, ...]
    fits: bool
    breakdown: Breakdown
    noted: tuple[str, ...] = ()
    devices: tuple[()] = ()
    host: HostRow = HostRow(0, 0, 0)
    ram: Ram = Ram(100 * MiB, 200 * MiB, 0)
    remedies: tuple[()] = ()
    paid: str = ""
    idle: tuple[()] = ()
    faster: None = None
    smaller: None = None
    why: Reasons = NO_REASONS

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.noted


def planner(model: Any, request: Request, advise: bool = False) -> Plan:
    """A planner with a rule that everybody can check: each of 10 layers takes 100 MiB, and as many
    as fit are offloaded."""
    given, devices, host = request.params.n_gpu_layers, request.machine.devices, request.host
    free = devices[0].free // MiB if devices else 0
    n = given if given is not None else min(10, free // LAYER)
    more = {device.name: Usage(0, 0, 8 * MiB) for device in devices[1:]}
    gpus = {"CUDA0": Usage(n * LAYER * MiB, 0, 0), **more}
    ram = (10 - n) * LAYER * MiB
    use = Breakdown(gpus, Usage(ram, 0, 0), 512, 512, 512, 512, 1, True, True, True)
    fits = n * LAYER <= free and (host is None or host.available >= ram)
    return Plan(("-ngl", str(n), "-c", "512"), fits, use)


def started(words: list[str]) -> int:
    try:
        return main(words, planner)
    except AutolayersError as error:
        print(error, file=sys.stderr)
        return error.exit_code


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> Iterator[Fake]:
    made = Fake(tmp_path)
    yield made
    made.end()


class Fake:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.server = path / "llama-server"
        # The shell answers what is asked often: Python starts slowly
        self.server.write_text(
            '#!/bin/sh\nhere=$(dirname "$0")\ncase " $* " in *" --version "*) exec cat '
            '"$here/version";; '
            '*" --list-devices "*) exec echo "Available devices:";; '
            f'*" --help "*) exec cat "$here/help";; esac\nexec {shlex.quote(sys.executable)} -S -E '
            f'"$here/server.py" "$@"\n'
        )
        self.server.chmod(0o755)
        (path / "server.py").write_text((TESTS / "fake_llama_server.py").read_text())
        self.started: list[subprocess.Popen[bytes]] = []
        self.scenario()

    def scenario(
        self,
        *attempts: dict[str, object],
        version: str = "version: 10900 (abcdef12)",
        help: str = "",
    ) -> None:
        (self.path / "scenario.json").write_text(json.dumps({"attempts": attempts or [{}]}))
        (self.path / "version").write_text(version)
        (self.path / "help").write_text(help)

    def words(self, line: str) -> list[str]:
        return [
            word.replace("llama-server", str(self.server))
            if word == "llama-server"
            else word.replace("MODEL", str(HEADER))
            for word in shlex.split(line)
        ]

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
        return {
            **kept,
            "XDG_STATE_HOME": str(self.path / "state"),
            "XDG_CONFIG_HOME": str(self.path / "config"),
            **more,
        }

    def child(self, words: list[str], **environ: str) -> dict[str, Any]:
        return forked(lambda: started(words), self.environ(**environ))

    def run(self, line: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
        words = self.words(line)
        # a process that stays what it is may be this one
        if not {"--verify", "--retry", "--dry-run", "--wait"}.isdisjoint(words):
            return here(*words, environ=self.environ(**environ), run=started)
        child = self.child(words, **environ)
        return subprocess.run(**child, capture_output=True, timeout=HANGS, check=False)

    def start(self, line: str, **environ: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            **self.child(self.words(line), **environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(child)
        return child

    def end(self) -> None:
        for child in self.started:
            if child.poll() is None:
                child.kill()
            child.communicate()
        for call in self.calls():
            if running(call["pid"]):
                os.kill(call["pid"], signal.SIGKILL)

    def calls(self) -> list[dict[str, object]]:
        try:
            return [
                json.loads(line) for line in (self.path / "calls.jsonl").read_text().splitlines()
            ]
        except FileNotFoundError:
            return []

    def plans(self) -> pathlib.Path:
        return self.path / "state" / "autolayers" / "plans" / "kept.json"

    def launched(self, count: int = 1) -> int:
        """Waits for a launch; its process id."""
        until(lambda: len(self.calls()) >= count)
        return self.calls()[count - 1]["pid"]


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return os.path.isdir("/proc/1") is False


OOM = """\
load_tensors: offloaded {n}/11 layers to GPU
load_tensors:        CUDA0 model buffer size =   100.00 MiB
ggml_backend_cuda_buffer_type_alloc_buffer: \
allocating {mib}.00 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size {size}
llama_model_load: error loading model: unable to allocate CUDA0 buffer
srv    load_model: failed to load model
"""
FINE = (
    "load_tensors:  CPU model buffer size = {host}.00 MiB\n"
    "load_tensors:  CUDA0 model buffer size = {gpu} MiB\nsrv  llama_server: model loaded\n"
)


def oom(mib: int, n: int = 10) -> str:
    return OOM.format(mib=mib, size=mib * MiB, n=n)


# --- the plan of an unchanged launch


@pytest.mark.slow
def test_an_unchanged_launch_keeps_its_plan(fake: Fake) -> None:
    """The kept plan is changed to one that a search never chooses: only what keeps it starts with
    it."""
    fake.run("--gpu 650MiB llama-server -m MODEL")
    change_kept(fake, ["-ngl", "2", "-c", "512"])
    for line, layers in (
        ("--gpu 650MiB llama-server -m MODEL", 2),
        ("--gpu 300MiB llama-server -m MODEL", 3),  # another machine
        ("--gpu 650MiB llama-server -m MODEL -ub 256", 6),  # other flags
        ("--gpu 650MiB --workload agent llama-server -m MODEL", 6),
        # does not touch memory
        ("--gpu 650MiB llama-server -m MODEL --port 8080", 2),
        ("--gpu 650MiB --replan llama-server -m MODEL", 6),
        # the plan that replaced it
        ("--gpu 650MiB llama-server -m MODEL", 6),
    ):
        fake.run(line)
        words = fake.calls()[-1]["words"]
        assert words[words.index("-ngl") + 1] == str(layers), line


@pytest.mark.parametrize(
    ("free", "layers"),
    [
        slow(650, 2),
        (200, 2),
        slow(199, 1),  # as much as it needs, and less
        slow(906, 2),
        slow(907, 9),  # so much more that another layer may fit
    ],
)
def test_the_free_memory_is_checked_again(
    fake: Fake, tmp_path: pathlib.Path, free: int, layers: int
) -> None:
    def with_free(size: int) -> str:
        (tmp_path / "machine.json").write_text(
            json.dumps(
                {
                    "devices": [{"name": "CUDA0", "total": 2048 * MiB, "free": size * MiB}],
                    "host": {"total": 8 << 30},
                }
            )
        )
        return f"--machine {tmp_path}/machine.json llama-server -m MODEL"

    fake.run(with_free(650))
    change_kept(fake, ["-ngl", "2", "-c", "512"])
    fake.run(with_free(free))
    words = fake.calls()[-1]["words"]
    assert words[words.index("-ngl") + 1] == str(layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["[", "[{}]", "[3]", "{}", '[{"model": "", "question": "", "free": [], "flags": []}]']
)
def test_a_damaged_store_of_plans_is_planned_anew(fake: Fake, text: str) -> None:
    fake.run("--gpu 650MiB llama-server -m MODEL")
    fake.plans().write_text(text)
    done = fake.run("--gpu 650MiB llama-server -m MODEL")
    assert b"Traceback" not in done.stderr and fake.calls()[1]["words"] == fake.calls()[0]["words"]
    assert len(json.loads(fake.plans().read_text())) == 1


def test_a_state_directory_that_cannot_be_written_starts_all_the_same(fake: Fake) -> None:
    (fake.path / "state").write_text("a file")
    assert fake.run("--gpu 650MiB llama-server -m MODEL").returncode == 0
    assert len(fake.calls()) == 1


def change_kept(fake: Fake, flags: list[str]) -> None:
    (kept,) = json.loads(fake.plans().read_text())
    fake.plans().write_text(json.dumps([{**kept, "flags": flags}]))


# --- without supervision


def test_dry_run_prints_the_exact_command_and_starts_nothing(fake: Fake) -> None:
    done = fake.run("--gpu 650MiB --dry-run llama-server -m MODEL --port 80 -a 'a b'")
    assert shlex.split(done.stdout.decode()) == fake.words(
        "llama-server -m MODEL --port 80 -a 'a b' -ngl 6 -c 512"
    )
    assert fake.calls() == [] and done.returncode == 0


@pytest.mark.slow
def test_a_launch_that_does_not_fit_says_what_would(tmp_path: pathlib.Path) -> None:
    (tmp_path / "llama-server").write_text("#!/bin/sh\n")
    (tmp_path / "llama-server").chmod(0o755)

    def dry_run(*more: str) -> subprocess.CompletedProcess[str]:
        words = [
            "run",
            "--dry-run",
            "--gpu",
            "1GiB",
            "--llama-build",
            "11434",
            "llama-server",
            "-m",
            str(HEADERS / "llama-3.2-1b-q8_0.gguf"),
            "-ngl",
            "99",
            "-c",
            "131072",
            "-v",
            *more,
        ]
        return subprocess.run(
            [sys.executable, "-m", "autolayers", *words],
            capture_output=True,
            text=True,
            timeout=HANGS,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        )

    done = dry_run()
    assert done.returncode == 5 and shlex.split(done.stdout)[-3:] == ["-c", "131072", "-v"]
    lines = done.stderr.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("autolayers: does not fit: "))
    assert (
        dry_run(*shlex.split(lines[at + 1].removeprefix("autolayers: it fits with "))).returncode
        == 0
    )


def test_a_backend_is_for_a_file_and_not_for_a_program_that_has_its_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    line = ["run", "--gpu", "rx-7900-xtx", "--backend", "vulkan", "--format", "docker"]
    server = ["llama-server", "-m", str(HEADERS / "llama-3.2-1b-q8_0.gguf"), "-c", "4096"]
    assert command([*line, *server]) == 0
    assert "llama.cpp:server-vulkan " in capfd.readouterr().out
    assert command([*line[:5], *server]) == 2
    assert "the program that is started has its own" in capfd.readouterr().err


def test_a_secret_is_not_printed(fake: Fake) -> None:
    done = fake.run("--gpu 650MiB --dry-run llama-server -m MODEL --api-key hush")
    assert b"hush" not in done.stdout + done.stderr and b"LLAMA_API_KEY" in done.stderr
    assert shlex.split(done.stdout.decode()) == fake.words("llama-server -m MODEL -ngl 6 -c 512")


def test_the_process_becomes_the_server(fake: Fake) -> None:
    fake.scenario({"stdout": "hello\n", "log": "no end", "code": 7})
    child = fake.start("--gpu 650MiB llama-server -m MODEL -c 64")
    out, err = child.communicate(timeout=HANGS)
    assert (child.returncode, out) == (7, b"hello\n") and err.endswith(b"no end")
    (call,) = fake.calls()
    assert (
        call["words"] == ["-m", str(HEADER), "-c", "64", "-ngl", "6"] and call["pid"] == child.pid
    )


def test_a_closed_pipe_ends_what_the_process_becomes(fake: Fake) -> None:
    """As `autolayers run llama-cli ... | head` should: Python ignores SIGPIPE, and what is ignored
    stays so."""
    fake.server.write_text(
        '#!/bin/sh\ncase " $* " in *" --"*) exit 0;; esac\nkill -s PIPE $$\nexit 7\n'
    )
    assert fake.run("--gpu 650MiB llama-server -m MODEL -c 64").returncode == -signal.SIGPIPE


def test_a_signal_goes_to_the_server_directly(fake: Fake) -> None:
    fake.scenario({"serve": True})
    child = fake.start("--gpu 650MiB llama-server -m MODEL")
    fake.launched()
    child.terminate()
    _, err = child.communicate(timeout=HANGS)
    assert b"signals: [15]" in err and child.returncode == 0


@pytest.mark.parametrize("flags", ["", "--verify", slow("--retry 1")])
def test_programs_that_cannot_be_started(fake: Fake, flags: str) -> None:
    (fake.path / "text").write_text("no program")
    missing = fake.run(f"--gpu 1GiB {flags} ./llama-nothing -m MODEL")
    assert (missing.returncode, missing.stderr) == (
        127,
        b"autolayers: ./llama-nothing: not found\n",
    )
    plain = fake.run(f"--gpu 1GiB {flags} {fake.path}/text -m MODEL")
    assert (plain.returncode, plain.stderr) == (
        126,
        f"autolayers: {fake.path}/text: cannot be executed\n".encode(),
    )


def test_an_old_build_is_not_given_what_it_does_not_know(fake: Fake) -> None:
    fake.scenario(
        {}, version="version: 5000 (abc)", help="-ngl,  --gpu-layers N   layers\n-m,    --model F\n"
    )
    done = fake.run("--gpu 650MiB llama-server -m MODEL")
    assert fake.calls()[0]["words"] == ["-m", str(HEADER), "-ngl", "6"]
    assert b"this llama.cpp does not know -c: left out" in done.stderr


@pytest.mark.slow
def test_a_flag_that_only_this_llama_cpp_knows_passes(fake: Fake) -> None:
    fake.scenario(
        {},
        help="-ngl,  --gpu-layers N   layers\n-c, --ctx-size N  context\n--brand-new "
        "N   something\n",
    )
    done = fake.run("--gpu 650MiB llama-server -m MODEL --brand-new 7")
    assert fake.calls()[0]["words"][2:4] == ["--brand-new", "7"]
    assert b"--brand-new is newer than autolayers: passed on, not part of the plan" in done.stderr
    fake.scenario({})
    refused = fake.run("--gpu 650MiB llama-server -m MODEL --brand-new 7")
    assert (
        refused.returncode == 2
        and refused.stderr.startswith(b"--brand-new is no flag of llama-server")
        and len(fake.calls()) == 1
    )
    assert (
        fake.run("--gpu 650MiB --strict-flags off llama-server -m MODEL --brand-new 7").returncode
        == 0
    )


@pytest.mark.slow
def test_a_flag_that_the_build_lacks_is_refused_unless_its_help_has_it(fake: Fake) -> None:
    line = "--gpu 650MiB llama-server -m MODEL --kv-unified-per-slot 4096"
    fake.scenario({}, version="version: 9100 (abc)")
    refused = fake.run(line)
    assert (refused.returncode, fake.calls()) == (2, [])
    assert refused.stderr.startswith(b"b9100 has no --kv-unified-per-slot, which came with b10662")
    assert fake.run(f"--strict-flags off {line}").returncode == 0
    fake.scenario(
        {}, version="version: 9100 (abc)", help="-ngl N   layers\n--kv-unified-per-slot N   cells\n"
    )
    assert fake.run(line).returncode == 0
    assert fake.calls()[-1]["words"][2:4] == ["--kv-unified-per-slot", "4096"]


def test_rpc_servers_that_are_busy_or_dead_are_named_and_nothing_starts(fake: Fake) -> None:
    with FakeRpc([(128, 1 << 30, 1 << 30)]) as server:
        free = fake.run(f"--gpu 650MiB llama-server -m MODEL --rpc {server.endpoint}")
        assert free.returncode == 0 and len(fake.calls()) == 1
        host, _, port = server.endpoint.partition(":")
        with socket.create_connection((host, int(port))):  # one client at a time
            busy = fake.run(f"--gpu 650MiB llama-server -m MODEL --rpc {server.endpoint}")
    dead = fake.run(f"--gpu 650MiB llama-server -m MODEL --rpc {server.endpoint}")
    assert busy.returncode == dead.returncode == 4 and len(fake.calls()) == 1
    assert (
        f"{server.endpoint}: not a usable RPC server (it did not answer within 3 s: "
        f"perhaps".encode()
        in busy.stderr
    )
    assert (
        f"{server.endpoint}: not a usable RPC server (Connection refused): end what".encode()
        in dead.stderr
    )
    assert (
        fake.run(f"--gpu 650MiB --dry-run llama-server -m MODEL --rpc {server.endpoint}").returncode
        == 0
    )


def test_a_flag_with_an_equals_sign_reaches_the_server_as_two_words(fake: Fake) -> None:
    given = "--n-gpu-layers=2 --ctx_size=1k --port=80 --alias=a=b -m MODEL"
    done = fake.run(f"--gpu 1010MiB --dry-run llama-server {given}")
    words = "--n-gpu-layers 2 --ctx-size 1024 --port 80 --alias a=b -m"
    assert f"llama-server {words}".encode() in done.stdout, done.stderr


def test_a_context_of_16k_reaches_the_server_as_a_number(fake: Fake) -> None:
    fake.run("--gpu 650MiB llama-server -m MODEL -c 16k")
    assert fake.calls()[0]["words"][:4] == ["-m", str(HEADER), "-c", "16384"]


def test_the_environment_reaches_the_server_and_the_plan(fake: Fake) -> None:
    fake.run("--gpu 650MiB llama-server -m MODEL", LLAMA_ARG_N_GPU_LAYERS="3")
    assert fake.calls()[0]["words"][-4:] == ["-ngl", "3", "-c", "512"]
    assert fake.calls()[0]["environ"] == {"LLAMA_ARG_N_GPU_LAYERS": "3"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--gpu 1GiB true", "no model in the command: add -m MODEL after true"),
        (
            "--gpu 1GiB --retry many true -m MODEL",
            "--retry 'many': expected a number of attempts, 0 to 100",
        ),
        ("--gpu 1GiB --format yaml true -m MODEL", "--format 'yaml': expected one of"),
        ("--gpu 1GiB true -m m-00002-of-00003.gguf", "by its first part: -m m-00001-of-00003.gguf"),
        (
            "--verify --format docker true -m MODEL",
            "--verify starts a program and --format does not",
        ),
        (
            "--retry 2 --format docker true -m MODEL",
            "--retry starts a program and --format does not",
        ),
        ("--format docker --wait true -m MODEL", "--wait starts a program and --format does not"),
        ("--gpu 1GiB --format json true -m MODEL", "--format 'json': expected one of systemd"),
    ],
)
def test_wrong_usage_is_one_line(line: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        main([word.replace("MODEL", str(HEADER)) for word in line.split()])
    assert message in str(error.value)


# --- supervised


def test_output_and_exit_code_pass_unchanged(fake: Fake) -> None:
    data = bytes(range(256)) * 700 + b"\n\xff\xfe no end"
    fake.scenario({"bytes": data.hex(), "stdout": "out\r\nput", "code": 9})
    done = fake.run("--gpu 650MiB --retry 1 llama-server -m MODEL")
    assert (done.returncode, done.stdout) == (9, b"out\r\nput") and data in done.stderr
    assert len(fake.calls()) == 1


@pytest.mark.parametrize(
    "number", few(2, [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
)
def test_signals_are_forwarded_once(fake: Fake, number: int) -> None:
    fake.scenario({"serve": True, "log": "x: model loaded\n"})
    inherited = signal.signal(number, signal.SIG_DFL)  # under nohup, one that is ignored
    try:
        child = fake.start("--gpu 650MiB --retry 1 llama-server -m MODEL")
    finally:
        signal.signal(number, inherited)
    server = fake.launched()
    child.send_signal(number)
    _, err = child.communicate(timeout=HANGS)
    assert f"signals: [{int(number)}]".encode() in err and child.returncode == 0
    assert not running(server)


def test_a_server_that_dies_of_a_signal_gives_its_exit_code(fake: Fake) -> None:
    fake.scenario({"log": "x", "kill": int(signal.SIGABRT)})
    assert (
        fake.run("--gpu 650MiB --retry 1 llama-server -m MODEL").returncode == 128 + signal.SIGABRT
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_nothing_survives_a_supervisor_that_is_killed(fake: Fake) -> None:
    fake.scenario({"serve": True})
    script = fake.path / "serve.sh"
    # the server is the child's child
    script.write_text(f'#!/bin/sh\n{fake.server} "$@"\nexit $?\n')
    script.chmod(0o755)
    for program in ("llama-server", str(script)):
        count = len(fake.calls()) + 1
        child = fake.start(f"--gpu 650MiB --retry 1 {program} -m MODEL")
        server = fake.launched(count)
        child.kill()
        child.communicate()
        until(lambda server=server: not running(server))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_children_that_a_script_leaves_behind_are_ended(fake: Fake) -> None:
    fake.scenario({"serve": True})
    script = fake.path / "serve.sh"
    script.write_text(f'#!/bin/sh\n{fake.server} "$@" &\nsleep 1\nexit 5\n')
    script.chmod(0o755)
    assert fake.run(f"--gpu 650MiB --retry 1 {script} -m MODEL").returncode == 5
    assert not running(fake.launched())


# --- retry


def test_out_of_memory_plans_smaller_and_comes_up(fake: Fake) -> None:
    fake.scenario(
        {"log": oom(450), "code": 1}, {"log": FINE.format(host=500, gpu="500.00"), "code": 0}
    )
    done = fake.run("--gpu 1010MiB --retry 2 llama-server -m MODEL")
    first, second = fake.calls()
    # 100 MiB were allocated and 450 more did not fit: less than 550 MiB are there
    assert first["words"][-3:] == ["10", "-c", "512"] and second["words"][-3:] == ["5", "-c", "512"]
    assert done.returncode == 0
    assert (
        b"autolayers: out of memory on CUDA0 while loading: ggml_backend_cuda" in done.stderr
        and b"attempt 2 of 3: -ngl 5" in done.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "flags", "layers"),
    [(384, "", 1), (300, "", 0), (384, "-c 8192", 1), (384, "--margin 450MiB", 0)],
)
def test_a_retry_halves_margins_before_it_gives_a_device_up(
    missing: int, flags: str, layers: int | None, fake: Fake
) -> None:
    fake.scenario({"log": oom(missing), "code": 1}, {})
    model, own = str(HEADERS / "llama-3.2-1b-q8_0.gguf"), flags.split() if "margin" in flags else []
    words = [
        "run",
        "--gpu",
        "4GiB",
        *own,
        "--retry",
        "3",
        str(fake.server),
        "-m",
        model,
        *([] if own else flags.split()),
    ]
    # with the real planner
    done = subprocess.run(
        [sys.executable, "-m", "autolayers", *words],
        capture_output=True,
        env=fake.environ(),
        timeout=HANGS,
        check=False,
    )
    tried = [int(call["words"][call["words"].index("-ngl") + 1]) for call in fake.calls()]
    assert tried[0] == 17 and (tried[1:] == [] if layers is None else tried[1] >= layers), (
        done.stderr
    )


@pytest.mark.slow
def test_retries_end_with_the_last_failure(fake: Fake) -> None:
    fake.scenario(
        {"log": oom(900), "code": 1}, {"log": oom(450), "code": 1}, {"log": oom(100), "code": 1}
    )
    done = fake.run("--gpu 1010MiB --retry 2 llama-server -m MODEL")
    assert [call["words"][3] for call in fake.calls()] == ["10", "9", "5"] and done.returncode == 1


@pytest.mark.parametrize(
    ("log", "layers"),
    few_rows(
        2,
        [
            ("alloc_tensor_range: failed to allocate ROCm0 buffer of size 524288000\n", None),
            (
                "CUDA error: out of memory\n  current device: 0, in function alloc at "
                "ggml-cuda.cu:543\n",
                "9",
            ),
            (
                "ggml_vulkan: Device memory allocation of size 524288000 failed.\n"
                "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\n"
                "alloc_tensor_range: failed to allocate CUDA0 buffer of size 524288000\n",
                "4",
            ),
            (
                "llama_init_from_model: failed to initialize the context: "
                "failed to allocate buffer for kv cache",
                "9",
            ),
        ],
    ),
)
def test_each_backend_s_message_leads_to_a_smaller_plan(
    fake: Fake, log: str, layers: str | None
) -> None:
    fake.scenario({"log": log, "code": 1}, {})
    fake.run("--gpu 1010MiB --retry 1 llama-server -m MODEL")
    assert [call["words"][3] for call in fake.calls()] == (
        ["10"] if layers is None else ["10", layers]
    )


@pytest.mark.parametrize(
    "log",
    few(
        3,
        [
            "error: invalid argument: --frobnicate\n",
            "",
            "srv: model loaded\nCUDA error: out of memory\n",
        ],
    ),
)
def test_nothing_else_is_retried(fake: Fake, log: str) -> None:
    fake.scenario({"log": log, "code": 1})
    done = fake.run("--gpu 1010MiB --retry 3 llama-server -m MODEL")
    assert (
        len(fake.calls()) == 1 and done.returncode == 1 and b"out of memory on" not in done.stderr
    )


LIMIT = (
    "ggml_vulkan: Device memory allocation of size 4831838208 failed.\n"
    "ggml_vulkan: Requested buffer size exceeds device buffer size limit: "
    "ErrorOutOfDeviceMemory\n"
    "ggml_gallocr_reserve_n_impl: failed to allocate Vulkan0 buffer of size 4831838208\n"
)


def test_why_it_died_is_said(fake: Fake) -> None:
    fake.scenario(
        {
            "log": "llama_init_from_model: quantized V cache requires flash_attn to be enabled\n",
            "code": 1,
        }
    )
    done = fake.run("--gpu 1010MiB --retry 1 llama-server -m MODEL -ctv q8_0 -fa off")
    assert len(fake.calls()) == 1 and done.returncode == 1
    assert b"autolayers: a quantised V cache needs flash attention" in done.stderr
    again = shlex.split(done.stderr.splitlines()[-2].decode())
    assert again[-5:] == [str(HEADER), "-ctv", "q8_0", "-fa", "on"]
    fake.scenario({"log": oom(900), "code": 1})
    done = fake.run("--gpu 1010MiB --verify llama-server -m MODEL")
    assert (
        b"autolayers: CUDA0 ran out of memory while " in done.stderr
        and b"fits: planned for" in done.stderr
    )


def test_what_only_a_shell_would_say_of_its_end_is_said(fake: Fake) -> None:
    fake.scenario({"log": "main: loading model\n", "kill": int(signal.SIGILL)})
    done = fake.run("--gpu 1010MiB --verify llama-server -m MODEL")
    assert done.returncode == 128 + signal.SIGILL
    assert b"autolayers: the program uses instructions that this CPU does not have" in done.stderr


def test_a_command_that_starts_is_handed_over(fake: Fake) -> None:
    """A flag that the program refuses, and a port that is taken: said with the command that
    starts."""
    fake.scenario(
        {
            "log": "main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080\n",
            "code": 1,
        }
    )
    done = fake.run("--gpu 1010MiB --verify llama-server -m MODEL -c 512")
    text = done.stderr.decode()
    assert done.returncode == 1 and "the port is taken" in text
    line = next(line for line in text.split("\n") if "llama-server -m" in line)
    words = shlex.split(line.split("llama-server ")[1])
    assert words[-2:] == ["--port", "8081"] and "-c 512" in " ".join(words)
    fake.scenario({"serve": True})
    child = fake.start("--gpu 1010MiB llama-server " + shlex.join(words))
    fake.launched()
    child.terminate()
    child.communicate(timeout=HANGS)
    assert fake.calls()[-1]["words"][:4] == words[:4]


@pytest.mark.slow
def test_a_driver_s_limit_is_retried_with_smaller_buffers(fake: Fake) -> None:
    fake.scenario({"log": LIMIT, "code": 1}, {})
    words = ["run", "--gpu", "1010MiB", "--retry", "1", str(fake.server), "-m", str(HEADER)]
    # with the real planner
    done = subprocess.run(
        [sys.executable, "-m", "autolayers", *words],
        capture_output=True,
        env=fake.environ(),
        timeout=HANGS,
        check=False,
    )
    first, second = fake.calls()
    sizes = [int(call["words"][call["words"].index("-ub") + 1]) for call in (first, second)]
    assert sizes == [2048, 128]
    assert done.returncode == 0 and b"one buffer of 4608 MiB exceeds the limit" in done.stderr


def test_given_flags_do_not_give_way(fake: Fake) -> None:
    fake.scenario({"log": oom(450), "code": 1})
    done = fake.run("--gpu 1010MiB --retry 3 llama-server -m MODEL -ngl 10 -c 512")
    assert (
        len(fake.calls()) == 1
        and b"cannot retry smaller: the flags you gave leave nothing to reduce" in done.stderr
        and done.returncode == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "missing", "tried", "said"),
    [
        # what explain proposes keeps every given flag: it is tried (two threads attend slowly)
        ("-ngl 17 -c 4096 -t 2", 1200, ["-ncffn"], b"attempt 2 of 4: -ncffn 1"),
        # one of them stands against it
        slow("-ngl 17 -c 65536", 1200, [], b"a launch that fits is without the given -ngl 17\n"),
    ],
)
def test_a_retry_agrees_with_explain(
    flags: str, missing: int, tried: list[str], said: bytes, fake: Fake
) -> None:
    fake.scenario({"log": oom(missing), "code": 1}, {})
    words = [
        "run",
        "--gpu",
        "4GiB",
        "--ram",
        "16GiB",
        "--retry",
        "3",
        str(fake.server),
        "-m",
        str(HEADERS / "llama-3.2-1b-q8_0.gguf"),
        *flags.split(),
    ]
    # with the real planner
    child = forked(lambda: command(words), fake.environ())
    done = subprocess.run(**child, capture_output=True, timeout=HANGS, check=False)
    assert said in done.stderr and len(fake.calls()) == 1 + len(tried), done.stderr
    assert set(tried) <= set(fake.calls()[-1]["words"]) and set(flags.split()) <= set(
        fake.calls()[-1]["words"]
    )


def test_a_stop_while_loading_is_no_failure(fake: Fake) -> None:
    fake.scenario({"log": oom(450), "serve": True, "code": 1})
    child = fake.start("--gpu 1010MiB --retry 3 llama-server -m MODEL")
    fake.launched()
    child.terminate()
    child.communicate(timeout=HANGS)
    assert len(fake.calls()) == 1 and child.returncode == 1


def test_the_kernels_kill_counts_only_when_the_kernel_counted_one(fake: Fake) -> None:
    fake.scenario({"log": "load_tensors: loading", "kill": int(signal.SIGKILL)})
    done = fake.run("--gpu 1010MiB --ram 4GiB --retry 1 llama-server -m MODEL")
    assert done.returncode == 137 and len(fake.calls()) == 1


def test_the_kernels_kill_is_out_of_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from autolayers.launch import supervise
    from autolayers.launch.attempts import memory_failure

    counts = iter([3, 4])
    monkeypatch.setattr(supervise, "_oom_kills", lambda: next(counts))
    with open(os.devnull, "wb") as nowhere:
        outcome = supervise.run(
            [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"],
            os.environ,
            None,
            nowhere,
            nowhere,
        )
    failure = memory_failure(outcome)
    assert outcome.code == 137 and failure is not None and failure.device == "Host"


# --- verify


def test_verify_compares_and_keeps_and_corrects(fake: Fake) -> None:
    fake.scenario({"log": FINE.format(host=0, gpu="1030.50")})
    first = fake.run("--gpu 1010MiB --verify llama-server -m MODEL")
    assert b"CUDA0 model    1000.00 MiB  1030.50 MiB  +30.50 MiB" in first.stderr
    assert fake.calls()[0]["words"][3] == "10"
    second = fake.run("--gpu 1010MiB llama-server -m MODEL")
    assert fake.calls()[1]["words"][3] == "9"
    assert (
        b"CUDA0 uses 30.50 MiB more than predicted with these flags; the plan includes it"
        in second.stderr
    )
    (file,) = (fake.path / "state" / "autolayers" / "observations").iterdir()
    (kept,) = json.loads(file.read_text())
    assert (
        kept["differences"] == {"CUDA0": 30 * MiB + MiB // 2}
        and kept["build"] == 10900
        and kept["backend"] == "CUDA"
    )
    file.write_text("{broken")
    assert fake.run("--gpu 1010MiB llama-server -m MODEL").returncode == 0
    assert fake.calls()[2]["words"][3] == "10"


@pytest.mark.slow
def test_verify_says_equal_and_leaves_no_correction(fake: Fake) -> None:
    fake.scenario({"log": FINE.format(host=0, gpu="1000.00")})
    done = fake.run("--gpu 1010MiB --verify llama-server -m MODEL")
    assert b"CUDA0 model    1000.00 MiB  1000.00 MiB  equal" in done.stderr
    assert b"the plan includes it" not in fake.run("--gpu 1010MiB llama-server -m MODEL").stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compute", "keeps"), [("4.00", {}), ("12.00", {"compute CUDA1": 4 * MiB})]
)
def test_verify_keeps_as_a_difference_what_check_calls_one(
    compute: str, keeps: dict[str, int], fake: Fake
) -> None:
    log = FINE.format(host=0, gpu="1000.00").replace(
        "srv ", f"x: CUDA1 compute buffer size = {compute} MiB\nsrv "
    )
    fake.scenario({"log": log})
    done = fake.run("--gpu 1010MiB,24GiB --verify llama-server -m MODEL")
    assert (b"-4.00 MiB (less: pipelined)" in done.stderr) == (not keeps), done.stderr
    (file,) = (fake.path / "state" / "autolayers" / "builds").iterdir()
    assert list(json.loads(file.read_text())[0]["architectures"].values()) == [keeps]
    again = fake.run("--gpu 1010MiB,24GiB --dry-run llama-server -m MODEL")
    assert (
        (b"checked on this build" in again.stderr)
        == bool(keeps)
        == (b"the plan includes it" in again.stderr)
    )


@pytest.mark.slow
def test_verify_asks_for_the_lines_where_the_build_hides_them(fake: Fake) -> None:
    fake.run("--gpu 1010MiB --verify llama-server -m MODEL")
    fake.run("--gpu 1010MiB --verify llama-server -m MODEL -lv 2")
    fake.scenario({}, version="version: 6000 (abcdef12)")
    fake.run("--gpu 1010MiB --verify llama-server -m MODEL")
    assert [call["words"][-2:] for call in fake.calls()] == [
        ["-lv", "4"],
        ["-c", "512"],
        ["-c", "512"],
    ]


def test_only_launches_that_came_up_are_kept(fake: Fake) -> None:
    fake.scenario({"log": oom(450), "code": 1}, {"log": FINE.format(host=500, gpu="500.00")})
    done = fake.run("--gpu 1010MiB --retry 1 --verify llama-server -m MODEL")
    assert (
        done.stderr.count(b"prediction and llama-server's own numbers") == 1
        and b"CUDA0 model    500.00 MiB  500.00 MiB  equal" in done.stderr
    )
    (file,) = (fake.path / "state" / "autolayers" / "observations").iterdir()
    assert [(kept["flags"], kept["differences"]) for kept in json.loads(file.read_text())] == [
        (["-ngl", "5", "-c", "512"], {})
    ]


def test_verify_says_when_there_is_nothing_to_compare(fake: Fake) -> None:
    assert b"nothing to compare" in fake.run("--gpu 1010MiB --verify llama-server -m MODEL").stderr


def test_verify_reports_a_silent_spill(fake: Fake) -> None:
    fake.scenario(
        {
            "log": "x: using device CUDA0 (RTX) (0000:01:00.0) - 900 MiB "
            "free\n" + FINE.format(host=0, gpu="1000.00")
        }
    )
    done = fake.run("--gpu 1010MiB --verify llama-server -m MODEL")
    assert (
        b"CUDA0: 1000.00 MiB allocated with 900 MiB free: 100.00 MiB spilled into system RAM"
        in done.stderr
    )


@pytest.mark.parametrize(
    "log",
    [
        (
            b"\x00\xff" * 5000 + b"\nload_tensors:  CUDA0 model buffer size = 1000.00 "
            b"MiB\n" + b"z" * (1 << 20)
        ).hex(),
        b"load_tensors:  CUDA0 model buffer size = 1000.00 MiB".hex(),
    ],
)
def test_verify_reads_what_is_left_of_a_broken_log(fake: Fake, log: str) -> None:
    fake.scenario({"bytes": log, "code": 3})
    done = fake.run("--gpu 1010MiB --verify llama-server -m MODEL")
    assert done.returncode == 3 and b"CUDA0 model    1000.00 MiB  1000.00 MiB  equal" in done.stderr


# --- wait


@seldom
def test_verifys_tokens_correct_later_predictions_of_this_machine(fake: Fake) -> None:
    port = free_port()
    fake.scenario({"serve": True, "log": FINE.format(host=0, gpu="1000.00")})
    fake.run(f"--gpu 1010MiB --wait --verify llama-server -m MODEL --port {port}")
    os.kill(fake.launched(), signal.SIGTERM)
    assert not list(fake.path.rglob("calibration.json"))  # another machine was planned for
    port = free_port()
    done = fake.run(
        f"--wait --verify llama-server -m {shlex.quote(str(HEADERS))}/llama-3.2-1b-q8_0.gguf "
        f"--port {port}"
    )
    assert b"42.2 tokens/s" in done.stderr
    os.kill(fake.calls()[-1]["pid"], signal.SIGTERM)
    kept = [
        row for file in fake.path.rglob("calibration.json") for row in json.loads(file.read_text())
    ]
    assert [(row["kind"], row["placement"], row["n"]) for row in kept] == [("tg", "CPU", 1)]


def test_wait_returns_when_it_is_ready_and_the_server_goes_on(fake: Fake) -> None:
    port = free_port()
    fake.scenario({"serve": True, "delay": 0.5, "log": FINE.format(host=0, gpu="1000.00")})
    done = fake.run(f"--gpu 1010MiB --wait --verify llama-server -m MODEL --port {port}")
    server = fake.launched()
    assert (
        f"autolayers: ready at http://127.0.0.1:{port}, 42.2 tokens/s, process {server}\n".encode()
        in done.stderr
    )
    assert (
        done.returncode == 0
        and running(server)
        and b"CUDA0 model    1000.00 MiB  1000.00 MiB  equal" in done.stderr
    )
    again = fake.run(f"--gpu 1010MiB --wait llama-server -m MODEL --port {port}")
    assert b"in use at" in again.stderr and len(fake.calls()) == 1
    os.kill(server, signal.SIGTERM)
    until(lambda: not running(server))
    assert (
        b"signals: [15]"
        in (fake.path / "state" / "autolayers" / "logs" / f"{port}.log").read_bytes()
    )


def test_wait_counts_any_listener_and_starts_nothing(fake: Fake) -> None:
    # accepts and says nothing, not even 503
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = fake.run(
            f"--gpu 1010MiB --wait llama-server -m MODEL --port {silent.getsockname()[1]}"
        )
    assert (
        done.returncode == 1
        and b"the port is in use at http://127.0.0.1:" in done.stderr
        and fake.calls() == []
    )


def test_wait_sends_no_key_to_a_stranger_on_the_port(fake: Fake) -> None:
    asked: list[tuple[str, str | None]] = []

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.command, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    port = free_port()
    fake.scenario({"serve": True})  # it lives, and listens nowhere without --port in its words
    child = fake.start(
        "--gpu 1010MiB --wait llama-server -m MODEL --api-key SECRET", LLAMA_ARG_PORT=str(port)
    )
    server = fake.launched()
    with http.server.HTTPServer(("127.0.0.1", port), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        until(lambda: len(asked) >= 3)
        os.kill(server, signal.SIGTERM)
        _, err = child.communicate(timeout=HANGS)
        stranger.shutdown()
    assert child.returncode == 1 and b"ready at" not in err and set(asked) == {("GET", None)}


def test_wait_ends_with_a_server_that_dies(fake: Fake) -> None:
    fake.scenario({"code": 4, "log": "a reason"})
    done = fake.run(f"--gpu 1010MiB --wait llama-server -m MODEL --port {free_port()}")
    assert done.returncode == 4 and b"ready at" not in done.stderr
    assert b"a reason\nautolayers: it ended before it was ready; its whole output: " in done.stderr


def test_wait_for_a_server_that_ends_by_itself_is_no_success(fake: Fake) -> None:
    fake.scenario({"code": 0, "log": "a reason"})
    assert (
        fake.run(f"--gpu 1010MiB --wait llama-server -m MODEL --port {free_port()}").returncode == 1
    )


def test_wait_starts_again_after_a_failure(fake: Fake) -> None:
    fake.scenario({"log": oom(450), "code": 1}, {"serve": True})
    done = fake.run(f"--gpu 1010MiB --wait --retry 1 llama-server -m MODEL --port {free_port()}")
    assert (
        done.returncode == 0
        and b"ready at" in done.stderr
        and [call["words"][5] for call in fake.calls()] == ["10", "5"]
    )


@seldom
def test_a_signal_while_waiting_ends_the_server(fake: Fake) -> None:
    fake.scenario({"serve": True, "delay": 60})
    child = fake.start(f"--gpu 1010MiB --wait llama-server -m MODEL --port {free_port()}")
    server = fake.launched()
    child.terminate()
    child.communicate(timeout=HANGS)
    assert child.returncode == 128 + signal.SIGTERM and not running(server)


@pytest.mark.slow
def test_a_signal_that_nohup_ignores_does_not_end_a_server_that_is_waited_for(fake: Fake) -> None:
    fake.scenario({"serve": True, "delay": 1})
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = fake.start(f"--gpu 1010MiB --wait llama-server -m MODEL --port {free_port()}")
    finally:
        signal.signal(signal.SIGHUP, before)
    server = fake.launched()
    child.send_signal(signal.SIGHUP)
    _, err = child.communicate(timeout=HANGS)
    assert child.returncode == 0 and b"ready at" in err and running(server)


def test_formats_are_written_instead_of_a_start(fake: Fake) -> None:
    done = fake.run("--gpu 650MiB --format systemd llama-server -m MODEL --port 80")
    assert (
        f"ExecStart={fake.server} -m {systemd(str(HEADER))} --port 80 -ngl 6 -c 512\n".encode()
        in done.stdout
        and fake.calls() == []
    )
    assert b"MemoryMax=200M\n" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("version", "environ", "added"),
    few_rows(
        3,
        [
            ("version: 10900 (abcdef12)", {}, ["--log-colors", "on"]),
            ("version: 10900 (abcdef12)", {"NO_COLOR": "1"}, []),
            ("version: 6000 (abcdef12)", {}, []),  # a switch then, and off
        ],
    ),
)
def test_a_terminal_still_gets_the_log_in_colours(
    fake: Fake, version: str, environ: dict[str, str], added: list[str]
) -> None:
    fake.scenario({"log": "\x1b[32mx: model loaded\x1b[0m\n", "code": 0}, version=version)
    ours, theirs = os.openpty()
    try:
        words = fake.words("--gpu 650MiB llama-server -m MODEL")
        child = subprocess.Popen(
            **fake.child(words, **{"TERM": "xterm", "NO_COLOR": "", **environ}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(ours, 1 << 16):
                seen += data
        assert child.wait(HANGS) == 0 and b"\x1b[32mx: model loaded\x1b[0m" in seen
    finally:
        os.close(ours)
    called: Any = fake.calls()[-1]["words"]
    assert [word for word in called if "color" in word or word == "on"] == added
