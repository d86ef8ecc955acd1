"""A server would stay on the GPU after its command was stopped, or a script would take a stopped
command for one that ended well.

Signals at random moments of whole commands: before and after the server starts, while it loads,
while it ends, and twice. `python tests/launch/test_signals.py SEED TIMES` tries more of them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "fixtures/headers/llama-3.2-1b-q8_0.gguf"
WHOLE = ROOT / "fixtures/tiny/chat.gguf"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
RUN = ("--replan", "--gpu", "8GiB", "--ram", "32GiB", "--llama-build", "11549", "--")
COMMANDS = (
    *("run", "run --retry 1", "run --verify", "run --wait", "prove --json"),
    *("web --port 0", "serve --port 0"),
)
# A wrapper, and a child in a session of its own
SERVERS = ("", "setsid sleep 601 &\n")
SERVER = """#!/bin/sh
sleep 600 &
{}sleep 0.$(( $$ % 5 ))
echo 'main: server is listening on http://127.0.0.1:8080' >&2
wait
"""
# What plain `run` becomes has its own children; `prove` asks one that answers, at its own pace
ALONE = "#!/bin/sh\nexec sleep 600\n"
# (a script's first line admits no blank, which the environment's own folder may have)
ANSWERS = f"""#!{os.path.realpath(sys.executable)}
import http.server, subprocess, sys, time

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(1.5 if self.command == "POST" else 0)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{{}}")
    do_POST = do_GET

if "--port" not in sys.argv:
    sys.exit(1)
subprocess.Popen(["sleep", "600"], start_new_session=len(sys.argv) % 2 == 0)
port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers)
print("main: server is listening on http://127.0.0.1:8080", file=sys.stderr, flush=True)
server.serve_forever()
"""
LIMIT = 60.0  # seconds in which all has to be gone on a busy machine


def marked(mark: str) -> list[psutil.Process]:
    """The processes that have `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            here = process.environ().get("AUTOLAYERS_MARK") == mark
            if here and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def stopped(folder: Path, pick: random.Random, longest: float) -> tuple[str, int, list[str]]:
    """A command that is stopped at a random moment: what was done, its exit code, what is left."""
    server = folder / "llama-server"
    command, number = pick.choice(COMMANDS), pick.choice(SIGNALS)
    wrapper = SERVER.format(pick.choice(SERVERS))
    server.write_text({"run": ALONE, "prove --json": ANSWERS}.get(command, wrapper))
    server.chmod(0o755)
    words = [*command.split(), "--no-browser"] if command.startswith("web") else command.split()
    if not command.startswith(("web", "serve")):
        # prove loads the whole model, on this machine
        own, model = (RUN, MODEL) if command.startswith("run") else (RUN[3:], WHOLE)
        words += [*own, str(server), "-m", str(model), "--port", str(pick.randrange(20000, 30000))]
    mark = f"{os.getpid()}-{pick.random()}"
    environ = {**os.environ, "AUTOLAYERS_MARK": mark, "XDG_STATE_HOME": str(folder / "state")}
    with open(folder / "said", "wb") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "autolayers", *words],
            env=environ,
            cwd=ROOT,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    moment, again = pick.uniform(0, longest), pick.random() < 0.6
    with suppress(subprocess.TimeoutExpired):
        child.wait(moment)
    child.send_signal(number)
    # The second comes within the handler of the first, soon after it, or while all ends
    pause, second = pick.choice((0, 0.001, 0.1)) * pick.random(), pick.choice(SIGNALS)
    if again:
        if pause:
            time.sleep(pause)
        child.send_signal(second)
    then = f" and {second.name} {pause:.4f} s later" if again else ""
    what = f"{command}, {number.name}{then} after {moment:.2f} s"
    try:
        code = child.wait(LIMIT)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
        what += ", which did not end"
    end = time.monotonic() + LIMIT
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    names = []
    for process in left:
        with suppress(psutil.Error):
            names.append(" ".join(process.cmdline()))
            process.kill()
    if b"Traceback" in (folder / "said").read_bytes():
        names.append((folder / "said").read_text("utf-8", "replace"))
    return what, code, names


def right(what: str, code: int) -> bool:
    """Whether the code says that it was stopped. A server that was asked to end, by whoever runs
    it, has ended well; `prove` has one code for what it was stopped at."""
    if what.startswith("prove") and code == 130:
        return True
    numbers = [each for each in SIGNALS if each.name in what]
    return code in [*(-each for each in numbers), *(128 + each for each in numbers)] or (
        what.startswith(("web", "serve")) and code == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads other processes' environments")
def test_a_stopped_command_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    pick = random.Random(66)
    wrong = []
    for _ in range(16):
        what, code, left = stopped(tmp_path, pick, 1.5)
        if left or not right(what, code):
            wrong.append((what, code, left))
    assert wrong == []


if __name__ == "__main__":
    seed, times = (int(word) for word in sys.argv[1:3])
    chance, count = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        for _ in range(times):
            what, code, left = stopped(Path(place), chance, 4.0)
            fine = not left and right(what, code)
            count[f"{what.partition(',')[0]}: {'right' if fine else 'WRONG'}"] += 1
            if not fine:
                print(what, code, left, sep="\n  ", flush=True)
    print(*sorted(count.items()), sep="\n")
