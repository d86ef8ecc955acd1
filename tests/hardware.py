"""Compares what launches take on a real NVIDIA GPU, and how fast they are, with predictions.

    python tests/hardware.py LLAMA_BIN FOLDER OUT [memory] [edge] [speed] [memory:8b-fa ...]

Needs a GPU, a llama.cpp build (llama-server, llama-bench), numpy and pynvml. It gives the headers
of fixtures/headers a vocabulary and random weights (up to 42 GB in FOLDER, one model at a time) and
writes OUT/results.jsonl and OUT/logs.txt. All cases take ten minutes on an H100.

- memory: given flags, a prompt that fills the context, and how far the driver's free memory falls.
  fixtures/real/peaks.jsonl has such results.
- edge: another process leaves the memory of a small card; `autolayers run` plans for what is left,
  and llama-server's own --fit for the same context.
- speed: llama-bench, next to autolayers' prediction for this machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import autolayers  # noqa: E402

MiB, GiB = 1 << 20, 1 << 30
HEADERS = HERE.parent / "fixtures" / "headers"
CHUNK = 32 * MiB
PORT = 18099

# Bytes of a block's scales, by type: (offset, values) of what random bytes would make infinite.
BLOCKS: dict[str, tuple[int, dict[int, float]]] = {
    "q4_0": (18, {0: 4e-3}),
    "q8_0": (34, {0: 2e-4}),
    "q4_K": (144, {0: 1e-4, 2: 7.5e-4}),
    "q5_K": (176, {0: 5e-5, 2: 7.5e-4}),
    "q6_K": (210, {208: 1e-5}),
}


def random_blocks(type_: str, name: str, rng: np.random.Generator) -> bytes:
    """Return CHUNK bytes or so of a type: whole blocks whose values are small and finite."""
    if type_ == "f32":
        if "norm" in name:
            return np.ones(CHUNK // 4, np.float32).tobytes()
        if name.endswith("ssm_a"):
            return (-rng.uniform(0.5, 8, CHUNK // 4)).astype(np.float32).tobytes()
        return rng.normal(0, 0.02, CHUNK // 4).astype(np.float32).tobytes()
    if type_ == "f16":
        return rng.normal(0, 0.02, CHUNK // 2).astype(np.float16).tobytes()
    if type_ == "bf16":
        values = rng.normal(0, 0.02, CHUNK // 2).astype(np.float32).view(np.uint32) >> 16
        return values.astype(np.uint16).tobytes()
    if type_ == "mxfp4":
        blocks = rng.integers(0, 256, (CHUNK // 17, 17), np.uint8)
        blocks[:, 0] = 120
        return blocks.tobytes()
    size, scales = BLOCKS[type_]
    blocks = rng.integers(0, 256, (CHUNK // size, size), np.uint8)
    for offset, value in scales.items():
        halves = (value * rng.uniform(0.5, 1.5, len(blocks))).astype(np.float16)
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(8, "little") + value.encode()


def number(value: int, size: int = 4) -> bytes:
    return value.to_bytes(size, "little")


def vocabulary(n_vocab: int) -> tuple[bytes, int]:
    """Return the metadata of a vocabulary of letters and unused words with a template, and the
    number of its keys."""
    letters = [chr(c) for c in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]]
    letters += [chr(c) for c in range(256, 256 + 68)]
    words = letters + [f"<unused{i}>" for i in range(n_vocab - len(letters) - 2)]
    words += ["<|bos|>", "<|eos|>"]
    kinds = [1] * len(letters) + [5] * (n_vocab - len(letters) - 2) + [3, 3]
    array, string, i32, u32 = number(9), number(8), number(5), number(4)
    merges = ["a b"]
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    kvs = [
        ("tokenizer.ggml.model", string + text("gpt2")),
        ("tokenizer.ggml.pre", string + text("gpt-2")),
        (
            "tokenizer.ggml.tokens",
            array + string + number(n_vocab, 8) + b"".join(map(text, words)),
        ),
        (
            "tokenizer.ggml.token_type",
            array + i32 + number(n_vocab, 8) + b"".join(map(number, kinds)),
        ),
        (
            "tokenizer.ggml.merges",
            array + string + number(len(merges), 8) + b"".join(map(text, merges)),
        ),
        ("tokenizer.ggml.bos_token_id", u32 + number(n_vocab - 2)),
        ("tokenizer.ggml.eos_token_id", u32 + number(n_vocab - 1)),
        ("tokenizer.chat_template", string + text(template)),
    ]
    return b"".join(text(key) + value for key, value in kvs), len(kvs)


def make(name: str, folder: Path) -> Path:
    """Write a model of a header's dimensions: its infos, a vocabulary, random weights."""
    path = folder / f"{name}.gguf"
    if path.exists():
        return path
    source = HEADERS / f"{name}.gguf"
    header = autolayers.read_header(source)
    sizes = (value for key, value in header.metadata.items() if key.endswith(".vocab_size"))
    n_vocab = int(str(next(sizes)))
    raw = source.read_bytes()[: header.data_offset]
    none = text("tokenizer.ggml.model") + number(8) + text("none")
    assert raw.count(none) == 1, source
    kvs, n_kvs = vocabulary(n_vocab)
    n_kv = int.from_bytes(raw[16:24], "little") + n_kvs - 1
    raw = raw[:16] + number(n_kv, 8) + raw[24:].replace(none, kvs)
    raw += bytes(-len(raw) % 32)
    rng = np.random.default_rng(7)
    patterns: dict[tuple[str, str], bytes] = {}

    def role(tensor: str) -> str:
        if "norm" in tensor:
            return "norm"
        return "ssm_a" if tensor.endswith("ssm_a") else ""

    tensors = list(header.tensors.values())
    for tensor in tensors:
        key = (tensor.type, role(tensor.name))
        if key not in patterns:
            patterns[key] = random_blocks(*key, rng)
    started = time.time()
    with path.open("wb") as file:
        file.write(raw)
        end = max(t.offset + t.n_bytes for t in tensors) - header.data_offset
        file.truncate(len(raw) + end)
        descriptor = file.fileno()

        def fill(tensor: Any) -> None:
            pattern = patterns[tensor.type, role(tensor.name)]
            at, left = len(raw) + tensor.offset - header.data_offset, tensor.n_bytes
            while left:
                wrote = os.pwrite(descriptor, pattern[:left], at)
                at, left = at + wrote, left - wrote

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fill, tensors))
    print(f"{path.name}: {path.stat().st_size / 1e9:.1f} GB in {time.time() - started:.0f} s")
    return path


