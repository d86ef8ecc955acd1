"""`explain` and `check` would compare with numbers that the log does not say.

What llama-server says while it loads, read from recorded logs of several builds.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import LOGS

from autolayers.diagnosis.log import LaunchLog, LogReader, device_of, out_of_memory
from autolayers.launch.verify import compare, spills
from autolayers.memory.breakdown import Breakdown, Extra, Usage

MiB = 1 << 20


def read(text: str | bytes, size: int = 1 << 16) -> LaunchLog:
    reader = LogReader()
    data = text.encode() if isinstance(text, str) else text
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    return reader.finish()


def log(name: str) -> LaunchLog:
    return read((LOGS / f"{name}.log").read_bytes())


def prediction(
    device: str = "CUDA0",
    *parts: int,
    host: tuple[int, int, int] = (0, 0, 0),
    extras: tuple[Extra, ...] = (),
) -> Breakdown:
    return Breakdown(
        {device: Usage(*parts)},
        Usage(*host),
        8192,
        8192,
        2048,
        512,
        4,
        True,
        True,
        True,
        extras=extras,
    )


# --- formats of builds


def test_a_log_of_today_is_read() -> None:
    launch = log("today")
    (load,) = launch.loads
    assert load.buffers == {
        "model": {"CPU": [0.10], "RPC0[127.0.0.1:50999]": [0.06]},
        "output": {"CPU": [0.01]},
        "context": {"CPU": [0.25], "RPC0[127.0.0.1:50999]": [0.12]},
        "compute": {"RPC0[127.0.0.1:50999]": [1.51], "CPU": [2.14]},
    }
    assert load.offloaded == (2, 4) and load.contexts == 1
    assert (
        launch.free == {"RPC0": 24105} and launch.ready and launch.url == "http://127.0.0.1:18999"
    )
    assert launch.breakdown == {"RPC0": (24105, 24105, 0, 0, 1, -1)} and launch.host == (0, 0, 2)
    assert launch.out_of_memory is None


def test_a_log_of_2025_is_read() -> None:
    launch = log("2025")
    assert launch.loads[0].buffers["model"] == {"CPU_Mapped": [281.81], "CUDA0": [4403.49]}
    assert launch.loads[0].buffers["compute"] == {"CUDA0": [266.50], "CUDA_Host": [24.01]}
    assert launch.breakdown == {"CUDA0": (24080, 17331, 4403, 1024, 266, 1055)} and launch.host == (
        281,
        0,
        24,
    )
    assert launch.free == {"CUDA0": 23306} and launch.url == "http://127.0.0.1:8080"


def test_a_server_that_listens_before_it_has_loaded_is_not_ready() -> None:
    text = (LOGS / "2025.log").read_text()
    assert not read(text[: text.index("main: model loaded")]).ready


def test_a_log_of_2024_is_read() -> None:
    launch = log("2024")
    assert launch.loads[0].buffers == {
        "model": {"CPU": [281.81], "CUDA0": [4403.49]},
        "context": {"CUDA0": [768.0], "CUDA1": [256.0]},
        "output": {"CUDA_Host": [0.49]},
        "compute": {"CUDA0": [560.0], "CUDA_Host": [24.01]},
    }
    assert launch.ready


def test_a_log_of_2023_is_read() -> None:
    launch = log("2023")
    assert launch.old == {"mem required": 70.42, "VRAM used": 3577.55, "kv self size": 256.0}
    assert (
        launch.loads[0].offloaded == (35, 35)
        and launch.ready
        and launch.url == "http://127.0.0.1:8080"
    )


def test_json_lines_and_colours_and_other_line_ends() -> None:
    line = "load_tensors:        CUDA0 model buffer size =  4403.49 MiB"
    for text in (
        json.dumps({"type": "log", "time": 1, "level": "info", "msg": line + "\n"}),
        f"\x1b[34m0.01.002.003\x1b[0m \x1b[32mI \x1b[0m{line}\x1b[0m",
        f"0.01.002.003 I {line}\r",
        f"\x00{line}",
    ):
        assert read(text).loads[0].buffers == {"model": {"CUDA0": [4403.49]}}, text


def test_sliding_window_caches_add_up_and_reserving_again_replaces() -> None:
    launch = read("""llama_context: constructing llama_context
