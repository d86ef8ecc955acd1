"""A newcomer who follows CONTRIBUTING.md would get stuck.

CONTRIBUTING.md, followed to the letter in a copy of the repository.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy
import pytest
from support import ROOT

SECTION = re.search(
    r"^## Add an architecture\n(.*?)(?=^## "
    r"|\Z)",
    (ROOT / "CONTRIBUTING.md").read_text(),
    re.S | re.M,
)
assert SECTION is not None
DIFF = re.search(r"^```diff\n(.*?)^```", SECTION[1], re.S | re.M)
COMMANDS = [
    line.split("#")[0].split()
    for line in re.findall(
        r"^    (python "
        r".*)$",
        SECTION[1],
        re.M,
    )
]
REAL, NEW = "seed_oss", "made_up"


def hunks(diff: str) -> dict[str, tuple[str, str]]:
    """file -> (its lines before, its lines after), up to the last line that is added."""
    found = {}
    for part in diff.split("--- a/")[1:]:
        name, *lines = part.splitlines()
        lines = [line for line in lines if not line.startswith(("+++", "@@"))]
        while lines[-1][0] != "+":
            lines.pop()
        before, after = (
            "".join(line[1:] + "\n" for line in lines if line[0] in kept) for kept in (" -", " +")
        )
        found[name] = before, after
    return found


def write_model(path: Path, architecture: str) -> None:
    """A small model with Seed-OSS's tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(4096)
    writer.add_embedding_length(256)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(512)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(1000)
    shapes = {"token_embd": (1000, 256), "output": (1000, 256), "output_norm": (256,)}
    for il in range(2):
        layer = {
            "attn_norm": (256,),
            "attn_q": (256, 256),
            "attn_k": (128, 256),
            "attn_v": (128, 256),
            "attn_output": (256, 256),
            "post_attention_norm": (256,),
            "ffn_gate": (512, 256),
            "ffn_up": (512, 256),
            "ffn_down": (256, 512),
        }
        shapes |= {f"blk.{il}.{name}": shape for name, shape in layer.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", numpy.zeros(shape, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository without the architecture that the section adds: its diff is what would bring
    it back."""
    assert DIFF is not None
    for part in ("autolayers", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, after) in hunks(DIFF[1]).items():
        text = (tmp_path / name).read_text()
        assert text.count(after) == 1, f"{name} is not what the diff in CONTRIBUTING.md leads to"
        (tmp_path / name).write_text(text.replace(after, before))
    return tmp_path


def run(copy: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=copy, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def plan(copy: Path, architecture: str) -> dict:
    write_model(copy / "model.gguf", architecture)
    (command,) = [words for words in COMMANDS if "autolayers" in words]
    return json.loads(run(copy, *command[1:], "--json"))


def numbers(plan: dict) -> list[object]:
    return [plan["devices"], plan["host"], plan["flags"]]


@pytest.mark.slow
def test_an_architecture_is_a_row_and_a_builder_row(copy: Path, tmp_path: Path) -> None:
    unknown = plan(copy, NEW)
    assert not unknown["exact"] and any("upper bound" in warning for warning in unknown["warnings"])
    assert DIFF is not None
    for name, (before, after) in hunks(DIFF[1].replace(REAL, NEW)).items():
        text = (copy / name).read_text()
        assert text.count(before) == 1
        (copy / name).write_text(text.replace(before, after))
    added = plan(copy, NEW)
    assert added["exact"] and not any("upper bound" in warning for warning in added["warnings"])
    write_model(tmp_path / "model.gguf", REAL)
    real = json.loads(
        run(ROOT, "-m", "autolayers", str(tmp_path / "model.gguf"), "--gpu", "24GiB", "--json")
    )
    assert numbers(added) == numbers(real)
    (command,) = [words for words in COMMANDS if words[1] == "docs/make.py"]
    run(copy, *command[1:])
    table = (copy / "docs" / "architectures.md").read_text()
    (plain,) = (line for line in table.splitlines() if "| keys and values |  |  |" in line)
    assert f" {NEW}," in plain and REAL not in plain