class Free(threading.Thread):
    """Ask NVML for the free memory all the time; `least` since it was last reset."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        import pynvml

        pynvml.nvmlInit()
        self.nvml = pynvml
        self.gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.lock = threading.Lock()
        self.least = self.now()
        self.start()

    def now(self) -> int:
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.gpu).free)

    def run(self) -> None:
        while True:
            now = self.now()
            with self.lock:
                self.least = min(self.least, now)
            time.sleep(0.003)

    def reset(self) -> int:
        with self.lock:
            least, self.least = self.least, self.now()
        return least


BALLAST = """
import ctypes, sys, time
sys.path.insert(0, sys.argv[2])
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
cuda = ctypes.CDLL("libcuda.so.1")
ctx, device, at = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), device) == 0
assert cuda.cuCtxSetCurrent(ctx) == 0
left = int(sys.argv[1])
while True:
    more = pynvml.nvmlDeviceGetMemoryInfo(gpu).free - left
    if more < (2 << 20):
        break
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(more)) == 0
print("ready", flush=True)
time.sleep(3600)
"""


def ballast(left: int) -> subprocess.Popen[str]:
    """Start a process that leaves `left` bytes of the first GPU free."""
    holder = subprocess.Popen(
        [sys.executable, "-c", BALLAST, str(left), str(HERE)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder


def ask(path: str, data: dict[str, Any] | None = None, timeout: float = 120) -> Any:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def up(process: subprocess.Popen[bytes], limit: float) -> bool:
    end = time.time() + limit
    while time.time() < end and process.poll() is None:
        try:
            return bool(ask("/health", timeout=2)["status"] == "ok")
        except OSError:
            time.sleep(0.05)
    return False


def fill_context(most: int) -> dict[str, Any]:
    """Send a prompt of the whole slot, at most `most` tokens, and let it answer 64."""
    n_ctx = ask("/props")["default_generation_settings"]["n_ctx"]
    n_prompt = max(16, min(most, n_ctx - 80))
    rng = np.random.default_rng(11)
    prompt = rng.integers(300, 30000, n_prompt).tolist()
    data = {"prompt": prompt, "n_predict": 64, "ignore_eos": True, "cache_prompt": False}
    ask("/completion", {**data, "prompt": prompt[:700], "n_predict": 4})
    answer = ask("/completion", data, timeout=200)
    return {"n_ctx": n_ctx, "n_prompt": n_prompt, "timings": answer.get("timings")}


def served(
    name: str, words: list[str], free: Free, logs: Path, most: int = 33000
) -> dict[str, Any]:
    """Start a server, fill its context; what the driver's memory did."""
    time.sleep(0.3)
    before = free.now()
    free.reset()
    result: dict[str, Any] = {"case": name, "words": words[1:], "before": before}
    log = logs / "one.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        started = time.time()
        result["up"] = up(process, 150)
        result["seconds_up"] = round(time.time() - started, 1)
        time.sleep(0.3)
        result["idle"] = free.now()
        result["least_loading"] = free.reset()
        if result["up"]:
            try:
                result.update(fill_context(most))
            except (OSError, ValueError, KeyError) as error:
                result["error"] = repr(error)
            result["least_working"] = free.reset()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        result["rc"] = process.wait()
    with (logs / "logs.txt").open("ab") as all_logs:
        all_logs.write(f"##### {name}: {' '.join(words)}\n".encode() + log.read_bytes())
    end = time.time() + 10
    while free.now() < before - 8 * MiB and time.time() < end:
        time.sleep(0.05)
    return result


