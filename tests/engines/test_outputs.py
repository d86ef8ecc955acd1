"""Users of llama-bench, llama-perplexity and libraries would run out of memory.

What programs other than llama-server reserve for logits: those of a whole micro-batch.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from support import FIXTURES, HEADERS, MiB, command, gguf, model, says, slow, write_gguf

import autolayers
from autolayers.builds import Build
from autolayers.engines import ENGINES, engine, of_program
from autolayers.flags.parse import parse
from autolayers.machine import Device
from autolayers.memory.breakdown import Breakdown
from autolayers.memory.estimate import Estimator

# MiB of libllama b11739's CPU compute buffer with n_ctx 4096: (-ub, default parameters,
# n_outputs_max = 1)
MEASURED = {
    "qwen2.5-0.5b": ((512, 309.52, 41.27), (2048, 1238.08, 165.07)),
    "qwen3-0.6b-q8_0": ((512, 312.77, 32.02), (2048, 1251.08, 128.07)),
    "llama-3.2-1b-q8_0": ((512, 274.52, 72.02), (2048, 1098.08, 288.07)),
}


def taken(name: str, program: str, words: str, devices: list[Device] | None = None) -> Breakdown:
    estimator = Estimator(model(name), Build(11549, engine=engine(program)))
    return estimator.breakdown(parse(words.split()).params, devices or [])


@pytest.mark.parametrize("name", MEASURED)
def test_compute_buffers_are_those_measured(name: str) -> None:
    for n_ubatch, library, server in MEASURED[name]:
        words = f"-c 4096 -np 1 -ngl 0 -ub {n_ubatch}"
        for program, mib in (
            ("llama-cpp-python", library),
            ("koboldcpp", library),
            ("llama-bench", library),
            ("llama-server", server),
            ("llama-cli", server),
        ):
            found = taken(name, program, words)
            assert (round(found.host.compute / MiB, 2), found.exact) == (mib, True)


def test_only_a_program_that_asks_for_all_logits_keeps_them_in_ram() -> None:
    """Those of 2048 tokens of 151936 are 1187 MiB; llama-bench asks for the last one's."""
    words = "-c 4096 -np 1 -ngl 0 -ub 512"
    rows = {}
    for name in ("llama-bench", "llama-perplexity"):
        extras = taken("qwen3-0.6b-q8_0", name, words).extras
        rows[name] = sum(
            extra.size for extra in extras if extra.name in ("output buffer", "more outputs")
        )
    assert rows == {"llama-bench": 151936 * 4, "llama-perplexity": 2048 * 151936 * 4}


# MiB that llama-perplexity b11549 logged on a CUDA device: its cache, CUDA0, pinned and output
# buffers
CHUNKS = (
    ("", 224.0, 305.27, 8.52, 2.32),
    ("-c 4096", 448.0, 308.77, 12.02, 0.58),
    ("-c 1024 -kvu", 448.0, 308.77, 12.02, 2.32),  # --hellaswag -c 1024
)


@pytest.mark.parametrize(("words", "context", "compute", "pinned", "output"), CHUNKS)
def test_perplexity_has_as_many_chunks_as_a_batch(
    words: str, context: float, compute: float, pinned: float, output: float
) -> None:
    gpu = Device.hypothetical("16GiB")
    found = taken("qwen3-0.6b-q8_0", "llama-perplexity", f"-ngl 99 {words}", [gpu])
    device = found.devices[gpu.name]
    logits = next(extra.size for extra in found.extras if extra.name == "output buffer")
    sizes = (device.context, device.compute, found.host.compute, logits)
    assert [round(size / MiB, 2) for size in sizes] == [context, compute, pinned, output]
    assert found.exact and found.n_seq_max == (1 if words == "-c 4096" else 4)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("-c 8192 -ngl 99", [1252, 256, 274, 266, 0, 24]),
        ("-c 16384 -ub 1024 -b 1024 -ngl 12", [944, 352, 533, 574, 160, 64]),
    ],
)
def test_fit_params_prints_what_its_own_context_takes(words: str, printed: list[int]) -> None:
    """llama-fit-params -fitp on of b11549 on a simulated GPU: logits of a whole micro-batch."""
    given = [*words.split(), "--gpu", "16GiB", "--engine", "llama-fit-params"]
    use = autolayers.estimate(model("llama-3.2-1b-q8_0"), given)
    rows = [use.devices["CUDA0"], use.host]
    assert [
        size // MiB for row in rows for size in (row.model, row.context, row.compute)
    ] == printed


