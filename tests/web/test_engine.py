"""The page would end in a traceback for what a visitor drops into it.

The page's engine: its answers are the library's, foreign input is an error of one line.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support import FIXTURES, HEADERS, ROOT, few, few_rows, model, seldom, slow

import autolayers
from autolayers import bundled
from autolayers.bundled import projectors, published
from autolayers.cli.model import load
from autolayers.planner.compare import best
from autolayers.quoting import posix
from autolayers.request import Request
from autolayers.web.engine import LARGEST_SLICE, Engine, explain_log
from autolayers.web.export import NAMES
from autolayers.web.form import FIELDS
from autolayers.web.names import BUNDLED, family, near, understood
from autolayers.web.verdict import where

MODELS = ["llama-3.1-8b-q4_k_m", "qwen3-30b-a3b-q4_k_m", "gemma-2-9b-q4_k_m"]
MACHINES = ["8GiB", "rtx-3090,12GiB"]
# one for all that is asked, as the page has
PAGE = Engine()


def ask(method: str, **question: Any) -> dict[str, Any]:
    """As the page asks: through JSON both ways."""
    answer: dict[str, Any] = json.loads(_asked(method, json.dumps(question)))
    return answer


@cache
def _asked(method: str, question: str) -> str:
    return json.dumps(PAGE.call(method, json.loads(question)))


def explained(**question: Any) -> dict[str, Any]:
    """The answer with all its reasons, as the page asks for them: one after the other."""
    engine = Engine()
    answer = engine.call("plan", question)
    while not (more := engine.call("more", question)).get("done"):
        answer = more
    return answer


@pytest.mark.parametrize("gpu", [MACHINES[0], slow(MACHINES[1])])
@pytest.mark.parametrize(
    "name", [MODELS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS[1:])]
)
def test_plans_are_the_librarys(name: str, gpu: str) -> None:
    words = [
        "--gpu",
        gpu,
        "--ram",
        "64GiB",
        "-c",
        "8192",
        "-ctk",
        "q8_0",
        "-ctv",
        "q8_0",
        "-np",
        "2",
    ]
    answer = explained(
        model=name, gpu=gpu, ram="64GiB", ctx="8192", ctk="q8_0", flags="-ctv q8_0 -np 2"
    )
    plan = autolayers.plan(autolayers.read_model(HEADERS / f"{name}.gguf"), words, explain=True)
    want = json.loads(json.dumps(plan.to_dict()))
    found = json.loads(json.dumps(answer["plan"]))
    assert {**found, "model": None, "warnings": None} == {**want, "model": None, "warnings": None}
    model_words = posix(["llama-server", *published.download(name)])
    assert answer["command"]["bash"].startswith(f"{model_words} -ngl {plan.n_gpu_layers} -c 8192 ")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        slow("llama-3.1-8b-q4_k_m", ""),
        ("llama-3.1-8b-q4_k_m", "--llama-build b4000"),
        pytest.param("llama-3.1-8b-q4_k_m", "--llama-build b7000", marks=pytest.mark.slow),
        slow("llama-3.1-8b-q4_k_m", "-ot token_embd=CUDA0"),
        slow("mtp-step35", "--override-kv step35.nextn_predict_layers=int:0"),
        slow("mtp-step35", ""),
        slow("qwen3-30b-a3b-q4_k_m", "--llama-build b9093 --ram 64GiB -ngl 49 -c 4096 -ncmoe 40"),
        pytest.param("qwen3.5-4b-mtp-q8_0", "", marks=pytest.mark.slow),
        slow("qwen3.5-4b-mtp-q8_0", "--spec-type draft-mtp -ngl 20 -c 4096"),
        slow("qwen3.5-4b-mtp-q8_0", "--spec-type draft-mtp --llama-build b10204 -ngl 20 -c 4096"),
    ],
)
def test_the_layers_shown_are_the_plan_s_weights(name: str, flags: str) -> None:
    """For every build, with another header's keys and with MTP blocks."""
    engine = Engine(lambda name: model(name))
    answer = engine.call("plan", {"model": name, "gpu": "4GiB", "flags": flags})
    weights: dict[str, int] = {}
    for layer in answer["layers"]:
        for buffer, size in layer["buffers"].items():
            weights[buffer] = weights.get(buffer, 0) + size
    (device,) = answer["plan"]["devices"]
    assert weights["CUDA0"] == device["model"] > 0
    found = autolayers.plan(model(name), ["--gpu", "4GiB", *flags.split()])
    everything = sum(size for row in found.layers for size in row.buffers.values())
    assert everything == sum(row.model for row in found.devices) + found.host.model
    assert [row.name for row in found.layers] == [
        "input",
        *map(str, range(found.n_layer)),
        "output",
    ]
    assert sum(row.device == "CUDA0" for row in found.layers) == found.n_gpu_layers


@pytest.mark.slow
def test_the_bundle_is_the_fixtures_headers() -> None:
    assert (
        subprocess.run([sys.executable, "fixtures/bundle.py", "--check"], cwd=ROOT).returncode == 0
    )


def test_a_file_is_read_by_its_first_bytes() -> None:
    engine = Engine()
    data = (HEADERS / "qwen3-8b-q4_k_m.gguf").read_bytes()
    promised = autolayers.read_header(HEADERS / "qwen3-8b-q4_k_m.gguf").files[0].promised
    assert engine.add("mine.gguf", promised, data[:100]) == {"need": 2 << 20}
    answer = engine.add("mine.gguf", promised, data + bytes(1 << 20))
    assert answer["model"]["name"] == "mine.gguf" and answer["model"]["n_layer"] == 36
    assert answer["model"]["warnings"] == []
    assert (
        engine.call("plan", {"model": "mine.gguf", "gpu": "24", "ram": "32"})["verdict"]["title"]
        == "Fits"
    )


def test_a_split_model_is_whole_once_all_parts_are_there() -> None:
    engine = Engine()
    parts = sorted((FIXTURES / "tiny").glob("split-0000?-of-00003.gguf"))
    sent = [
        engine.add(path.name, path.stat().st_size, path.read_bytes()) for path in reversed(parts)
    ]
    assert [answer.get("missing") for answer in sent] == [[1, 2], [1], None]
    name = sent[-1]["model"]["name"]
    assert (
        name == "split (3 parts)"
        and engine.call("plan", {"model": name, "gpu": "1GiB"})["plan"]["fits"]
    )