# name: model and words. The words are the launch; the context is what the prompt fills.
MEMORY: dict[str, tuple[str, str]] = {
    "8b-fa": ("llama-3.1-8b-q4_k_m", "-ngl 99 -c 32768 -np 1"),
    "8b-no-fa": ("llama-3.1-8b-q4_k_m", "-ngl 99 -c 16384 -np 1 -fa off"),
    "8b-q8": ("llama-3.1-8b-q4_k_m", "-ngl 99 -c 32768 -np 1 -ctk q8_0 -ctv q8_0"),
    "8b-q4": ("llama-3.1-8b-q4_k_m", "-ngl 99 -c 16384 -np 1 -ctk q4_0 -ctv q4_0"),
    "8b-ub2048": ("llama-3.1-8b-q4_k_m", "-ngl 99 -c 32768 -np 1 -b 2048 -ub 2048"),
    "8b-part": ("llama-3.1-8b-q4_k_m", "-ngl 20 -c 8192 -np 1"),
    "8b-none": ("llama-3.1-8b-q4_k_m", "-ngl 0 -c 4096 -np 1"),
    "8b-nkvo": ("llama-3.1-8b-q4_k_m", "-ngl 99 -c 4096 -np 1 -nkvo"),
    "8b-slots": ("llama-3.1-8b-q4_k_m", "-ngl 99 -c 32768 -np 4"),
    "gemma3": ("gemma-3-4b-q8_0", "-ngl 99 -c 32768 -np 1"),
    "1b-tied": ("llama-3.2-1b-q8_0", "-ngl 99 -c 8192 -np 1"),
    "mamba2": ("mamba2-2.7b-q4_k_m", "-ngl 99 -c 8192 -np 1"),
    "gpt-oss": ("gpt-oss-20b-mxfp4", "-ngl 99 -c 32768 -np 1"),
    "gpt-oss-cmoe": ("gpt-oss-20b-mxfp4", "-ngl 99 -c 16384 -np 1 -ncmoe 12"),
    "30b": ("qwen3-30b-a3b-q4_k_m", "-ngl 99 -c 32768 -np 1"),
    "30b-cmoe": ("qwen3-30b-a3b-q4_k_m", "-ngl 99 -c 16384 -np 1 -cmoe"),
    "30b-ncmoe": ("qwen3-30b-a3b-q4_k_m", "-ngl 99 -c 16384 -np 1 -ncmoe 24 -ub 2048"),
    "deepseek": ("deepseek-v2-lite-q4_k_m", "-ngl 99 -c 16384 -np 1"),
    "granite": ("granite-4.0-h-small-q4_k_m", "-ngl 99 -c 16384 -np 1"),
    "70b": ("llama-3.3-70b-q4_k_m", "-ngl 99 -c 16384 -np 1"),
}
# name: model, GiB that another process leaves, given words
EDGE: dict[str, tuple[str, float, str]] = {
    "8b-in-4": ("llama-3.1-8b-q4_k_m", 4, ""),
    "8b-in-6": ("llama-3.1-8b-q4_k_m", 6, ""),
    "8b-in-8": ("llama-3.1-8b-q4_k_m", 8, ""),
    "8b-in-6-16k": ("llama-3.1-8b-q4_k_m", 6, "-c 16384"),
    "gemma3-in-4": ("gemma-3-4b-q8_0", 4, ""),
    "mamba2-in-2": ("mamba2-2.7b-q4_k_m", 2.5, ""),
    "gpt-oss-in-8": ("gpt-oss-20b-mxfp4", 8, ""),
    "gpt-oss-in-12": ("gpt-oss-20b-mxfp4", 12, ""),
    "30b-in-8": ("qwen3-30b-a3b-q4_k_m", 8, ""),
    "30b-in-12": ("qwen3-30b-a3b-q4_k_m", 12, ""),
    "30b-in-24": ("qwen3-30b-a3b-q4_k_m", 24, ""),
    "deepseek-in-6": ("deepseek-v2-lite-q4_k_m", 6, ""),
    "70b-in-24": ("llama-3.3-70b-q4_k_m", 24, ""),
}
# name: model and llama-bench's words
SPEED: dict[str, tuple[str, str]] = {
    "8b": ("llama-3.1-8b-q4_k_m", "-ngl 99 -p 512,2048 -n 128 -d 0,8192"),
    "8b-ub2048": ("llama-3.1-8b-q4_k_m", "-ngl 99 -ub 2048 -p 2048 -n 0"),
    "8b-q8": ("llama-3.1-8b-q4_k_m", "-ngl 99 -ctk q8_0 -ctv q8_0 -fa 1 -p 512 -n 64 -d 8192"),
    "8b-part": ("llama-3.1-8b-q4_k_m", "-ngl 16 -p 512 -n 32 -d 0"),
    "8b-cpu": ("llama-3.1-8b-q4_k_m", "-ngl 0 -p 512 -n 32 -d 0"),
    "gemma3": ("gemma-3-4b-q8_0", "-ngl 99 -p 512,2048 -n 128 -d 0,8192"),
    "mamba2": ("mamba2-2.7b-q4_k_m", "-ngl 99 -p 512 -n 128 -d 0"),
    "1b": ("llama-3.2-1b-q8_0", "-ngl 99 -p 512 -n 128 -d 0"),
    "gpt-oss": ("gpt-oss-20b-mxfp4", "-ngl 99 -p 512,2048 -n 128 -d 0,8192"),
    "gpt-oss-cmoe": ("gpt-oss-20b-mxfp4", "-ngl 99 -ncmoe 24 -p 512,2048 -n 32 -d 0"),
    "30b": ("qwen3-30b-a3b-q4_k_m", "-ngl 99 -p 512,2048 -n 128 -d 0,8192"),
    "30b-cmoe": ("qwen3-30b-a3b-q4_k_m", "-ngl 99 -ncmoe 48 -p 512,2048 -n 32 -d 0"),
    "30b-ncmoe": ("qwen3-30b-a3b-q4_k_m", "-ngl 99 -ncmoe 24 -p 512 -n 32 -d 0"),
    "deepseek": ("deepseek-v2-lite-q4_k_m", "-ngl 99 -p 512 -n 128 -d 0,8192"),
    "granite": ("granite-4.0-h-small-q4_k_m", "-ngl 99 -p 512 -n 128 -d 0"),
    "70b": ("llama-3.3-70b-q4_k_m", "-ngl 99 -p 512 -n 64 -d 0,8192"),
}


