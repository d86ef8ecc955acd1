"""Anyone who looks for measurements of a card would miss them, or read those of another card.

`autolayers measured`, and the measurements that choose shows.
"""

from __future__ import annotations

import json

import pytest
from support import FIXTURES, says

HEADER = str(FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf")


def test_the_rows_of_a_card_and_a_model_are_listed() -> None:
    done = says("measured", "rtx-4090", "gpt-oss-20b")
    head, *lines = done.stdout.splitlines()
    assert done.returncode == 0 and head.split()[:4] == ["model", "card", "backend", "t/s"]
    assert lines and all("gpt-oss-20b" in line and "RTX 4090" in line for line in lines)
    assert any(
        "187" in line and "github.com/ggml-org/llama.cpp/pull/16834" in line for line in lines
    )


def test_json_has_the_names_of_shared_rows() -> None:
    said = json.loads(says("measured", "4090", "--json").stdout)
    shared = {
        "id",
        "source",
        "date",
        "model",
        "class",
        "kind",
        "words",
        "workload",
        "measured",
        "build",
    }
    assert said["schema"] == 1 and shared <= said["rows"][0].keys()
    assert all("rtx-4090" in row["cards"] for row in said["rows"])


def test_a_card_without_its_size_has_the_rows_of_all_its_sizes() -> None:
    rows = json.loads(says("measured", "m1-max", "--json").stdout)["rows"]
    assert rows and all(card.startswith("m1-max-") for row in rows for card in row["cards"])


def test_a_file_is_taken_as_its_model() -> None:
    (named, of_file) = (
        says("measured", "rtx-4090", name).stdout
        for name in ("gpt-oss-20b-mxfp4", "models/gpt-oss-20b-mxfp4.gguf")
    )
    assert named == of_file != ""


def test_the_plot_has_a_line_a_row() -> None:
    rows = json.loads(says("measured", "rtx-3090", "--json").stdout)["rows"]
    head, *lines = says("measured", "rtx-3090", "--plot").stdout.splitlines()
    assert head.startswith("measured / predicted") and len(lines) == len(rows)
    assert [line.split()[-1] for line in lines] == [
        f"{row['measured'] / row['predicted']:.2f}" for row in rows
    ]
    assert all(line.count("*") == 1 for line in lines)


def test_nothing_measured_is_said_and_what_would_help() -> None:
    done = says("measured", "rtx-3090", "no-such-model")
    assert done.returncode == 0 and done.stdout == ""
    assert (
        "nothing is measured of rtx-3090 no-such-model" in done.stderr
        and "tune --share" in done.stderr
    )
    assert ": no-such-model is no card of --gpu list" in done.stderr
    assert "did you mean rtx-3090?" in says("measured", "rtx-3091").stderr
    assert json.loads(says("measured", "no-such-model", "--json").stdout)["rows"] == []
    assert says("measured", "a", "b", "c").returncode == 2


def test_this_machine_is_told_which_row_would_help() -> None:
    assert "would help most: autolayers tune --share" in says("measured").stderr


def test_a_machine_without_a_gpu_has_the_rows_of_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autolayers.cli.measured._here", list)
    rows = json.loads(says("measured", "cpu", "--json").stdout)["rows"]
    done = says("measured")
    assert len(done.stdout.splitlines()) == len(rows) + 1
    assert f"CPU: {len(rows)} rows are measured; one of the class CPU" in done.stderr


def test_choose_shows_what_was_measured() -> None:
    done = says("choose", HEADER, "--gpu", "rtx-4090", "--ram", "32GiB")
    assert "\nmeasured  " in done.stdout and "llama-3.1-8b-q4_k_m, RTX 4090" in done.stdout
    file = json.loads(
        says("choose", HEADER, "--gpu", "rtx-4090", "--ram", "32GiB", "--json").stdout
    )["files"][0]
    assert file["measured"]["generation_tokens_per_second"] > 50


@pytest.mark.slow
def test_cards_show_what_was_measured() -> None:
    done = says("choose", HEADER, "--for", "cards", "-c", "8192")
    line = next(line for line in done.stdout.splitlines() if line.strip().startswith("rtx-4090 "))
    assert float(line.split()[-1]) > 50