def test_perplexity_keeps_its_own_context() -> None:
    path = HEADERS / "qwen3-8b-q4_k_m.gguf"
    words = ("run", "--dry-run", "--gpu", "8GiB", "--llama-build", "11549", "llama-perplexity")
    assert shlex.split(says(*words, "-m", path).stdout)[3:] == ["-ngl", "37", "-c", "512"]
    tasks = says(*words, "-m", path, "--hellaswag", "-c", "1024").stdout
    assert shlex.split(tasks)[3:] == ["--hellaswag", "-c", "1024", "-ngl", "37"]


def test_only_a_server_saves_prompts() -> None:
    """llama-completion has no --cache-ram, and nothing that it would limit."""
    words = (HEADERS / "qwen3-8b-q4_k_m.gguf", "--gpu", "8GiB", "--ram", "6GiB", "-c", "4096")
    assert "-cram" in says(*words).stdout
    assert says(*words, "--engine", "llama-completion").stdout == "-ngl 37 -c 4096 -np 1\n"
    refused = says(*words, "--engine", "llama-completion", "-cram", "100")
    assert refused.returncode == 2 and "llama-completion has no -cram" in refused.stderr


def test_programs_are_known_by_their_name() -> None:
    assert {
        name: of_program(name).whole_batches
        for name in (
            "llama-server",
            "llama-cli",
            "serve.sh",
            "llama-bench",
            "llama-completion",
            "llama-perplexity",
            "llama-mtmd-cli",
            "llama-imatrix",
            "test-llama-server",
        )
    } == {
        "llama-server": False,
        "llama-cli": False,
        "serve.sh": False,
        "llama-bench": True,
        "llama-completion": True,
        "llama-perplexity": True,
        "llama-mtmd-cli": True,
        "llama-imatrix": True,
        "test-llama-server": False,
    }


# file, GPU, format: what the launch files asked for before
FILES = (
    ("fixtures/real/headers/qwen35-9b.gguf", "rtx-2070", "llama-cpp-python"),
    slow("fixtures/real/headers/qwen35-9b.gguf", "rtx-3060", "llama-cpp-python"),
    slow("fixtures/headers/qwen3-30b-a3b-q4_k_m.gguf", "rtx-3060", "koboldcpp"),
    slow("fixtures/headers/qwen3-30b-a3b-q4_k_m.gguf", "rtx-3060", "llama-cpp-python"),
    ("fixtures/speeds/models/gemma-3-27b-q4_k_m.gguf", "rtx-3090", "koboldcpp"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "gpu", "kind"), FILES)
def test_what_a_launch_file_asks_for_fits_its_program(path: str, gpu: str, kind: str) -> None:
    """The plan of the file's flags, measured as its program allocates, leaves the margin."""
    words = [path, "--gpu", gpu, "--ram", "64GiB", "-np", "1"]
    text = command(*words, "--format", kind).stdout.decode()
    flags = dict(_llama(text) if kind == "llama-cpp-python" else _koboldcpp(text))
    again = command(
        *words, "--engine", kind, "--json", *[word for pair in flags.items() for word in pair]
    )
    (device,) = json.loads(again.stdout)["devices"]
    assert device["remaining"] >= 0
    logits = (
        {"qwen35": 248320, "qwen3-": 151936, "gemma-": 262144}[Path(path).name[:6]]
        * 4
        * int(flags["-ub"])
    )
    assert device["compute"] > logits


def _llama(text: str) -> list[tuple[str, str]]:
    names = {"n_gpu_layers": "-ngl", "n_ctx": "-c", "n_batch": "-b", "n_ubatch": "-ub"}
    pairs = (
        line.strip(" ,").split("=", 1) for line in text.splitlines() if line.startswith("    ")
    )
    return [(names[name], value) for name, value in pairs if name in names]


def _koboldcpp(text: str) -> list[tuple[str, str]]:
    words = text.split()
    found = {"-ngl": "--gpulayers", "-b": "--batchsize", "-ub": "--batchsize"}
    pairs = [(flag, words[words.index(name) + 1]) for flag, name in found.items()]
    pairs.append(("-c", str(int(words[words.index("--contextsize") + 1]) + 128)))
    if "--moecpu" in words:
        pairs.append(("-ncmoe", words[words.index("--moecpu") + 1]))
    if "--overridetensors" in words:
        pairs.append(("-ot", words[words.index("--overridetensors") + 1].strip("'")))
    return pairs


def test_a_wrapped_llama_bench_is_planned_with_its_logits() -> None:
    """A budget in which a server has all layers, and llama-bench's 1.9 GiB of logits push some
    out."""
    path = FIXTURES / "real/headers/qwen35-9b.gguf"
    words = [
        "run",
        "--dry-run",
        "--gpu",
        "rtx-2060-12g",
        "--budget",
        "CUDA0=6600MiB",
        "--ram",
        "32GiB",
        "--llama-build",
        "11549",
    ]
    server = says(
        *words, "llama-server", "-m", path, "-c", "4096", "-np", "1", "-ub", "2048"
    ).stdout
    bench = says(*words, "llama-bench", "-m", path, "-p", "2048", "-n", "128", "-ub", "2048").stdout
    assert "-ngl 33" in server and "-ot" not in server
    assert "-ot" in bench or "-ngl 33" not in bench


