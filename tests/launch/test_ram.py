"""Two files of one launch would ask for different RAM.

What a launch needs of RAM: the same figures in every file that an orchestrator reads, and within
a given limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import launch_targets as targets
import pytest
from support import HEADERS, PLAIN, ROOT, check_examples, few, slow

import autolayers
from autolayers.cli import main
from autolayers.errors import UsageError
from autolayers.flags.parse import parse
from autolayers.launch import formats
from autolayers.memory.ram import RUNTIME, ram_of, within
from autolayers.units import GiB, MiB

MOE = str(PLAIN / "qwen3-30b-a3b-q4_k_m.gguf")
SMALL = str(HEADERS / "llama-3.2-1b-q8_0.gguf")
GPU = ("--gpu", "12GiB", "--ram", "64GiB")


@cache
def planned(*words: str) -> autolayers.Plan:
    return autolayers.plan(MOE, parse(list(words), command="plan"))


def test_the_memory_request_counts_all_parts() -> None:
    """Weights in RAM, buffers, 8 GiB of saved prompts: all that the plan counts, and the program
    with its page tables."""
    plan = planned(*GPU, "-c", "32768")
    host, need = plan.host, plan.ram
    assert need.limit is not None
    assert 0 < need.request - (host.resident + RUNTIME) < need.request // 500 + MiB
    assert need.limit - need.request == pytest.approx(host.growing, rel=0.003)
    assert host.growing > 8 * GiB and 9 * GiB < need.mapped == host.mapped <= host.resident
    row: Any = plan.to_dict()["host"]
    assert row == {**row, **vars(need)}


@pytest.mark.parametrize("words", [["--no-mmap"], ["--mlock"]])
def test_weights_that_cannot_be_dropped(words: list[str]) -> None:
    plan = autolayers.plan(SMALL, ["-dev", "none", "-c", "4096", *words], ram="16GiB")
    assert plan.ram.mapped == 0 and plan.ram.request > plan.model.size


def test_repacked_weights_are_the_process_s_own() -> None:
    """llama.cpp copies q4_0 into another order, so their pages are not the file's."""
    plan = autolayers.plan(MOE, ["-dev", "none", "-c", "4096"], ram="64GiB")
    repacked = sum(row.buffers.get("CPU_REPACK", 0) for row in plan.layers)
    assert repacked > 0 and plan.ram.mapped <= plan.host.resident - repacked


def test_memory_that_a_gpu_shares_is_counted() -> None:
    """A driver may take it from the pod (home-ops#3735: 2 GiB, killed at load)."""
    mac = autolayers.plan(SMALL, ["-c", "4096"], gpu="strix-halo-128gb")
    assert mac.host.shared > 0 and mac.ram.request > mac.host.shared + RUNTIME


@pytest.mark.slow
@pytest.mark.parametrize("limit", few(2, [24, 14, 11]))
def test_a_limit_holds(limit: int) -> None:
    plan = planned(*GPU, "-c", "32768", "--ram-limit", f"{limit}GiB")
    assert plan.fits and plan.ram.limit is not None and plan.ram.limit <= limit * GiB
    free = planned(*GPU, "-c", "32768")
    assert free.ram.limit is not None
    assert ("-cram" in plan.flags) == (free.ram.limit > limit * GiB)


@pytest.mark.slow
def test_a_limit_that_does_not_hold_does_not_fit() -> None:
    plan = planned(*GPU, "-c", "32768", "--ram-limit", "4GiB")
    assert not plan.fits
    assert (
        autolayers.plan(
            SMALL, ["-dev", "none", "-c", "4096"], ram="2GiB", ram_limit="64GiB"
        ).ram.limit
        <= 2 * GiB
    )


@pytest.mark.slow
def test_a_limit_bounds_checkpoints() -> None:
    """home-ops#9818, #9988: the cache and the checkpoints of a recurrent model grow until the pod
    is killed."""
    name = str(HEADERS / "granite-4.0-h-small-q4_k_m.gguf")
    free = autolayers.plan(name, ["-c", "131072"], gpu="24GiB", ram="128GiB")
    bound = autolayers.plan(name, ["-c", "131072"], gpu="24GiB", ram="128GiB", ram_limit="16GiB")
    assert free.ram.limit is not None and bound.ram.limit is not None
    assert free.ram.limit > 16 * GiB >= bound.ram.limit and bound.fits


@pytest.mark.parametrize("size", [600 * MiB, GiB + 1, 16 * GiB, 777 * GiB + 12345])
def test_planning_within_a_limit_keeps_to_it(size: int) -> None:
    need = ram_of(within(size) - RUNTIME, 0, 0)
    assert need.limit is not None and size - size // 256 - 2 * MiB <= need.limit <= size