llama_kv_cache:      CUDA0 KV buffer size =   100.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =    20.50 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =     3.25 MiB
sched_reserve:      CUDA0 compute buffer size =    50.00 MiB
sched_reserve:      CUDA0 compute buffer size =    60.00 MiB
""")
    assert launch.loads[0].buffers == {
        "context": {"CUDA0": [100.0, 20.5, 3.25]},
        "compute": {"CUDA0": [60.0]},
    }


def test_a_draft_model_and_a_second_context_are_beside() -> None:
    launch = read("""llama_model_loader: loaded meta data with 1 key-value pairs
load_tensors: CUDA0 model buffer size = 10.00 MiB
llama_context: constructing llama_context
llama_kv_cache: CUDA0 KV buffer size = 1.00 MiB
llama_context: constructing llama_context
llama_kv_cache: CUDA0 KV buffer size = 2.00 MiB
llama_model_loader: loaded meta data with 1 key-value pairs
load_tensors: CUDA0 model buffer size = 5.00 MiB
clip_ctx: CLIP using CUDA0 backend
load_hparams: model size:         811.82 MiB
load_hparams: metadata size:      0.16 MiB
reserve_compute_meta:      CUDA0 compute buffer size =   322.49 MiB
""")
    assert launch.projector_model == {"CUDA0": [811.82]}
    assert [load.buffers["model"] for load in launch.loads] == [{"CUDA0": [10.0]}, {"CUDA0": [5.0]}]
    assert launch.loads[0].buffers["context"] == {"CUDA0": [1.0]} and launch.projector == {
        "CUDA0": 322.49
    }
    assert compare(launch, prediction("CUDA0", 10 * MiB, 1 * MiB)).equal


@pytest.mark.parametrize(
    ("buffer", "device"),
    [
        ("CUDA0", "CUDA0"),
        ("CUDA_Host", "Host"),
        ("CPU_Mapped", "Host"),
        ("CPU_REPACK", "Host"),
        ("CPU", "Host"),
        ("AMX", "Host"),
        ("RPC0[127.0.0.1:50052]", "RPC0"),
        ("RPC[127.0.0.1:50052]", "RPC0"),
        ("MTL0_Mapped", "MTL0"),
        ("Metal", "MTL0"),
        ("Metal_Mapped", "MTL0"),
        ("Vulkan1", "Vulkan1"),
        ("Vulkan_Host", "Host"),
        ("CUDA_Split", "CUDA0"),
        ("SYCL0", "SYCL0"),
    ],
)
def test_a_buffer_s_name_says_its_device(buffer: str, device: str) -> None:
    assert device_of(buffer) == device


def test_rpc_devices_are_told_apart_by_their_servers() -> None:
    launch = read("""x: using device RPC0 (10.0.0.1:50052) (unknown id) - 100 MiB free