def test_a_llama_bench_that_fits_the_model_itself() -> None:
    """-fitt and a number of layers exclude each other in common_fit_params."""
    done = says(
        "run",
        "--dry-run",
        "--gpu",
        "24GiB",
        "--llama-build",
        "11549",
        "llama-bench",
        "-m",
        HEADERS / "qwen3-8b-q4_k_m.gguf",
        "-fitt",
        "1024",
    )
    assert done.returncode == 0 and "-ngl" not in done.stdout and "-fitt 1024" in done.stdout
    assert "llama-bench fits the model itself" in done.stderr


def test_koboldcpp_has_a_sequence_more_than_slots() -> None:
    """In one cache for all: states of a hybrid model are those of five sequences, the cache of
    -c."""
    rows = {
        name: taken("qwen3-next-80b-a3b-q4_k_m", name, "-c 8192 -np 4 -ngl 0")
        for name in ("koboldcpp", "llama-completion")
    }
    five = taken("qwen3-next-80b-a3b-q4_k_m", "llama-completion", "-c 8192 -np 5 -kvu -ngl 0")
    assert (
        rows["koboldcpp"].host.context == five.host.context > rows["llama-completion"].host.context
    )
    assert taken("qwen3-8b-q4_k_m", "koboldcpp", "-c 8192 -np 1 -ngl 0").n_seq_max == 1


@pytest.mark.slow
def test_front_ends_have_more_slots_than_one() -> None:
    """Jan keeps two for itself in a shared cache; LM Studio predicts four texts at once."""
    words = "-c 8192 -ngl 0"
    name = "qwen3-next-80b-a3b-q4_k_m"
    server = taken(name, "llama-server", f"{words} -np 3 -kvu")
    jan = taken(name, "jan", f"{words} -np 1")
    assert (jan.host, jan.n_seq_max) == (server.host, 3)
    assert taken(name, "jan", f"{words} -np 1 -no-kvu").host != server.host
    studio = taken(name, "lm-studio", words)
    assert studio.n_seq_max == 4 and studio.kv_unified
    path = HEADERS / "qwen3-8b-q4_k_m.gguf"
    plan = command(path, "--gpu", "24GiB", "--engine", "jan", "-c", "8192", "--json")
    assert json.loads(plan.stdout)["launch"]["n_seq_max"] == 3


def test_a_micro_batch_is_chosen_at_its_cost() -> None:
    """Where the logits of a large one would cost the context or layers, it is not taken."""
    path = HEADERS / "qwen3-30b-a3b-q4_k_m.gguf"
    sizes = {}
    for name in ("llama-server", "llama-completion"):
        words = [
            path,
            "--gpu",
            "24GiB",
            "--ram",
            "64GiB",
            "-np",
            "1",
            "-c",
            "40960",
            "--engine",
            name,
            "--json",
        ]
        sizes[name] = json.loads(command(*words).stdout)
    assert all(plan["fits"] for plan in sizes.values())
    launch = {name: plan["launch"]["n_ubatch"] for name, plan in sizes.items()}
    assert launch["llama-completion"] <= launch["llama-server"]
    assert sizes["llama-completion"]["launch"]["engine"] == "llama-completion"


def test_the_engine_is_named_or_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", *gguf("llama-3.2-1b-q8_0"))
    assert (
        json.loads(command(path, "--gpu", "8GiB", "--json").stdout)["launch"]["engine"]
        == "llama-server"
    )
    other = command(path, "--gpu", "8GiB", "--engine", "vllm", "--json")
    assert (
        other.returncode == 2
        and b"--engine vllm: expected one of llama-server, llama-cli" in other.stderr
    )
    both = says(path, "--gpu", "8GiB", "--engine", "llama-bench", "--format", "koboldcpp")
    assert (both.returncode, both.stdout) == (2, "") and "not --engine llama-bench" in both.stderr
    server = says(path, "--gpu", "8GiB", "--engine", "llama-completion", "--format", "systemd")
    assert (server.returncode, server.stdout) == (
        2,
        "",
    ) and "starts a llama-server" in server.stderr
    for name, form in (
        ("koboldcpp", "--format koboldcpp"),
        ("llama-bench", "autolayers run llama-bench"),
    ):
        written = says(path, "--gpu", "8GiB", "--engine", name)
        assert (written.returncode, written.stdout) == (2, "") and form in written.stderr
    assert set(ENGINES) >= {
        "llama-server",
        "llama-bench",
        "llama-cpp-python",
        "koboldcpp",
        "ik_llama.cpp",
    }
