"""Recorded numbers would no longer be llama.cpp's own.

fixtures/record.py: headers from dimensions, launches from the recorded files, differences in
words.

llama.cpp itself is asked where marked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import FIXTURES, RECORDED, ROOT, few, few_rows, slow

sys.path.insert(0, str(FIXTURES))

from recorder import differ, headers, launch, mock_cuda, predict, random_rows, tree, truth

from autolayers.flags.parse import parse


def record(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, FIXTURES / "record.py", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environ},
    )


# --- headers

DESCRIBED = [name for name, description in headers.descriptions().items() if description.lines]


@pytest.mark.parametrize("name", few(3, DESCRIBED, 1))
def test_a_header_made_again_is_the_file(name: str) -> None:
    assert headers.header(name).to_bytes() == (FIXTURES / headers.path_of(name)).read_bytes()


def test_all_headers_are_described_but_llama_cpps_own() -> None:
    there = {
        path
        for folder in ("headers", "more/headers", "mtp")
        for path in (FIXTURES / folder).glob("*.gguf")
    }
    rest = there - {FIXTURES / headers.path_of(name) for name in DESCRIBED}
    assert len(there) == 238 and len(rest) == 130
    assert all(re.search(r"-(dense|moe)$", path.stem) for path in rest)


@pytest.mark.slow
def test_the_check_of_headers_says_what_differs(tmp_path: Path) -> None:
    done = record("--headers", "--check", "--out", str(tmp_path))
    assert done.returncode == 0 and "120 of 120 headers are equal to the byte" in done.stdout
    made = headers.header("llama-3.1-8b-q4_k_m")
    other = headers.header("llama-3.2-1b-q8_0")
    assert headers.difference(made, other).startswith("general.name: ")
    assert headers.difference(made, headers.Header(made.metadata, made.tensors[1:])).startswith(
        "Tensor(name='token_embd.weight'"
    )
    sizes = json.loads((FIXTURES / "headers" / "sizes.json").read_text())
    written = json.loads((tmp_path / "headers" / "sizes.json").read_text())
    assert len(written) == 16 and written == {name: sizes[name] for name in written}


def test_shapes_are_arithmetic_on_dimensions_only() -> None:
    made = headers.header("llama-3.1-8b-q4_k_m")
    assert headers.evaluate("n_head*head_k+2*n_head_kv*head_k", made, 0) == 6144
    for text in ("__import__('os').getpid()", "n_embd.real", "n_nothing"):
        with pytest.raises((ValueError, KeyError)):
            headers.evaluate(text, made, 0)


# --- launches


@pytest.mark.parametrize("name", truth.RECORDINGS)
def test_every_row_is_a_launch(name: str) -> None:
    recording = truth.RECORDINGS[name]
    for row in recording.read():
        files = {model: str(recording.header(model)) for model in recording.names(row)}
        launches = recording.launches(row, files)
        assert len(launches) == (row["n_layer"] + 2 if name == "decisions" else 1)
        for each in launches:
            assert (
                each.words[0] == "-m"
                and each.gpus_mib
                and all(isinstance(word, str) and "\t" not in word for word in each.words)
            )


def test_devices_are_in_llama_cpps_order_and_a_buffer_grows_to_its_larger_graph() -> None:
    answer = {
        "devices": ["CUDA0", "CUDA1"],
        "target": {
            "CUDA1": ["CUDA1", 1, 2, 30, 4],
            "CPU": ["Host", 5, 0, 0, 0],
            "CUDA_Host": ["Host", 6, 0, 7, 80],
            "CPU_REPACK": ["CPU", 9, 0, 0, 0],
        },
    }
    assert list(launch.by_device(answer)) == ["CUDA0", "CUDA1", "Host", "CPU"]
    assert launch.by_device(answer) == {
        "CUDA0": {"model": 0, "context": 0, "compute": 0},
        "CUDA1": {"model": 1, "context": 2, "compute": 30},
        "Host": {"model": 11, "context": 0, "compute": 80},
        "CPU": {"model": 9, "context": 0, "compute": 0},
    }


def test_llama_cpp_sees_nothing_of_this_shells_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "5")
    monkeypatch.setenv("GGML_CUDA_DISABLE_FUSION", "1")
    made = tree.Tree(Path("/s"), Path("/b"))
    environ = launch.environment(made, "cuda", (1, 2))
    assert not {"LLAMA_ARG_CTX_SIZE", "GGML_CUDA_DISABLE_FUSION"} & set(environ)
    assert (environ["MOCK_CUDA"], environ["LD_PRELOAD"]) == (
        "1048576,2097152",
        "/b/bin/libmock_cuda.so",
    )
    assert (
        launch.environment(made, "vulkan", (1, 1), (("subgroup_size", 8),))["MOCK_VULKAN"]
        == "subgroup_size=8"
    )
    assert "LD_PRELOAD" not in launch.environment(made, "cpu", (1,))


# --- what differs


def doctored(row: truth.Row) -> truth.Row:
    return json.loads(json.dumps(row))


def test_equal_rows_do_not_differ() -> None:
    for recording in truth.RECORDINGS.values():
        for row in recording.read():
            assert not list(differ.differences(row, row))


def test_each_kind_of_number_is_named() -> None:
    row = next(
        row
        for row in truth.RECORDINGS["models"].read()
        if len(row["gpus_mib"]) == 2 and "error" not in row
    )
    new = doctored(row)
    new["devices"]["CUDA1"]["compute"] += 4096
    new["devices"]["Host"]["compute"] -= 32
    new["devices"]["CUDA0"]["context"] += 1
    new["n_ctx"] += 256
    assert {found.part for found in differ.differences(row, new)} == {
        "compute GPU",
        "compute Host",
        "context",
        "n_ctx",
    }
    text = differ.report([differ.Compared("dense", row, tuple(differ.differences(row, new)))])
    assert (
        "dense, compute GPU: median +4,096 bytes" in text
        and f"-m {row['model']}" not in text
        and row["args"] in text
    )
    assert re.search(r"^dense +1 +0 +1 +0 +1 +1 +1$", text, re.MULTILINE)
    refused = {**{key: row[key] for key in ("model", "gpus_mib", "args")}, "error": "context"}
    assert [found.part for found in differ.differences(row, refused)] == ["refusal"]


def test_other_backends_are_compared_device_by_device() -> None:
    row = truth.RECORDINGS["archs"].read()[0]
    new = doctored(row)
    new["devices"] = {name.replace("CUDA", "ROCm"): use for name, use in row["devices"].items()}
    assert not list(differ.differences(row, new))


def test_predictions_are_rows() -> None:
    row = next(row for row in truth.RECORDINGS["archs"].read() if "error" not in row)
    path = str(truth.RECORDINGS["archs"].header(row["model"]))
    assert not list(differ.differences(predict.row(row, path, RECORDED), row))
    refused = next(row for row in truth.RECORDINGS["archs"].read() if "error" in row)
    assert (
        predict.row(refused, str(truth.RECORDINGS["archs"].header(refused["model"])), RECORDED)[
            "error"
        ]
        == "context"
    )


def test_random_launches_are_those_of_their_seed() -> None:
    folders = truth.RECORDINGS["more"].headers
    rows = random_rows.rows(300, 7, folders)
    assert rows == random_rows.rows(300, 7, folders) != random_rows.rows(300, 8, folders)
    assert len({row["model"] for row in rows}) > 100 and {len(row["gpus_mib"]) for row in rows} == {
        1,
        2,
        3,
        4,
    }
    for row in rows:
        read = parse(row["args"].split())
        assert not read.rest and read.params.n_ctx and read.params.n_gpu_layers is not None, row


# --- the tree


def test_what_is_cut_from_a_source_is_whole() -> None:
    text = (
        "#define LIMIT \\\n    5\nstatic int helper(int n);\n"
        "static int helper(int n) {\n    if (n) {\n        return LIMIT;\n    }\n    return 0;\n}\n"
        "struct pair {\n    int a;\n};\n__global__ void kernel() {\n}\nstatic constexpr int MOST = "
        "8;\n"
    )
    found = mock_cuda.definitions(text)
    assert set(found) == {"LIMIT", "helper", "pair", "MOST"}
    assert found["helper"].startswith("static int helper(int n) {") and found["helper"].endswith(
        "\n}\n"
    )
    assert found["LIMIT"] == "#define LIMIT \\\n    5\n"


@pytest.mark.parametrize(
    ("server", "common", "made"),
    [
        ("", "", "(void) params;"),
        (
            "static uint32_t server_n_outputs_max(const common_params & p) {\n    return 1;\n}\n",
            "",
            "params.n_outputs_max = server_n_outputs_max(params);",
        ),
        (
            "static limits server_output_limits(const common_params & p) {\n    return {};\n}\n",
            "common_speculative_init_from_params(",
            "params.n_outputs_max_per_seq = limits.per_seq;",
        ),
    ],
)
def test_llama_servers_limit_on_outputs_is_the_trees_own(
    tmp_path: Path, server: str, common: str, made: str
) -> None:
    (tmp_path / "tools" / "server").mkdir(parents=True)
    (tmp_path / "common").mkdir()
    (tmp_path / "tools" / "server" / "server-context.cpp").write_text("#include <x>\n\n" + server)
    (tmp_path / "common" / "speculative.h").write_text(common)
    text = tree.server_rules(tree.Tree(tmp_path, tmp_path))
    assert server in text and made in text and ("#define RECORDER_DRAFTS" in text) == bool(common)


@pytest.mark.parametrize(
    ("words", "said"),
    few_rows(
        3,
        [
            (["--check", "--build", "soon"], "--build soon: a number is wanted, or 'newest'"),
            slow(["--check", "--source", "/nowhere"], "/nowhere: not a llama.cpp source tree"),
            (["--check", "--files", "models,moods"], "--files: no moods; there are models, archs,"),
            slow(["--check", "--every", "0"], "--every wants a positive number"),
            slow(["--check", "--against", "/nowhere"], "no such file of launches in /nowhere"),
            slow(["--check", "--random", "9"], "--random wants a positive number, and --predict"),
            slow(["--predict", "--files", "decisions"], "--predict has models, archs, more only"),
            (["--out", str(FIXTURES / "truth"), "--every", "2"], "would leave"),
            slow([], "say --check, --predict, --out DIR, or several"),
        ],
    ),
)
def test_what_cannot_be_recorded_is_said_in_a_line(words: list[str], said: str) -> None:
    done = record(*words)
    assert (
        done.returncode == 2
        and said in done.stderr
        and "Traceback" not in done.stderr
        and not done.stdout
    )


# --- llama.cpp itself


@pytest.mark.llamacpp
def test_the_source_of_these_tests_says_what_is_recorded(binaries: Path) -> None:
    source = Path(
        os.environ.get("AUTOLAYERS_LLAMACPP_SOURCE")
        or binaries.parent.parent / "source" / "vendor" / "llama.cpp"
    )
    if not source.exists():
        pytest.skip(f"no source for {binaries}")
    done = record("--check", "--source", str(source), "--every", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    tiny = record("--headers", "--check", "--source", str(source))
    assert tiny.returncode == 0 and "178 of 178 headers are equal to the byte" in tiny.stdout, (
        tiny.stdout + tiny.stderr
    )


def test_words_and_log_of_a_launch_as_web_assembly() -> None:
    """npm's wllama has no parser of llama-server's flags: its message gets what the words mean."""
    wllama = pytest.importorskip("recorder.wllama")
    asked = wllama.request(
        ["-c", "4096", "-np", "2", "-kvu", "-ub", "64", "-fa", "off", "-ctk", "q8_0", "--swa-full"]
    )
    assert {key: asked[key] for key in ("n_ctx", "n_parallel", "n_ubatch", "cache_type_k")} == {
        "n_ctx": 4096,
        "n_parallel": 2,
        "n_ubatch": 64,
        "cache_type_k": "q8_0",
    }
    assert asked["kv_unified"] and asked["swa_full"] and not asked["flash_attn"]
    log = [
        "llama_kv_cache:        CPU KV buffer size =     4.00 MiB",
        "llama_memory_recurrent:        CPU RS buffer size =     0.25 MiB",
        "sched_reserve:        CPU compute buffer size =     0.77 MiB",
    ]
    assert wllama.sizes({"log": log}) == {"context": 4.25, "compute": 0.77}
    assert "error" in wllama.sizes({"log": ["error loading model"]})