x: using device RPC1 (10.0.0.2:50052) (unknown id) - 200 MiB free
x: using device RPC2 (10.0.0.2:50052) (unknown id) - 300 MiB free
load_tensors: RPC0[10.0.0.1:50052] model buffer size = 1.00 MiB
load_tensors: RPC0[10.0.0.2:50052] model buffer size = 2.00 MiB
alloc_tensor_range: failed to allocate RPC1[10.0.0.2:50052] buffer of size 9
""")
    assert launch.free == {"RPC0": 100, "RPC1": 200, "RPC2": 300}
    assert [launch.device_of(name) for name in launch.loads[0].buffers["model"]] == ["RPC0", "RPC1"]
    assert launch.out_of_memory is not None and launch.out_of_memory.device == "RPC2"


# --- logs as they really are


def test_pieces_of_any_size_are_read_alike() -> None:
    data = (LOGS / "today.log").read_bytes()
    assert all(read(data, size) == read(data) for size in (1, 7, 100))


def test_a_huge_line_is_stepped_over_and_the_next_is_read() -> None:
    line = "load_tensors: CUDA0 model buffer size = 1.00 MiB\n"
    reader = LogReader()
    for _ in range(300):
        reader.feed(b"x" * (1 << 20))
        assert len(reader._rest) <= 1 << 16
    reader.feed(b"\n" + line.encode())
    assert reader.finish().loads[0].buffers == {"model": {"CUDA0": [1.0]}}
    assert read("y" * (1 << 17) + line + line).loads[0].buffers == {"model": {"CUDA0": [1.0]}}


def test_binary_garbage_around_a_line_hides_nothing() -> None:
    noise = bytes(range(256)) * 40
    launch = read(noise + b"\nload_tensors: CUDA0 model buffer size = 1.00 MiB\n" + noise)
    assert launch.loads[0].buffers == {"model": {"CUDA0": [1.0]}}


def test_a_log_that_ends_in_mid_line_is_read() -> None:
    assert read("load_tensors: CUDA0 model buffer size = 1.00 MiB").loads[0].buffers == {
        "model": {"CUDA0": [1.0]}
    }
    assert read("load_tensors: CUDA0 model buffer size = 12").loads == []
    failure = read(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 99.00 MiB on device 1: cudaMalloc "
        "failed: out of memory"
    ).out_of_memory
    assert failure is not None and (failure.device, failure.requested) == ("CUDA1", 99 * MiB)


@given(
    st.lists(
        st.binary(max_size=80)
        | st.sampled_from(
            [
                b"model loaded",
                b"| - CUDA0 (x) | 1 = 2 + (3 = 4 + 5 + 6) + 7 |",
                b" CUDA0 model buffer size = 1.00 MiB\n",
                b'{"msg":[',
                b'{"msg":3}\n',
                b"\n",
                b"failed to allocate CUDA0 buffer of size 12\n",
            ]
        ),
        max_size=20,
    )
)
def test_anything_is_read(pieces: list[bytes]) -> None:
    reader = LogReader()
    for piece in pieces:
        reader.feed(piece)
    reader.finish()


@pytest.mark.parametrize(
    "line",
    [
        "load_tensors: CUDA0 model buffer size = {}.00 MiB",
        "offloaded {}/{} layers to GPU",
        "x: using device CUDA0 (RTX) - {} MiB free",
        "failed to allocate CUDA0 buffer of size {}",
        "allocating {}.00 MiB on device 0: cudaMalloc failed: out of memory",
        "| - Host |  {} = 281 + 0 + 64 |",
        "llm_load_tensors: VRAM used: {}.05 MB",
        "load_tensors: RPC{}[a:1] model buffer size = 1.00 MiB",
    ],
)
def test_numbers_without_end_are_none(line: str) -> None:
    launch = read(line.replace("{}", "9" * 5000))
    failure = launch.out_of_memory
    assert failure is None or failure.requested is None
    assert not any(spills(launch)) and not launch.breakdown and launch.host is None


# --- out of memory


@pytest.mark.parametrize(
    ("line", "device", "requested"),
    [
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: "
            "allocating 1234.50 MiB on device 1: cudaMalloc failed: out of memory",
            "CUDA1",
            1294467072,
        ),
        (
            "alloc_tensor_range: failed to allocate CUDA0 buffer of size 4617388032",
            "CUDA0",
            4617388032,
        ),
        ("alloc_tensor_range: failed to allocate ROCm1 buffer of size 17", "ROCm1", 17),
        (
            "ggml_gallocr_reserve_n_impl: failed to allocate Vulkan0 buffer of size 123",
            "Vulkan0",
            123,
        ),
        (
            "alloc_tensor_range: failed to allocate RPC0[10.0.0.2:50052] buffer of size 123",
            "RPC0",
            123,
        ),
        ("ggml_gallocr_reserve_n: failed to allocate CPU buffer of size 99", "Host", 99),
        ("CUDA error: out of memory", "CUDA0", None),
        ("ROCm error: out of memory", "CUDA0", None),
        ("ggml_vulkan: Device memory allocation of size 1073741824 failed.", "Vulkan0", 1 << 30),
        ("ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory", "Vulkan0", None),
        (
            "ggml_vulkan: Requested buffer size exceeds device memory allocation limit: "
            "ErrorOutOfDeviceMemory",
            "Vulkan0",
            None,
        ),
        (
            "ggml_metal_buffer_init: error: failed to allocate buffer, size =  4096.25 MiB",
            "MTL0",
            4295229440,
        ),
        (
            "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            "MTL0",
            None,
        ),
        (
            "ggml_aligned_malloc: insufficient memory (attempted to allocate 2048.00 MB)",
            "Host",
            1 << 31,
        ),
        (
            "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 4096",
            "Host",
            4096,
        ),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "Host", None),
        (
            "llama_model_load: error loading model: mmap failed: Cannot allocate memory",
            "Host",
            None,
        ),
        ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", "CUDA0", None),
        (
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer "
            "for "
            "kv cache",
            None,
            None,
        ),
        ("failed to initialize the context: failed to allocate compute pp buffers", None, None),
    ],
)
def test_out_of_memory_messages_say_device_and_size(
    line: str, device: str | None, requested: int | None
) -> None:
    failure = out_of_memory(line)
    assert failure is not None and (failure.device, failure.requested) == (device, requested)


@pytest.mark.parametrize(
    "line",
    [
        "ggml_cuda_host_malloc: failed to allocate 1024.00 MiB of pinned memory: out of memory",
        "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism",
        "llama_model_load: error loading model: tensor 'blk.0.attn_q.weight' data is not within "
        "the file bounds, "
        "model is corrupted or incomplete",
        "error: invalid argument: --no-mmap",
        "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1.00 MiB on device 0: cudaMalloc "
        "failed: unknown error",
        "CUDA error: an illegal memory access was encountered",
        "warning: failed to mlock 1234-byte buffer: Cannot lock memory",
        "load_tensors: CUDA0 model buffer size = 1.00 MiB",
    ],
)
def test_what_is_not_out_of_memory(line: str) -> None:
    assert out_of_memory(line) is None


def test_the_line_that_names_the_device_best_counts() -> None:
    launch = read("""ggml_backend_cuda_buffer_type_alloc_buffer: \
