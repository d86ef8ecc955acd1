"""People with the most common failures would get no help, or advice that does not help.

What people paste most: each log with its cause, its headline, what helps, and what must not be
said of it (pasted.jsonl, one case a line); and the same kinds in the words of other shells, systems
and builds.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import few_rows

from autolayers.diagnosis.causes import CAUSES
from autolayers.diagnosis.diagnosis import Diagnosis, explain
from autolayers.machine import Device, Host

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "pasted.jsonl").read_text("utf-8").splitlines()
]
GiB = 1 << 30
UP = "main: model loaded\nmain: server is listening on http://127.0.0.1:8080\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_pasted_log_gets_its_cause_and_what_to_try(case: dict[str, object]) -> None:
    answer = explain(str(case["log"]).encode(), files=False)
    text = answer.text()
    assert answer.cause == case["cause"]
    for name in ("phase", "device", "fatal"):
        if case[name] is not None:
            assert getattr(answer, name) == case[name]
    assert str(case["line"]) in answer.line and "..." not in answer.line and len(answer.line) <= 100
    assert [words for words in case["tries"] if words not in text] == []
    assert [words for words in case["never"] if words in text] == []
    # A launch can be copied: it has its model
    assert all(" -m " in line for line in text.split("\n") if line.startswith("llama-server "))


@pytest.mark.parametrize(
    ("line", "cause", "line_has"),
    [
        ("Killed", "oom_host", "killed from outside"),
        (
            "run.sh: line 3: 12345 Killed                  ./llama-server -m m.gguf",
            "oom_host",
            "killed from outside",
        ),
        ("[1]+  Killed                  llama-server -m m.gguf", "oom_host", "killed from outside"),
        ("zsh: killed     llama-server -m m.gguf", "oom_host", "killed from outside"),
        ("Killed: 9", "oom_host", "killed from outside"),
        (
            "fish: Job 1, 'llama-server -m m.gguf' terminated by signal SIGKILL (Forced quit)",
            "oom_host",
            "killed",
        ),
        (
            "llama.service: Main process exited, code=killed, status=9/KILL",
            "oom_host",
            "killed from outside",
        ),
        (
            'earlyoom[814]: sending SIGTERM to process 4123 uid 1000 "llama-server": badness 1203',
            "oom_host",
            "killed",
        ),
        ("container llama exited with code 137", "oom_host", "exit code 137"),
        (
            "ERROR  Server process terminated unexpectedly with exit code: -9",
            "oom_host",
            "killed from outside",
        ),
        (
            "(Exit code: 132). Please check settings and try loading the model again.",
            "cpu_build",
            "instructions",
        ),
        ("Error loading model. (Exit code: 137). Unknown error.", "oom_host", "exit code 137"),
        (
            'msg="failure during GPU discovery" error="failed to finish discovery before timeout"',
            "no_gpu",
            "no GPU is used",
        ),
        (
            "ERROR  Server process terminated unexpectedly with exit code: -4",
            "cpu_build",
            "instructions",
        ),
        ("llama-server exited with code 132", "cpu_build", "instructions"),
        ("zsh: illegal hardware instruction  llama-server -m m.gguf", "cpu_build", "instructions"),
        (
            "./run.sh: line 4: 3992 Illegal instruction     (core dumped) ./llama-server",
            "cpu_build",
            "instructions",
        ),
        ("llama-server.exe exited with code 3221225501", "cpu_build", "instructions"),
        (
            "./llama-server: error while loading shared libraries: libcudart.so.12: cannot open "
            "shared "
            "object file: No such "
            "file or directory",
            "missing_library",
            "libcudart.so.12",
        ),
        (
            "The code execution cannot proceed because cudart64_12.dll was not found. Reinstalling "
            "the "
            "program may fix this "
            "problem.",
            "missing_library",
            "cudart64_12.dll",
        ),
        (
            "dyld[812]: Library not loaded: @rpath/libggml-metal.dylib",
            "missing_library",
            "libggml-metal.dylib",
        ),
        ("process exited with code 0xC0000135", "missing_library", "a library is missing"),
        (
            'srv    operator(): got exception: {"error":{"code":400,"message":"Unable to generate '
            "parser "
            "for this template. "
            "Automatic parser generation failed: Jinja Exception: System message must be at the "
            'beginning."}}',
            "template",
            "System message must be at the beginning",
        ),
        (
            "common_chat_templates_init: failed to parse chat template (defaulting to chatml): "
            "Unexpected "
            "token",
            "template",
            "the chat template failed",
        ),
        (
            '{"error":{"code":503,"message":"no slot available","type":"unavailable_error"}}',
            "busy",
            "every slot is taken",
        ),
        (
            "slot   pre_decode: id  0 | task 0 | slot context shift, n_keep = 0, n_left = 255, "
            "n_discard "
            "= 127",
            "context_limit",
            "127 tokens",
        ),
        (
            "slot      release: id  0 | task 7 | stop processing: n_past = 8191, truncated = 1",
            "context_limit",
            "was cut",
        ),
        (
            "llama_init_from_model: K cache type q8_0 with block size 32 does not divide "
            "n_embd_head_k=80",
            "bad_combo",
            "does not divide",
        ),
        (
            "llama_init_from_model: simultaneous use of SPLIT_MODE_TENSOR requires flash_attn",
            "bad_combo",
            "-sm tensor needs flash attention",
        ),
        (
            "It is not possible to use split mode 'graph' with less than 2 devices",
            "bad_combo",
            "the split mode does not go with this model or these devices",
        ),
    ],
)
def test_the_same_cause_is_found_in_other_words(line: str, cause: str, line_has: str) -> None:
    answer = explain(line.encode())
    assert answer.cause == cause and line_has in answer.line and CAUSES[cause].remedies


@pytest.mark.parametrize(
    "line",
    [
        "srv  server_slot: task killed by the client",
        "skilled workers  and llamas",
        "I was Killed in the story, she said",
        "slot      release: id  3 | task 0 | stop processing: n_tokens = 300, truncated = 0",
        "the illegal instruction set",
        "the tool returned 132 rows",
        "exit code: 0",
        "my.dll was loaded",
        "all slots are idle",
    ],
)
def test_no_cause_is_invented(line: str) -> None:
    assert explain(f"{UP}{line}\n".encode()).cause == "healthy"


def test_a_log_that_ends_in_a_way_no_sign_names_is_not_merely_slow() -> None:
    answer = explain(
        b"llama_context: graph splits = 100\nggml_vulkan: Failed to allocate pinned "
        b"memory.\n"
        b"GGML_ASSERT(src1_type == GGML_TYPE_F32) failed\n"
    )
    assert answer.cause == "unknown" and answer.fatal
    assert "host_lock" in {other.cause for other in answer.verdict.others}


def test_a_long_reason_is_whole_beside_a_headline_that_is_not_cut() -> None:
    why = (
        "error: the argument has been removed. use --spec-draft-ngram-size-m or "
        "--spec-ngram-size-n and restart"
    )
    answer = explain(f'error while handling argument "--spec-draft-old": {why}\n'.encode())
    assert (
        answer.line == "a flag is refused: --spec-draft-old"
        and why.removeprefix("error: ") in answer.text()
    )


def test_an_instruction_of_the_gpu_is_not_the_cpu_s() -> None:
    assert explain(b"CUDA error: an illegal instruction was encountered\n").cause == "device_lost"


@pytest.mark.parametrize(
    ("library", "brings"),
    [
        ("libcublas.so.13", "cudart-llama-bin"),
        ("libcuda.so.1", "driver brings it"),
        ("libvulkan.so.1", "libvulkan1"),
        ("libamdhip64.so.7", "ROCm"),
        ("libsycl.so.8", "setvars"),
        ("libllama.so", "LD_LIBRARY_PATH"),
        ("libgomp.so.1", "a package of the system"),
        ("libunheard.so", "keep all files of the release in one folder"),
    ],
)
def test_a_missing_library_says_who_brings_it(library: str, brings: str) -> None:
    answer = explain(
        f"./llama-server: error while loading shared libraries: {library}: cannot "
        f"open shared".encode()
    )
    assert brings in answer.text()


@pytest.mark.parametrize(
    ("card", "capability", "helps"),
    [
        ("NVIDIA GeForce GTX 1070", "6.1", "the CUDA 12 build"),
        ("NVIDIA GeForce GTX 980", "5.2", "the CUDA 12 build"),
        ("Tesla V100-PCIE-16GB", "7.0", "the CUDA 12 build"),
        ("NVIDIA GeForce RTX 5090", "12.0", "CUDA 12.8"),
        ("NVIDIA GeForce RTX 3060", "8.6", "for this GPU's generation"),
    ],
)
def test_a_card_without_code_says_which_build_has_it(
    card: str, capability: str, helps: str
) -> None:
    answer = explain(
        f"  Device 0: {card}, compute capability {capability}, VMM: yes\nCUDA error: "
        f"no kernel image is "
        "available for execution on the device\n".encode()
    )
    assert answer.cause == "gpu_build" and helps in answer.text() and card in answer.line


OOM = (
    "allocating 4657.81 MiB on device 0: cudaMalloc failed: out of memory\n"
    "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 4884066560\n"
)


@pytest.mark.parametrize(
    ("before", "after", "phase", "fatal", "line", "helps"),
    [
        # the launch at its start, a request, the projector at its warm-up and at its load, a launch
        # that went on
        (
            "",
            "graph_reserve: failed to allocate compute buffers\n",
            "compute",
            True,
            "allocating graph buffers",
            "-ub 128",
        ),
        (
            UP,
            "ggml-backend.cpp:1838: GGML_ASSERT(ok) failed\n",
            "run",
            True,
            "while serving",
            "-fitt 2048",
        ),
        (
            "slot update_slots: id  0 | task 3 | processing\n",
            "llama-server terminated\n",
            "run",
            True,
            "while serving",
            "-fitt 2048",
        ),
        (
            "clip_ctx: CLIP using CUDA0 backend\nget_dummy_batch: warmup with image size = 1472 x "
            "1472\n",
            "reserve_compute_meta: graph splits = 1, nodes = 877\nwarmup: flash attention is "
            "disabled\n" + UP,
            "compute",
            False,
            "the projector's graph",
            "--no-mmproj-offload",
        ),
        (
            "",
            "graph_reserve: failed to allocate compute buffers\nsched_reserve: compute buffer "
            "allocation failed, retrying "
            "without pipeline parallelism\n" + UP,
            "compute",
            False,
            "it runs: CUDA0 had no room for pipelining",
            "-ub 256",
        ),
    ],
)
def test_what_comes_after_a_refusal_says_what_it_was(
    before: str, after: str, phase: str, fatal: bool, line: str, helps: str
) -> None:
    answer = explain((before + OOM + after).encode())
    assert (answer.cause, answer.phase, answer.device, answer.bytes, answer.fatal) == (
        "oom_device",
        phase,
        "CUDA0",
        4884066560,
        fatal,
    )
    assert line in answer.line and helps in answer.text() and ("ran out" in answer.line) == fatal


@pytest.mark.parametrize(
    ("why", "command", "flag"),
    [
        ("n_gpu_layers already set by user to 99, abort", "", "-ngl"),
        ("model_params::tensor_split already set by user, abort", "", "-ts"),
        (
            "model_params::tensor_buft_overrides already set by user, abort",
            "",
            "-ot, -cmoe or -ncmoe",
        ),
        (
            "model_params::tensor_buft_overrides already set by user, abort",
            "--cpu-moe -c 0",
            "--cpu-moe",
        ),
        ("changing weight allocation for LLAMA_SPLIT_MODE_ROW not implemented, abort", "", "-sm"),
    ],
)
def test_fit_that_gave_up_names_the_flag(why: str, command: str, flag: str) -> None:
    log = f"common_fit_params: failed to fit params to free device memory: {why}\n".encode()
    answer = explain(log, words=command.split())
    assert (
        answer.cause == "fit_gave_up"
        and answer.line == f"--fit changed nothing, because {flag} is given"
    )
    assert ("-ngl auto" in answer.text()) == (flag == "-ngl")


def test_a_delta_net_that_is_not_fused_is_named_with_its_cure() -> None:
    log = (
        "build: {} (abcdef12) with cc\nsched_reserve: layer 0 is assigned to device CPU but the "
        "fused Gated Delta "
        "Net tensor is assigned to device CUDA0 (usually due to missing support)\n"
        "sched_reserve: fused Gated Delta Net (chunked) not supported, set to disabled\n" + UP
    )
    answer = explain(log.format(10218).encode())
    assert {answer.cause, *(other.cause for other in answer.verdict.others)} == {
        "partial_offload",
        "op_unsupported",
    }
    assert [remedy.flags for remedy in answer.remedies[:2]] == [("-np", "1"), ("--no-op-offload",)]
    assert "-np 1" not in explain(log.format(10700).encode()).text()


@pytest.mark.parametrize(
    ("line", "context"),
    few_rows(
        2,
        [
            (
                "srv    send_error: task id = 5, error: request (19731 tokens) exceeds "
                "the available context size (4096 tokens), "
                "try increasing it",
                21504,
            ),
            (
                "slot update_slots: id  3 | task 0 | slot context shift, n_keep = 0, "
                "n_left = 4095, n_discard = 2047",
                16384,
            ),
        ],
    ),
)
def test_a_context_that_was_too_short_gets_the_launch_with_a_longer_one(
    line: str, context: int
) -> None:
    log = served(140.0, WHOLE) + line.encode()
    answer = explain(log, host=Host.hypothetical("64GiB"))
    launch = answer.launch
    assert answer.cause == "context_limit" and launch is not None and launch.plan.fits
    assert (
        launch.plan.params.n_ctx == context
        and ["-c", str(context)] == [*launch.words][launch.words.index("-c") :][:2]
    )
    small = explain(
        log,
        devices=[Device("CUDA0", 2 * GiB, 2 * GiB, "", "CUDA")],
        host=Host(3 * GiB, 3 * GiB, "test"),
    )
    assert small.launch is None and f"-c {context}" in small.text()


def test_an_ik_log_is_read() -> None:
    log = (
        "llama_new_context_with_model: flash_attn    = 1\nllama_new_context_with_model: "
        "attn_max_b = 0\n"
        "CUDA0: using device CUDA0 - 24576 MiB free\n" + OOM + "failed to allocate compute "
        "buffers\n"
    )
    answer = explain(log.encode())
    assert answer.facts.devices["CUDA0"].free == 24 * GiB
    assert "-wgt 1" in answer.text() and "-fa on" not in answer.text()
    for line, cause in (
        ("Unable to auto-fit model", "fit_gave_up"),
        ("-ot cannot be used with --fit", "bad_combo"),
        ("It is not possible to use split mode 'graph' with less than 2 devices", "bad_combo"),
        ("/src/ggml/src/ggml.c:5800: GGML_ASSERT(nhave > 1) failed", "bad_combo"),
    ):
        assert explain(line.encode()).cause == cause
    both = explain(b"-ncmoe | --n-cpu-moe cannot be used with --fit").text()
    assert "leave out --fit" in both and "-ctv" not in both
    foreign = explain(b"tensor 'blk.0.attn_q.weight' has invalid ggml type 144 (NONE)").text()
    assert "tensors of type iq4_ks" in foreign and "ik_llama.cpp, which the file" in foreign
    dated = explain(b"main: build = 4840 (8337e4cd)\n" + log.encode())
    assert dated.facts.build == 4840 and "is the newest known" not in dated.text()


def served(rate: float, *lines: str) -> bytes:
    return "\n".join(
        (
            "build: 11549 (abcdef12) with cc",
            "srv    load_model: loading model '/models/qwen3-30b-a3b-q4_k_m.gguf'",
            "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) "
            "(0000:01:00.0) - 23871 MiB free",
            "load_tensors: offloaded 49/49 layers to GPU",
            *lines,
            "llama_context: n_ctx         = 8192",
            "llama_kv_cache:      CUDA0 KV buffer size =   768.00 MiB",
            UP,
            f"       eval time =   11872.67 ms /   200 tokens (   59.36 ms per token,    "
            f"{rate:.2f} "
            f"tokens per second)",
            "",
        )
    ).encode()


WHOLE = "load_tensors: CUDA0 model buffer size = 17524.42 MiB"
IN_RAM = (
    "load_tensors:   CPU_Mapped model buffer size = 16907.13 MiB",
    "load_tensors: CUDA0 model buffer size = 900.11 MiB",
)


@pytest.mark.slow
def test_a_slow_server_is_compared_with_its_prediction() -> None:
    host = Host.hypothetical("64GiB")
    well = explain(served(140.0, WHOLE), host=host)
    assert (
        well.cause == "healthy"
        and well.rates is not None
        and not well.rates.slow
        and well.rates.launch is None
    )
    slow = explain(served(40.0, WHOLE), host=host)
    assert (
        slow.cause == "slow" and slow.rates is not None and slow.launch is None and not slow.fatal
    )
    assert (
        slow.rates.answers.lowest > 46
        and "power limit" in slow.text()
        and "40.0 tokens/s measured" in slow.text()
    )
    # Experts in RAM, as the command has it: one launch makes more of the card
    words = ["-m", "/models/qwen3-30b-a3b-q4_k_m.gguf", "-ngl", "99", "-ncmoe", "48", "-c", "8192"]
    ram = explain(served(24.0, *IN_RAM), host=host, words=words)
    assert (
        ram.rates is not None
        and ram.rates.launch is not None
        and ram.rates.better > 1.3 * ram.rates.answers.predicted
    )
    assert ram.launch is not None and "-ncmoe" not in ram.launch.words and ram.launch.plan.fits
    assert ram.cause == "slow" and "another launch is much faster" in ram.line
    # ... and slower than RAM allows
    cold = explain(served(6.0, *IN_RAM), host=host, words=words)
    assert "-t 8" not in cold.text()
    all_threads = served(
        6.0,
        "system_info: n_threads = 16 (n_threads_batch = 16) / 16 | CUDA : ARCHS = 860 |",
        *IN_RAM,
    )
    assert (
        "-t 8   all 16 threads of the CPU compute"
        in explain(all_threads, host=host, words=words).text()
    )
    assert "RAM decides here" in cold.text() and re.search(
        r"6\.0 tokens/s measured, \d+\.\d "
        r"predicted",
        cold.text(),
    )


def test_prompts_are_compared_too() -> None:
    host = Host.hypothetical("64GiB")

    def with_prompts(rate: float, tokens: int = 2048) -> Diagnosis:
        line = f"prompt eval time = 999.00 ms / {tokens} tokens ( 0.49 ms per token, {rate:.2f} "
        return explain(served(140.0, WHOLE, f"{line}tokens per second)"), host=host)

    well, cold = with_prompts(2500.0), with_prompts(150.0)
    assert well.cause == "healthy" and well.rates is not None and well.rates.prompts is not None
    assert cold.cause == "slow" and "prompts are read slower" in cold.line
    assert "150.0 tokens/s measured" in cold.text() and "power limit" in cold.text()
    prompts = cold.to_dict()["rates"]["prompts"]  # type: ignore[index, call-overload]
    assert prompts["measured"] == 150.0 and prompts["predicted"] > prompts["lowest"] > 172.5
    # a few tokens are no whole micro-batch
    assert with_prompts(150.0, 64).cause == "healthy"


def test_a_rate_of_an_unknown_machine_or_model_is_left_alone() -> None:
    assert explain(served(2.0, WHOLE).replace(b"qwen3-30b-a3b", b"nobody-knows")).cause == "healthy"
    lines = served(2.0, WHOLE).replace(b"/   200 tokens", b"/     3 tokens")
    assert explain(lines, devices=[Device("CUDA0", 24 * GiB, 24 * GiB)]).cause == "healthy"


@pytest.mark.parametrize("log", [b"", b"\n", b"Available devices:\n"])
def test_a_log_of_next_to_nothing_has_an_answer(log: bytes) -> None:
    assert explain(log, files=False).cause in ("not_in_log", "no_gpu")
