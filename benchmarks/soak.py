"""What holds for hours, and when things go wrong: hostile commands, servers that answer all day,
kills, full disks.

    # hostile whole commands, from where the last run ended
    python benchmarks/soak.py commands --minutes 10
    # `serve` and `web` in one process, asked by many clients
    python benchmarks/soak.py servers --minutes 60
    python benchmarks/soak.py kills --times 100           # `run`, killed at random moments
    python benchmarks/soak.py slow   # deep headers: seconds and memory
    python benchmarks/soak.py edges  # a full disk, no home, a clock that goes back
    python docs/make.py reliability                       # docs/reliability.md

Each adds its figures to benchmarks/soak.json, so that runs of an hour add up. Linux alone; a full
disk needs root.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import companion_files  # noqa: E402
import fuzz  # noqa: E402
import psutil  # noqa: E402

from autolayers import read_model  # noqa: E402

FIGURES = ROOT / "benchmarks" / "soak.json"
MODEL = str(ROOT / "fixtures" / "headers" / "llama-3.2-1b-q8_0.gguf")
# cases of a slice; of the other kinds, and how many of those start a process of their own too
SLICE = {"launches": 20}
CASES, PROCESSES = 2000, 4
# how long a kind may take compared with the others: launches are seconds each
SHARES = {**{kind: fuzz.KINDS[kind][1] for kind in fuzz.WHOLE}, "launches": 1}
TODAY = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
COMMAND = [sys.executable, "-m", "autolayers"]


def figures() -> dict[str, Any]:
    return json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}


def add(part: str, found: Mapping[str, Any]) -> None:
    """Adds to a part's figures: numbers are summed, lists joined, all else replaced."""
    with open(__file__, "rb") as lock:  # of several runs at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = figures()
        kept[part] = joined(kept.get(part, {}), {**found, "date": TODAY})
        temporary = FIGURES.with_suffix(".tmp")
        temporary.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")
        temporary.replace(FIGURES)


