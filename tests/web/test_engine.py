"""The page's engine: its answers are the library's, foreign input is an error of one line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support import FIXTURES, HEADERS, ROOT, model

import autolayers
from autolayers.web.engine import BUNDLED, LARGEST_SLICE, Engine, explain_log

MODELS = ["llama-3.1-8b-q4_k_m", "qwen3-30b-a3b-q4_k_m", "gemma-2-9b-q4_k_m"]
MACHINES = ["8GiB", "rtx-3090,12GiB"]


def ask(method: str, **question: Any) -> dict[str, Any]:
    """As the page asks: through JSON both ways."""
    answer: dict[str, Any] = json.loads(json.dumps(Engine().call(method, json.loads(json.dumps(question)))))
    return answer


@pytest.mark.parametrize("gpu", MACHINES)
@pytest.mark.parametrize("name", [
    MODELS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS[1:])])
def test_plans_are_the_librarys(name: str, gpu: str) -> None:
    words = ["--gpu", gpu, "--ram", "64GiB", "-c", "8192", "-ctk", "q8_0", "-ctv", "q8_0", "-np", "2"]
    answer = ask("plan", model=BUNDLED + name, gpu=gpu, ram="64GiB", ctx="8192", ctk="q8_0", flags="-ctv q8_0 -np 2")
    plan = autolayers.plan(autolayers.read_model(HEADERS / f"{name}.gguf"), words, explain=True)
    want = json.loads(json.dumps(plan.to_dict()))
    assert {**answer["plan"], "model": None, "warnings": None} == {**want, "model": None, "warnings": None}
    assert answer["command"]["bash"].startswith(f"llama-server -m {name}.gguf -ngl {plan.n_gpu_layers} -c 8192 ")


@pytest.mark.parametrize(("name", "flags"), [
    ("llama-3.1-8b-q4_k_m", ""), ("llama-3.1-8b-q4_k_m", "--llama-build b4000"),
    pytest.param("llama-3.1-8b-q4_k_m", "--llama-build b7000", marks=pytest.mark.slow),
    ("llama-3.1-8b-q4_k_m", "-ot token_embd=CUDA0"),
    ("mtp-step35", "--override-kv step35.nextn_predict_layers=int:0"), ("mtp-step35", ""),
    ("qwen3-30b-a3b-q4_k_m", "--llama-build b9093 --ram 64GiB -ngl 49 -c 4096 -ncmoe 40"),
    pytest.param("qwen3.5-4b-mtp-q8_0", "", marks=pytest.mark.slow),
    ("qwen3.5-4b-mtp-q8_0", "--spec-type draft-mtp -ngl 20 -c 4096"),
    ("qwen3.5-4b-mtp-q8_0", "--spec-type draft-mtp --llama-build b10204 -ngl 20 -c 4096"),
])
def test_the_layers_shown_are_the_plan_s_weights(name: str, flags: str) -> None:
    """For every build, with another header's keys and with MTP blocks."""
    engine = Engine(lambda name: model(name))
    answer = engine.call("plan", {"model": name, "gpu": "4GiB", "flags": flags, "quick": True})
    weights: dict[str, int] = {}
    for layer in answer["layers"]:
        for buffer, size in layer["buffers"].items():
            weights[buffer] = weights.get(buffer, 0) + size
    (device,) = answer["plan"]["devices"]
    assert weights["CUDA0"] == device["model"] > 0
    found = autolayers.plan(model(name), ["--gpu", "4GiB", *flags.split()])
    everything = sum(size for row in found.layers for size in row.buffers.values())
    assert everything == sum(row.model for row in found.devices) + found.host.model
    assert [row.name for row in found.layers] == ["input", *map(str, range(found.n_layer)), "output"]
    assert sum(row.device == "CUDA0" for row in found.layers) == found.n_gpu_layers


def test_the_bundle_is_the_fixtures_headers() -> None:
    assert subprocess.run([sys.executable, "fixtures/bundle.py", "--check"], cwd=ROOT).returncode == 0