def documents(kind: str, *words: str) -> list[dict[str, Any]]:
    import yaml

    return list(yaml.safe_load_all(text_of(kind, *words)))


def text_of(kind: str, *words: str) -> str:
    given = parse([*words, "-c", "32768"], command="plan")
    return formats.write(kind, planned(*words, "-c", "32768"), given, warn=lambda _: None)


def test_every_file_has_it() -> None:
    pytest.importorskip("yaml")
    need = planned(*GPU, "-c", "32768").ram
    assert need.limit is not None
    most, least = need.limit // MiB, need.request // MiB
    assert f"--memory {most}m --memory-reservation {least}m " in text_of("docker", *GPU)
    (compose,) = documents("compose", *GPU)
    service = compose["services"]["llama-server"]
    resources = service["deploy"]["resources"]
    assert service["mem_limit"] == resources["limits"]["memory"].lower() == f"{most}m"
    assert (
        resources["reservations"]["memory"] == f"{least}m" and resources["reservations"]["devices"]
    )
    assert f"MemoryHigh={most - 128}M\nMemoryMax={most}M\n" in text_of("systemd", *GPU)
    assert f'serviceConfig.MemoryMax = "{most}M";' in text_of("nixos", *GPU)
    pod = documents("kubernetes", *GPU)[0]["spec"]["template"]["spec"]["containers"][0]
    assert pod["resources"] == {
        "requests": {"memory": f"{least}Mi", "cpu": "1"},
        "limits": {"memory": f"{most}Mi", "nvidia.com/gpu": 1},
    }
    assert documents("llmkube", *GPU)[1]["spec"]["resources"] == {
        "gpu": 1,
        "hostMemory": f"{most}Mi",
    }
    assert documents("gpustack", *GPU)[0]["env"]["GPUSTACK_MODEL_RAM_CLAIM"] == str(need.limit)
    runtime, _ = documents("kserve", "-dev", "none", "--ram", "64GiB")
    assert set(runtime["spec"]["containers"][0]["resources"]["limits"]) == {"memory"}


@pytest.mark.parametrize("kind", few(3, ["docker", "compose", "systemd", "nixos", "kubernetes"]))
def test_what_has_no_limit_gets_none(kind: str) -> None:
    """tq#350: 59.7 GB in an hour. A limit would be a guess."""
    said: list[str] = []
    given = parse([*GPU, "-c", "32768", "-cram", "-1"], command="plan")
    text = formats.write(kind, autolayers.plan(MOE, given), given, warn=said.append)
    assert not re.search("--memory |mem_limit|MemoryMax|limits:\n +memory", text)
    assert any("without end" in line for line in said)


# --- Kubernetes and what is built on it


@pytest.mark.slow
def test_kubernetes_files_pass_its_own_schemas() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for words in (
        GPU,
        (*GPU, "--gpumem", "hami"),
        (*GPU, "--gpumem", "kai"),
        ("-dev", "none", "--ram", "64GiB"),
        (*GPU, "--api-key", "x", "--ssl-cert-file", "c.pem"),
    ):
        for document in documents("kubernetes", *words):
            validator.validate(document, validator.latest_version(), strict=True)


