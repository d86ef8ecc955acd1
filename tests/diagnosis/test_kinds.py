"""Someone who pastes a log would be told another kind of failure than theirs, or a remedy that
says the opposite of the line above it or is no command."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import pytest

from autolayers.diagnosis.causes import CAUSES
from autolayers.diagnosis.diagnosis import Diagnosis, explain

ROOT = Path(__file__).parents[2]


def read(*lines: str) -> Diagnosis:
    return explain("\n".join((*lines, "")).encode(), files=False)


SERVES = "srv  llama_server: server is listening on http://127.0.0.1:8080"
FULL = (
    "CUDA error: out of memory",
    "  current device: 1, in function alloc at ggml-cuda.cu:420",
)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("input (1361 tokens) is too large to process. increase the physical batch size", "2048"),
        ("input (8193 tokens) is too large to process (current batch size: 512)", "16384"),
        ("the question and its options (40 tokens) are too large to process.", "64"),
    ],
)
def test_an_input_larger_than_the_micro_batch_is_not_the_context(message: str, size: str) -> None:
    answer = read(f"srv    send_error: task id = 12, error: {message}")
    assert (answer.cause, answer.phase, answer.fatal) == ("batch_limit", "run", False)
    assert answer.remedies[0].flags == ("-ub", size, "-b", size)
    assert not any(flag in ("-c", "-np") for remedy in answer.remedies for flag in remedy.flags)


def test_an_encoder_s_assert_is_the_micro_batch_too() -> None:
    for check in (
        'cparams.n_ubatch >= n_tokens && "encoder requires n_ubatch >= n_tokens"',
        '(cparams.causal_attn || cparams.n_ubatch >= n_tokens_all) && "non-causal attention '
        'requires n_ubatch >= n_tokens"',
    ):
        answer = read(f"/src/llama-context.cpp:1234: GGML_ASSERT({check}) failed")
        assert (answer.cause, answer.fatal) == ("batch_limit", True)
        assert "-ub" in answer.remedies[0].flags


@pytest.mark.parametrize(
    ("before", "phase", "said", "never"),
    [
        ((SERVES,), "run", "while serving", ()),
        (("common_init_: warming up the model with an empty run",), "start", "warming up", ()),
        (
            ("W ggml_backend_cuda_device_get_memory: cudaMemGetInfo failed, returning 0/0",),
            "start",
            "was full before",
            ("-fitt", "-ub", "-ngl"),
        ),
        ((), "run", "while computing", ()),
    ],
)
def test_serving_needs_a_line_that_says_so(
    before: tuple[str, ...], phase: str, said: str, never: tuple[str, ...]
) -> None:
    answer = read(*before, *FULL)
    assert (answer.cause, answer.phase, answer.device) == ("oom_device", phase, "CUDA1")
    assert said in answer.line
    assert not {flag for remedy in answer.remedies for flag in remedy.flags} & {*never}


NONE = "load_tensors: offloaded 0/66 layers to GPU"


@pytest.mark.parametrize(
    "proof",
    [
        "sched_reserve:      CUDA0 compute buffer size =  1959.73 MiB",
        "llama_kv_cache:    Vulkan1 KV buffer size =   768.00 MiB",
        "common_params_fit_impl: id=0, n_layer= 2, n_part= 0, overflow_type=4, mem=  4553 MiB",
        "common_params_fit_impl: projected to use 32953 MiB of device memory vs. 8186 MiB of free",
    ],
)
def test_a_device_s_buffer_proves_that_the_gpu_is_seen(proof: str) -> None:
    assert read(NONE, "sched_reserve:  CUDA_Host compute buffer size = 276 MiB").cause == "no_gpu"
    answer = read(NONE, proof)
    assert (answer.cause, answer.fatal) == ("partial_offload", False)
    assert answer.line == "the GPU is there, and no layer fits on it: 0 of 66"
    assert "nvidia-smi" not in answer.text() and "-c 32768" in answer.text()


REDUCED = (
    "common_params_fit_impl: cannot meet free memory target of 1024 MiB, need to reduce device "
    "memory by 25790 MiB",
    "common_params_fit_impl: context size reduced from 131072 to 4096 -> need 23932 MiB less",
)
GAVE_UP = (
    "common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by "
    "user to 99, abort"
)
ALL = "load_tensors: offloaded 49/49 layers to GPU"


def test_a_fit_that_changed_the_context_did_change_something() -> None:
    answer = read(*REDUCED, GAVE_UP, ALL)
    assert answer.line == "--fit made the context smaller to 4096 tokens, then stopped at -ngl"
    text = answer.text()
    assert (
        "changed nothing" not in text and "not all layers" not in text and "leave -ngl" not in text
    )
    assert "-c 131072" in text
    # without the smaller context it changed nothing
    assert "changed nothing, because -ngl is given" in read(GAVE_UP, ALL).line


def test_n_of_n_layers_are_all() -> None:
    assert read(*REDUCED, ALL, SERVES).cause == "healthy"
    experts = read(
        *REDUCED,
        ALL,
        "load_tensors: CPU_Mapped model buffer size = 12000.00 MiB",
        "load_tensors: CUDA0 model buffer size = 3000.00 MiB",
        SERVES,
    )
    assert experts.cause == "partial_offload" and "weights lie in RAM" in experts.line
    assert "49 of 49" not in experts.line


@pytest.mark.parametrize(
    ("line", "cause", "device", "says"),
    [
        ("cudaMalloc failed: out of memory", "oom_device", "CUDA0", "out of memory"),
        ("hipMalloc failed: out of memory", "oom_device", "ROCm0", "out of memory"),
        (
            "error loading model: Unable to allocate ROCm0 buffer",
            "oom_device",
            "ROCm0",
            "loading weights",
        ),
        ("NvMapMemAllocInternalTagged: 1 error 12", "oom_device", "CUDA0", "drop_caches"),
        ("error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "oom_device", "SYCL0", "out of memory"),
        (
            "simultaneous use of SPLIT_MODE_TENSOR and KV cache quantization not implemented",
            "bad_combo",
            None,
            "-sm layer",
        ),
        (
            "ggml-backend-meta.cpp:1095: GGML_ASSERT(split_state.n_segments == 1) failed",
            "bad_combo",
            None,
            "-sm layer",
        ),
        (
            "ggml-backend.cpp:1367: GGML_ASSERT(n_inputs < GGML_SCHED_MAX_SPLIT_INPUTS) failed",
            "program_fault",
            None,
            "b10840",
        ),
        (
            r"load_backend: failed to load C:\Program Files\x\ggml-cuda.dll: error 126",
            "missing_library",
            None,
            "cudart",
        ),
        ("health check timed out after 120s", "start_timeout", None, "healthCheckTimeout"),
        ("upstream command exited prematurely", "unknown", None, "its own log"),
        ("The model has crashed. (Exit code: 1844674)", "unknown", None, "its own log"),
        (
            "Model loading was stopped due to insufficient system resources.",
            "oom_host",
            "CPU",
            "guardrails",
        ),
        ("find_slot: failed to find available cell in kv cache", "busy", None, "slots"),
        (
            "failed to open GGUF file '/m/x-00002-of-00004.gguf' (No such file or directory)",
            "bad_file",
            None,
            "download x-00002-of-00004.gguf",
        ),
        (
            "- prompt state (size = 9801.113 MiB) exceeds cache size limit (8192.000 MiB)",
            "prompt_cache",
            None,
            "--cache-ram 20480",
        ),
        ("-fa: unknown value for --flash-attn: '-c'", "bad_flag", None, "--flash-attn on"),
        (
            'error while handling argument "--draft-min": the argument has been removed. use '
            "--spec-draft-n-min or others",
            "bad_flag",
            None,
            "--spec-draft-n-min",
        ),
        ("E ggml_vulkan: device lost on Vulkan0", "device_lost", "Vulkan0", "not memory"),
    ],
)
def test_a_message_alone_gets_its_cause_and_the_way_out(
    line: str, cause: str, device: str | None, says: str
) -> None:
    answer = read(line)
    assert (answer.cause, answer.device) == (cause, device)
    assert says in answer.text()


def test_a_tensor_split_gets_the_way_out_of_its_own_reason() -> None:
    command = "$ llama-server -m a.gguf -sm tensor -ctk q8_0 -ctv q8_0 -fa off"
    flash = read(command, "llama_init: SPLIT_MODE_TENSOR requires flash_attn to be enabled")
    assert flash.line == "-sm tensor needs flash attention, which is off"
    assert "quantised" not in flash.text() and flash.remedies[0].whole[-2:] == ("-fa", "on")
    cache = read(command, "simultaneous use of SPLIT_MODE_TENSOR and KV cache quantization")
    layer, f16 = [" ".join(remedy.whole) for remedy in cache.remedies[:2]]
    assert layer == "-m a.gguf -ctk q8_0 -ctv q8_0 -fa off -sm layer"
    assert f16 == "-m a.gguf -sm tensor -fa off -ctk f16 -ctv f16"


def test_resources_that_one_operation_lacks_are_no_memory() -> None:
    answer = read("error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "Error OP FLASH_ATTN_EXT")
    assert answer.cause == "op_unsupported"


def test_a_server_on_the_newer_port_names_the_older() -> None:
    newer = SERVES.replace("8080", "9931")
    assert read(newer).remedies[0].flags == ("--port", "8080")
    assert read(SERVES).remedies == ()


COMMAND = "$ llama-server -m a.gguf -ngl 99 -ncmoe 10 -c 65536 --api-key SECRET -ub 512"


def test_a_remedy_is_the_whole_command_where_the_log_shows_the_launch() -> None:
    lines = (
        COMMAND,
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 20561526784",
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
    )
    answer = read(*lines)
    layers, experts = answer.to_dict()["remedies"][:2]  # type: ignore[index]
    assert layers["change"] == ["-ngl", "auto"] and layers["flags"] == (
        ["-m", "a.gguf", "-ncmoe", "10", "-c", "65536", "-ub", "512", "-ngl", "auto"]
    )
    # -cmoe takes the place of -ncmoe
    assert experts["flags"] == ["-m", "a.gguf", "-ngl", "99", "-c", "65536", "-ub", "512", "-cmoe"]
    assert "llama-server -m a.gguf -ncmoe 10 -c 65536 -ub 512 -ngl auto\n" in answer.text()
    assert "SECRET" not in answer.text() + json.dumps(answer.to_dict())
    # without the command only the change is known
    alone = read(*lines[1:])
    assert alone.to_dict()["remedies"][0]["flags"] == ["-ngl", "auto"]  # type: ignore[index]
    assert "llama-server" not in alone.text()


def test_a_remedy_never_is_what_the_launch_has_already() -> None:
    lines = (
        "llama_context: n_ctx         = 4096",
        "llama_context: n_seq_max     = 1",
        "llama_kv_cache: size = 1 MiB (4096 cells), K (q8_0): 4352.00 MiB, V (q8_0): 4352.00 MiB",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1879048192",
        "llama_init_from_model: failed to allocate buffer for kv cache",
    )
    assert {remedy.flags[:1] for remedy in read(*lines[3:]).remedies} >= {
        ("-c",),
        ("-np",),
        ("-ctk",),
    }
    assert [remedy.flags for remedy in read(*lines).remedies if remedy.flags] == []
    # with -ngl given, --fit places nothing, whatever its target
    flags = [remedy.flags for remedy in read(COMMAND, SERVES, *FULL).remedies if remedy.flags]
    assert flags == [("-ub", "256")]


def test_a_client_that_asks_the_wrong_port_is_told_so() -> None:
    answer = read("curl: (7) Failed to connect to localhost port 8080 after 0 ms: refused")
    assert (answer.cause, answer.fatal) == ("wrong_port", False) and "9931" in CAUSES[
        "wrong_port"
    ].means
    # the runner's end, not its port
    died = 'Post "http://127.0.0.1:4/": dial tcp 127.0.0.1:4: connect: connection refused'
    assert (
        read("Error: llama runner process has terminated: exit status 2", died).cause == "unknown"
    )


def test_a_prompt_that_is_read_again_says_why() -> None:
    answer = read(SERVES, "slot update_slots: id  0 | task 1 | forcing full prompt re-processing")
    assert (answer.cause, answer.phase, answer.fatal) == ("prompt_cache", "run", False)
    assert answer.remedies[0].flags == ("--swa-full",)


def test_ollama_s_own_command_is_typed_by_nobody() -> None:
    answer = read(
        'time=2026 level=INFO msg="starting llama-server" cmd="/usr/bin/llama-server -m x.gguf '
        '-c 4096"',
        "cudaMalloc failed: out of memory",
    )
    assert answer.cause == "oom_device" and not any(remedy.whole for remedy in answer.remedies)
    assert "a smaller context; in Ollama num_ctx" in answer.text()


def test_what_is_not_known_is_quoted_without_a_key() -> None:
    assert (
        "said        boom: it failed strangely   line 1" in read("boom: it failed strangely").text()
    )
    assert "SECRET" not in read("failed: --api-key SECRET").text()


@pytest.mark.parametrize(
    "line",
    [
        "HTTP 400: Failed to initialize samplers: failed to parse grammar",
        "parse: error parsing grammar: number of repetitions exceeds sane defaults",
        "the model produced output that does not match the expected peg-native format",
        'error: {"code":400,"message":"\'messages\' is required","type":"invalid_request_error"}',
        "mtmd_helper_bitmap_init_from_buf: failed to decode image bytes",
        "image input is not supported - hint: you may need to provide the mmproj",
    ],
)
def test_a_refused_request_is_no_failed_server(line: str) -> None:
    answer = read(SERVES, line)
    assert (answer.cause, answer.phase, answer.fatal) == ("bad_request", "run", False)
    assert "the server is well" in answer.line


def test_sources_are_listed_with_what_has_a_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    import messages

    source = tmp_path / "src" / "llama-model.cpp"
    source.parent.mkdir()
    source.write_text(
        "void llama_model::load_arch(llama_model_loader & ml) {\n"
        "    throw std::runtime_error(format(\"unknown model architecture: '%s'\", name));\n"
        '    LLAMA_LOG_ERROR("%s: all is strange in %" PRIu64 " words\\n", __func__, 3);\n'
        "    GGML_ASSERT(a == b);\n"
        "}\n"
    )
    (tmp_path / "src" / "llama.cpp").touch()
    (tmp_path / "src" / "llama-quant.cpp").write_text('LLAMA_LOG_ERROR("of other work\\n");\n')
    monkeypatch.setattr(sys, "argv", ["messages.py", str(tmp_path), "--without"])
    messages.main()
    assert capsys.readouterr().out.splitlines() == [
        "src/llama-model.cpp:3: load_arch: all is strange in 7 words",
        f"{'llama.cpp':<12} {'src':<24}     1 of     2 with a cause",
        f"{'llama.cpp':<12} {'all':<24}     1 of     2 with a cause",
    ]


@pytest.mark.parametrize(
    ("line", "cause", "fatal"),
    [
        (
            "init: the tokens of sequence 1 in the input batch have inconsistent sequence "
            "positions:",
            "program_fault",
            False,
        ),
        (
            "/src/ggml/src/ggml-sycl/getrows.cpp:470: get_rows: unsupported src0 type: q1_0",
            "op_unsupported",
            True,
        ),
        ("Unsupported KV type combination for head_size 128.", "op_unsupported", True),
        ("[get_tensor] tensor region (offset=0, size=8) out of tensor bounds", "rpc_lost", False),
        ("process_ubatch: failed to compute graph, compute status: -2", "oom_device", True),
        ("server busy, please try again.  maximum pending requests exceeded", "busy", False),
        ("registry.ollama.ai/library/gemma:2b does not support tools", "bad_request", False),
        ("Error: split GGUF sha256-aa is missing shard 3", "bad_file", True),
        ("cuInit failed: 999", "no_gpu", False),
        ("CUDA error 100 at ggml-cuda.cu:485: no CUDA-capable device is detected", "no_gpu", True),
        ("input exceeds maximum context length and cannot be truncated", "context_limit", False),
        ("rocBLAS error from hip error code: 'hipErrorInvalidKernelFile':218", "gpu_build", True),
        ("No kernel named _ZTSZN14bin_bcast_sycl was foundException caught", "gpu_build", True),
        (
            "send_error: error: While executing FilterExpression at line 120, column 73 in source: "
            "Error: Unknown (built-in) filter 'items' for type String",
            "template",
            False,
        ),
        ("failed assertion `A command encoder is already encoding'", "unknown", True),
        ("/src/ggml/src/ggml-opt.cpp:851: GGML_ASSERT(a == b) failed", "program_fault", True),
        ("/src/ggml/src/ggml-alloc.c:189: out of allocated_tensors", "program_fault", True),
        (
            'ggml-metal-context.m:301: GGML_ASSERT(dst && "newBuffer: alloc") failed',
            "unknown",
            True,
        ),
        ("CUDA error 1 at /src/ggml-cuda.cu:8893: invalid argument", "unknown", True),
        ("gguf_init_from_reader: tensor 'x' has offset 7, expected 32", "bad_file", True),
        ("insufficient memory (attempted to allocate  512.00 MB)", "oom_host", True),
        (
            "graph_compute: ggml_backend_sched_graph_compute_async failed with error -1",
            "device_lost",
            False,
        ),
        (
            "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
            "no_gpu",
            True,
        ),
        (
            "Error response from daemon: error gathering device information while adding custom "
            'device "/dev/kfd": no such file or directory',
            "no_gpu",
            True,
        ),
        (
            "docker: Error response from daemon: unknown or invalid runtime name: nvidia.",
            "no_gpu",
            True,
        ),
        (
            "nvidia-container-cli: initialization error: nvml error: driver not loaded",
            "no_gpu",
            True,
        ),
        ("Unable to open /dev/kfd read-write: Permission denied", "no_gpu", False),
        ("Failed to initialize NVML: Driver/library version mismatch", "no_gpu", False),
        (
            "ggml_abort: HIP kernel mul_mat_q has no device code compatible with HIP arch 1300.",
            "gpu_build",
            True,
        ),
        (
            "ggml/src/ggml-rpc/ggml-rpc.cpp:623: Failed to connect to 10.0.0.2:50052",
            "rpc_lost",
            True,
        ),
        ("get_repo_files: error: Could not establish connection", "bad_file", True),
        ("Unexpected empty grammar stack after accepting piece: { (90)", "bad_request", False),
        (
            "This server does not support embeddings. Start it with `--embeddings`",
            "bad_combo",
            False,
        ),
        (
            "This server does not support slots action. Start it with `--slot-save-path`",
            "bad_request",
            False,
        ),
        (
            "mtmd_tokenize: number of media markers in text (2) exceeds number of bitmaps (1)",
            "bad_request",
            False,
        ),
        ("please consider disabling jinja via --no-jinja", "template", True),
        ("slot update: failed to process mtmd chunk, res = 1", "bad_request", False),
        ("[graph_compute] device: 3, graph with uid 7 not found", "rpc_lost", False),
        ("ggml_metal_library_compile_pipeline: failed to compile pipeline", "gpu_build", True),
        ("failed to parse CLI arguments into preset", "bad_flag", True),
        ("llg error: Parser Error: token doesn't satisfy the grammar", "bad_request", False),
        ("alloc_splits: failed to allocate graph, reserving (1)", "unknown", False),
    ],
)
def test_words_of_the_sources_have_their_causes(line: str, cause: str, fatal: bool) -> None:
    answer = read(line)
    assert (answer.cause, answer.fatal) == (cause, fatal)
    assert answer.remedies or cause in ("unknown", "not_in_log")


def messages_csv() -> list[tuple[str, str, int, int]]:
    text = (Path(__file__).parent / "messages.csv").read_text("utf-8")
    return [
        (program, folder, int(every), int(known))
        for program, folder, every, known in csv.reader(text.splitlines()[1:])
    ]


def test_the_table_of_messages_has_each_program() -> None:
    rows = messages_csv()
    assert {row[0] for row in rows} == {"llama.cpp", "Ollama", "KoboldCpp", "llama-swap"}
    assert sum(row[3] for row in rows) > 1000 and all(row[2] >= row[3] for row in rows)


@pytest.mark.llamacpp
def test_the_table_of_messages_is_that_of_the_sources() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    import messages

    sources = Path("~/.cache/autolayers-tests/llama.cpp/b11549/source").expanduser()
    if not sources.is_dir():
        pytest.skip("no sources of b11549")
    counts = messages.counted(sources, messages.program(sources)[1])
    assert sorted(("llama.cpp", folder, *count) for folder, count in counts.items()) == [
        row for row in messages_csv() if row[0] == "llama.cpp"
    ]


def test_an_assertion_after_full_memory_is_of_full_memory() -> None:
    """The check fails because a buffer is not there."""
    full = (
        "current allocated size is greater than the recommended max working set size",
        "ggml/src/ggml.c:1645: GGML_ASSERT(false) failed",
    )
    assert (read(*full).cause, read(full[1]).cause) == ("oom_device", "program_fault")
    assert (read(SERVES, full[1]).phase, read(full[1]).phase) == ("run", "start")


@pytest.mark.parametrize(
    "line",
    [
        "srv  log: Unable to restore slot, no available space in KV cache",
        "state_seq_set_data: error loading state: failed to restore kv cache",
        "state_read_data: incompatible V transposition",
        "state_read_meta: invalid seq_id, 4 is out of range [0, 4)",
        "state_seq_get_data: error saving state: out of range",
    ],
)
def test_a_saved_state_is_no_projector(line: str) -> None:
    """The line of a wrong mmproj was said of a conversation that is not read."""
    found = read(line)
    assert found.cause == "pair_mismatch" and found.line.startswith("a saved state is of another")
    assert not any("repository" in remedy.why for remedy in found.remedies)


def test_no_sign_keeps_an_empty_word() -> None:
    """Its group would be there and say nothing, so that no rule for it could hold."""
    signs = (ROOT / "autolayers/diagnosis/signs.tsv").read_text("utf-8")
    assert re.findall(r"\(\?P<\w+>\)", signs) == []
