"""An Ollama server that answers over real HTTP with the shapes recorded from 0.33, and fails in
every way it can.

With `gpus` it starts a llama-server as Ollama does: the same words, whose buffers it takes from the
arithmetic of api.estimate, says in its log and adds up in /api/ps, where each kind of buffer on a
device counts once.

    with FakeOllama() as server:
        server.add("llama3.1:8b", "fixtures/headers/llama-3.1-8b-q4_k_m.gguf")
        server.environ            # {"OLLAMA_HOST": "127.0.0.1:40123"}
        server.faults["/api/ps"] = "empty"
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from autolayers import api
from autolayers.devices import Device
from autolayers.flags.parse import parse
from autolayers.gguf import ArrayInfo, read_header
from autolayers.model import Model, read_model

NS = "application/vnd.ollama.image."


def full(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


class FakeOllama:
    def __init__(self) -> None:
        self.models: dict[str, dict] = {}
        self.loaded: dict[str, dict] = {}
        self.faults: dict[str, str] = {}  # path -> one of the names in Handler.fail
        self.requests: list[tuple[str, dict]] = []
        self.headers: list[dict[str, str]] = []
        self.version = "0.33.0"
        self.content = b""  # the answer of a path with the fault "content"
        self.fits_layers = 1000  # more than this many layers do not fit
        self.oom = "llama runner process has terminated: cudaMalloc failed: out of memory"
        self.layers = 0  # what the log says there are
        self.vram = (10 << 30, 10 << 30)  # size, size_vram of what is loaded
        self.log: Path | None = None
        self.prefix = ""
        self.gpus: list[Device] = []  # what a started llama-server has
        self.settings: dict[str, str] = {}  # OLLAMA_* and LLAMA_ARG_* of the server
        self.started: list[list[str]] = []  # the words of each llama-server

    def __enter__(self) -> FakeOllama:
        outer = self

        class Bound(Handler):
            fake = outer

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self.http.daemon_threads = True
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.http.server_address[1]}"

    @property
    def environ(self) -> dict[str, str]:
        return {"OLLAMA_HOST": self.host + self.prefix}

    def add(
        self,
        name: str,
        gguf: str | Path,
        parameters: dict | None = None,
        extra_size: int = 0,
        projector: bool = False,
    ) -> None:
        header = read_header(gguf)
        info: dict[str, object] = {}
        for key, value in header.metadata.items():
            if isinstance(value, ArrayInfo):
                value = ["x" if value.type == "str" else 0] * value.length
            if key not in ("general.name", "tokenizer.chat_template"):
                info[key] = list(value) if isinstance(value, tuple) else value
        tensors = [
            {"name": t.name, "type": t.type.upper(), "shape": list(t.ne[: t.n_dims])}
            for t in header.tensors.values()
        ]
        self.models[full(name)] = {
            "info": info,
            "tensors": tensors,
            "parameters": dict(parameters or {}),
            "size": header.n_bytes + extra_size,
            "digest": hashlib.sha256(name.encode()).hexdigest(),
            "projector": projector,
            "path": str(gguf),
        }

    def say(self, line: str) -> None:
        if self.log:
            with self.log.open("a") as stream:
                stream.write(line + "\n")

    def say_started(self) -> None:
        """What `ollama serve` writes when it starts; what is not set as its type's zero."""
        given = {
            "OLLAMA_CONTEXT_LENGTH": "0",
            "OLLAMA_FLASH_ATTENTION": "false",
            "OLLAMA_GPU_OVERHEAD": "0",
            "OLLAMA_KV_CACHE_TYPE": "",
            "OLLAMA_NUM_PARALLEL": "1",
            "OLLAMA_ORIGINS": "[http://localhost app://*]",
            "OLLAMA_SCHED_SPREAD": "false",
            **self.settings,
        }
        env = " ".join(f"{name}:{value}" for name, value in sorted(given.items()))
        self.say(
            f'time=2026-08-21T10:00:00Z level=INFO source=routes.go:2005 msg="server config" '
            f'env="map[{env}]"'
        )
        for i, gpu in enumerate(self.gpus):
            self.say(
                f'time=2026-08-21T10:00:01Z level=INFO source=types.go:32 msg="inference '
                f'compute" id={i} '
                f"filter_id={i} library={gpu.backend} compute=8.6 name={gpu.name} "
                f'description="a \\"GPU\\"" '
                f"libdirs=ollama,cuda_v13 driver=13.0 pci_id=0000:0{i}:00.0 type=discrete "
                f'total="{gpu.total / (1 << 30):.1f} GiB" '
                f'available="{gpu.free / (1 << 30):.1f} GiB"'
            )

    def command(self, found: Model, options: dict) -> list[str]:
        """llama_server.go:startLlamaServer."""
        slots = int(self.settings.get("OLLAMA_NUM_PARALLEL", "1"))
        n_ctx = max(4, min(options.get("num_ctx", 4096), found.n_ctx_train))
        words = [
            "--model",
            found.path,
            "--port",
            "41234",
            "--host",
            "127.0.0.1",
            "--no-webui",
            "--offline",
            "-c",
            str(n_ctx * slots),
            "-np",
            str(slots),
            "--log-verbosity",
            "4",
            "--no-log-prefix",
            "--no-log-timestamps",
        ]
        if kv := self.settings.get("OLLAMA_KV_CACHE_TYPE"):
            words += ["--cache-type-k", kv, "--cache-type-v", kv]
        flash = {"1": "on", "true": "on", "0": "off"}.get(
            self.settings.get("OLLAMA_FLASH_ATTENTION", ""), "auto"
        )
        batch = str(options.get("num_batch", 512))
        words += ["--flash-attn", flash, "-b", batch, "-ub", batch]
        if options.get("num_gpu", -1) >= 0:
            words += ["-ngl", str(options["num_gpu"])]
        return words

    def start(self, found: Model, options: dict) -> tuple[int, int] | None:
        """(size, size_vram) of /api/ps; None: out of memory."""
        words = self.command(found, options)
        self.started.append(words)
        cmd = " ".join(["/usr/lib/ollama/llama-server", *words])
        self.say(
            f'time=2026-08-21T10:00:02Z level=INFO source=llama_server.go:433 msg="starting '
            f'llama-server" '
            f'cmd="{cmd}"'
        )
        flags = [
            word
            for word in words
            if word not in ("--no-webui", "--no-log-prefix", "--no-log-timestamps")
        ]
        params = parse(flags, command=None).params
        for i, gpu in enumerate(self.gpus):
            self.say(
                f"llama_model_load_from_file_impl: using device {gpu.name} (a (GPU)) "
                f"(0000:0{i}:00.0) - "
                f"{gpu.free >> 20} MiB free"
            )
        if "-ngl" not in words:
            own = api.fit_choice(found, params, self.gpus)
            assert own is not None
            params = own.params
        use = api.estimate(found, params, self.gpus)
        if any(use.devices[gpu.name].total > gpu.free for gpu in self.gpus):
            return None
        layers = params.layers_wanted(found.n_layer + 1)
        self.say(f"load_tensors: offloaded {layers}/{found.n_layer + 1} layers to GPU")
        sizes: dict[tuple[str, str], float] = {}
        for name, usage in (*use.devices.items(), ("CPU", use.host)):
            parts = [("model", usage.model), ("KV", usage.context), ("compute", usage.compute)]
            if found.hparams.is_swa_any:  # two caches, two lines
                parts[1:2] = [
                    ("KV", usage.context - usage.context // 3),
                    ("KV", usage.context // 3),
                ]
            for kind, size in parts:
                if size:
                    self.say(f"load: {name:>10} {kind} buffer size = {size / (1 << 20):8.2f} MiB")
                    sizes[name, kind] = size
        size_vram = int(sum(size for (name, _), size in sizes.items() if name != "CPU"))
        whole = layers > found.n_layer
        return size_vram if whole else int(sum(sizes.values())), size_vram

    def details(self) -> dict:
        return {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "8.0B",
            "quantization_level": "Q4_K_M",
        }

    def answer(self, path: str, body: dict) -> tuple[int, dict]:
        name = full(str(body.get("model", "")))
        if path == "/api/version":
            return 200, {"version": self.version}
        if path == "/api/tags":
            return 200, {
                "models": [
                    {
                        "name": n,
                        "model": n,
                        "modified_at": "2026-08-21T10:00:00Z",
                        "size": m["size"],
                        "digest": m["digest"],
                        "details": self.details(),
                    }
                    for n, m in self.models.items()
                ]
            }
        if path == "/api/ps":
            return 200, {"models": list(self.loaded.values())}
        if path == "/api/create":
            base = self.models.get(full(body["from"]))
            if base is None:
                return 500, {"error": "pull model manifest: file does not exist"}
            self.models[name] = {
                **base,
                "parameters": {**base["parameters"], **body["parameters"]},
                "digest": hashlib.sha256(name.encode()).hexdigest(),
            }
            return 200, {"status": "success"}
        if name not in self.models:
            return 404, {"error": f"model '{body.get('model')}' not found"}
        model = self.models[name]
        if path == "/api/show":
            info = (
                model["info"]
                if body.get("verbose")
                else {k: None if isinstance(v, list) else v for k, v in model["info"].items()}
            )
            shown = {
                "modelfile": f"# Modelfile\nFROM {name}\n",
                "template": "{{ .Prompt }}",
                "details": self.details(),
                "parameters": "\n".join(f"{k:<30} {v!r}" for k, v in model["parameters"].items()),
                "model_info": info,
                "tensors": model["tensors"],
                "capabilities": ["completion"],
            }
            if "remote" in model:
                return 200, {**shown, "remote_host": model["remote"], "tensors": []}
            return 200, {**shown, "projector_info": {"clip.has_vision_encoder": True}} if model[
                "projector"
            ] else shown
        if path == "/api/generate" and body.get("keep_alive") == 0:
            self.loaded.pop(name, None)
            return 200, {"model": name, "response": "", "done": True, "done_reason": "unload"}
        if path == "/api/generate":
            options = {**model["parameters"], **body.get("options", {})}
            for key in ("num_gpu", "num_ctx", "num_batch", "main_gpu"):
                if isinstance(options.get(key), float):
                    options[key] = int(options[key])
                if key in options and not isinstance(options[key], int):
                    return 500, {"error": f'option "{key}" must be of type integer'}
            layers = options.get("num_gpu", -1)
            if name in self.loaded and layers < 0:
                # no reload
                return 200, {"model": name, "response": "", "done": True, "done_reason": "load"}
            self.loaded.pop(name, None)
            if layers > self.fits_layers:
                return 500, {"error": self.oom}
            size, size_vram = self.vram
            if self.gpus:
                sizes = self.start(read_model(model["path"]), options)
                if sizes is None:
                    return 500, {"error": self.oom}
                size, size_vram = sizes
            self.loaded[name] = {
                "name": name,
                "model": name,
                "size": size,
                "size_vram": size_vram,
                "digest": model["digest"],
                "details": self.details(),
                "expires_at": "2026-08-21T10:05:00Z",
                "context_length": options.get("num_ctx", 4096),
            }
            if not self.gpus:
                there = self.layers if layers < 0 else min(layers, self.layers)
                self.say(f"load_tensors: offloaded {there}/{self.layers} layers to GPU")
            return 200, {
                "model": name,
                "created_at": "2026-08-21T10:00:00Z",
                "response": "",
                "done": True,
                "done_reason": "load",
            }
        return 404, {"error": "not found"}


class Handler(BaseHTTPRequestHandler):
    fake: FakeOllama
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.handle_call({})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.handle_call(json.loads(self.rfile.read(length)))

    def handle_call(self, body: dict) -> None:
        # as a proxy
        path = (
            self.path[self.path.index("/", 8) :] if self.path.startswith("http://") else self.path
        )
        path = path.removeprefix(self.fake.prefix)
        self.fake.requests.append((path, body))
        self.fake.headers.append(dict(self.headers))
        fault = self.fake.faults.get(path)
        if fault:
            self.fail(fault)
            return
        status, answer = self.fake.answer(path, body)
        self.send(status, json.dumps(answer).encode())

    def send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def fail(self, fault: str) -> None:
        kind, _, detail = fault.partition(" ")
        if kind == "empty":
            self.send(200, b"")
        elif kind == "500":
            self.send(500, json.dumps({"error": detail}).encode())
        elif kind == "content":
            self.send(200, self.fake.content)
        elif kind == "401":
            self.send(401, b"<html><h1>401 Authorization Required</h1></html>")
        elif kind == "503":
            self.send(
                503,
                b'{"error":"server busy, please try again.  maximum pending requests exceeded"}',
            )
        elif kind == "stream":
            self.send(
                200, b'{"status":"using existing layer"}\n{"error":"' + detail.encode() + b'"}\n'
            )
        elif kind == "nonsense":
            self.send(200, b"<html>\n<h1>It works!</h1>")
        elif kind == "bare500":
            self.send(500, b"Internal\nServer \x1b[31mError")
        elif kind == "redirect":
            self.send(307, b"", Location=detail)
        elif kind == "unfinished":
            self.send(200, b'{"status":"writing manifest"}')
        elif kind == "short":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"models":')
            self.close_connection = True
        elif kind == "reset":
            self.close_connection = True
        elif kind == "slow":
            time.sleep(float(detail))
            self.close_connection = True
        elif kind == "endless":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            try:
                for _ in range(100):
                    self.wfile.write(b" ")
                    time.sleep(0.05)
            except OSError:
                pass
            self.close_connection = True


def make_store(
    root: Path,
    name: str,
    gguf: Path,
    parameters: dict | None = None,
    layers: tuple[tuple[str, bytes], ...] = (),
) -> Path:
    """A store with one model whose weights are `gguf` (a link); name as HOST/NAMESPACE/MODEL/TAG.
    Returns its manifest.
    """
    blobs = root / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)

    def blob(kind: str, content: bytes) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / f"sha256-{digest}").write_bytes(content)
        return {"mediaType": NS + kind, "digest": f"sha256:{digest}", "size": len(content)}

    digest = hashlib.sha256(str(gguf).encode()).hexdigest()
    link = blobs / f"sha256-{digest}"
    if not link.exists():
        link.symlink_to(gguf.resolve())
    entries = [
        {"mediaType": NS + "model", "digest": f"sha256:{digest}", "size": gguf.stat().st_size},
        blob("license", b"free"),
        *(blob(kind, content) for kind, content in layers),
    ]
    if parameters is not None:
        entries.append(blob("params", json.dumps(parameters).encode()))
    manifest = root / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(
        json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
                "config": {
                    "mediaType": "application/vnd.docker.container.image.v1+json",
                    "digest": f"sha256:{'0' * 64}",
                    "size": 2,
                },
                "layers": entries,
            }
        )
    )
    return manifest