def test_a_file_is_read_by_its_first_bytes() -> None:
    engine = Engine()
    data = (HEADERS / "qwen3-8b-q4_k_m.gguf").read_bytes()
    promised = autolayers.read_header(HEADERS / "qwen3-8b-q4_k_m.gguf").files[0].promised
    assert engine.add("mine.gguf", promised, data[:100]) == {"need": 2 << 20}
    answer = engine.add("mine.gguf", promised, data + bytes(1 << 20))
    assert answer["model"]["name"] == "mine.gguf" and answer["model"]["n_layer"] == 36
    assert answer["model"]["warnings"] == []
    assert engine.call("plan", {"model": "mine.gguf", "gpu": "24GiB"})["verdict"] == "fits"


def test_a_split_model_is_whole_once_all_parts_are_there() -> None:
    engine = Engine()
    parts = sorted((FIXTURES / "tiny").glob("split-0000?-of-00003.gguf"))
    sent = [engine.add(path.name, path.stat().st_size, path.read_bytes()) for path in reversed(parts)]
    assert [answer.get("missing") for answer in sent] == [[1, 2], [1], None]
    name = sent[-1]["model"]["name"]
    assert name == "split (3 parts)" and engine.call("plan", {"model": name, "gpu": "1GiB"})["plan"]["fits"]


@pytest.mark.parametrize(("method", "question", "error"), [
    ("plan", {"model": "", "gpu": "8GiB"}, "no model:"),
    ("plan", {"model": "/etc/passwd", "gpu": "8GiB"}, "/etc/passwd: not opened yet"),
    ("plan", {"model": BUNDLED + "../x", "gpu": "8GiB"}, "no bundled model"),
    ("plan", {"model": BUNDLED + MODELS[0], "gpu": ""}, "no machine: add a GPU"),
    ("plan", {"model": BUNDLED + MODELS[0], "gpu": "rtx-9999"}, "rtx-9999"),
    ("plan", {"model": BUNDLED + MODELS[0], "gpu": "8GiB", "ctx": "many"}, "many"),
    ("plan", {"model": BUNDLED + MODELS[0], "gpu": "8GiB", "flags": "--frobnicate"}, "--frobnicate"),
    ("plan", {"model": BUNDLED + MODELS[0], "gpu": "8GiB", "flags": "'open"}, "flags: No closing quotation"),
    ("plan", {"model": 7}, "model: not a text"),
    ("matrix", {"models": ["x"] * 100, "gpus": ["8GiB"] * 100}, "at most 256 cells"),
    ("locate", {"name": "ftp://x/y.gguf"}, "ftp://x/y.gguf"),
    ("locate", {"name": "hf:a/b", "files": ["README.md"]}, "no GGUF model"),
    ("nothing", {}, "no such question"),
])
def test_nonsense_is_one_line(method: str, question: dict[str, Any], error: str) -> None:
    answer = ask(method, **question)
    assert error in answer["error"] and "\n" not in answer["error"] and set(answer) == {"error", "kind"}


@pytest.mark.parametrize("data", [b"", b"GGUF", b"<html>", b"GGUF\x03\0\0\0" + b"\xff" * 16])
def test_foreign_files_are_refused(data: bytes) -> None:
    assert "x.gguf: " in Engine().add("x.gguf", len(data), data)["error"]


def test_a_header_without_end_is_refused() -> None:
    """One string of 1 GiB: each answer asks for more, up to a limit."""
    start = b"GGUF\x03\0\0\0" + b"".join(n.to_bytes(8, "little") for n in (1, 1, 1)) + b"k\x08\0\0\0"
    data = start + (1 << 30).to_bytes(8, "little")
    wanted, answer = [2 << 20], {}
    while "error" not in answer:
        answer = Engine().add("x.gguf", None, data + bytes(wanted[-1] - len(data)))
        wanted.append(answer.get("need", 0))
    assert max(wanted) <= LARGEST_SLICE and len(wanted) < 6


def test_the_price_of_context_and_the_matrix() -> None:
    answer = ask("curve", model=BUNDLED + MODELS[2], gpu="12GiB", types=["f16", "q8_0"], ctx="99")
    assert [(point["cache_type"], point["n_ctx"]) for point in answer["points"]] == [
        (kind, n) for kind in ("f16", "q8_0") for n in (4096, 8192)]
    answer = ask("matrix", models=[BUNDLED + MODELS[1]], gpus=["1GiB", "12GiB", "24GiB"], ram="16GiB")
    assert [cell["how"] for cell in answer["rows"][0]["cells"]] == ["no", "experts", "wholly"]