@pytest.mark.parametrize(
    ("method", "question", "error"),
    [
        ("plan", {"model": "", "gpu": "8GiB"}, "no model:"),
        ("plan", {"model": "/etc/passwd", "gpu": "8GiB"}, "/etc/passwd: not opened yet"),
        ("plan", {"model": BUNDLED + "../x", "gpu": "8GiB"}, "../x: not opened yet"),
        ("plan", {"model": BUNDLED + MODELS[0], "gpu": "rtx-9999"}, "rtx-9999"),
        ("plan", {"model": BUNDLED + MODELS[0], "gpu": "8GiB", "ctx": "many"}, "many"),
        (
            "plan",
            {"model": BUNDLED + MODELS[0], "gpu": "8GiB", "flags": "--frobnicate"},
            "--frobnicate",
        ),
        (
            "plan",
            {"model": BUNDLED + MODELS[0], "gpu": "8GiB", "flags": "'open"},
            "flags: No closing quotation",
        ),
        ("plan", {"model": 7}, "model: not a text"),
        ("row", {"model": MODELS[0], "as": "q99"}, "as: expected one of q8_0"),
        ("file", {"model": MODELS[0], "format": "x"}, "expected one of ollama, lm-studio, systemd"),
        (
            "plan",
            {"model": MODELS[0], "gpu": "8", "flags": "-m x.gguf"},
            "the model has a field of its own",
        ),
        (
            "plan",
            {"model": MODELS[0], "gpu": "8", "mmproj": "x.gguf"},
            "drop the projector's file again",
        ),
        ("locate", {"name": "ftp://x/y.gguf"}, "ftp://x/y.gguf"),
        ("locate", {"name": "hf:a/b", "files": ["README.md"]}, "no GGUF model"),
        ("nothing", {}, "no such question"),
    ],
)
def test_nonsense_is_one_line(method: str, question: dict[str, Any], error: str) -> None:
    answer = ask(method, **question)
    assert (
        error in answer["error"]
        and "\n" not in answer["error"]
        and set(answer) == {"error", "kind", "field"}
    )


@pytest.mark.parametrize("data", [b"", b"GGUF", b"<html>", b"GGUF\x03\0\0\0" + b"\xff" * 16])
def test_foreign_files_are_refused(data: bytes) -> None:
    assert "x.gguf: " in Engine().add("x.gguf", len(data), data)["error"]


def test_a_header_without_end_is_refused() -> None:
    """One string of 1 GiB: each answer asks for more, up to a limit."""
    start = (
        b"GGUF\x03\0\0\0" + b"".join(n.to_bytes(8, "little") for n in (1, 1, 1)) + b"k\x08\0\0\0"
    )
    data = start + (1 << 30).to_bytes(8, "little")
    wanted, answer = [2 << 20], {}
    while "error" not in answer:
        answer = Engine().add("x.gguf", None, data + bytes(wanted[-1] - len(data)))
        wanted.append(answer.get("need", 0))
    assert max(wanted) <= LARGEST_SLICE and len(wanted) < 6


def test_the_price_of_context_has_a_point_a_context_and_type() -> None:
    answer = ask("curve", model=BUNDLED + MODELS[2], gpu="12GiB", types=["f16", "q8_0"], ctx="99")
    assert [(point["cache_type"], point["n_ctx"]) for point in answer["points"]] == [
        (kind, n) for kind in ("f16", "q8_0") for n in (4096, 8192)
    ]


@pytest.mark.slow
def test_a_row_of_a_quantisation_says_what_a_click_on_it_plans() -> None:
    """A row says what a click on it plans; a model without others is estimated in other types."""
    machine = {"gpu": "12", "ram": "16"}
    rows = ask("rows", model=MODELS[1])["rows"]
    assert [row["label"] for row in rows][:2] == ["UD-Q8_K_XL", "Q8_0"] and len(rows) == len(
        family(MODELS[1])
    )
    row = ask("row", **machine, model=rows[-1]["model"])
    plan = ask("plan", **machine, model=rows[-1]["model"])
    assert (row["state"], row["context"]) == ("yes", plan["plan"]["launch"]["n_ctx"])
    assert ask("row", **machine, model="qwen3-8b-q8_0")["quality"]["band"] == "as Q6"
    assert row["rate"] == pytest.approx(
        plan["plan"]["speed"]["generation_tokens_per_second"], abs=1e-2
    )
    assert ask("row", **machine, model=rows[0]["model"])["where"].startswith("Does not fit: ")
    rows = ask("rows", model="phi-4-q4_k_m")["rows"]
    own = {"model": "phi-4-q4_k_m", "label": "Q4_K_M"}
    # In both directions, the largest first
    kinds = [row.get("as", "") for row in rows]
    assert kinds[: kinds.index("")] == ["q8_0", "q6_K", "q5_K"] and kinds[-1] == "iq1_s"
    small, large = (ask("row", **machine, **row) for row in (rows[-1], own))
    assert small["size"] < 5 << 30 < 8 << 30 < large["size"] and small["rate"] > large["rate"]
    sizes = [ask("row", **machine, **row)["size"] for row in rows]
    assert sizes == sorted(sizes, reverse=True) and own in rows
    # Rows of 2880 hold no blocks of Q6_K: a file that is called so would be of another type
    assert [row.get("as") for row in ask("rows", model="gpt-oss-20b-mxfp4")["rows"]][:2] == [
        "q8_0",
        None,
    ]


@pytest.mark.slow
def test_quantisations_are_compared_at_one_context() -> None:
    """At the answer's; a context that is given stays."""
    machine = {"gpu": "rtx-3060", "ram": "32"}
    small, large = (
        ask("row", **machine, model=name, at=17664) for name in (MODELS[1], "qwen3-30b-a3b-q8_0")
    )
    assert (small["context"], large["context"]) == (17664, 17664)
    free = ask("row", **machine, model="qwen3-30b-a3b-q8_0")
    assert free["context"] > 17664 and free["rate"] < large["rate"]
    assert [small["loss"], large["loss"]] == ["little", "least"]
    assert ask("row", **machine, model=MODELS[1], at=17664, ctx="8192")["context"] == 8192


