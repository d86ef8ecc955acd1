"""Users of images would not hear that a projector in RAM leaves room for the model.

The projector in RAM is an alternative, with what an image then takes.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import model, requested, slow

from autolayers import bundled
from autolayers.bundled import projectors
from autolayers.flags.policy import read
from autolayers.gguf import FileInfo, Header, TensorInfo, n_bytes
from autolayers.machine import Device, Host, Machine
from autolayers.memory.breakdown import GraphBuffers
from autolayers.memory.companions import Companions
from autolayers.memory.estimate import Estimator
from autolayers.planner import plan_request
from autolayers.records import replace
from autolayers.request import Request


def projector() -> Header:
    """1.6 GiB of f16 for images of 896 x 896."""
    shape = (4096, 8192, 1, 1)
    tensors = {
        f"v.blk.{i}.ffn_up.weight": TensorInfo(
            f"v.blk.{i}.ffn_up.weight", "f16", shape, 2, 0, n_bytes("f16", shape)
        )
        for i in range(25)
    }
    metadata = {
        "general.architecture": "clip",
        "clip.projector_type": "gemma3",
        "clip.has_vision_encoder": True,
        "clip.vision.image_size": 896,
        "clip.vision.patch_size": 14,
        "clip.vision.embedding_length": 1152,
        "clip.vision.feed_forward_length": 4304,
        "clip.vision.attention.head_count": 16,
    }
    return Header(3, 32, metadata, tensors, (FileInfo("mmproj.gguf", None, 0),))


@pytest.mark.parametrize(
    ("words", "proposed"),
    [slow("", True), ("--no-mmproj-offload", False), slow("-mmdev CUDA0", False)],
)
def test_a_projector_in_ram_is_proposed_where_layers_make_room_for_it(
    words: str, proposed: bool
) -> None:
    params, policy = read(f"-c 8192 --mmproj p.gguf {words}".split(), None)
    gpu = Device.hypothetical("7GiB")
    machine = Machine.of([gpu], Host(64 << 30, 60 << 30, "given", cores=8), None, {})
    request = requested(params, policy, machine, Companions(mmproj=projector()))
    plan = plan_request(model("llama-3.1-8b-q4_k_m"), request, explain=True)
    found = [other for other in plan.alternatives if "--no-mmproj-offload" in other.flags]
    assert bool(found) == proposed
    if proposed:
        assert found[0].speed.generation > plan.speed.generation and found[0].note.startswith(
            "an image takes about "
        )
        assert found[0].to_dict()["note"] == found[0].note


@pytest.mark.slow
def test_a_projector_takes_no_more_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch's lower bound left it out, so that a search saw each one fail only when it was
    measured in full: Qwen3.8 27B on 12 GB took 76 measurements in place of 10, and found less."""
    request = Request.of(["--gpu", "6GiB", "--ram", "32GiB", "-c", "8192"], {})
    header = projectors.header("qwen3.5-9b-q6_k")
    seeing = replace(request, companions=replace(request.companions, mmproj=header))
    measure, counted = Estimator._measure, []

    def measured(self: Estimator, *terms: Any) -> GraphBuffers:
        counted[-1] += 1
        return measure(self, *terms)

    monkeypatch.setattr(Estimator, "_measure", measured)
    for asked in (request, seeing):
        counted.append(0)
        assert plan_request(bundled.read("qwen3.5-9b-q6_k"), asked).fits
    assert counted[1] <= counted[0] + 4
