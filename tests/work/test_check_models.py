"""A table of models whose files were renamed or made again would send people to nothing."""

from __future__ import annotations

import json
import sys

import pytest
from fake_web import Web, status
from support import ROOT

from autolayers.bundled import published

sys.path.insert(0, str(ROOT / "benchmarks"))
import check_models


def test_what_differs_from_the_hub_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = published.MODELS["ministral-3-14b"]
    four, five, eight = model.files.values()
    files = {
        "X-Q4_K_M.gguf": four,
        "X-Q5_K_M-00001-of-00002.gguf": five // 2,
        "deep/X-Q5_K_M-00002-of-00002.gguf": five - five // 2,
        "X-UD-Q8_0.gguf": eight,  # another quantisation than Q8_0
        "mmproj-Q8_0.gguf": 1,
        "README.md": 5,
    }
    web = Web()
    entries = [{"type": "file", "path": path, "size": size} for path, size in files.items()]
    tree = f"/api/models/{model.repository}/tree/main"
    web.answers[tree] = status(200, json.dumps(entries).encode())
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    try:
        assert check_models.main([model.stem]) == 1
        said = capsys.readouterr().out.splitlines()
        assert [line.partition("): ")[2] for line in said] == [
            "Q8_0 is not there",
            f"not in the table: UD-Q8_0:{eight}",
        ]
        entries[3]["path"] = "X-Q8_0.gguf"
        web.answers[tree] = status(200, json.dumps(entries).encode())
        assert check_models.main([model.stem]) == 0
        entries[0]["size"] = four * 2
        web.answers[tree] = status(200, json.dumps(entries).encode())
        assert check_models.main([model.stem]) == 1
        assert f"Q4_K_M has {four * 2} bytes, not {four}" in capsys.readouterr().out
        web.answers[tree] = status(404, b"{}")
        assert check_models.main([model.stem]) == 1
        assert "cannot be read" in capsys.readouterr().out
    finally:
        web.close()