@pytest.mark.slow
def test_the_slider_has_the_memory_of_other_contexts() -> None:
    """All else as placed: what a launch of these flags takes, beyond the device too."""
    question = {"model": MODELS[1], "gpu": "rtx-3060", "ram": "32"}
    plan = ask("plan", **question)["plan"]
    points = ask("ahead", **question)["points"]
    assert points[0]["n_ctx"] == 2048 and points[-1]["n_ctx"] == 40960 and len(points) == 9
    here = next(point for point in points if point["n_ctx"] == plan["launch"]["n_ctx"])
    [device], [of_plan] = here["devices"], plan["devices"]
    assert device.items() <= of_plan.items() and here["host"].items() <= plan["host"].items()
    assert {"model", "context", "compute", "extra", "margin", "remaining"} <= device.keys()
    used = [point["devices"][0]["used"] for point in points]
    assert (
        used == sorted(used)
        and points[-1]["devices"][0]["remaining"] < 0 < points[0]["devices"][0]["remaining"]
    )
    words = [
        word
        for flag, word in zip(plan["flags"][::2], plan["flags"][1::2], strict=True)
        if flag != "-c"
        for word in (flag, word)
    ]
    want = autolayers.plan(
        model(MODELS[1]), ["--gpu", "rtx-3060", "--ram", "32GiB", *words, "-c", "2048"]
    )
    assert want.devices[0].used == used[0]


@pytest.mark.slow
def test_what_may_be_faster_is_said_at_first_sight() -> None:
    """With its range, and why the plan does not take it."""
    answer = explained(model=MODELS[1], gpu="rtx-3060", ram="32")
    found, plan = answer["faster"], answer["plan"]
    other = next(one for one in plan["alternatives"] if one["flags"] == found["flags"])
    rate = other["speed"]["generation_tokens_per_second"]
    assert (
        found["words"].startswith(f"Perhaps {rate:.0f} tokens/s (")
        and "may be slower than 39" in found["words"]
    )
    assert explained(model="llama-3.2-1b-q8_0", gpu="rtx-3060", ram="32")["faster"] is None


@pytest.mark.parametrize(
    "question",
    [
        slow({"model": MODELS[1], "gpu": "rtx-3060", "ram": "32"}),
        {"model": MODELS[0], "gpu": "rtx-3060", "ram": "32", "flags": "--temp 0.7"},
        slow({"model": MODELS[1], "gpu": "rtx-3060", "ram": "32", "flags": "--temp 0.7"}),
        slow({"model": MODELS[1], "gpu": "8GiB", "ram": "32", "ctx": "32768", "flags": "-ngl 99"}),
    ],
)
def test_what_is_tried_is_the_launch_that_was_said(question: dict[str, str]) -> None:
    """The page fills its fields from all flags of that launch (answer.js: use)."""
    fields = {words[0]: field for field, words in FIELDS.items()}
    answer = explained(**question)
    plan = answer["plan"]
    said = [*plan["alternatives"], *plan["remedies"]]
    contexts = {tuple(each["change"]): each["n_ctx"] for each in said}
    tried = [each for each in (*answer["instead"], *answer["remedies"]) if each["flags"]]
    assert tried
    for other in tried:
        state, rest, words = dict(question), [], iter(other["flags"])
        for word in words:
            if word in fields:
                state[fields[word]] = next(words)
            else:
                rest.append(word)
        again = explained(**{**state, "flags": shlex.join(rest)})["plan"]
        assert again["fits"] and again["launch"]["n_ctx"] == contexts[tuple(other["change"])]
        assert ("--temp" in rest) == ("--temp" in question.get("flags", ""))


def test_the_answer_is_a_picture() -> None:
    drawn = ask("picture", model=MODELS[1], gpu="rtx-3060", ram="32")["svg"]
    assert (
        "on RTX 3060 12 GB + 32 GB RAM" in drawn
        and "llama-server -hf unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M" in drawn
    )


@pytest.mark.parametrize(
    ("question", "state", "title"),
    few_rows(
        2,
        [
            ({"gpu": "8"}, "if", "Runs, but slowly if 129.5 GiB of RAM are free"),
            ({"gpu": "8", "ram": "64"}, "no", "Does not fit: 66.1 GiB missing in RAM"),
            ({"gpu": "8", "ram": "160"}, "if", "Runs, but slowly"),
            ({"ram": "192"}, "if", "Runs, but slowly"),
        ],
    ),
)
def test_the_verdict_knows_the_ram(question: dict[str, str], state: str, title: str) -> None:
    """llama-3-70b in f16 takes 131 GiB: nothing is green as long as the RAM for it is not known, or
    where one reads faster than it writes."""
    verdict = ask("plan", model="llama-3-70b-f16", **question)["verdict"]
    assert (verdict["state"], verdict["title"]) == (state, title)


@pytest.mark.slow
def test_the_verdict_is_for_everybody() -> None:
    verdict = ask("plan", model=MODELS[1], gpu="3060", ram="32")["verdict"]
    assert verdict["parts"] == [
        "About 39 tokens/s (28 to 55)",
        "17k context, 30 tokens/s when it is full",
        "Partly in RAM",
    ]
    assert verdict["plain"].startswith("It writes about 29 words a second, faster than one reads")
    assert verdict["assumed"] == (
        "RAM assumed to be 42 GB/s; 8 cores assumed; 2.0 GiB of RAM left to the system and other "
        "programs; nothing else is on the GPU, not even a display"
    )
    assert ask("plan", model=MODELS[1], ram="32")["verdict"]["parts"][-1] == "All of it on the CPU"
    assert "embeddings" in ask("plan", model="bge-m3-f16", gpu="8", ram="32")["verdict"]["plain"]


@pytest.mark.parametrize(
    ("gpu", "free"),
    [
        ("24", [24 << 30]),
        ("2x12", [12 << 30] * 2),
        ("2 × 11.5", [23 << 29] * 2),
        slow("8, 12GiB", [8 << 30, 12 << 30]),
        ("12GB", [12 << 30]),
        ("8x80gb", [80 << 30] * 8),
        ("none", []),
        ("cpu", []),
        ("", []),
    ],
)
def test_numbers_are_gibibytes(gpu: str, free: list[int]) -> None:
    answer = ask("plan", model="llama-3.2-1b-q8_0", gpu=gpu, ram="64", ctx="16,384")
    assert [device["free"] for device in answer["plan"]["devices"]] == free
    assert answer["plan"]["host"]["free"] == 62 << 30 and answer["plan"]["launch"]["n_ctx"] == 16384