@pytest.mark.parametrize("name", [slow("hami"), "kai"])
def test_a_gpu_that_is_divided_by_memory(name: str) -> None:
    plan = planned(*GPU, "-c", "32768")
    (device,) = plan.devices
    template = documents("kubernetes", *GPU, "--gpumem", name)[0]["spec"]["template"]
    size = -(-(device.used + device.margin) // MiB)
    limits: Mapping[str, Any] = template["spec"]["containers"][0]["resources"]["limits"]
    if name == "hami":
        assert limits["nvidia.com/gpu"] == 1 and limits["nvidia.com/gpumem"] == size
    else:
        assert template["metadata"]["annotations"] == {"gpu-memory": str(size)}
        assert (
            template["spec"]["schedulerName"] == "kai-scheduler" and "nvidia.com/gpu" not in limits
        )


def test_a_pod_has_the_gpus_that_its_words_name() -> None:
    """-dev CUDA1 is the second of two; alone it would be CUDA0."""
    words = ("--gpu", "12GiB,24GiB", "--ram", "64GiB", "-dev", "CUDA1")
    limits = documents("kubernetes", *words)[0]["spec"]["template"]["spec"]["containers"][0][
        "resources"
    ]["limits"]
    model, service = documents("llmkube", *words)
    assert limits["nvidia.com/gpu"] == model["spec"]["hardware"]["gpu"]["count"] == 2
    assert service["spec"]["resources"]["gpu"] == 2 and "-dev" in service["spec"]["extraArgs"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--gpu", "12GiB", "--gpumem", "kai", "--format", "docker"),
            "--gpumem kai is for --format kubernetes",
        ),
        (
            ("--gpu", "rx-7900-xtx", "--gpumem", "hami", "--format", "kubernetes"),
            "divides NVIDIA's GPUs",
        ),
        (
            (
                "--gpu",
                "12GiB,12GiB",
                "-sm",
                "layer",
                "-ts",
                "1,1",
                "--gpumem",
                "kai",
                "--format",
                "kubernetes",
            ),
            "KAI shares one GPU a pod",
        ),
        (("--gpu", "12GiB", "--format", "kserve"), "--format kserve is for the processor"),
        (("--gpu", "12GiB", "--gpumem", "x", "--format", "kubernetes"), "hami"),
    ],
)
def test_what_cannot_be_written(
    words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([SMALL, "-c", "8192", *words]) == UsageError.exit_code
    out, err = capfd.readouterr()
    assert out == "" and said in err.splitlines()[-1]


@pytest.mark.slow
def test_llmkube_s_typed_fields_have_the_launch() -> None:
    """Its quotas and its status see these, not extraArgs."""
    _, service = documents("llmkube", *GPU, "-np", "2", "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on")
    spec = service["spec"]
    assert (
        spec["contextSize"],
        spec["parallelSlots"],
        spec["cacheTypeK"],
        spec["flashAttention"],
    ) == (32768, 2, "q8_0", True)
    assert spec["moeCPULayers"] > 0 and "--n-cpu-moe" in targets.llmkube(text_of("llmkube", *GPU))
    model, _ = documents("llmkube", "--gpu", "12GiB,8GiB", "--ram", "64GiB")
    split = model["spec"]["hardware"]["gpu"]["sharding"]["layerSplit"]
    runs = [tuple(map(int, run.split("-"))) for run in split]
    assert runs[0][0] == 0 and runs[0][1] + 1 == runs[1][0] and runs[1][1] == 47


def test_what_llmkube_s_schema_does_not_admit_stays_a_word() -> None:
    given = parse(
        ["--gpu", "80GiB", "--ram", "64GiB", "-np", "65", "-c", "66560", "-ctk", "bf16"],
        command="plan",
    )
    text = formats.write("llmkube", autolayers.plan(MOE, given), given, warn=lambda _: None)
    words = targets.llmkube(text)
    assert "contextSize: 66560" in text and "cacheTypeK" not in text
    assert words[words.index("-np") + 1] == "65" and words[words.index("-ctk") + 1] == "bf16"


def test_json_has_the_memory_request_and_limit(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [SMALL, "-dev", "none", "--ram", "16GiB", "-c", "4096", "--ram-limit", "3GiB", "--json"]
        )
        == 0
    )
    host = json.loads(capfd.readouterr().out)["host"]
    assert 0 < host["mapped"] < host["request"] <= host["limit"] <= 3 * GiB


def test_the_documented_examples_print_what_the_page_shows(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    def run(words: list[str]) -> str:
        main(words)
        return capfd.readouterr().out

    assert check_examples(ROOT / "docs" / "rack.md", run) == 1


# --- threads that docs/rack.md names


@pytest.mark.parametrize(
    ("words", "least"),
    [
        (("-cram", "40960", "-c", "32768"), 40 * GiB),  # home-ops#9818
        slow(("-cram", "8192", "--llama-build", "9500", "-c", "262144"), 8 * GiB),
    ],
)
def test_saved_prompts_are_in_the_limit(words: tuple[str, ...], least: int) -> None:
    given = parse([*GPU, *words], command="plan")
    text = formats.write("llmkube", autolayers.plan(MOE, given), given, warn=lambda _: None)
    size = re.search("hostMemory: ([0-9]+)Mi", text)
    assert size is not None and int(size[1]) * MiB > least + 4 * GiB


def test_a_prompt_larger_than_its_cache_is_counted_where_it_is_saved() -> None:
    """llama.cpp#20509: before b10068 one conversation is saved whatever its size."""
    limits = [
        autolayers.plan(
            SMALL,
            ["-dev", "none", "-c", "65536", "-np", "1", "-cram", "256"],
            ram="32GiB",
            llama_build=build,
        ).ram.limit
        for build in (10000, 11549)
    ]
    assert limits[0] is not None and limits[1] is not None
    assert limits[0] > limits[1] + GiB
