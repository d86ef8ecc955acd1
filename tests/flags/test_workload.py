"""Anyone who says what is served would get the plan of other requests.

The words of --workload.
"""

from __future__ import annotations

import pytest
from support import HEADERS

import autolayers
from autolayers.cli import main
from autolayers.flags.kinds import Bad
from autolayers.flags.workload import WORKLOADS, Workload, workload

MODEL = HEADERS / "llama-3.2-1b-q8_0.gguf"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("chat", Workload(2048, 512, 0, name="chat")),
        ("batch", Workload(8192, 256, 0, name="batch")),
        ("agent", Workload(1024, 256, 24576, context=32768, name="agent", reuses=True)),
        ("4096+512", Workload(4096, 512)),
        ("4k+1@16k", Workload(4096, 1, 16384)),
        ("1+1@0", Workload(1, 1)),
        ("512+256@0x8", Workload(512, 256, 0, 8)),
        ("512+256x256", Workload(512, 256, 0, 256)),
    ],
)
def test_names_and_numbers(text: str, meant: Workload) -> None:
    assert workload(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "talk",
        "Chat",
        "512",
        "512+",
        "+512",
        "0+512",
        "512+0",
        "-1+5",
        "512+256@",
        "512+256@-1",
        "512+256x",
        "512+256x0",
        "512+256x257",
        "512+256@0x8x8",
        "a+b",
        "1.5+2",
        "512+256@max",
        "512 + 256",
        "99999999999999+1",
    ],
)
def test_other_words_are_refused_in_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Bad):
        workload(text)
    assert main([str(MODEL), "--gpu", "8GiB", "--workload", text]) == 2
    said = capsys.readouterr()
    assert (
        said.out == ""
        and said.err.count("\n") == 1
        and said.err.startswith("autolayers: --workload")
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_answer_is_for_that_workload(name: str) -> None:
    plan = autolayers.plan(MODEL, ["--gpu", "8GiB", "--workload", name])
    work = WORKLOADS[name]
    said = plan.speed.to_dict()["workload"]
    assert said == {
        "name": name,
        "prompt": work.prompt,
        "generate": work.generate,
        "depth": work.depth,
        "requests": 1,
    }
    assert plan.breakdown.n_ctx >= max(work.context, work.prompt + work.generate + work.depth)