def test_where_the_browser_finds_a_model() -> None:
    assert ask("locate", name="https://h/m-00001-of-00002.gguf")["urls"] == [
        f"https://h/m-0000{i}-of-00002.gguf" for i in (1, 2)]
    first = ask("locate", name="hf:user/repo:Q8_0")
    assert first == {"listing": "https://huggingface.co/api/models/user/repo/tree/main?recursive=true"}
    files = ["a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-a.gguf"]
    found = ask("locate", name="hf:user/repo:Q8_0", files=files)
    assert found["urls"] == ["https://huggingface.co/user/repo/resolve/main/a-Q8_0.gguf"]
    assert found["models"] == ["hf:user/repo/a-Q4_K_M.gguf", "hf:user/repo/a-Q8_0.gguf"]


def test_names_are_opened_where_that_is_allowed() -> None:
    opened = []
    model = autolayers.read_model(HEADERS / f"{MODELS[0]}.gguf")
    engine = Engine(lambda name: opened.append(name) or model)
    assert engine.call("open", {"name": "/models/a.gguf"})["model"]["n_layer"] == 32
    assert engine.call("plan", {"model": "/models/a.gguf", "gpu": "8GiB"})["plan"]["model"]["n_layer"] == 32
    assert opened == ["/models/a.gguf"]


def test_a_machine_file_goes_in_and_out() -> None:
    """All its figures count, and what is saved is the machine that was planned for."""
    machine = json.dumps({"devices": [{"card": "rtx-3090"}, {"name": "Vulkan0", "backend": "Vulkan", "total": 8 << 30}],
                          "host": {"total": 64 << 30, "available": 48 << 30, "bandwidth": 5e10, "cores": 8}})
    saved = ask("machine", machine=machine)["text"]
    question = {"model": BUNDLED + "qwen3-30b-a3b-q4_k_m", "ctx": "8192"}
    first, second = (ask("plan", machine=text, **question)["plan"] for text in (machine, saved))
    assert first == second and [d["name"] for d in first["devices"]] == ["CUDA0", "Vulkan0"]
    assert first["host"]["free"] == 48 << 30
    cards = json.loads(ask("machine", gpu="rtx-3090", ram="16GiB")["text"])
    assert cards["devices"][0]["bandwidth"] == 936e9 and cards["host"]["available"] == 14 << 30
    assert "total" in ask("plan", machine='{"devices": [{}]}', **question)["error"]
    assert ask("plan", machine="{", **question)["error"].startswith("machine file: not JSON")


def test_the_form_offers_what_the_flags_know() -> None:
    offer = ask("start")
    for workload in offer["workloads"]:
        assert "error" not in ask("plan", model=BUNDLED + "llama-3.2-1b-q8_0", gpu="8GiB", workload=workload), workload
    assert len(offer["models"]) >= 60 and "rtx-3090" in {card["name"] for card in offer["cards"]}


def test_a_pasted_log_is_explained() -> None:
    log = ("llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3060) - 5800 MiB free\n"
           "alloc_tensor_range: failed to allocate CUDA0 buffer of size 8000000000\n"
           "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n")
    answer = ask("explain", log=log, model=BUNDLED + MODELS[2], ram="32GiB")
    assert (answer["cause"], answer["phase"], answer["device"], answer["bytes"]) == (
        "oom_device", "load", "CUDA0", 8_000_000_000)
    assert answer["launch"]["fits"] and answer["text"].startswith("CUDA0 ran out of memory while loading weights")
    assert explain_log(log)["cause"] == "oom_device" and explain_log("")["cause"] == "not_in_log"
    assert ask("explain", log=[1])["kind"] == "UsageError"


def test_nothing_that_a_pasted_log_names_is_opened() -> None:
    log = (f"$ llama-server -m {HEADERS / 'gemma-2-9b-q4_k_m.gguf'} -ngl 99\n"
           "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3060) - 4800 MiB free\n"
           "alloc_tensor_range: failed to allocate CUDA0 buffer of size 5000000000\n")
    assert autolayers.explain(log.encode()).launch is not None and explain_log(log)["launch"] is None