@pytest.mark.parametrize(
    ("question", "field", "error"),
    [
        ({"gpu": "RTX 30"}, "gpu", "GPU: which RTX 30?"),
        ({"gpu": "rtx-9999"}, "gpu", "or write its memory in GiB: 24"),
        ({"gpu": "780m"}, "gpu", "GPU: which 780m? the GPU, radeon-780m-16g"),
        ({"gpu": "8", "ram": "much"}, "ram", "RAM: 'much'"),
        (
            {"gpu": "8", "ram": "16384"},
            "ram",
            "RAM: '16384': expected a size with its unit: 16384MiB?",
        ),
        ({"gpu": "8", "ctx": "32"}, "ctx", "Context: 32: 32k?"),
        ({"gpu": "8", "ctx": "9" * 5000}, "ctx", "Context: "),
        ({"gpu": "8", "ctx": "long"}, "ctx", "Context: "),
        ({"gpu": "8", "ub": "x"}, "ub", "Micro-batch: "),
        ({"gpu": "8", "workload": "x"}, "workload", "Workload: "),
        ({"gpu": "8", "flags": "--frobnicate"}, "", "--frobnicate is no flag ("),
    ],
)
def test_errors_name_the_field(question: dict[str, str], field: str, error: str) -> None:
    answer = ask("plan", model=MODELS[0], **question)
    assert answer["field"] == field and error in answer["error"] and "--gpu" not in answer["error"]


def test_a_machine_has_no_more_ram_than_its_name_says() -> None:
    """A Mac of 24 GiB keeps 3.5 for the system, whatever RAM the link of another card had."""
    own, more = (
        ask("plan", model=MODELS[0], gpu="m4-pro-24g", ram=ram)["plan"] for ram in ("", "32")
    )
    assert own["host"]["free"] == more["host"]["free"] == int(20.5 * (1 << 30))


@pytest.mark.slow
def test_ollamas_settings_say_where_they_are_set() -> None:
    mixture = {"model": "qwen3-30b-a3b-q4_k_m", "gpu": "rtx-3060", "ram": "32"}
    answer = ask("file", **mixture, format="ollama")
    assert answer["file"] == "Modelfile"
    assert "LLAMA_ARG_N_CPU_MOE=24: set it for `ollama serve`" in answer["notes"]


def test_a_name_that_is_no_card_has_cards_beside_it() -> None:
    near = ask("plan", model=MODELS[0], gpu="24,RTX 30")["near"]
    assert {"rtx-3060", "rtx-3070", "rtx-3090"} <= set(near)
    assert all("rtx30" in name.replace("-", "") for name in near) and len(near) == 12
    assert ask("plan", model=MODELS[0], gpu="8", ram="x").get("near") is None
    assert (
        ask("plan", model=MODELS[0], gpu="8", ram="31,5")["plan"]["host"]["free"]
        == ask("plan", model=MODELS[0], gpu="8", ram="31.5")["plan"]["host"]["free"]
    )


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B-GGUF", "hf:Qwen/Qwen3-8B-GGUF"),
        ("huggingface.co/Qwen/Qwen3-8B-GGUF/tree/main", "hf:Qwen/Qwen3-8B-GGUF"),
        (
            "https://huggingface.co/a/b/blob/main/q/x-Q4_K_M.gguf?download=true",
            "hf:a/b/q/x-Q4_K_M.gguf",
        ),
        ("https://huggingface.co/a/b/resolve/v1/x%20y.gguf", "hf:a/b/x y.gguf@v1"),
        ("hf.co/a/b:Q8_0", "hf:a/b:Q8_0"),
        ("Qwen/Qwen3-8B-GGUF", "hf:Qwen/Qwen3-8B-GGUF"),
        ("-hf a/b:Q4_0", "hf:a/b:Q4_0"),
        ("ollama run llama3.1:8b", "llama3.1:8b"),
        ("https://ollama.com/library/qwen3:8b", "ollama:qwen3:8b"),
        ("ollama.com/user/m", "ollama:user/m"),
        ("/home/a/b.gguf", "/home/a/b.gguf"),
        ("https://h/x.gguf", "https://h/x.gguf"),
        ("bundled:qwen3-8b-q4_k_m", "qwen3-8b-q4_k_m"),
    ],
)
def test_what_is_pasted_is_understood(typed: str, name: str) -> None:
    assert understood(typed) == name


@pytest.mark.parametrize(
    ("words", "first"),
    [
        # "48b" is no "8b", and "120b" no "20b"
        ("8b", "ministral-3-8b-q4_k_m"),
        # the newest of them
        ("27b", "qwen3.8-27b-ud-q4_k_m"),
        ("20b", "gpt-oss-20b-mxfp4"),
        # of 2025 before that of 2023
        ("mistral", "mistral-small-24b-q4_k_m"),
        ("gpt oss", "gpt-oss-20b-mxfp4"),
        # the 4 of Q4_K_M is no word of the model's name
        ("gemma 4", "gemma-4-12b-q4_k_m"),
        ("qwen3-8b q8_0", "qwen3-8b-q8_0"),
    ],
)
def test_short_names_are_whole_words_and_todays_models(words: str, first: str) -> None:
    assert near(words)[0] == first


def test_words_find_models() -> None:
    for words in ("qwen3 8b", "qwen3-8b", "Qwen3:8B", "ollama:qwen3:8b"):
        assert near(words)[0] == "qwen3-8b-q4_k_m", words
    assert near("llama3.1:8b")[0] == "llama-3.1-8b-q4_k_m" and near("xyzzy") == [] == near("")
    assert ask("name", name="qwen3 8b") == {"near": near("qwen3 8b")}
    assert ask("name", name="qwen3-8b-q4_k_m") == {"name": "qwen3-8b-q4_k_m"}


@pytest.mark.parametrize(
    ("renderer", "card"),
    [
        ("ANGLE (NVIDIA, NVIDIA GeForce RTX 3060 Direct3D11 vs_5_0 ps_5_0, D3D11)", "rtx-3060"),
        (
            "ANGLE (AMD, AMD Radeon RX 6800 XT (0x000073BF) Direct3D11 vs_5_0 ps_5_0, D3D11)",
            "rx-6800-xt",
        ),
        ("NVIDIA GeForce RTX 4070 Ti SUPER/PCIe/SSE2", "rtx-4070-ti-super"),
        ("AMD Radeon RX 7900 XTX (radeonsi, navi31, LLVM 15.0.7, DRM 3.54)", "rx-7900-xtx"),
        ("ANGLE (Apple, ANGLE Metal Renderer: Apple M3 Max, Unspecified Version)", "m3-max-36g"),
        ("llvmpipe", None),
    ],
)
def test_the_card_that_webgl_names(renderer: str, card: str | None) -> None:
    assert next(iter(ask("card", name=renderer)["cards"]), None) == card


