"""A model would be planned with another architecture's graph.

Which graph an architecture gets, and what a plan loads for it.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

from support import ROOT

from autolayers.graph import builder, rows
from autolayers.model import NAMES, architecture


def loaded(name: str) -> set[str]:
    """The files of graph/models that the builder of an architecture needs, in a fresh process."""
    code = (
        f"import sys; from autolayers.graph import builder; builder({name!r}); "
        "print(*(m for m in sys.modules if m.startswith('autolayers.graph.models.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.rpartition(".")[2] for name in done.stdout.split()}


def of_files() -> dict[str, set[str]]:
    """The architectures that each file of graph/models builds, as the table says."""
    files: dict[str, set[str]] = {}
    for name in NAMES:
        if architecture(name).graph:
            files.setdefault(architecture(name).graph, set()).add(name)
    return files


def test_every_architecture_has_one_builder() -> None:
    files = {name for names in of_files().values() for name in names}
    assert not files & set(rows.BUILDERS)
    # llama.cpp has no graph of these
    assert files | set(rows.BUILDERS) == set(NAMES) - {"clip", "gptj"}
    assert builder("gptj") is None and builder("made_up") is None


def test_files_build_what_they_are_listed_for() -> None:
    for file, names in of_files().items():
        assert set(import_module(f"autolayers.graph.models.{file}").BUILDERS) == names, file


def test_a_plan_loads_only_what_its_model_needs() -> None:
    assert loaded("llama") == set()
    assert loaded("grok") == {"grok"}
    assert loaded("glm5-next") == {"glm5_next", "kimi_k3", "kimi_linear"}
    assert loaded("dflash") == {"dflash", "eagle3"}


def test_mtp_graphs_are_there_where_llama_cpp_has_one() -> None:
    assert {name for name in NAMES if architecture(name).mtp} == {
        "bailingmoe3",
        "cohere2moe",
        "deepseek2",
        "deepseek32",
        "deepseek4",
        "gemma4-assistant",
        "glm-dsa",
        "glm4moe",
        "hy_v3",
        "mimo2",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "step35",
    }
    assert all(builder(name, mtp=True) for name in NAMES if architecture(name).mtp)
    assert builder("eagle3", mtp=True) is None
