"""A long run would read the same file again and again, or plan for a machine of before.

What a session reads once, and asks of the planner.
"""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

import pytest
from support import HEADERS

from autolayers.cli import main
from autolayers.devices import Host, hypothetical
from autolayers.diagnosis.log import LaunchLog, OutOfMemory
from autolayers.flags.check import read
from autolayers.launch import command as commands
from autolayers.launch.attempts import memory_failure, smaller_machine
from autolayers.launch.session import Session
from autolayers.memory.breakdown import Usage
from autolayers.planner import plan_request
from autolayers.request import Request

MiB, GiB = 1 << 20, 1 << 30
MODEL = str(HEADERS / "llama-3.2-1b-q8_0.gguf")


class Asked:
    """A planner that remembers what it was asked."""

    def __init__(self) -> None:
        self.questions: list[Request] = []

    def __call__(self, model: object, request: Request, advise: bool) -> object:
        self.questions.append(request)
        host_use = SimpleNamespace(total=300 * MiB)
        use = SimpleNamespace(devices={"CUDA0": None}, host=host_use, resident=400 * MiB)
        return SimpleNamespace(
            flags=("-ngl", "3"),
            fits=True,
            paid="",
            idle=(),
            faster=None,
            smaller=None,
            breakdown=use,
        )


def session(line: str, planner: Asked, tmp: str) -> Session:
    words = shlex.split(line)
    own = read("run", words[: commands.own_end(words)]).own
    return Session(
        commands.read(words), own, {"XDG_STATE_HOME": tmp, "XDG_CONFIG_HOME": tmp}, planner
    )


def test_the_machine_and_the_build_are_as_given(tmp_path: object) -> None:
    planner = Asked()
    made = session(
        "--gpu 2x8GiB --ram 4GiB --budget CUDA0=1GiB --llama-build b5000 llama-server "
        f"-m {shlex.quote(MODEL)}",
        planner,
        str(tmp_path),
    )
    made.plan()
    (question,) = planner.questions
    assert [device.free for device in question.machine.devices] == [8 * GiB] * 2
    assert question.machine.ram == 7 * GiB // 2  # the rest is the system's
    assert (
        question.machine.limits == {"CUDA0": GiB, "CUDA1": 8 * GiB}
        and question.policy.build == 5000
    )
    assert question.params.n_parallel == 1  # the default of that build


def test_ram_that_ran_out_is_less_in_the_next_plan_though_it_was_given(tmp_path: object) -> None:
    planner = Asked()
    made = session(
        f"--gpu 8GiB --ram 4GiB llama-server -m {shlex.quote(MODEL)}", planner, str(tmp_path)
    )
    plan, _ = made.plan()
    smaller = smaller_machine(made.request, plan, LaunchLog(), OutOfMemory("Host", None, "killed"))
    made.plan(smaller)
    assert planner.questions[1].machine.ram == (400 - 64) * MiB


@pytest.mark.parametrize(
    "outcome", [{"code": 0}, {"requested": True}, {"launch": SimpleNamespace(ready=True)}]
)
def test_what_is_no_lack_of_memory(outcome: dict[str, object]) -> None:
    failure = OutOfMemory("CUDA0", None, "x")
    whole = {
        "code": 1,
        "requested": False,
        "oom_killed": False,
        "launch": SimpleNamespace(ready=False, out_of_memory=failure),
    }
    assert memory_failure(SimpleNamespace(**whole)) is failure  # type: ignore[arg-type]
    assert memory_failure(SimpleNamespace(**{**whole, **outcome})) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("requested", "limit"), [(1000, 1000), (500, 1500), (80, 1580), (300, 1300), (700, 700)]
)
@pytest.mark.parametrize("device", ["CUDA0", "Host"])
def test_what_was_held_before_a_failure_is_predicted_where_the_log_does_not_say(
    device: str, requested: int, limit: int
) -> None:
    """Weights of 1000 MiB, then caches of 500, then graph buffers of 80: a cache that cannot be had
    says that less than 1500 MiB can."""
    usage = Usage(1000 * MiB, 500 * MiB, 80 * MiB)
    use = SimpleNamespace(devices={"CUDA0": usage}, host=usage, resident=usage.total)
    machine = Request.of(devices=hypothetical("2GiB"), host=Host(2 * GiB, 2 * GiB, "given"))
    failure = OutOfMemory(device, requested * MiB, "failed")
    plan: Any = SimpleNamespace(breakdown=use)
    smaller = smaller_machine(machine, plan, LaunchLog(), failure)
    assert smaller is not None
    left = (
        (smaller.machine.ram or 0) + 64 * MiB
        if device == "Host"
        else smaller.machine.limits["CUDA0"] + 1
    )
    assert left == limit * MiB


def test_the_files_of_a_container_s_volume_are_found_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of words and of the container's own variables; the container is given its own names."""
    start = "run --dry-run --gpu 24GiB docker run -v"
    headers = shlex.quote(str(HEADERS))
    for words in (
        f"{start} {headers}:/m image -m /m/llama-3.1-8b-q4_k_m.gguf -md /m/llama-3.2-1b-q8_0.gguf",
        f"{start} {headers}:/m -e LLAMA_ARG_MODEL=/m/llama-3.1-8b-q4_k_m.gguf "
        "-e LLAMA_ARG_SPEC_DRAFT_MODEL=/m/llama-3.2-1b-q8_0.gguf image",
    ):
        assert main(shlex.split(words)) == 0
        out = capsys.readouterr().out
        assert (
            out.count(str(HEADERS)) == 1
            and "-md /m/llama-3.2-1b-q8_0.gguf" in out
            and "-ngl 33 -c 114" in out
        )
    assert (
        main(
            shlex.split(
                f"{start} {headers}:/m image -m /m/llama-3.1-8b-q4_k_m.gguf --lora /m/none.gguf"
            )
        )
        == 3
    )
    assert f"{HEADERS}/none.gguf: no such file" in capsys.readouterr().err


def test_the_lines_of_a_plan_are_those_of_the_launch_that_keeps_it(tmp_path: object) -> None:
    """A launch with all flags given has neither: what its context costs, nor why a GPU is idle."""
    model = HEADERS / "llama-3.1-8b-q4_k_m.gguf"
    made = session(
        f"--gpu rtx-4090,rtx-3060 --ram 64GiB llama-server -m {shlex.quote(str(model))}",
        plan_request,
        str(tmp_path),
    )
    first, again = made.plan()[0], made.plan()[0]
    assert first.idle and (again.idle, again.paid, again.flags) == (
        first.idle,
        first.paid,
        first.flags,
    )