@pytest.mark.parametrize("kind", few(8, [kind for kind in NAMES if kind != "lm-studio"]))
def test_files_name_paths_that_somebody_has(kind: str) -> None:
    """The user's own, or /path/to with a note; never the folder where this runs."""
    question = {"model": "mistral-7b-q4_k_m", "gpu": "8", "ram": "32", "format": kind}
    plain, own = ask("file", **question), ask("file", **question, path="/models/mine.gguf")
    assert "/path/to" in plain["text"] and any("/path/to" in note for note in plain["notes"])
    assert "/models" in own["text"] and "/path/to" not in own["text"]
    assert str(ROOT) not in plain["text"] + own["text"] and plain["file"] == NAMES[kind]


@pytest.mark.parametrize("name", bundled.models())
def test_a_bundled_model_has_a_product_name_and_a_download_of_its_quantisation(name: str) -> None:
    assert published.of(name) is not None and published.product(name) != name
    words = list(published.download(name))
    if words:
        assert words[0] == "-hf" and words[1].partition("/")[2].partition(":")[0].endswith("-GGUF")
        assert words[1].endswith(
            (f":{published.quantisation(name)}", "gpt-oss-20b-GGUF", "gpt-oss-120b-GGUF")
        )
        assert (words[2:] == ["--no-mmproj"]) == published.MODELS[published.stem(name)].vision


# GB of the files in the repositories that the page names, as public lists of models round them
PUBLISHED_GB = {
    "deepseek-v3.1-q4_k_m": 404,
    "glm-4.6-q4_k_m": 216,
    "kimi-k2-q4_k_m": 621,
    "qwen3-235b-a22b-q4_k_m": 142,
    "qwen3-coder-480b-a35b-q4_k_m": 290,
}
# of their projectors, of 16 bits
PROJECTOR_BYTES = {
    "gemma-3-4b-q4_k_m": (851_251_104, 852_700_000),  # F16
    "gemma-3-27b-q4_k_m": (857_739_168, 859_200_000),  # F16
    "gemma-4-26b-a4b-ud-q4_k_xl": (1_194_806_272, 1_194_830_000),  # BF16, the buffer of a log
    "qwen3.5-4b-q4_k_m": (675_569_344, 675_569_344),  # BF16
    "qwen3.6-27b-q4_k_m": (931_124_000, 931_155_000),  # BF16: 887.99 MiB of a log, 931.15 MB
}


@pytest.mark.parametrize("name", PUBLISHED_GB)
def test_large_models_are_as_large_as_published(name: str) -> None:
    assert abs(bundled.read(name).size / 1e9 - PUBLISHED_GB[name]) < 0.6


@pytest.mark.parametrize("name", PROJECTOR_BYTES)
def test_projectors_are_as_large_as_published(name: str) -> None:
    least, most = PROJECTOR_BYTES[name]
    found = projectors.header(name)
    assert found is not None and found.n_bytes == projectors.size(name) // 2 * 2
    assert least <= found.n_bytes <= most


@pytest.mark.slow
def test_a_projector_of_the_repository_is_counted_and_downloaded() -> None:
    """With it the command has no --no-mmproj, and the GPU holds more than its file; all files have
    it, and a path of one's own is named."""
    machine = {"model": "qwen3.5-4b-q4_k_m", "gpu": "8", "ram": "16"}
    plain, seeing = ask("plan", **machine), ask("plan", **machine, mmproj="auto")
    assert "-hf unsloth/Qwen3.5-4B-GGUF:Q4_K_M --no-mmproj -ngl" in plain["command"]["bash"]
    assert "-hf unsloth/Qwen3.5-4B-GGUF:Q4_K_M -ngl" in seeing["command"]["bash"]
    device = seeing["plan"]["devices"][0]
    assert device["extra"] > projectors.size(machine["model"])
    assert seeing["plan"]["launch"]["n_ctx"] < plain["plan"]["launch"]["n_ctx"]
    assert any("upper bound" in line for line in seeing["plan"]["warnings"])
    swap = ask("file", **machine, mmproj="auto", format="llama-swap")["text"]
    assert "--mmproj-auto" in swap and "--no-mmproj" not in swap
    own = ask("plan", **machine, mmproj="auto", path="/m/x.gguf")
    assert own["command"]["bash"].endswith("-mm /path/to/mmproj.gguf")
    refused = ask("plan", model="qwen3-8b-q4_k_m", gpu="rtx-3090", mmproj="auto")
    assert refused["error"].startswith("qwen3-8b-q4_k_m: no projector is known for it")


@pytest.mark.slow
def test_a_list_counts_projectors() -> None:
    """A vision model's row is that of the same question with its projector, where it has to see;
    for other jobs it has none."""
    machine = {"gpu": "8", "ram": "16"}
    row = ask("take", model="qwen3.5-4b-q4_k_m", **{"for": "pictures"}, **machine)
    assert row["vision"] and row["mmproj"] == "auto"
    assert row["words"] == ["-hf", f"unsloth/Qwen3.5-4B-GGUF:{row['quantisation']}"]
    plan = ask("plan", model=row["model"], mmproj="auto", ctx="8192", **machine)["plan"]
    assert plan["fits"] and row["context"] >= 8192
    chat = ask("take", model="qwen3.5-4b-q4_k_m", **machine)
    assert "mmproj" not in chat and chat["words"][-1] == "--no-mmproj"
    offered = ask("start")["projectors"]
    assert offered[row["model"]] == projectors.size(row["model"]) and len(offered) > 15


@pytest.mark.slow
def test_the_command_runs_as_pasted() -> None:
    """A known model is downloaded; one without a repository, and a path that is given, is a
    file."""
    machine = {"gpu": "3060", "ram": "32"}
    known = ask("plan", **machine, model="qwen3-30b-a3b-q4_k_m")
    assert known["command"]["bash"].startswith(
        "llama-server -hf unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M -ngl 49 "
    )
    assert known["get"] == "https://huggingface.co/unsloth/Qwen3-30B-A3B-GGUF"
    mine = ask("plan", **machine, model="qwen3-30b-a3b-q4_k_m", path="/models/x.gguf")
    assert (
        mine["command"]["bash"].startswith("llama-server -m /models/x.gguf -ngl ")
        and not mine["get"]
    )
    assert ask("plan", **machine, model="mistral-7b-q4_k_m")["get"] == ""
    text = ask("file", **machine, model="gemma-3-4b-q4_k_m", format="compose")["text"]
    assert "unsloth/gemma-3-4b-it-GGUF:Q4_K_M" in text and "/path/to" not in text


