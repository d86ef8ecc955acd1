"""The published page would lack a file, or have an older planner.

The static page: complete, and its wheel is the package.
"""

from __future__ import annotations

import hashlib
import html
import json
import pathlib
import re
import subprocess
import sys
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest
from support import ROOT, model, seldom

import autolayers
from autolayers import bundled
from autolayers.bundled import published
from autolayers.devices.cards import CARDS
from autolayers.web import pages
from autolayers.web.__main__ import main
from autolayers.web.build import LISTS, PYODIDE_FILES, PYODIDE_VERSION, WHEEL
from autolayers.web.build import build as make
from autolayers.web.engine import PRESET


def build(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autolayers.web", *words], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The site of one chip, of four answers and of two lists of two models: all models, seconds
    each, are part of the whole site's test."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autolayers.web.build.CHIPS", [PRESET["gpu"]])
        patch.setattr(pages, "MODELS", ("llama-3.2-1b-q8_0", "llama-3-70b-f16"))
        patch.setattr(pages, "MACHINES", ("rtx-3060",))
        known = [published.MODELS["lfm2-8b-a1b"], published.MODELS["minicpm5-2b"]]
        patch.setattr("autolayers.planner.compare.best.candidates", lambda job: known)
        names = make(folder, lists="rtx-3060,m4-pro-24g,none", url="https://example.org/x/")
        assert {
            f"{folder}/{model}-on-{card}.{kind}"
            for model in pages.MODELS
            for card in pages.MACHINES
            for folder, kind in (("on", "html"), ("on", "svg"), ("badge", "svg"))
        } <= set(names)
    return folder


@seldom
def test_the_site_is_the_same_each_time_it_is_built(tmp_path: pathlib.Path) -> None:
    site = tmp_path / "site"
    assert build("build", str(site)).returncode == 0
    config = json.loads((site / "config.json").read_text())
    assert all(source.startswith("https://") for source in config["pyodide"])
    assert {path.name for path in site.iterdir()} == {"config.json", *config["files"]}
    first = (site / WHEEL).read_bytes()
    assert build("build", str(site)).returncode == 0 and (site / WHEEL).read_bytes() == first
    found = subprocess.run(
        [
            sys.executable,
            "-S",
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, "
            f"{str(site / WHEEL)!r});"
            "from autolayers.web.engine import Engine; print(Engine().call('plan', "
            "{'model': "
            "'bundled:qwen3-8b-q4_k_m', 'gpu': '12GiB'})['verdict']['state'])",
        ],
        capture_output=True,
        text=True,
    )
    assert found.stdout == "if\n", found.stderr
    first = json.loads((site / "first.json").read_text())
    assert (
        first["answer"]["verdict"]["title"] == "Fits"
        and first["asked"] == first["offer"]["preset"]
        and first["question"]["model"] == first["rows"][0]["model"]
    )
    assert sum(row["how"] == "well" for row in first["rows"]) > 4
    # and what workers run comes after
    before = ("index.html", "style.css", "icon.svg", "first.json")
    sizes = {name: (site / name).stat().st_size for name in config["files"]}
    scripts = [
        name for name in sizes if name.endswith(".js") and name not in ("sw.js", "worker.js")
    ]
    first_bytes = (
        sum(sizes[name] for name in (*before, *scripts)) + (site / "config.json").stat().st_size
    )
    assert config["lists"] == [] and first_bytes < 185_000
    assert {"ahead", "instead"} <= first["answer"].keys() and len(first["offer"]["cards"]) < 10
    assert len(json.loads((site / "cards.json").read_text())) == len(CARDS)
    assert (
        config["sha256"].keys() == PYODIDE_FILES.keys()
        and config["sizes"][WHEEL] == (site / WHEEL).stat().st_size
    )
    with ZipFile(site / WHEEL) as wheel:
        assert any(name.endswith(".dist-info/RECORD") for name in wheel.namelist())


@seldom
def test_pyodide_is_copied_from_a_folder_that_holds_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyodide = tmp_path / "pyodide"
    pyodide.mkdir()
    done = build("build", str(tmp_path / "site"), "--pyodide", str(pyodide))
    assert done.returncode == 2 and done.stderr == (
        f"autolayers: {pyodide}: not a Pyodide folder: it lacks {', '.join(PYODIDE_FILES)}\n"
    )
    for name in PYODIDE_FILES:
        (pyodide / name).write_text(name)
    done = build("build", str(tmp_path / "site"), "--pyodide", str(pyodide))
    assert (
        done.returncode == 2
        and f"not as in the npm package pyodide@{PYODIDE_VERSION}" in done.stderr
    )
    files = {name: (len(name), hashlib.sha256(name.encode()).hexdigest()) for name in PYODIDE_FILES}
    monkeypatch.setattr("autolayers.web.build.PYODIDE_FILES", files)
    make(tmp_path / "site", str(pyodide))
    assert (tmp_path / "site" / "pyodide" / "pyodide.asm.js").read_text() == "pyodide.asm.js"
    config = json.loads((tmp_path / "site" / "config.json").read_text())
    assert config["sha256"] == {name: digest for name, (_, digest) in files.items()}


@pytest.mark.slow
def test_a_list_of_models_for_a_card_has_the_figures_of_plans(site: pathlib.Path) -> None:
    """At most 30 KB, the figures of single plans; the rows of a Mac have the memory that its name
    says."""
    config = json.loads((site / "config.json").read_text())
    assert config["lists"] == ["rtx-3060", "m4-pro-24g", "none"]
    files = [f"known-{card}.json" for card in config["lists"]]
    assert set(files).isdisjoint(config["files"])
    card, mac, cpu = (json.loads((site / name).read_text()) for name in files)
    assert mac["question"]["ram"] == "" and cpu["question"]["ram"] == "32"
    assert [row["title"] for row in mac["rows"]] == ["MiniCPM5 2B", "LFM2 8B-A1B"]
    sizes = [(site / name).stat().st_size for name in files]
    today = sum(known.current for known in published.MODELS.values())
    assert max(sizes) * today < 30_000 * len(mac["rows"])
    first = card["rows"][0]
    chosen = autolayers.choose(
        [bundled.read(first["model"])], ["--gpu", "rtx-3060", "--ram", "32GiB", "-c", "16384"]
    )[0]
    assert (first["context"], first["how"]) == (chosen.n_ctx, "well")
    # the first touch of a chip has the answer to its question without a model
    answer = json.loads((site / "answer-rtx-3060.json").read_text())
    assert answer["question"].items() >= {**PRESET, "model": first["model"]}.items()
    assert answer["answer"]["command"]["bash"].startswith("llama-server -hf ")
    done = build("build", str(site), "--lists", "rtx-9999")
    assert done.returncode == 2 and done.stderr.startswith(
        "autolayers: --lists: rtx-9999 is no known card"
    )


def test_the_machines_of_the_lists_are_known() -> None:
    """The chips, cards without a name, two cards, laptops, Macs, and no GPU; sixty cards with three
    sizes of RAM."""
    common, most = LISTS["common"], LISTS["most"]
    assert {"none", "24", "rtx-3090,rtx-3090", "rtx-4060-laptop", "m4-16g"} <= set(common)
    assert set(common) < set(most) and len([name for name in most if "@" in name]) == 120
    assert {"rtx-5070", "rtx-5070@16", "rx-9070-xt@64", "none@16"} <= set(most)
    for machine in most:
        gpus = machine.partition("@")[0]
        assert all(gpu in CARDS or gpu.isdigit() or gpu == "none" for gpu in gpus.split(",")), gpus
    assert len(set(most)) == len(most)


def test_usage_is_told_on_stderr(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], ["build"], ["build", "-x"], ["serve", "x"]):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert err.startswith("usage: ") and not out
    (tmp_path / "file").write_text("")
    done = build("build", str(tmp_path / "file"))
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_pages_of_single_answers_have_their_figures(site: pathlib.Path) -> None:
    """Each with the figures of its plan, what previews of links need, a picture and a badge; all in
    the sitemap."""
    text = (site / "on" / "llama-3.2-1b-q8_0-on-rtx-3060.html").read_text()
    plan = autolayers.plan(model("llama-3.2-1b-q8_0"), ["--gpu", "rtx-3060", "--ram", "64GiB"])
    assert " ".join(plan.flags) in text and f"<td>{plan.speed.generation:.0f}</td>" in text
    assert (
        '<meta property="og:title" content="Llama 3.2 1B Q8_0 on NVIDIA GeForce RTX 3060 with '
        '64 GB of RAM: does it run?">' in text
    )
    assert (
        f'<th scope="row">RAM</th><td>{plan.host.resident / 2**30:.2f} of 62.00 GiB</td>' in text
        and "llama.cpp b" in text
        and text.count("<h1>") == 1
    )
    assert "llama-server -hf bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0 " in text
    image = re.search(r'og:image" content="https://example.org/x/(on/[^"]+)"', text)
    assert image and (site / image[1]).stat().st_size > 1000 and "IMAGE" not in text
    assert "Does not fit: " in (site / "on" / "llama-3-70b-f16-on-rtx-3060.html").read_text()
    for path in (*site.glob("*/*.svg"), site / "sitemap.xml"):
        ElementTree.parse(path)
    listed = re.findall("<loc>https://example.org/x/(.*)</loc>", (site / "sitemap.xml").read_text())
    assert len(listed) == 7 and all(
        (site / (unquote(place) or "index.html")).exists() for place in listed
    )
    index = (site / "index.html").read_text()
    assert 'og:url" content="https://example.org/x/"' in index
    neutral = re.search(r'og:image" content="https://example.org/x/(on/index\.(?:png|svg))"', index)
    # a link's question, behind #, reaches no preview
    assert neutral and "tokens/s" not in (site / "on" / "index.svg").read_text()
    assert (site / neutral[1]).stat().st_size > 1000