allocating 512.00 MiB on device 1: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate ROCm1 buffer of size 536870912
llama_model_load: error loading model: unable to allocate ROCm1 buffer
""")
    failure = launch.out_of_memory
    assert failure is not None and (failure.device, failure.requested) == ("ROCm1", 512 * MiB)


def test_failures_after_the_load_are_no_load_failures() -> None:
    assert read("srv llama_server: model loaded\nCUDA error: out of memory\n").out_of_memory is None


# --- prediction and observation


def test_sizes_are_equal_within_the_rounding_of_the_log() -> None:
    launch = log("2025")
    exact = prediction("CUDA0", 4617393000, 1024 * MiB, 279445504, host=(295501824, 0, 25176064))
    assert compare(launch, exact).equal and compare(launch, exact).differences == {}
    more = compare(
        launch,
        prediction("CUDA0", 4617393000 - MiB // 50, 1024 * MiB, 279445504, host=(0, 0, 25176064)),
    )
    assert not more.equal and abs(more.differences["CUDA0"] - MiB // 50) < MiB // 100


def test_the_table_at_exit_is_read() -> None:
    launch = log("2025")
    extras = (Extra("output buffer", "Host", 2052096, True),)
    table = compare(
        launch,
        prediction(
            "CUDA0", 4617393000, 1000 * MiB, 279445504, host=(295501824, 0, 25176064), extras=extras
        ),
    ).table()
    assert table.splitlines() == [
        "                      predicted     observed  difference",
        "CUDA0 model         4403.49 MiB  4403.49 MiB  equal",
        "CUDA0 context       1000.00 MiB  1024.00 MiB  +24.00 MiB",
        "CUDA0 compute        266.50 MiB   266.50 MiB  equal",
        "Host model           281.81 MiB   281.81 MiB  mapped from the file: address range, not "
        "memory",
        "Host context           0.00 MiB     0.00 MiB  equal",
        "Host compute          24.01 MiB    24.01 MiB  equal",
        "Host output buffer     1.96 MiB     1.96 MiB  equal",
    ]


def test_a_log_without_buffer_lines_is_compared_by_its_breakdown() -> None:
    text = "\n".join(
        line for line in (LOGS / "2025.log").read_text().splitlines() if "buffer size" not in line
    )
    launch = read(text)
    comparison = compare(
        launch,
        prediction("CUDA0", 4617393000, 1024 * MiB, 279445504, host=(281 * MiB, 0, 24 * MiB)),
    )
    assert comparison.seen and comparison.equal
    assert (
        compare(launch, prediction("CUDA0", 4700 * MiB, 1024 * MiB, 266 * MiB)).differences["CUDA0"]
        < -290 * MiB
    )


def test_a_log_that_says_nothing_compares_nothing() -> None:
    comparison = compare(read(""), prediction("CUDA0", 1, 2, 3))
    assert not comparison.seen and not comparison.equal and comparison.differences == {}


def test_spills_and_full_devices_are_reported() -> None:
    text = "x: using device CUDA0 (RTX) (0000:01:00.0) - {} MiB free\n"
    text += "load_tensors: CUDA0 model buffer size = 1000.00 MiB\n"
    assert (
        "spilled into system RAM" in spills(read(text.format(900)))[0]
        and "100.00 MiB" in spills(read(text.format(900)))[0]
    )
    assert "only 10.00 MiB left" in spills(read(text.format(1010)))[0]
    assert spills(read(text.format(1100))) == []
    assert spills(read(text.format(1100)), {"CUDA0": 1024 * MiB})[0].startswith(
        "CUDA0: only 100.00 MiB left"
    )