@pytest.mark.slow
def test_a_list_is_the_ranker_that_best_and_choose_have() -> None:
    """With the states and the order of its rows; a model that is not of today is none of it."""
    offer = ask("start")
    assert set(offer["jobs"]) == set(best.JOBS)
    # the best first, so that the first that runs well is the answer
    first = published.of(offer["jobs"]["code"]["models"][0])
    assert first == max(best.candidates(best.JOBS["code"]), key=published.quality)
    for job in offer["jobs"].values():
        found = [published.quality(published.of(name)) for name in job["models"]]
        assert job["worth"] == found == sorted(found, reverse=True)
    row = ask("take", model="qwen3.5-9b-q4_k_m", gpu="rtx-3060", ram="32", **{"for": "code"})
    job = best.JOBS["code"]
    request = job.asked(Request.of(["--gpu", "rtx-3060", "--ram", "32GiB"], {}))
    mine = best.take(published.MODELS["qwen3.5-9b"], request, job)
    assert row["model"] == mine.name and row["how"] == mine.state != "no"
    assert row["order"] == list(mine.order) and row["index"] == 62.0
    assert row["context"] == mine.choice.n_ctx >= 32768 and row["flags"] == list(mine.choice.flags)
    assert row["state"] == "yes" and row["coding"] and row["source"].startswith("https://")
    old = ask("take", model="llama-2-7b-q4_0", gpu="rtx-3060", ram="32")
    assert old["error"].endswith("no model of the list")
    assert "for: expected one of chat, code" in ask("take", model="x", **{"for": "y"})["error"]


@seldom
def test_a_row_of_a_list_says_what_is_poor_or_slow() -> None:
    three = ask("take", model="qwen3.6-35b-a3b-q8_0", gpu="rtx-4060", ram="16")
    assert three["worth"] == pytest.approx(three["index"] - best.POOR_COSTS, abs=0.01)
    slow = ask("take", model="qwen3.8-27b-q8_0", gpu="rtx-4060", ram="32")
    assert (slow["how"], slow["state"]) == ("slow", "if") and slow["order"] > three["order"]


def test_what_is_larger_than_all_memory_is_not_planned() -> None:
    row = ask("take", model="deepseek-v4-flash-ud-iq3_xxs", gpu="rtx-3060", ram="32")
    assert (row["state"], row["how"], row["rate"]) == ("no", "no", 0)
    assert row["where"].startswith("Does not fit: at least 4") and row["where"].endswith(" missing")
    unknown = ask("row", model="llama-3.3-70b-q4_k_m", gpu="rtx-3060", ram="")
    assert unknown["state"] == "if" and unknown["needed"] > 20 << 30


def test_a_list_says_which_models_read_pictures() -> None:
    assert ask("row", model="gemma-3-4b-q4_k_m", gpu="rtx-3060", ram="32")["vision"] is True


@pytest.mark.slow
def test_lm_studio_gets_a_share_of_layers() -> None:
    question = {"model": "qwen3-32b-q4_k_m", "ram": "64", "ctx": "8192", "format": "lm-studio"}
    plan = autolayers.plan(
        model("qwen3-32b-q4_k_m"),
        [
            "--gpu",
            "12GiB",
            "--ram",
            "64GiB",
            "-c",
            "8192",
            "--strategy",
            "layers",
            "--engine",
            "lm-studio",
        ],
    )
    share = plan.n_gpu_layers * 100 // 65 / 100
    for gpu, said in (("12", f"{share:g}"), ("32", "max"), ("none", "off")):
        assert ask("file", **question, gpu=gpu)["text"].endswith(
            f"\nlms load qwen3-32b --gpu {said} --context-length 8192 --parallel 4\n"
        ), gpu


@pytest.mark.parametrize(
    ("flags", "slots", "note"),
    [
        ("", 4, "4 predictions at once, with Unified KV Cache on"),
        ("-np 1", 1, ""),
        ("-np 8", 8, "8 predictions at once, with Unified KV Cache on"),
        slow("-np 2 -no-kvu", 2, "2 predictions at once, with Unified KV Cache off"),
    ],
)
def test_lm_studio_is_told_the_slots_of_the_plan(flags: str, slots: int, note: str) -> None:
    """Max Concurrent Predictions is 4 there; they share one cache."""
    question = {"model": "qwen3-8b-q4_k_m", "ram": "64", "format": "lm-studio", "flags": flags}
    answer = ask("file", **question, gpu="12")
    assert answer["text"].endswith(f" --parallel {slots}\n")
    assert answer["notes"][1:] == ([note] if note else [])