def plan(words: list[str]) -> Any:
    """Return autolayers' JSON of a command."""
    command = [sys.executable, "-m", "autolayers", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent)
    # 1: it does not fit
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def rate(result: dict[str, Any]) -> str:
    timings = result.get("timings") or {}
    rates = [f"{timings.get(f'{name}_per_second', 0):.1f}" for name in ("prompt", "predicted")]
    return f"{' and '.join(rates)} tokens/s, -c {result.get('n_ctx')}"


class Proof:
    """Runs cases of one model after the other, and writes and prints each result."""

    def __init__(self, programs: Path, out: Path) -> None:
        self.server, self.bench = str(programs / "llama-server"), str(programs / "llama-bench")
        self.out, self.free = out, Free()
        self.quiet = ["--port", str(PORT), "--no-webui", "-lv", "4"]

    def note(self, kind: str, case: str, said: str, result: dict[str, Any]) -> None:
        with (self.out / "results.jsonl").open("a") as results:
            results.write(json.dumps({"kind": kind, "name": case, **result}) + "\n")
        print(f"{kind} {case}: {said}", flush=True)

    def memory(self, case: str, path: Path, given: str) -> None:
        words = [self.server, "-m", str(path), *given.split(), *self.quiet]
        result = served(f"memory:{case}", words, self.free, self.out)
        result["plan"] = plan([str(path), *given.split()])
        row = result["plan"]["devices"][0]
        took = result["before"] - result.get("least_working", result["least_loading"])
        said = (
            f"{took / MiB:.0f} MiB, predicted {row['used'] / MiB:.0f} "
            f"and a margin of {row['margin'] / MiB:.0f}"
        )
        self.note("memory", case, said, result)

    def edge(self, case: str, path: Path, left: float, given: str) -> None:
        holder = ballast(int(left * GiB))
        try:
            run = [sys.executable, "-m", "autolayers", "run", "--verify"]
            words = [self.server, "-m", str(path)]
            ours = [*run, *words, *given.split(), *self.quiet]
            result = served(f"edge:{case}", ours, self.free, self.out, 9000)
            least = result.get("least_working", result["least_loading"]) / MiB
            self.note("edge", case, f"{least:.0f} MiB stay free, {rate(result)}", result)
            context = given.split() or ["-c", str(result.get("n_ctx", 4096))]
            theirs = [*words, *context, *self.quiet]
            result = served(f"fit:{case}", theirs, self.free, self.out, 9000)
            self.note("fit", case, rate(result), result)
        finally:
            holder.kill()
            holder.wait()

    def speed(self, case: str, path: Path, given: str) -> None:
        words = [self.bench, "-m", str(path), *given.split(), "-r", "2", "-o", "json"]
        rows = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        launch = re.sub(r" -[pnd] \S+| -fa \S+", "", given).split()
        for row in rows:
            prompt, generate, depth = row["n_prompt"], row["n_gen"], row["n_depth"]
            work = f"{prompt or 1}+{generate or 1}@{depth}"
            words = [str(path), *launch, "-c", "16384", "-np", "1", "--workload", work]
            speed = plan(words)["speed"]
            name = "prompt" if prompt else "generation"
            predicted = speed[f"{name}_tokens_per_second"]
            said = f"{work} {row['avg_ts']:.1f} tokens/s, predicted {predicted:.1f}"
            self.note("speed", case, said, {"words": given, "row": row, "predicted": predicted})


def main(argv: list[str]) -> None:
    programs, folder, out = (Path(arg).resolve() for arg in argv[:3])
    wanted = argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    proof = Proof(programs, out)
    kinds = ((proof.memory, MEMORY), (proof.edge, EDGE), (proof.speed, SPEED))
    cases = [
        (run, case, *facts)
        for run, table in kinds
        for case, facts in table.items()
        if not wanted or {run.__name__, f"{run.__name__}:{case}"} & set(wanted)
    ]
    for model in dict.fromkeys(model for _, _, model, *_ in cases):
        path = make(model, folder)
        for run, case, name, *facts in cases:
            if name == model:
                run(case, path, *facts)
        path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
