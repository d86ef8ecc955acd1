"""Scripts would wait for explanations that they do not print.

The reasons for a plan are computed when they are read: a command that prints none computes
none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import gguf, model, slow, write_gguf

import autolayers
from autolayers.cli import main
from autolayers.memory.meter import Meter
from autolayers.planner import explain, faster, plan_request, reasons
from autolayers.planner.reasons import Explained
from autolayers.request import Request

PARTS = (
    (explain, "alternative"),
    (explain, "price_of"),
    (explain, "levers"),
    (reasons, "fit_choice_of"),
)
MODEL = "llama-3.2-1b-q8_0:4"
FULL = ["--gpu", "1GiB", "--ram", "16GiB", "-c", "4096"]  # with weights in RAM
ROOMY = ["--gpu", "8GiB", "--ram", "16GiB", "-c", "4096"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the parts that were computed."""
    found: list[str] = []

    def counted(name: str, compute: Any) -> Any:
        return lambda *args, **more: found.append(name) or compute(*args, **more)

    for module, name in PARTS:
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    # other processes count for themselves
    monkeypatch.setattr("autolayers.cli.one.cores", lambda: 1)
    yield found


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_gguf(tmp_path / "m.gguf", *gguf(MODEL))
    return str(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "M", *FULL],
        ["plan", "M", *FULL, "-q"],
        ["plan", "M", *FULL, "--format", "docker"],
        ["plan", "M", "M", *ROOMY, "--json"],
        ["choose", "M", *FULL, "--json"],
        slow(["sweep", "M", "--gpu", "1GiB", "--ram", "16GiB", "--contexts", "4096", "--json"]),
    ],
    ids=["flags", "number", "file", "several", "choose", "sweep"],
)
def test_a_command_that_prints_no_reason_computes_none(
    words: list[str], path: str, calls: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([path if word == "M" else word for word in words]) == 0, capfd.readouterr().err
    assert capfd.readouterr().out and not calls


def test_a_page_and_json_compute_what_they_print(
    path: str, calls: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", path, *FULL, "--json"]) == 0
    assert {*calls} == {name for _, name in PARTS}
    calls.clear()
    assert main(["plan", path, *FULL, "--format", "text"]) == 0
    assert {*calls} == {name for _, name in PARTS} - {"levers"}


def test_a_reason_is_computed_when_it_is_read(calls: list[str]) -> None:
    """The launch of an explained plan costs what it costs alone, and so does each of its
    reasons."""
    target, request = model(MODEL), Request.of(FULL)
    plan_request(target, request, meter=(alone := Meter()))
    found = plan_request(target, request, explain=True, advise=True, meter=(meter := Meter()))
    assert found.flags and found.speed and meter.spent == alone.spent and not calls
    assert found.fit_choice is not None and calls == ["fit_choice_of"] and meter.spent > alone.spent
    assert found.alternatives and {*calls} == {"fit_choice_of", "alternative"}
    count, spent = len(calls), meter.spent
    assert found.alternatives and found.fit_choice and (len(calls), meter.spent) == (count, spent)


def test_a_plan_with_unread_reasons_is_compared_and_printed(calls: list[str]) -> None:
    found = autolayers.plan(model(MODEL), FULL, explain=True)
    assert (
        found == found
        and repr(found.why) == "Explained(explain=True)"
        and {found.why}
        and not calls
    )


def test_a_launch_on_the_devices_alone_has_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the input layer is in RAM, as always, neither a smaller file nor a smaller cache
    is tried."""
    tried: list[str] = []
    for name in ("with_cache", "smaller"):
        monkeypatch.setattr(faster, name, lambda *args, name=name: tried.append(name))
    whole = autolayers.plan(model(MODEL), ROOMY, advise=True)
    assert (
        isinstance(whole.why, Explained)
        and (whole.faster, whole.smaller) == (None, None)
        and not tried
    )
    part = autolayers.plan(model(MODEL), FULL, advise=True)
    assert (part.faster, part.smaller) == (None, None) and tried == ["with_cache", "smaller"]