def test_opened_models_outlast_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of all bundled models does not displace the file that was dropped."""
    monkeypatch.setattr("autolayers.web.engine.MAX_MODELS", 2)
    engine, data = Engine(), (HEADERS / "qwen3-8b-q4_k_m.gguf").read_bytes() + bytes(1 << 20)
    engine.add("mine.gguf", None, data)
    for name in ("llama-3.2-1b-q8_0", "qwen3-4b-q4_k_m", "gemma-3-4b-q8_0"):
        assert engine.call("open", {"name": name})["model"]["name"] == name
    assert engine.call("open", {"name": "mine.gguf"})["model"]["n_layer"] == 36


def test_the_command_downloads_or_names_the_file() -> None:
    engine = Engine()
    data = (HEADERS / "qwen3-8b-q4_k_m.gguf").read_bytes() + bytes(1 << 20)
    files = [["m-Q4_K_M.gguf", 5 << 30], ["m-Q8_0.gguf", 8 << 30], ["mmproj-m.gguf", 1 << 30]]
    found = engine.call("locate", {"name": "hf:a/b", "files": files})
    assert [(row["label"], row["size"]) for row in found["models"]] == [
        ("Q4_K_M", 5 << 30),
        ("Q8_0", 8 << 30),
    ]
    size = autolayers.read_header(HEADERS / "qwen3-8b-q4_k_m.gguf").files[0].promised
    for name, words in [
        ("hf:a/b", "-hf a/b:Q4_K_M --no-mmproj"),
        ("hf:a/b/m-Q8_0.gguf", "-hf a/b:Q8_0 --no-mmproj"),
        ("-evil.gguf", "-m ./-evil.gguf"),
        ("https://h/x/y.gguf?z", "-m y.gguf"),
    ]:
        engine.add(name, size, data)
        command = engine.call("plan", {"model": name, "gpu": "24", "ram": "32"})["command"]["bash"]
        assert command.startswith(f"llama-server {words} -ngl "), command
    command = engine.call("plan", {"model": "hf:a/b", "gpu": "24", "path": "/m.gguf"})["command"][
        "bash"
    ]
    assert command.startswith("llama-server -m /m.gguf ")


def test_a_projector_and_a_draft_are_counted(tmp_path: Path) -> None:
    engine = Engine()
    projector = tmp_path / "mmproj.gguf"
    writer = gguf.GGUFWriter(projector, "clip")
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_tensor("v.patch_embd.weight", np.zeros((64, 3, 14, 14), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert engine.add(projector.name, projector.stat().st_size, projector.read_bytes()) == {
        "projector": projector.name
    }
    question = {"model": "qwen3-8b-q4_k_m", "gpu": "24", "ram": "32", "ctx": "8192"}
    alone, both = (
        engine.call("plan", {**question, **more})["plan"]
        for more in ({}, {"mmproj": projector.name, "draft": "qwen3-0.6b-q8_0"})
    )
    assert both["devices"][0]["extra"] > alone["devices"][0]["extra"] + (600 << 20)


def test_a_dropped_draft_has_the_vocabulary_of_the_model() -> None:
    """One that llama-server would not draft with is refused, in the name that it was dropped by."""
    question = {"model": "qwen3-8b-q4_k_m", "gpu": "24", "ram": "32", "ctx": "8192"}
    answer = Engine().call("plan", {**question, "draft": "llama-3.1-8b-q4_k_m"})
    assert (
        "llama-3.1-8b-q4_k_m: llama-server does not draft with another vocabulary"
        in answer["error"]
    )
    assert "the draft has 128256 tokens, the model 151936" in answer["error"]
    assert "plan" in Engine().call("plan", {**question, "draft": "qwen3-0.6b-q8_0"})


def test_a_dropped_projector_is_as_wide_as_the_model(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "mmproj.gguf", "clip")
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_tensor("mm.input_projection.weight", np.zeros((64, 2560), np.float32))
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    engine = Engine()
    engine.add("mmproj.gguf", 1 << 20, (tmp_path / "mmproj.gguf").read_bytes())
    question = {"gpu": "24", "ram": "32", "ctx": "8192", "mmproj": "mmproj.gguf"}
    assert "plan" in engine.call("plan", {**question, "model": "gemma-3-4b-q8_0"})
    answer = engine.call("plan", {**question, "model": "qwen3-8b-q4_k_m"})
    assert (
        "mismatch between text model (n_embd = 4096) and mmproj (n_embd = 2560)" in answer["error"]
    )


def test_where_the_browser_finds_a_model() -> None:
    assert ask("locate", name="https://h/m-00001-of-00002.gguf")["urls"] == [
        f"https://h/m-0000{i}-of-00002.gguf" for i in (1, 2)
    ]
    first = ask("locate", name="hf:user/repo:Q8_0")
    assert first == {
        "listing": "https://huggingface.co/api/models/user/repo/tree/main?recursive=true"
    }
    files = ["a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-a.gguf"]
    found = ask("locate", name="hf:user/repo:Q8_0", files=files)
    assert found["urls"] == ["https://huggingface.co/user/repo/resolve/main/a-Q8_0.gguf"]
    assert [row["name"] for row in found["models"]] == [
        "hf:user/repo/a-Q4_K_M.gguf",
        "hf:user/repo/a-Q8_0.gguf",
    ]


def test_names_are_opened_where_that_is_allowed() -> None:
    opened = []
    model = autolayers.read_model(HEADERS / f"{MODELS[0]}.gguf")
    engine = Engine(lambda name: opened.append(name) or model)
    assert engine.call("open", {"name": "/models/a.gguf"})["model"]["n_layer"] == 32
    assert (
        engine.call("plan", {"model": "/models/a.gguf", "gpu": "8GiB"})["plan"]["model"]["n_layer"]
        == 32
    )
    assert opened == ["/models/a.gguf"]


def test_a_machine_file_goes_in_and_out() -> None:
    """All its figures count, and what is saved is the machine that was planned for."""
    machine = json.dumps(
        {
            "devices": [
                {"card": "rtx-3090"},
                {"name": "Vulkan0", "backend": "Vulkan", "total": 8 << 30},
            ],
            "host": {"total": 64 << 30, "available": 48 << 30, "bandwidth": 5e10, "cores": 8},
        }
    )
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
        assert "error" not in ask(
            "plan", model=BUNDLED + "llama-3.2-1b-q8_0", gpu="8GiB", workload=workload
        ), workload
    assert len(offer["models"]) >= 60 and "rtx-3090" in {card["name"] for card in offer["cards"]}


def test_a_pasted_log_is_explained() -> None:
    log = (
        "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3060) - 5800 "
        "MiB free\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 8000000000\n"
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
    )
    answer = ask("explain", log=log, model=BUNDLED + MODELS[2], ram="32GiB")
    assert (answer["cause"], answer["phase"], answer["device"], answer["bytes"]) == (
        "oom_device",
        "load",
        "CUDA0",
        8_000_000_000,
    )
    assert answer["launch"]["fits"] and answer["text"].startswith(
        "CUDA0 ran out of memory while loading weights"
    )
    assert explain_log(log)["cause"] == "oom_device" and explain_log("")["cause"] == "not_in_log"
    text = ask("explain", log=log, model="qwen3-8b-q4_k_m", gpu="12", ram="32")["text"]
    assert "llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -ngl " in text
    assert ask("explain", log=[1])["kind"] == "UsageError"


def test_nothing_that_a_pasted_log_names_is_opened(tmp_path: Path) -> None:
    """A name that no bundled header has."""
    shutil.copy(HEADERS / "gemma-2-9b-q4_k_m.gguf", tmp_path / "of-my-own.gguf")
    log = (
        f"$ llama-server -m {tmp_path / 'of-my-own.gguf'} -ngl 99\n"
        "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3060) - 4800 "
        "MiB free\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 5000000000\n"
    )
    assert (
        autolayers.explain(log.encode()).launch is not None and explain_log(log)["launch"] is None
    )


@pytest.mark.parametrize("pattern", ["^(.*)*$x", "(([a-z.0-9]+)*)*x", "(a|a)*x", ".*.*.*.*.*x"])
def test_patterns_cannot_hang_the_page(pattern: str) -> None:
    """They are searched without backtracking, or refused."""
    answer = ask("plan", model="llama-3.2-1b-q8_0", gpu="8", flags=f"-ot '{pattern}=CPU'")
    assert "plan" in answer or "repetition" in answer["error"]


CHANGES = (
    {},
    {"ram": "16"},
    {"ctx": "32768"},
    {"gpu": "rtx-3060"},
    {"gpu": "8", "ctk": "q8_0", "ctv": "q8_0"},
    {"flags": "--llama-build b7000"},
    {"flags": "", "np": "2"},
    {"model": "qwen3-4b-q4_k_m"},
)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [CHANGES[:2], slow(CHANGES)], ids=len)
def test_a_question_is_answered_alike_after_others(changes: tuple[dict[str, str], ...]) -> None:
    """What earlier ones found out is used where model and build are the same; their figures are
    not."""
    asked = {"model": "llama-3.1-8b-q4_k_m", "gpu": "rtx-3070", "ram": "32"}
    engine = Engine()
    for change in changes:
        asked |= change
        assert whole(engine, asked) == whole(Engine(), asked), asked


def whole(engine: Engine, asked: dict[str, str]) -> Any:
    """The answer with all its reasons."""
    answer = engine.call("plan", asked)
    while "plan" in answer and not (more := engine.call("more", asked)).get("done"):
        answer = more
    assert "error" not in answer
    return answer


def test_ram_is_sold_in_gib() -> None:
    question = {"model": MODELS[0], "gpu": "8", "ctx": "4096"}
    free = {
        ram: ask("plan", ram=ram, **question)["plan"]["host"]["free"]
        for ram in ("32", "32GB", "32gib")
    }
    assert set(free.values()) == {30 << 30}


@pytest.mark.slow
def test_no_gpu_is_this_machines_processor_where_the_page_is_served() -> None:
    """The chip "no GPU" and an empty row of a machine without one have one speed."""
    engine = Engine(load, here=True)
    plans = {
        gpu: engine.call("plan", {"model": "llama-3.2-1b-q8_0", "gpu": gpu, "ctx": "4096"})
        for gpu in ("none", "")
    }
    assert plans["none"]["plan"]["devices"] == []
    if not plans[""]["plan"]["devices"]:
        assert plans["none"]["plan"]["speed"] == plans[""]["plan"]["speed"]
    row = engine.call("row", {"model": "llama-3.2-1b-q8_0", "gpu": "none", "ctx": "4096"})
    speed = plans["none"]["plan"]["speed"]["generation_tokens_per_second"]
    assert row["rate"] == pytest.approx(speed, abs=0.01)


@pytest.mark.parametrize(
    ("typed", "name", "filled"),
    [
        (
            "llama-server -hf unsloth/Qwen3-8B-GGUF:Q8_0 --jinja -c 32768 -ngl 99 -fa on",
            {"name": "hf:unsloth/Qwen3-8B-GGUF:Q8_0"},
            {"flags": "--jinja", "yours": "-ngl 99 -fa on", "ctx": "32768"},
        ),
        (
            "./llama-server \\\n  -m /models/Qwen3-8B-Q4_K_M.gguf \\\n  -np 2 -ctk q8_0 -ngl 20",
            {"near": ["qwen3-8b-q4_k_m"]},
            {"path": "/models/Qwen3-8B-Q4_K_M.gguf", "yours": "-ngl 20", "np": "2", "ctk": "q8_0"},
        ),
        (
            "C:\\llama\\llama-server.exe -m C:\\m\\Qwen3-8B-Q4_K_M.gguf -ot exps=CPU",
            {"near": ["qwen3-8b-q4_k_m"]},
            {"path": "C:/m/Qwen3-8B-Q4_K_M.gguf", "yours": "-ot exps=CPU"},
        ),
        (
            "sudo CUDA_VISIBLE_DEVICES=0 llama serve -hf a/b-GGUF --api-key secret",
            {"name": "hf:a/b-GGUF"},
            {},
        ),
        (
            "docker run --gpus all ghcr.io/ggml-org/llama.cpp:server-cuda -hf a/b-GGUF -ngl 9",
            {"name": "hf:a/b-GGUF"},
            {"yours": "-ngl 9"},
        ),
    ],
)
def test_a_pasted_command_is_a_model_wishes_and_means(
    typed: str, name: dict[str, object], filled: dict[str, str]
) -> None:
    answer = ask("name", name=typed)
    said = {field: value for field, value in answer.pop("fill").items() if value}
    assert (answer, said) == (name, filled)


def test_what_is_no_command_is_a_name() -> None:
    assert "fill" not in ask("name", name="llama 3.1 8b")
    assert ask("name", name="https://lmstudio.ai/models/qwen/qwen3-8b")["near"][0].startswith(
        "qwen3-8b"
    )
    assert "fill" not in ask("name", name="llama-server --port 'x")


def test_yours_stands_beside_the_plan() -> None:
    question = {"model": "qwen3-30b-a3b-q4_k_m", "gpu": "rtx-3060", "ram": "32", "ctx": "16384"}
    answer = ask("yours", **question, yours="-ngl 20")
    plan = ask("plan", **question)["plan"]
    rows = {what.strip(): (here, there) for what, here, there in answer["rows"]}
    assert answer["is_better"] and rows["context"] == ("16384", "16384")
    assert rows["where"] == ("20 of 49 layers on the GPU", plan["placement"])
    assert answer["text"].startswith("yours writes 22")
    assert "expected a number of layers" in ask("yours", **question, yours="-ngl many")["error"]


def test_a_job_asks_for_context_unless_the_model_has_less() -> None:
    question = {"gpu": "rtx-4090", "ram": "32", "for": "documents"}
    assert ask("plan", model="qwen3.5-9b-q4_k_m", **question)["plan"]["launch"]["n_ctx"] >= 65536
    short = ask("plan", model="gemma-2-9b-q4_k_m", **question)["plan"]
    assert 0 < short["launch"]["n_ctx"] <= 8192 * 4 and not short["warnings"]


def test_a_list_says_where_a_model_is_without_counting_no_layers() -> None:
    """ "0 of 25 layers on the GPU" would stand beside a model on a computer without one."""
    assert where("0 of 25 layers on the GPU") == "All of it on the CPU"
    assert where("33 of 33 layers on the GPU") == "All of it on the GPU"
    assert where("49 of 49 layers on the GPU, experts of 3 layers in RAM") == (
        "Experts of 3 layers in RAM"
    )
    assert where("20 of 49 layers on the GPU") == "20 of 49 layers on the GPU"