def joined(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {
            key: joined(old[key], new[key])
            if key in old and key in new
            else new.get(key, old.get(key))
            for key in (*old, *(key for key in new if key not in old))
        }
    if isinstance(old, int) and isinstance(new, int):
        return old + new
    return [*old, *new] if isinstance(old, list) and isinstance(new, list) else new


# --- hostile whole commands


def commands(minutes: float) -> int:
    """Slices of each kind in turn, each from the case where its last one ended; 1 of 500 cases is
    a process of its own, which has to end as the same words do in this one."""
    end, failed = time.monotonic() + 60 * minutes, 0
    spent = dict.fromkeys(fuzz.WHOLE, 0.0)
    for path in fuzz.paths():  # read once, for all slices
        fuzz.header(path), fuzz.whole(path)
    while time.monotonic() < end:
        kind = min(fuzz.WHOLE, key=lambda kind: spent[kind] / SHARES[kind])
        begun = time.monotonic()
        first = sum(figures().get("commands", {}).get(kind, {}).get("ended", {}).values())
        cases = SLICE.get(kind, CASES)
        totals, bad, _ = fuzz.run(fuzz.Budget({kind: cases}, patience=4), 1, first, [kind])
        tried, differ = processes(kind, first, cases * PROCESSES // CASES)
        bad += differ
        spent[kind] += time.monotonic() - begun
        failed += len(bad)
        add("commands", {kind: {"ended": totals[kind], "processes": tried, "defects": bad}})
        for line in bad:
            print(line, flush=True)
    return failed


def processes(kind: str, first: int, cases: int) -> tuple[int, list[str]]:
    """(how many of the cases from `first` on a process can be started with, those that end in
    another way than within this process)."""
    within, differ, tried = fuzz._command, [], 0

    def both(words: list[str], environ: Mapping[str, str] = {}) -> str:
        nonlocal tried
        if {"\0", "\ud800"} & set("".join(words)):  # no process can be given these
            return within(words, environ)
        # the state files of before, which a command may change
        state = Path(environ.get("XDG_STATE_HOME") or tempfile.mkdtemp())
        kept = {path: path.read_bytes() for path in state.rglob("*.json")}
        expected = within(words, environ)
        for path, data in kept.items():
            path.write_bytes(data)
        wrong = said_of(tuple(words), {**os.environ, "PYTHONPATH": str(ROOT), **environ}, expected)
        tried += 1
        if wrong:
            differ.append(f"{kind}:{number}, a process of its own: {wrong}")
        return expected

    with mock.patch.object(fuzz, "_command", both):
        for number in range(first, first + cases):
            fuzz.KINDS[kind][0](random.Random(f"{kind}:{number}"))
    return tried, differ


# --- serve and web in one process

SERVERS = """
import sys, threading
import autolayers
from autolayers.web.engine import Engine
from autolayers.web.server import PageServer
from autolayers.web.service import Service

service = Service(autolayers.read_model, {}, token="soak-token-of-a-day")
page = PageServer(Engine(autolayers.read_model, here=True))
page.token = service.token
for server in (service, page):
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(service.server_port, page.server_port, flush=True)
sys.stdin.read()
"""
TOKEN = "soak-token-of-a-day"
CLIENTS = 4
CARDS = (
    "rtx-3060",
    "rtx-4060",
    "rtx-3090",
    "rtx-4090",
    "8GiB",
    "24GiB",
    "12GiB,8GiB",
    "rx-7900-xtx",
    "m4-pro-24g",
)
BUNDLED = ("llama-3.1-8b-q4_k_m", "qwen3-30b-a3b-q4_k_m")


def question(pick: random.Random) -> tuple[int, str, Any]:
    """(which server, path, a question): what front ends and people ask, and a tenth that nobody
    should."""
    words = {
        "gpu": pick.choice(CARDS),
        "ram": "32GiB",
        "ctx": pick.choice(("2048", "4096", "8192", "16384")),
    }
    model = str(pick.choice(fuzz.paths()))
    kind = pick.randrange(20)
    if kind < 8:
        return 0, "/plan", {"model": model, "flags": words, "explain": pick.random() < 0.05}
    if kind < 13:
        return 0, "/explain", {"log": pick.choice(fuzz.LABELLED)}
    if kind == 13:
        return 0, "/choose", {"models": [model], "flags": words}
    if kind < 15:
        return 1, "/call/plan", {**words, "model": pick.choice(BUNDLED)}
    if kind < 17:
        # the curve is some 100 plans
        calls = ("start", "name", "machine", "file", "row", "explain")
        return (
            1,
            f"/call/{'curve' if pick.random() < 0.02 else pick.choice(calls)}",
            {
                **words,
                "model": pick.choice(BUNDLED),
                "log": pick.choice(fuzz.LABELLED),
                "format": "docker",
            },
        )
    if kind == 17:
        return 1, pick.choice(("/", "/app.js", "/config.json", "/none")), None
    hostile = fuzz._json(pick)
    return pick.choice(
        (
            (0, pick.choice(("/plan", "/explain", "/choose")), hostile),
            (1, "/call/plan", hostile),
            (0, "/openapi.json", None),
            (
                1,
                f"/call/{pick.randrange(9)}",
                {"model": pick.choice([name for name in fuzz.HOSTILE if name.isprintable()])},
            ),
        )
    )


ANSWER = 120.0  # seconds that a client waits


def ask(port: int, path: str, asked: Any, leaves: bool) -> int:
    """The answer's status; 0 for a client that leaves before its answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=ANSWER)) as connection:
        if asked is None:
            connection.request("GET", path)
        else:
            body = json.dumps(asked).encode("utf-8", "surrogatepass")
            connection.request(
                "POST",
                path,
                body,
                {"Authorization": f"Bearer {TOKEN}", "X-Autolayers-Token": TOKEN},
            )
        if leaves:
            return 0
        answer = connection.getresponse()
        answer.read()
        return answer.status


def _state(process: psutil.Process) -> dict[str, float]:
    """After half a second in which nobody asks: what is left of the questions."""
    time.sleep(0.5)
    memory = process.memory_info().rss
    return {
        "mib": round(memory / (1 << 20), 1),
        "threads": process.num_threads(),
        "handles": process.num_fds(),
    }


def servers(questions: int, minutes: float, first: int) -> int:
    """Memory, threads and handles of the process before, after each fifth of the questions, or of
    the time."""
    child = subprocess.Popen(
        [sys.executable, "-c", SERVERS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert child.stdout is not None and child.stderr is not None and child.stdin is not None
    said: list[bytes] = []
    listener = threading.Thread(target=lambda: said.extend(child.stderr), daemon=True)
    listener.start()
    ports = [int(port) for port in child.stdout.readline().split()]
    process, statuses, lock = psutil.Process(child.pid), dict[str, int](), threading.Lock()
    samples, begun = [_state(process)], time.monotonic()

    done, unanswered = 0, list[str]()

    def client(until: int, end: float) -> None:
        nonlocal done
        while time.monotonic() < end:
            with lock:
                if done >= until:
                    return
                case, done = f"servers:{first + done}", done + 1
            pick = random.Random(case)
            which, path, asked = question(pick)
            try:
                status = str(ask(ports[which], path, asked, pick.random() < 0.03) or "left")
            except (OSError, HTTPException) as error:
                status = f"no answer: {type(error).__name__}"
                with lock:
                    unanswered.append(f"{case} {path}")
            with lock:
                statuses[status] = statuses.get(status, 0) + 1

    for part in range(1, 6):
        limits = questions * part // 5, begun + 60 * minutes * part / 5
        threads = [threading.Thread(target=client, args=limits) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        samples.append(_state(process))
        print(done, samples[-1], flush=True)
    took = time.monotonic() - begun
    child.stdin.close()
    child.wait(60)
    listener.join(10)
    lines = b"".join(said).decode("utf-8", "replace").splitlines()
    add(
        "servers",
        {
            "questions": done,
            "statuses": statuses,
            "unanswered": unanswered[:20],
            "defects": lines[:5],
            "runs": [
                {"date": TODAY, "questions": done, "seconds": round(took), "samples": samples}
            ],
        },
    )
    print(statuses, lines[:5])
    return len(lines)


# --- run, killed

SERVER = """#!/bin/sh
sleep 60 &
echo 'main: loading model' >&2
sleep 0.$(( $$ % 5 ))
echo 'main: model loaded' >&2
echo 'main: server is listening on http://127.0.0.1:8080' >&2
wait
"""
WAYS = ("--retry 1", "--verify", "--wait", "")
LIMIT = 15.0  # seconds in which everything has to be gone


def marked(mark: str) -> list[psutil.Process]:
    """Processes that have `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if (
                process.environ().get("AUTOLAYERS_SOAK") == mark
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
    return found


def torn(state: Path) -> list[str]:
    """State files that are no JSON."""
    found = []
    for path in state.rglob("*.json"):
        try:
            json.loads(path.read_bytes())
        except ValueError:
            found.append(path.name)
    return found


def kills(times: int) -> int:
    """SIGKILL at a random moment of a start; then no process, and no state file that is not
    whole."""
    found: dict[str, dict[str, int]] = {}
    defects: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        program, state = Path(folder, "llama-server"), Path(folder, "state")
        program.write_text(SERVER)
        program.chmod(0o755)
        for number in range(times):
            pick = random.Random()
            way, moment, mark = (
                pick.choice(WAYS),
                pick.uniform(0.05, 2.5),
                f"{os.getpid()}-{number}",
            )
            if pick.random() < 0.3:
                shutil.rmtree(state, ignore_errors=True)
            words = [
                "run",
                *way.split(),
                "--replan",
                "--gpu",
                "8GiB",
                "--ram",
                "32GiB",
                "--llama-build",
                "11549",
                "--",
                str(program),
                "-m",
                MODEL,
                "--port",
                str(pick.randrange(20000, 30000)),
            ]
            child = subprocess.Popen(
                [*COMMAND, *words],
                env={**os.environ, "XDG_STATE_HOME": str(state), "AUTOLAYERS_SOAK": mark},
                cwd=ROOT,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(moment)
            at_work = len(marked(mark))
            replaced = not way and str(program) in _words_of(child.pid)[:2]
            child.kill()
            child.wait()
            # it had become the server, which nobody supervises: its own children are its own
            if replaced:
                for process in marked(mark):
                    process.kill()
            end = time.monotonic() + LIMIT
            while (left := marked(mark)) and time.monotonic() < end:
                time.sleep(0.1)
            for process in left:
                with suppress(psutil.Error):
                    defects.append(
                        f"run {way}, killed after {moment:.2f} s: {process.name()} is left"
                    )
                    process.kill()
            defects += [
                f"run {way}, killed after {moment:.2f} s: {name} is torn" for name in torn(state)
            ]
            row = found.setdefault(f"run {way}".strip(), {"killed": 0, "with a server": 0})
            row["killed"] += 1
            row["with a server"] += at_work > 1
    add("kills", {"ways": found, "defects": defects})
    print(found, *defects, sep="\n")
    return len(defects)


def _words_of(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


# --- edges

QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("plan", MODEL, "--gpu", "8GiB", "--ram", "32GiB"),
    ("inspect", MODEL),
    ("devices",),
    ("devices", "--json"),
    ("plan", MODEL, "--gpu", "8GiB", "--ram", "32GiB", "--format", "compose"),
    ("ps",),
    ("ps", "--json"),
    (
        "run",
        "--dry-run",
        "--replan",
        "--gpu",
        "8GiB",
        "--ram",
        "32GiB",
        "--",
        "llama-server",
        "-m",
        MODEL,
    ),
    ("run", "--dry-run", "--gpu", "8GiB", "--ram", "32GiB", "--", "llama-server", "-m", MODEL),
    ("sweep", MODEL, "--gpu", "8GiB", "--ram", "32GiB", "--contexts", "4096"),
    ("measured",),
)


def said_of(
    words: tuple[str, ...],
    environ: Mapping[str, str],
    expected: str = "",
    before: tuple[str, ...] = (),
    **options: Any,
) -> str:
    """What a command did wrong: "" if it ended in an answer or in one line, and as `expected`.
    `before`: the program that starts it."""
    done = subprocess.run(
        [*before, *COMMAND, *words],
        env=dict(environ),
        cwd=ROOT,
        capture_output=True,
        timeout=300,
        check=False,
        **options,
    )
    error = done.stderr.decode("utf-8", "replace")
    if "Traceback" in error or done.returncode not in (0, 1, 2, 3, 4, 5):
        return f"{' '.join(words[:2])}: exit {done.returncode}: {error.strip()[-300:]}"
    if expected not in ("", f"exit {done.returncode}"):
        return f"{' '.join(words[:2])}: exit {done.returncode}, not {expected}"
    return ""


@contextmanager
def full_disk() -> Iterator[Path]:
    """A file system without a free byte."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder],
            check=True,
            capture_output=True,
        )
        try:
            with suppress(OSError), open(Path(folder, "full"), "wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 512)
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def on_a_full_disk(environ: Mapping[str, str]) -> list[str]:
    try:
        with full_disk() as folder:
            return [
                wrong
                for words in QUESTIONS
                if (
                    wrong := said_of(
                        words, {**environ, "XDG_STATE_HOME": str(folder), "TMPDIR": str(folder)}
                    )
                )
            ]
    except (subprocess.CalledProcessError, OSError) as error:
        return [f"no full disk here: {error}"]


def with_small_files(environ: Mapping[str, str]) -> list[str]:
    """Files of at most 100 bytes (RLIMIT_FSIZE): every state file is cut."""
    with tempfile.TemporaryDirectory() as folder:
        found = [
            wrong
            for words in QUESTIONS
            if (
                wrong := said_of(
                    words,
                    {**environ, "XDG_STATE_HOME": folder},
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
                )
            )
        ]
        return [*found, *(f"{name} is torn" for name in torn(Path(folder)))]


def without_a_home(environ: Mapping[str, str]) -> list[str]:
    """No HOME; one that is not there; a user without an entry in passwd; a folder that nobody may
    write."""
    bare = {
        name: value for name, value in environ.items() if name not in ("HOME", "XDG_STATE_HOME")
    }
    found = []
    for words in QUESTIONS:
        found += [
            said_of(words, bare),
            said_of(words, {**bare, "HOME": "/nonexistent"}),
            said_of(words, {**bare, "HOME": ""}),
            said_of(words, {**bare, "HOME": "/proc/1"}),
        ]
        found.append(said_of(words, bare, before=("unshare", "--map-user=54321")))
    return [wrong for wrong in found if wrong]


class Clock:
    """time.time that jumps: an hour, a year or to 1970, back or forth, each time that it is
    asked."""

    def __init__(self) -> None:
        self.pick, self.now = random.Random(1), time.time()

    def __call__(self) -> float:
        self.now = max(
            0.0, self.now + self.pick.choice((-3600.0, 3600.0, -31_536_000.0, 31_536_000.0, -4e9))
        )
        return self.now


def with_a_clock_that_goes_back(environ: Mapping[str, str]) -> list[str]:
    """State files of ten years later, and a clock that jumps while a command runs."""
    found = []
    with tempfile.TemporaryDirectory() as folder, mock.patch("time.time", Clock()):
        own = {**environ, "XDG_STATE_HOME": folder}
        for words in QUESTIONS:
            for path in Path(folder).rglob("*"):
                os.utime(path, (2_100_000_000, 2_100_000_000))
            try:
                fuzz._command(list(words), own)
            except Exception as error:
                found.append(f"{' '.join(words[:2])}: {type(error).__name__}: {error}")
            if wrong := said_of(words, own):
                found.append(wrong)
        found += [f"{name} is torn" for name in torn(Path(folder))]
    return found


def _in_process(words: list[str]) -> str:
    """What a command did wrong here."""
    try:
        fuzz._command(words)
    except Exception as error:
        return f"{' '.join(words)}: {type(error).__name__}: {error}"
    return ""


def of_a_driver_that_lies(environ: Mapping[str, str]) -> list[str]:
    """NVML whose numbers are none: no memory, more free than there is, 2^64-1, a card that goes
    away between two questions, one that ends or stops the process that asks."""
    pick = random.Random(1)
    found = []
    odd = ("0", "1", "-1", "18446744073709551615", "9223372036854775808", "4294967295", "x", "")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libnvidia-ml.so.1")
        source = ROOT / "tests" / "fake_nvml.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        own = {**environ, "LD_LIBRARY_PATH": folder, "XDG_STATE_HOME": folder}
        for _ in range(CASES_OF["a driver that lies"] // 2):
            for number in range(2):
                card: dict[str, object] = {
                    "name": pick.choice(("RTX 3090", "", "\x1b[2J", "GB10")),
                    "uuid": f"GPU-{number}",
                    "bus": number,
                    "total": 24 << 30,
                    "free": 23 << 30,
                    "cc": 86,
                    "cores": 10496,
                    "bits": 384,
                    "mhz": 9751,
                    "display": 0,
                }
                for key in pick.sample(sorted(card), pick.randrange(4)):
                    card[key] = pick.choice(odd)
                if pick.random() < 0.3:
                    card[pick.choice(("memory_error", "handle_error"))] = pick.choice(
                        (3, 4, 15, 999)
                    )
                if pick.random() < 0.1:
                    card["does"] = pick.choice(("segv", "exit"))
                text = "|".join(f"{key}={value}" for key, value in card.items())
                own[f"FAKE_GPU_{number}"] = text
            for words in (("devices", "--json"), ("plan", MODEL, "--format", "text")):
                if wrong := said_of(words, own):
                    found.append(f"{wrong} ({own['FAKE_GPU_0']}, {own['FAKE_GPU_1']})")
    return found


def of_files_beside_the_model(environ: Mapping[str, str]) -> list[str]:
    """Projectors, adapters, drafts and control vectors with bytes changed."""
    pick = random.Random(1)
    found = []
    model = read_model(MODEL)
    head = Path(MODEL).read_bytes()
    kinds = {
        "--mmproj": companion_files.projector(model),
        "--lora": companion_files.adapter(model),
        "-md": head,
        "--control-vector": companion_files.adapter(model),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "beside.gguf")
        for _ in range(CASES_OF["a file that is loaded with the model"]):
            flag = pick.choice(tuple(kinds))
            path.write_bytes(fuzz.mutated(bytearray(kinds[flag]), pick))
            words = ["plan", MODEL, "--gpu", "8GiB", "--ram", "32GiB", flag, str(path)]
            found.append(_in_process(words))
    return [wrong for wrong in found if wrong]


def with_two_writers(environ: Mapping[str, str]) -> list[str]:
    """Eight commands at once that write the same file or the same state: each ends well, and what
    is there is one of theirs, whole."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        own = {**environ, "XDG_STATE_HOME": folder}
        shutil.copy(ROOT / "docs" / "fleet.json", folder)
        Path(folder, "Modelfile").write_text(f"FROM {MODEL}\n")
        gpu = ["--gpu", "8GiB", "--ram", "32GiB"]
        kinds = {
            "Modelfile": ["ollama", "modelfile", f"{folder}/Modelfile", "-i", *gpu],
            "a.svg": ["plan", MODEL, *gpu, "--format", "text", "--picture", f"{folder}/a.svg"],
            "kept.json": ["run", "--dry-run", *gpu, "--", "llama-server", "-m", MODEL],
        }
        for name, words in kinds.items():
            running = [
                subprocess.Popen(
                    [*COMMAND, *words], env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
                for _ in range(8)
            ]
            for process in running:
                error = process.communicate(timeout=300)[1].decode()
                if process.returncode or "Traceback" in error:
                    found.append(f"{name}: exit {process.returncode}: {error[-300:]}")
        ends = {"Modelfile": "num_ctx", "a.svg": "</svg>"}
        for name, word in ends.items():
            text = Path(folder, name).read_text()
            if text.count(word) != 1:
                found.append(f"{name}: {text[-200:]}")
        left = [path.name for path in Path(folder).iterdir() if path.name.startswith((".", "tmp"))]
        found += [f"{name} is left" for name in left]
        found += [f"{name} is torn" for name in torn(Path(folder))]
    return found


def without_room_for_what_is_written(environ: Mapping[str, str]) -> list[str]:
    """Files that a command writes where nothing can be written: a full disk, /dev/full, a folder
    that is none, a file cut at 100 bytes. No answer is exit 0."""
    found = []
    gpu = ["--gpu", "8GiB", "--ram", "32GiB"]

    def written(place: str) -> list[list[str]]:
        return [
            ["plan", MODEL, *gpu, "--format", "text", "--picture", f"{place}/a.svg"],
            ["plan", MODEL, *gpu, "--format", "text", "--picture", f"{place}/a.png"],
            ["ollama", "modelfile", MODEL, *gpu, "-o", f"{place}/Modelfile"],
            ["fleet", str(ROOT / "docs" / "fleet.json"), MODEL, "--format", "compose", "-o", place],
            [
                "cluster",
                str(ROOT / "docs" / "cluster.json"),
                MODEL,
                "--format",
                "compose",
                "-o",
                place,
            ],
        ]

    def check(words: list[str], **options: Any) -> None:
        wrong = said_of(tuple(words), environ, **options)
        if wrong:
            found.append(wrong)

    with full_disk() as full:
        for words in written(str(full)):
            check(words, expected="exit 1")
        found += [
            f"{path.name} is left"
            for path in full.rglob("*")
            if path.is_file() and path.name != "full"
        ]
    for words in written("/proc"):
        check(words)
    with tempfile.TemporaryDirectory() as folder:
        for words in written(folder):
            check(
                words,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
                expected="exit 1",
            )
        found.extend(f"{path.name} is torn" for path in Path(folder).rglob("*") if path.is_file())
    for words in ([*QUESTIONS[0], "--format", "json"], ["inspect", MODEL], ["devices", "--json"]):
        with open("/dev/full", "wb") as full_file:
            done = subprocess.run(
                [*COMMAND, *words],
                env=dict(environ),
                stdout=full_file,
                stderr=subprocess.PIPE,
                timeout=300,
                check=False,
            )
        error = done.stderr.decode()
        if done.returncode != 1 or "Traceback" in error or error.count("\n") != 1:
            found.append(f"{words[0]} > /dev/full: exit {done.returncode}: {error[-300:]}")
    return found


def beside_another_user(environ: Mapping[str, str]) -> list[str]:
    """Another user's server runs, whose words may be read and whose environment may not; and a
    user that may see nothing of it."""
    found = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        fake = Path(folder, "llama-server")
        fake.write_text("#!/bin/sh\nsleep 300\n")
        fake.chmod(0o755)
        other = ("setpriv", "--reuid", "65534", "--clear-groups")
        server = subprocess.Popen(
            [*other, str(fake), "-m", MODEL, "--port", "1", "--api-key", "hush"]
        )
        try:
            own = {**environ, "HOME": folder, "XDG_STATE_HOME": f"{folder}/state"}
            for words in (("ps",), ("ps", "--json"), ("explain", str(server.pid)), ("devices",)):
                for before in ((), ("setpriv", "--reuid", "54321", "--clear-groups")):
                    if wrong := said_of(words, own, before=before):
                        found.append(wrong)
        finally:
            server.kill()
            server.wait()
    return found


# commands of each kind, where they are not each question once
CASES_OF = {
    "no home": 5 * len(QUESTIONS),
    "a driver that lies": 200,
    "a file that is loaded with the model": 2000,
    "two writers of one file": 24,
    "files that cannot be written": 18,
    "a server of another user": 8,
}
EDGES: dict[str, Callable[[Mapping[str, str]], list[str]]] = {
    "a driver that lies": of_a_driver_that_lies,
    "a file that is loaded with the model": of_files_beside_the_model,
    "two writers of one file": with_two_writers,
    "files that cannot be written": without_room_for_what_is_written,
    "a server of another user": beside_another_user,
    "a full disk": on_a_full_disk,
    "files cut at 100 bytes": with_small_files,
    "no home": without_a_home,
    "a clock that goes back": with_a_clock_that_goes_back,
}


def edges() -> int:
    failed = 0
    for name, check in EDGES.items():
        wrong = check({**os.environ, "PYTHONPATH": str(ROOT)})
        failed += len(wrong)
        add(
            "edges",
            {
                name: {
                    "commands": CASES_OF.get(name, len(QUESTIONS)),
                    "defects": wrong,
                }
            },
        )
        print(name, *wrong, sep="\n  ", flush=True)
    return failed


# --- headers that once took long

MIXED = "1MiB,80GiB,2GiB,3GiB,1MiB,12GiB,200MiB,6GiB"
CACHES = "f16,q8_0,q4_0,q5_0,q5_1,q4_1,iq4_nl,bf16"
# architecture, layers, flags: the kinds that an attack found in November 2026
SLOW = (
    ("glm4moe-moe", 512, "--gpu 24GiB --ram 64GiB --format flags"),
    ("gpt-oss-moe", 512, "--gpu 2GiB,3GiB --backend vulkan --ram 64GiB --format flags"),
    ("deepseek2-moe", 300, f"--gpu 4x1GiB --backend vulkan --kv-types {CACHES} --format text"),
    ("gemma3-dense", 128, f"--gpu {MIXED} --backend metal --ram 1GiB --format text"),
    ("llama-moe", 128, f"--gpu {MIXED} --ram 1GiB --users 256 --min-rate 1 --format text"),
    ("falcon-h1-dense", 300, "--gpu 1GiB,1GiB --backend rocm --ram 1GiB --format text"),
    ("deepseek4-moe", 512, "--gpu 24GiB --ram 64GiB --format flags"),
    ("qwen4exp-moe", 512, "--gpu 24GiB --ram 64GiB --format flags"),
    ("qwen3next-moe", 512, f"--gpu 4x1GiB --backend vulkan --kv-types {CACHES} --format text"),
)


def slow() -> int:
    """Processor seconds and the largest memory of whole commands on deep headers."""
    over = 0
    for name, layers, flags in SLOW:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{name}-{layers}.gguf")
            path.write_bytes(fuzz.deeper(ROOT / "fixtures" / "headers" / f"{name}.gguf", layers))
            words = [sys.executable, "-m", "autolayers", str(path), *flags.split()]
            child = subprocess.Popen(
                words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            _, status, used = os.wait4(child.pid, 0)
            seconds, mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
            over += seconds > 10 or mib > 300
            row = f"{path.stat().st_size / 1000:.0f} kB|exit {os.waitstatus_to_exitcode(status)}"
            found = {f"{name}|{layers}|{flags}": f"{row}|{seconds:.1f}|{mib:.0f}"}
        add("slow", {"rows": found})
        print(found, flush=True)
    return over


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("commands", "servers", "kills", "edges", "slow"))
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--questions", type=int, default=100_000, help="at most, in the minutes")
    parser.add_argument("--times", type=int, default=20)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="autolayers-soak-") as folder:
        tempfile.tempdir = folder
        if given.part == "commands":
            return min(1, commands(given.minutes))
        if given.part == "servers":
            before = figures().get("servers", {}).get("questions", 0)
            return min(1, servers(given.questions, given.minutes, before))
        if given.part == "slow":
            return min(1, slow())
        return min(1, kills(given.times) if given.part == "kills" else edges())


if __name__ == "__main__":
    sys.exit(main())
