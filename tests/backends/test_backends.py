"""Owners of GPUs that nobody has modelled would get a traceback, or a plan that does not fit.

Backends as rows: their names, what one that nobody knows is taken for, and what a new one may
decide per device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest
from support import MiB, gpus, model

from autolayers import Device, estimate
from autolayers.backends import (
    BACKENDS,
    CPU,
    HOST,
    K_QUANTS,
    Backend,
    backend,
    backend_of,
    canonical,
    on,
    signs,
)
from autolayers.backends.backend import OFFLOAD_MIN_BATCH
from autolayers.builds import NEWEST_RULES, Rules
from autolayers.devices.cards import CARDS
from autolayers.flags.parse import parse
from autolayers.ggml.tensor import Tensor
from autolayers.gguf import n_bytes
from autolayers.memory.weight_op import weight_op
from autolayers.memory.weights import REPACKED
from autolayers.model import architecture
from autolayers.model.tensors import classify


def test_names_of_backends_and_of_their_devices() -> None:
    for name, here in (
        ("CUDA", "CUDA"),
        ("HIP", "ROCm"),
        ("Metal", "MTL"),
        ("GPUOpenCL", "OpenCL"),
        ("NEXT", "NEXT"),
    ):
        assert canonical(name) == here
    for name, here in (
        ("CUDA3", "CUDA"),
        ("Vulkan0", "Vulkan"),
        ("RPC0[127.0.0.1:50052]", "RPC"),
        (HOST, "CPU"),
    ):
        assert backend_of(name).name == here
    assert all(backend(name).name == name for name in BACKENDS)


@pytest.mark.parametrize("name", [*BACKENDS, "NEXT"])
@pytest.mark.parametrize("op", ["MUL_MAT", "MUL_MAT_ID"])
def test_k_quants_are_supported_alike(name: str, op: str) -> None:
    """Layers whose weights differ in these types alone share a graph (memory/graphs/repeats.py)."""
    tested = on(Device(f"{name}0", 1 << 40, 1 << 40, backend=name))
    experts = 8 if op == "MUL_MAT_ID" else 1
    for k, m, n in ((2048, 768, 1), (4096, 4096, 4), (768, 2048, 512), (8192, 1024, 2048)):
        answers = set()
        for kind in K_QUANTS:
            weight, ids = (
                Tensor("NONE", kind, (k, m, experts, 1)),
                Tensor("NONE", "i32", (2, n, 1, 1)),
            )
            weight.weight, weight.buffer = True, tested.buffer
            shape = (k, 1, n, 1) if op == "MUL_MAT_ID" else (k, n, 1, 1)
            sources = (weight, Tensor("NONE", "f32", shape), *([ids] if op == "MUL_MAT_ID" else []))
            product = Tensor(
                op, "f32", (m, 2, n, 1) if op == "MUL_MAT_ID" else (m, n, 1, 1), sources
            )
            answers.add((tested.supports_op(product), tested.offload_op(product)))
        assert len(answers) == 1, (k, m, n)


def test_hip_and_musa_are_cuda_under_other_names() -> None:
    for name in ("ROCm", "MUSA"):
        theirs, cuda = backend(name), backend("CUDA")
        assert (
            theirs.host_buffer == f"{name}_Host"
            and issubclass(theirs, cuda)
            and not theirs().proven
        )
        assert (
            (theirs.alignment, theirs.row_padding)
            == (cuda.alignment, cuda.row_padding)
            == (128, 512)
        )


def test_cards_know_their_backend() -> None:
    assert {card.backend for card in CARDS.values()} == {"CUDA", "ROCm", "SYCL", "MTL", "Vulkan"}
    assert all(
        (card.backend == "CUDA") == (card.compute_capability is not None) for card in CARDS.values()
    )


def test_words_that_several_backends_print_name_them_all() -> None:
    said = {sign.said: names for sign, names in signs().items()}
    assert said["Malloc failed"] == ("CUDA", "ROCm", "MUSA") and said[
        "Memory access fault by GPU"
    ] == ("ROCm",)
    assert said["memory allocation of size"] == ("Vulkan",) and said["bad_alloc"] == (HOST,)


def test_every_device_has_its_own_limits_and_a_hash_beside_them() -> None:
    device = Device(
        "Vulkan0", 1, 1, backend="Vulkan", limits={"min_storage_buffer_offset_alignment": 16}
    )
    assert hash(device) and device != Device("Vulkan0", 1, 1, backend="Vulkan")


def test_cuda_pads_quantised_rows_to_512_once_per_tensor() -> None:
    # gpt-oss: rows of 2880 elements are 1530 bytes of mxfp4; 2880 % 512 = 320, so 192 more elements
    # = 102 bytes, then aligned to 128
    ne = (2880, 4096, 1, 1)
    assert (
        backend("CUDA")().padded("mxfp4", ne, 4096 * 1530) == -(-(4096 * 1530 + 102) // 128) * 128
    )
    assert backend("CUDA")().padded("f16", ne, 4096 * 5760) == 4096 * 5760
    assert CPU.padded("mxfp4", ne, 4096 * 1530) == 4096 * 1530
    assert backend("ROCm")().padded("mxfp4", ne, 4096 * 1530) == backend("CUDA")().padded(
        "mxfp4", ne, 4096 * 1530
    )


def test_a_backend_that_nobody_knows_is_never_cheaper() -> None:
    for name in ("CUDA", "ROCm", "Vulkan", "MTL", "SYCL", "RPC", "CANN"):
        for type_, ne0 in (("q4_0", 2880), ("f32", 7), ("q8_0", 4096)):
            ne = (ne0, 3, 1, 1)
            size = n_bytes(type_, ne)
            assert (
                backend("NEXT")().padded(type_, ne, size)
                >= backend(name)().padded(type_, ne, size)
                >= size
            )


# the operation a weight is tried with


def test_every_operation_that_reads_a_weight_can_be_tried() -> None:
    hp = model("llama-3.1-8b-q4_k_m").hparams
    names = (
        "token_embd.weight",
        "output_norm.weight",
        "output.weight",
        "rope_freqs.weight",
        "conv1d.weight",
        "blk.0.ssm_conv1d.weight",
        "blk.0.ssm_a",
        "blk.0.time_mix_first.weight",
        "blk.0.ffn.act.weight",
        "blk.0.attn_q.bias",
        "blk.0.ffn_up_exps.bias",
        "blk.0.attn_sinks.weight",
        "blk.0.ffn_up_exps.weight",
    )
    ops = {classify(architecture("llama"), name)[2] for name in names}
    assert ops == {
        "GET_ROWS",
        "MUL",
        "MUL_MAT",
        "ROPE",
        "IM2COL",
        "SSM_CONV",
        "SSM_SCAN",
        "RWKV_WKV6",
        "DIV",
        "ADD",
        "ADD_ID",
        "SCALE",
        "MUL_MAT_ID",
    }
    for op in ops:
        node = weight_op(op, Tensor("NONE", "f32", (64, 64, 1, 1)), hp)
        assert node is not None and node.op == op
    assert weight_op("NONE", Tensor("NONE", "f32", (64, 64, 1, 1)), hp) is None


# a backend as somebody may add it


class Limited(Backend):
    """Alignment and largest buffer are the device's."""

    name = "Limited"
    modelled = True
    host_buffer = "Limited_Host"
    offload_min_batch = OFFLOAD_MIN_BATCH

    def __init__(
        self, device: Device | None = None, index: int = 0, rules: Rules = NEWEST_RULES
    ) -> None:
        limits = dict(device.limits or {}) if device else {}
        self.alignment = self.host_alignment = limits.get("alignment", 256)
        self.max_size = self.host_max_size = limits.get("max_size", 1 << 62)
        super().__init__(device, index, rules)

    @property
    def kind(self) -> Hashable:
        return self.name, self.alignment, self.max_size


