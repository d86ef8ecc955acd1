"""What a large vocabulary costs: python benchmarks/bench_header.py [RUNS]

Every line is a fresh process, compared with `python -c pass`: the least wall time of RUNS, and the
peak memory. The two files have the metadata and tensors of
fixtures/headers/llama-3.1-8b-q4_k_m.gguf and a vocabulary of 128,256 or 262,144 tokens with its
scores, types and merges, as long on average as those of Llama 3 and Gemma 4. Aims: 8 and 12 times
`pass` for the whole `autolayers FILE -q --gpu 24GiB`, 60 MiB.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / "fixtures" / "headers" / "llama-3.1-8b-q4_k_m.gguf"
VOCABULARIES = ((128_256, 280_147, 8), (262_144, 514_906, 12))  # tokens, merges, aim
STR, F32, I32, ARR = 8, 6, 5, 9

PASS = ["-c", "pass"]
HEADER = ["-c", "import sys; from autolayers.gguf import read_header; read_header(sys.argv[1])"]
WHOLE = ["-m", "autolayers"]
GGUF = ["-c", "import sys; from gguf import GGUFReader; GGUFReader(sys.argv[1])"]


def array(key: str, type_: int, n: int, body: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IIQ", ARR, type_, n) + body


def strings(n: int, seed: random.Random, mean: float) -> bytes:
    """Lengths as in a real vocabulary: mostly around `mean`, at least 1, one in a thousand of some
    hundreds."""
    letters = bytes(range(97, 123)) * 40
    parts = []
    for _ in range(n):
        length = (
            1 + int(seed.expovariate(1) * (mean - 1))
            if seed.random() < 0.999
            else seed.randrange(100, 600)
        )
        parts.append(struct.pack("<Q", length) + letters[:length])
    return b"".join(parts)


def write(path: Path, n_tokens: int, n_merges: int) -> None:
    """BASE with the vocabulary as its first metadata; sparse up to the promised length, which
    GGUFReader needs."""
    base = BASE.read_bytes()
    n_tensors, n_keys = struct.unpack_from("<QQ", base, 8)
    seed = random.Random(n_tokens)
    pairs = [
        array("tokenizer.ggml.tokens", STR, n_tokens, strings(n_tokens, seed, 8.4)),
        array("tokenizer.ggml.scores", F32, n_tokens, bytes(4 * n_tokens)),
        array("tokenizer.ggml.token_type", I32, n_tokens, bytes(4 * n_tokens)),
        array("tokenizer.ggml.merges", STR, n_merges, strings(n_merges, seed, 10.6)),
    ]
    with open(path, "wb") as file:
        file.write(
            base[:8]
            + struct.pack("<QQ", n_tensors, n_keys + len(pairs))
            + b"".join(pairs)
            + base[24:]
        )
    sys.path.insert(0, str(ROOT))
    from autolayers.gguf import read_header

    os.truncate(path, read_header(path).files[0].promised)


def write_apart(path: Path, n_tokens: int, n_merges: int) -> None:
    """In a child, since what this process ever held counts as the peak of all that it starts."""
    pid = os.fork()
    if pid == 0:
        write(path, n_tokens, n_merges)
        os._exit(0)
    os.waitpid(pid, 0)


def run(words: list[str], cache: str) -> tuple[float, int, int]:
    """(seconds, KiB at the peak, exit code) of a fresh process, with compiled modules as an
    installed package has them.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": cache,
    }
    start = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, *words],
        environment,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)],
    )
    _, status, usage = os.wait4(pid, 0)
    return time.perf_counter() - start, usage.ru_maxrss, os.waitstatus_to_exitcode(status)


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = str(Path(folder, "cache"))
        for n_tokens, n_merges, aim in VOCABULARIES:
            path = Path(folder, f"{n_tokens}.gguf")
            write_apart(path, n_tokens, n_merges)
            lines = {
                "python -c pass": PASS,
                "read_header alone": [*HEADER, str(path)],
                "autolayers -q --gpu 24GiB": [*WHOLE, str(path), "-q", "--gpu", "24GiB"],
            }
            best: dict[str, tuple[float, int, int]] = {}
            for _ in range(runs):  # in turn, so that all see the same machine
                for name, words in lines.items():
                    result = run(words, cache)
                    best[name] = min(best.get(name, result), result)
            best["gguf.GGUFReader"] = run([*GGUF, str(path)], cache)
            print(f"{n_tokens} tokens, {n_merges} merges (aim: {aim} times, 60 MiB)")
            unit = best["python -c pass"][0]
            for name, (seconds, kib, code) in best.items():
                failed = f"   (exit code {code})" if code else ""
                print(
                    f"  {name:26} {seconds * 1000:9.1f} ms {seconds / unit:8.1f} times "
                    f"{kib / 1024:8.1f} MiB{failed}"
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