def test_a_machine_has_a_page_of_its_best_models(site: pathlib.Path) -> None:
    """With the list's figures, the answer's command and a picture: a link that is shared shows
    nothing of what stands behind its #."""
    known, answer = (
        json.loads((site / f"{kind}-m4-pro-24g.json").read_text()) for kind in ("known", "answer")
    )
    text = (site / "on" / "best-m4-pro-24g.html").read_text()
    for row in known["rows"]:
        assert f">{row['title']} {row['quantisation']}</th><td>{row['rate']:.0f}</td>" in text
    assert html.escape(answer["answer"]["command"]["bash"]) in text
    assert "<h1>The best models for Apple M4 Pro + 24 GB memory</h1>" in text
    assert 'href="../#gpu=m4-pro-24g&amp;ram="' in text
    picture = (site / "on" / "best-m4-pro-24g.svg").read_text()
    assert f"{known['rows'][0]['title']}: {known['rows'][0]['rate']:.0f} tokens/s" in picture
    # Letters are 0.6 of their size wide: the line of the longest name ends before the edge
    named = max(len(known.name) for known in published.MODELS.values() if known.current)
    size = int(re.findall(r'font-size="(\d+)"', picture)[2])
    assert 60 + (named + len(": 999 tokens/s, 128k context")) * 0.6 * size < 1200
    # Without JavaScript the preset's answer is there
    page = (site / "index.html").read_text()
    first = json.loads((site / "first.json").read_text())
    said = page.partition("<noscript>")[2].partition("</noscript>")[0]
    assert first["rows"][0]["title"] in said
    assert html.escape(first["answer"]["command"]["bash"]) in said
    index = (site / "on" / "index.html").read_text()
    assert '<li><a href="best-none.html">the CPU + 32 GB RAM</a></li>' in index


def test_what_ci_runs_has_the_version_of_pyodide() -> None:
    for name in (".ci/page", ".github/workflows/ci.yml"):
        assert f"pyodide@{PYODIDE_VERSION}" in (ROOT / name).read_text()