class Lazy(Limited):
    """Frees nothing before its split ends."""

    def graph_optimize(
        self,
        nodes: list[Tensor],
        after: Tensor | None,
        add_alloc_dep: Callable[[Tensor, Tensor], None],
    ) -> list[Tensor]:
        for node in nodes:
            add_alloc_dep(node, nodes[-1])
        return nodes


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "Limited", Limited)
    monkeypatch.setitem(BACKENDS, "Lazy", Lazy)


def launch(name: str = "Limited", words: str = "-c 4096 -ngl 99", count: int = 1, **limits: int):
    devices = [
        Device(f"{name}{i}", 1 << 36, 1 << 36, backend=name, limits=limits) for i in range(count)
    ]
    return estimate(model("llama-3.1-8b-q4_k_m"), parse(words.split()).params, devices)


def test_alignment_is_each_devices_own(added: None) -> None:
    fine, coarse = launch(alignment=4), launch(alignment=1 << 20)
    assert coarse.devices["Limited0"].model > fine.devices["Limited0"].model
    assert (
        coarse.devices["Limited0"].model % (1 << 20)
        == coarse.devices["Limited0"].compute % (1 << 20)
        == 0
    )
    pair = [
        Device(f"Limited{i}", 1 << 36, 1 << 36, backend="Limited", limits={"alignment": size})
        for i, size in enumerate((4, 1 << 20))
    ]
    unlike = estimate(
        model("llama-3.1-8b-q4_k_m"), parse(["-c", "4096", "-ts", "1,1"]).params, pair
    )
    alike = launch(count=2, alignment=4, words="-c 4096 -ts 1,1")
    assert unlike.devices["Limited0"].model == alike.devices["Limited0"].model
    assert unlike.devices["Limited1"].model > alike.devices["Limited1"].model


