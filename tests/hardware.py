"""What a real GPU holds and how fast it is, beside what autolayers says of it.

    python tests/hardware.py LLAMA_BIN FOLDER OUT [CASE ...]

For a person with a GPU and a llama.cpp build: fills the headers of fixtures/ with random weights
in FOLDER (up to 42 GB a model), starts LLAMA_BIN/llama-server with them, sends it a prompt that
fills the context, and writes OUT/results.jsonl and OUT/logs.txt. A case that is not named runs
too if none is. Nothing is asserted: hardware_read.py compares.

- memory: given flags; how far the driver's free memory falls, while it loads and while it works.
- edge: another process leaves a small card's memory; `autolayers run` plans for what is left, and
  llama-server's own --fit does for the same context.
- speed: llama-bench, and autolayers' prediction for the same flags on this machine.
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


def vocabulary(n_vocab: int) -> bytes:
    """Return the metadata of a vocabulary of letters and unused words, with a template."""
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
    n_vocab = next(v for k, v in header.metadata.items() if k.endswith(".vocab_size"))
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
        self.least = self.now()
        self.start()

    def now(self) -> int:
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.gpu).free)

    def run(self) -> None:
        while True:
            self.least = min(self.least, self.now())
            time.sleep(0.003)

    def reset(self) -> int:
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
# name: model, GiB that another process leaves, own flags, given words
EDGE: dict[str, tuple[str, float, str, str]] = {
    "8b-in-4": ("llama-3.1-8b-q4_k_m", 4, "", ""),
    "8b-in-6": ("llama-3.1-8b-q4_k_m", 6, "", ""),
    "8b-in-8": ("llama-3.1-8b-q4_k_m", 8, "", ""),
    "8b-in-6-8k": ("llama-3.1-8b-q4_k_m", 6, "", "-c 16384"),
    "gemma3-in-4": ("gemma-3-4b-q8_0", 4, "", ""),
    "mamba2-in-2": ("mamba2-2.7b-q4_k_m", 2.5, "", ""),
    "gpt-oss-in-8": ("gpt-oss-20b-mxfp4", 8, "", ""),
    "gpt-oss-in-12": ("gpt-oss-20b-mxfp4", 12, "", ""),
    "30b-in-8": ("qwen3-30b-a3b-q4_k_m", 8, "", ""),
    "30b-in-12": ("qwen3-30b-a3b-q4_k_m", 12, "", ""),
    "30b-in-24": ("qwen3-30b-a3b-q4_k_m", 24, "", ""),
    "deepseek-in-6": ("deepseek-v2-lite-q4_k_m", 6, "", ""),
    "70b-in-24": ("llama-3.3-70b-q4_k_m", 24, "", ""),
}
# name: model and llama-bench's words
SPEED: dict[str, tuple[str, str]] = {
    "8b": ("llama-3.1-8b-q4_k_m", "-ngl 99 -p 512,2048 -n 128 -d 0,8192"),
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
    """Return autolayers' JSON of a command, or what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "autolayers", *words, "--json"], capture_output=True, text=True
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def main(argv: list[str]) -> None:
    programs, folder, out = (Path(arg).resolve() for arg in argv[:3])
    wanted = argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    server, bench = str(programs / "llama-server"), str(programs / "llama-bench")
    free = Free()
    quiet = ["--port", str(PORT), "--no-webui", "-lv", "4"]
    results = (out / "results.jsonl").open("a")

    def note(kind: str, **values: Any) -> None:
        results.write(json.dumps({"kind": kind, **values}) + "\n")
        results.flush()

    def asked(kind: str, case: str) -> bool:
        return not wanted or kind in wanted or f"{kind}:{case}" in wanted

    models: dict[str, None] = {}
    for kind, cases in (("memory", MEMORY), ("edge", EDGE), ("speed", SPEED)):
        models.update(dict.fromkeys(c[0] for name, c in cases.items() if asked(kind, name)))
    for name in models:
        path = make(name, folder)
        for case, (model, given) in MEMORY.items():
            if model != name or not asked("memory", case):
                continue
            words = [server, "-m", str(path), *given.split(), *quiet]
            result = served(f"memory:{case}", words, free, out)
            result["plan"] = plan([str(path), *given.split()])
            note("memory", model=name, **result)
            print("memory", case, result["up"], result.get("error", ""), flush=True)
        for case, (model, left, own, given) in EDGE.items():
            if model != name or not asked("edge", case):
                continue
            holder = ballast(int(left * GiB))
            run = [sys.executable, "-m", "autolayers", "run", "--verify", *own.split()]
            words = [server, "-m", str(path), *given.split(), *quiet]
            result = served(f"edge:{case}", [*run, *words], free, out)
            result["plan"] = plan([str(path), *own.split(), *given.split()])
            note("edge", model=name, left=left, **result)
            print("edge", case, result["up"], result.get("error", ""), flush=True)
            context = given.split() if "-c" in given else ["-c", str(result.get("n_ctx", 4096))]
            own_fit = served(f"fit:{case}", [server, "-m", str(path), *context, *quiet], free, out)
            note("fit", model=name, left=left, **own_fit)
            print("fit", case, own_fit["up"], own_fit.get("error", ""), flush=True)
            holder.kill()
            holder.wait()
        for case, (model, given) in SPEED.items():
            if model != name or not asked("speed", case):
                continue
            words = [bench, "-m", str(path), *given.split(), "-r", "2", "-o", "json"]
            done = subprocess.run(words, capture_output=True, text=True)
            rows = json.loads(done.stdout) if done.returncode == 0 else done.stderr[-2000:]
            launch = re.sub(r" -[pnd] \S+", "", given).split()
            predicted = {
                f"{p}+{n}@{d}": plan(
                    [str(path), *launch, "-c", "16384", "-np", "1", "--workload", f"{p}+{n}@{d}"]
                )
                for p, n in ((512, 128), (2048, 128))
                for d in (0, 8192)
            }
            note("speed", case=case, model=name, words=given, rows=rows, predicted=predicted)
            print("speed", case, flush=True)
        if path.stat().st_size > 15e9:
            path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
