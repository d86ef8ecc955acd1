"""What the installed llama-fit-params makes of random launches, build by build, and whether its
llama-server then takes more than was planned:

    python tests/launch/confirmed_builds.py [--launches 60] [--rules 11549] BIN...

BIN: a folder with a build's llama-server and llama-fit-params (and libmockcuda.so, for a simulated
CUDA device too; tests/build_llamacpp.sh). `--rules`: plan by this build's rules whatever the
program is, as for a build that is newer than they are. A row a build and device: confirmed,
corrected, a bound where nothing was said, and launches of which llama-server took more; 1 if any
did.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import HEADERS, free_port

from autolayers.cli import main
from autolayers.detect import read_version
from autolayers.diagnosis.log import LaunchLog, LogReader
from autolayers.launch.confirm import TOOL
from autolayers.launch.verify import compare
from autolayers.memory.breakdown import Breakdown, Usage

SIZE = 8 << 30  # bytes of the simulated device
SMALL = 16 << 20  # bytes of a model: hundreds of them start in minutes
READY = 60.0  # seconds
NONE = ["--override-kv", "tokenizer.ggml.model=str:none"]  # headers have no vocabulary
FLAGS = (
    *("", "-np 1", "-np 4", "-np 3 -kvu", "-ub 256", "-ub 2048 -b 2048", "-fa off", "-nkvo"),
    *("-fa on -ctk q8_0 -ctv q8_0", "-ngl 1", "-ngl 0", "-cmoe", "--swa-full", "-fa on -ctk q4_0"),
)


def planned(words: list[str]) -> dict[str, Any]:
    """Return the plan as JSON, or why llama.cpp refuses the launch."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main([*words, "--json"])
    text = out.getvalue()
    return json.loads(text) if text.startswith("{") else {}


def started(words: list[str], environ: dict[str, str]) -> LaunchLog | None:
    """Return what a server logs until it is ready, None where it does not get there."""
    reader, until = LogReader(), time.monotonic() + READY
    server = subprocess.Popen(
        words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=False
    )
    assert server.stderr is not None
    try:
        while time.monotonic() < until and not reader.launch.ready:
            if select.select([server.stderr], [], [], 1)[0]:
                if not (piece := os.read(server.stderr.fileno(), 1 << 16)):
                    return None
                reader.feed(piece)
        return reader.launch if reader.launch.ready else None
    finally:
        server.kill()
        server.communicate()


def under(plan: dict[str, Any], launch: LaunchLog) -> list[str]:
    """Return the parts of which the server took more than planned."""

    def usage(row: dict[str, Any]) -> Usage:
        return Usage(row["model"], row["context"], row["compute"])

    devices = {row["name"]: usage(row) for row in plan["devices"]}
    use = SimpleNamespace(devices=devices, host=usage(plan["host"]), extras=())
    return [
        f"{line.device} {line.part} {line.difference}"
        for line in compare(launch, cast("Breakdown", use)).lines
        if line.difference is not None and line.difference > line.tolerance
    ]


def number(folder: Path) -> int:
    """Return the build of the programs there."""
    said = subprocess.run([folder / TOOL, "--version"], capture_output=True, text=True, check=True)
    return read_version(said.stdout + said.stderr)[0]


def judged(folder: Path, cuda: bool, launches: int, rules: int) -> Counter[str]:
    """Return how many launches were what."""
    found: Counter[str] = Counter()
    sizes = json.loads((HEADERS / "sizes.json").read_text())
    dice = random.Random(62)
    names = sorted(name for name, size in sizes.items() if size < SMALL)
    mock = {"LD_PRELOAD": str(folder / "libmockcuda.so"), "MOCK_CUDA": str(SIZE)}
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_STATE_HOME"] = place
        os.environ.update(mock if cuda else {})
        for _ in range(launches):
            name, flags, n_ctx = dice.choice(names), dice.choice(FLAGS), 256 * dice.randint(2, 200)
            model = Path(place, f"{name}.gguf")
            shutil.copy(HEADERS / model.name, model)
            os.truncate(model, sizes[name])
            words = [*(["--gpu", str(SIZE)] if cuda else []), "--ram", "64GiB", *flags.split()]
            words += ["-c", str(n_ctx), *NONE, "--confirm", "--llama-server"]
            words += [str(folder / "llama-server"), "--llama-build", str(rules)]
            plan = planned([str(model), *words])
            if "flags" not in plan:
                found["refused"] += 1
                continue
            said = plan.get("confirmed")
            found["bound" if said is None else "confirmed" if said["equal"] else "corrected"] += 1
            port = str(free_port())
            start = [str(folder / "llama-server"), "-m", str(model), *plan["flags"]]
            log = started([*start, "--no-warmup", "--port", port], dict(os.environ))
            if log is None:
                found["not started"] += 1
            elif more := under(plan, log):
                found["under"] += 1
                print(f"  {name} -c {n_ctx} {flags}: {', '.join(more)}", file=sys.stderr)
        for key in mock:
            os.environ.pop(key, None)
    return found


def table() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=60)
    parser.add_argument("--rules", type=int)
    parser.add_argument("folders", nargs="+", type=Path)
    asked = parser.parse_args()
    heads = ("confirmed", "corrected", "bound", "refused", "not started", "under")
    print("| build | device | " + " | ".join(heads) + " |\n|" + "---|" * (len(heads) + 2))
    worse = 0
    for folder in asked.folders:
        for cuda in (False, True)[: 1 + (folder / "libmockcuda.so").exists()]:
            build = number(folder)
            found = judged(folder, cuda, asked.launches, asked.rules or build)
            worse += found["under"]
            row = " | ".join(str(found[head]) for head in heads)
            print(f"| b{build} | {'CUDA' if cuda else 'CPU'} | {row} |", flush=True)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(table())
