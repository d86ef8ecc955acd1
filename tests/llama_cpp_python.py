#!/usr/bin/env python3
"""The program that `--format llama-cpp-python` writes, started, against the plan.

    # wants numpy, diskcache, jinja2 and typing_extensions; two downloads, once
    python tests/llama_cpp_python.py

llama-cpp-python's newest sdist has its own Python code, which loads the library that
LLAMA_CPP_LIB_PATH names: a wheel of xllamacpp, of a build whose parameters have its layout. What
its log says of a tiny model must be the plan's. Exit code: 0 equal, 1 not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "fixtures")]

from recorder import tree, wheel  # noqa: E402

BUILD = 11063  # llama_context_params as llama-cpp-python 0.3.36 has them
LIBRARIES = ("llama", "ggml", "ggml-base", "ggml-cpu", "mtmd")
# the wheel lacks functions that nothing here calls
_START = """import ctypes
found = ctypes.CDLL.__getattr__
def lenient(self, name):
    try:
        return found(self, name)
    except AttributeError:
        return ctypes.CFUNCTYPE(None)(lambda *_: None)
ctypes.CDLL.__getattr__ = lenient
"""


def prepared(folder: Path) -> tuple[Path, Path]:
    """(the package's Python code, a folder with its library)."""
    name = r"llama_cpp_python-(\d+\.\d+\.\d+)\.tar\.gz"
    files = {
        file: url
        for file, url in tree.listed("llama-cpp-python").items()
        if re.fullmatch(name, file)
    }
    newest = max(files, key=lambda file: tuple(map(int, re.findall(r"\d+", file)[:3])))
    code = folder / newest.removesuffix(".tar.gz")
    if not code.exists():
        with (
            urllib.request.urlopen(files[newest], timeout=60) as answer,
            tarfile.open(fileobj=answer, mode="r|gz") as archive,
        ):
            for member in archive:
                if "/llama_cpp/" in member.name and member.name.endswith(".py"):
                    archive.extract(member, folder, filter="data")
    here = folder / f"b{BUILD}"
    here.mkdir(exist_ok=True)
    whole = wheel.fetch(tree.Tree(here, here, BUILD), here)[0]
    for library in LIBRARIES:
        link = here / f"lib{library}.so"
        link.unlink(missing_ok=True)
        link.symlink_to(whole)
    return code, here


def planned(model: Path, words: list[str]) -> tuple[str, dict[str, int]]:
    """(the program, bytes in RAM that the plan names)."""
    command = [sys.executable, "-m", "autolayers", str(model), "--ram", "8GiB", *words]
    program = subprocess.run(
        [*command, "--format", "llama-cpp-python"], capture_output=True, text=True, check=True
    )
    # the words that the program has, on the build that runs it
    own = [*words, *([] if "-ub" in words else ["-ub", "512"]), "-fa", "on"]
    again = [
        *command[:6],
        *own,
        "--engine",
        "llama-cpp-python",
        "--llama-build",
        str(BUILD),
        "--json",
    ]
    answer = subprocess.run(again, capture_output=True, text=True, check=True)
    return program.stdout, json.loads(answer.stdout)["host"]


def main() -> int:
    code, libraries = prepared(tree.CACHE)
    equal = True
    name = "chat"
    for words in (["-c", "512"], ["-c", "2048", "-ub", "128", "-ctk", "bf16", "-ctv", "bf16"]):
        program, plan = planned(ROOT / f"fixtures/tiny/{name}.gguf", words)
        environ = {**os.environ, "PYTHONPATH": str(code), "LLAMA_CPP_LIB_PATH": str(libraries)}
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(_START + program)
            file.flush()
            log = subprocess.run(
                [sys.executable, file.name], env=environ, capture_output=True, text=True
            ).stderr
        real = {
            "model": r"model buffer size = +([\d.]+) MiB",
            "context": r"KV buffer size = +([\d.]+) MiB",
            "compute": r"compute buffer size (?:is|=) +([\d.]+) MiB",
        }
        for part, pattern in real.items():
            found = [float(size) for size in re.findall(pattern, log)]
            said = plan[part] / 2**20
            alike = bool(found) and abs(sum(found[-1:]) - said) < 0.0051
            equal = equal and alike
            verdict = "" if alike else "  DIFFERS"
            print(f"{name} {' '.join(words)}: {part} {found[-1:]} MiB, planned {said:.4f}{verdict}")
    return not equal


if __name__ == "__main__":
    sys.exit(main())