def test_weights_left_in_ram_align_as_pinned_memory_does(added: None) -> None:
    fine, coarse = (launch(words="-c 4096 -ngl 8", alignment=size) for size in (32, 4096))
    assert (
        fine.host.model
        < coarse.host.model
        < fine.host.model + 4096 * len(model("llama-3.1-8b-q4_k_m").tensors)
    )


def test_buffers_have_a_largest_size(added: None) -> None:
    words = "-c 32768 -fa off -ngl 99"
    endless, cut = (
        launch(words=words).devices["Limited0"],
        launch(words=words, max_size=1024 * MiB).devices["Limited0"],
    )
    # scores of 2 GiB do not use the same memory in turn
    assert cut.compute > endless.compute + 512 * MiB
    assert (cut.model, cut.context) == (endless.model, endless.context)


def test_what_a_backend_keeps_is_not_given_back(added: None) -> None:
    assert launch("Lazy").devices["Lazy0"].compute > 4 * launch().devices["Limited0"].compute


def test_cuda_is_asked_once_for_weights_and_graphs() -> None:
    """The rules that decide where a weight goes are those that decide where its operation runs."""
    cuda = on(gpus(8192)[0])
    for op, type_, ne, runs in (
        ("GET_ROWS", "iq4_nl", (288, 8, 1, 1), False),
        ("GET_ROWS", "iq4_nl", (512, 8, 1, 1), True),
        ("MUL_MAT", "tq1_0", (256, 8, 1, 1), False),
        ("SSM_CONV", "f32", (4, 100, 1, 1), False),
        ("MUL", "bf16", (64, 1, 1, 1), False),
        ("SCALE", "f16", (64, 1, 1, 1), False),
    ):
        node = weight_op(op, Tensor("NONE", type_, ne), model("llama-3.1-8b-q4_k_m").hparams)
        assert node is not None and cuda.supports_op(node) is runs


def test_the_cpu_repacks_matrices_whose_rows_come_in_eights() -> None:
    hp = model("llama-3.1-8b-q4_k_m").hparams
    for op, type_, ne, repacks in (
        ("MUL_MAT", "q4_0", (256, 64, 1, 1), True),
        ("MUL_MAT", "q4_0", (256, 60, 1, 1), False),
        ("MUL_MAT", "q6_K", (256, 64, 1, 1), False),
        ("GET_ROWS", "q4_0", (256, 64, 1, 1), False),
        ("MUL_MAT", "q4_K", (256, 64, 8, 1), False),
        ("MUL_MAT_ID", "q4_K", (256, 64, 8, 1), True),
        ("MUL_MAT_ID", "q4_K", (256, 64, 1, 1), False),
    ):
        weight = Tensor("NONE", type_, ne)
        weight.buffer = REPACKED
        node = weight_op(op, weight, hp)
        assert node is not None and CPU.supports_op(node) is repacks
