"""Shared by all tests: a real llama.cpp for those that need one, one profile of random tests, and
the figures that the truth tests collect, printed at the end."""

from __future__ import annotations

import datetime
import gc
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest

# a job in the background: its children would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A person's terminal (workers are given its width) and settings of llama.cpp, Ollama and the Hub
# are not the tests'
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")
for name in [
    name for name in os.environ if name in TERMINAL or name.startswith(("LLAMA_", "OLLAMA_", "HF_"))
]:
    del os.environ[name]
os.environ["TERM"] = "xterm"

# What is compiled is kept: hundreds of processes are started
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Of sweeps each day runs another part (support.of_today); the workers take the day from here. Who
# writes recorded answers or a page's examples anew writes all of them
WRITES = "AUTOLAYERS_WRITE" in os.environ
today = "all" if WRITES else str(datetime.date.today().toordinal())
os.environ.setdefault("AUTOLAYERS_DAY", today)

# what a plan leaves is freed at once, and models are kept: 7 % of the time
gc.set_threshold(5_000_000, 10, 10)

FIGURES: dict[str, tuple[int, int]] = {}  # what -> (right, of)


@pytest.fixture(scope="session")
def figures() -> dict[str, tuple[int, int]]:
    return FIGURES


@pytest.fixture(scope="session")
def binaries() -> pathlib.Path:
    """The folder of llama-server, llama-fit-params and ggml-rpc-server."""
    if given := os.environ.get("AUTOLAYERS_LLAMACPP_BIN"):
        return pathlib.Path(given)
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("needs cmake and ninja to build llama.cpp")
    script = pathlib.Path(__file__).parent / "build_llamacpp.sh"
    built = subprocess.run(
        [script], stdout=subprocess.PIPE, check=True, env={**os.environ, "PYTHON": sys.executable}
    )
    return pathlib.Path(built.stdout.decode().strip())


@pytest.fixture(scope="session")
def mock_cuda(binaries: pathlib.Path) -> Callable[..., dict[str, str]]:
    """The environment in which the real llama.cpp sees these CUDA devices, with all their memory
    free (mock_cuda.py).
    """
    library = binaries / "libmockcuda.so"
    if not library.exists():
        pytest.skip(f"no {library}: tests/build_llamacpp.sh makes it")
    return lambda *devices: {
        "LD_PRELOAD": str(library),
        "MOCK_CUDA": ",".join(str(device.total) for device in devices),
    }


def pytest_pycollect_makemodule(module_path: pathlib.Path, parent: pytest.Collector) -> None:
    """Before a module with random tests: their cases are the same in each run but with
    --hypothesis-seed, and whether they pass does not depend on how fast the machine is."""
    if "hypothesis" in module_path.read_text(encoding="utf-8"):
        from hypothesis import HealthCheck, settings

        settings.register_profile(
            "autolayers",
            deadline=None,
            derandomize=parent.config.getoption("hypothesis_seed", None) is None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        settings.load_profile("autolayers")


def pytest_configure(config: pytest.Config) -> None:
    """Of what is written, slow cases are a part; two processes would each lose what the other
    wrote into a file."""
    if WRITES:
        config.option.markexpr = config.option.markexpr.replace(" and not slow", "")
        if getattr(config.option, "numprocesses", 0):
            raise pytest.UsageError("AUTOLAYERS_WRITE: one process writes, so without -n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the seldom ones, slow tests of many seconds, a fourth runs each day (support.seldom)."""
    from support import PARTS

    day = os.environ["AUTOLAYERS_DAY"]
    if day != "all":
        other = [
            item
            for item in items
            if item.get_closest_marker("seldom")
            and (zlib.crc32(item.nodeid.encode()) + int(day)) % PARTS
        ]
        config.hook.pytest_deselected(items=other)
        items[:] = [item for item in items if item not in {*other}]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """A process for each core; one for tests of real programs and GPUs, which share the machine,
    and for one that writes."""
    marks = config.option.markexpr.replace("not llamacpp", "").replace("not gpu", "")
    return 0 if WRITES or "llamacpp" in marks or "gpu" in marks else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its figures over, and what is left ends with it: pytest and the interpreter
    collect garbage several times."""
    gc.freeze()
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["figures"] = FIGURES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    for what, (right, of) in getattr(node, "workeroutput", {}).get("figures", {}).items():
        had = FIGURES.get(what, (0, 0))
        FIGURES[what] = (had[0] + right, had[1] + of)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    day = os.environ["AUTOLAYERS_DAY"]
    if "not slow" not in config.option.markexpr and day != "all":
        terminalreporter.write_line(
            f"of sweeps the part of AUTOLAYERS_DAY={day} (AUTOLAYERS_DAY=all: all)"
        )
    if FIGURES:
        terminalreporter.write_sep("-", "against llama.cpp's own numbers")
        for what, (right, of) in FIGURES.items():
            terminalreporter.write_line(
                f"{what}: {right} of {of} ({100 * right / max(of, 1):.2f} %)"
            )
