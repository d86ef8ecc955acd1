"""The page as static files for any host: Python in the browser, nothing uploaded.

# Pyodide from its public hosts, checked by SHA-256
build(Path("site"))
# a folder with Pyodide's files is copied into the site
build(Path("site"), pyodide="node_modules/pyodide")
# with pages "MODEL on CARD", an index of them, a sitemap
build(Path("site"), url="https://example.org/x")
"""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import urlsafe_b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from .. import __version__
from ..devices.cards import CARDS
from ..errors import AutolayersError, UsageError
from ..parallel import in_processes
from .engine import CHIPS, PRESET, USUAL, Engine
from .pages import MACHINES, MODELS, RAM, first_words, pages
from .server import page_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# Python 3.13: the 3.14 of Pyodide 314.0.7 overflows a worker's stack when it frees the tensors of a
# long graph
PYODIDE_VERSION = "0.29.5"
PYODIDE = (
    f"https://cdn.jsdelivr.net/npm/pyodide@{PYODIDE_VERSION}/",
    f"https://unpkg.com/pyodide@{PYODIDE_VERSION}/",
)
# of the npm package of that version: bytes and SHA-256
PYODIDE_FILES = {
    "pyodide.mjs": (17616, "510ca14305230018f50c40fb81be673afd68080e70ce7733fcce6600dd6a1714"),
    "pyodide.asm.js": (1074322, "356c42f69e1695397e9d8670bd3c2e678248cde76e18bdae1731e848537b47d7"),
    "pyodide.asm.wasm": (
        8647684,
        "54309a5a2cfd757b1f0fdbc9093c92503f7b341500110329d932487183912718",
    ),
    "pyodide-lock.json": (
        122027,
        "14d2c2dba101277999e17135e653d8f15389ad1437f53eae213bf0c3cdff723d",
    ),
    "python_stdlib.zip": (
        2424003,
        "831fd1e535084b972f87c6a35275de3d236efd5166f5e77ce89497710635e73c",
    ),
}
# Machines other than the chips whose list is written for `common`: cards without a name, two cards,
# laptops, Macs
SIZES = ("6", "8", "12", "16", "24", "32", "48", "96")
PAIRS = (
    "rtx-3060,rtx-3060",
    "rtx-4060-ti-16g,rtx-4060-ti-16g",
    "rtx-3090,rtx-3090",
    "rtx-5090,rtx-5090",
)
OTHERS = (
    "rtx-3060-laptop",
    "rtx-4060-laptop",
    "rtx-4070-laptop",
    "radeon-780m-32g",
    "strix-halo-128g",
    "m2-16g",
    "m4-16g",
    "m4-max-64g",
    "m3-ultra-256g",
)
# The cards that most people have, each with three sizes of RAM
MOST = (
    *("gtx-1060-6g", "gtx-1070", "gtx-1080-ti", "gtx-1650", "gtx-1660-super", "rtx-2060-6g"),
    *("rtx-2070-super", "rtx-2080-ti", "rtx-3050-8g", "rtx-3060", "rtx-3060-ti", "rtx-3070"),
    *("rtx-3070-ti", "rtx-3080-10g", "rtx-3080-12g", "rtx-3080-ti", "rtx-3090", "rtx-3060-laptop"),
    *("rtx-3070-laptop", "rtx-4050-laptop", "rtx-4060-laptop", "rtx-4070-laptop", "rtx-4060"),
    *("rtx-4060-ti-8g", "rtx-4060-ti-16g", "rtx-4070", "rtx-4070-super", "rtx-4070-ti"),
    *("rtx-4070-ti-super", "rtx-4080", "rtx-4080-super", "rtx-4090", "rtx-5050", "rtx-5060"),
    *("rtx-5060-ti-8g", "rtx-5060-ti-16g", "rtx-5070", "rtx-5070-ti", "rtx-5080", "rtx-5090"),
    *("rtx-5060-laptop", "rtx-5070-laptop", "rtx-5070-ti-laptop", "rx-580-8g", "rx-6600"),
    *("rx-6600-xt", "rx-6700-xt", "rx-6800-xt", "rx-7600", "rx-7700-xt", "rx-7800-xt"),
    *("rx-7900-xt", "rx-7900-xtx", "rx-9060-xt-16g", "rx-9070", "rx-9070-xt", "arc-a770-16g"),
    *("arc-b580", "tesla-p40", "none"),
)
_RAMS = ("16", "64")  # beside the usual one
LISTS = {
    "chips": list(CHIPS),
    "common": [*CHIPS, *SIZES, *PAIRS, *OTHERS],
    "most": [
        *dict.fromkeys([*CHIPS, *SIZES, *PAIRS, *OTHERS, *MOST]),
        *(f"{card}@{ram}" for card in MOST for ram in _RAMS),
    ],
    "all": [*CARDS, *SIZES, *PAIRS, "none"],
}
_UNSHOWN = frozenset(
    ("speed", "flags", "words", "jobs", "verdict", "placement", "bits", "n_ctx", "coding")
)
_OTHERS = 4  # models that the page shows beside its answer
# with the modules, not after them
_PRELOAD = b'<link rel="preload" href="first.json" as="fetch" crossorigin>\n'
WHEEL = f"autolayers-{__version__}-py3-none-any.whl"


def build(folder: Path, pyodide: str = "", url: str = "", lists: str = "") -> list[str]:
    """Write the site to `folder`; return its file names. `pyodide` is a URL, or a folder with the
    files of PYODIDE_FILES that is copied; "" for the public hosts. The page checks the files'
    digests. `url`: where the site will be, for pages of single answers. `lists`: the machines whose
    list of models is written ("chips", "common", "most", "all", or names with commas, with @16 for
    another size of RAM; "" for none), about 20 s of a core each, on all cores. Raises UsageError,
    OSError."""
    # Checked before anything is written or planned
    local = bool(pyodide) and "://" not in pyodide
    missing = [name for name in PYODIDE_FILES if local and not (Path(pyodide) / name).is_file()]
    if missing:
        raise UsageError(f"{pyodide}: not a Pyodide folder: it lacks {', '.join(missing)}")
    other = [
        name
        for name, (_, digest) in PYODIDE_FILES.items()
        if local and sha256((Path(pyodide) / name).read_bytes()).hexdigest() != digest
    ]
    if other:
        raise UsageError(
            f"{pyodide}: {', '.join(other)}: not as in the npm package pyodide@{PYODIDE_VERSION}"
        )
    if url and not url.startswith(("https://", "http://")):
        raise UsageError(f"--url {url}: expected https://...")
    machines = _machines(lists)
    folder.mkdir(parents=True, exist_ok=True)  # before work that takes seconds
    # file's name -> its bytes: all are made before the first is written
    written = page_files()
    written["index.html"] = written["index.html"].replace(b"</head>", _PRELOAD + b"</head>", 1)
    if url:
        written["index.html"] = _with_address(written["index.html"], url)
    written[WHEEL] = wheel()
    engine = Engine()
    offer = engine.call("start", {})
    written["cards.json"] = _compact(offer["cards"])
    # what the page shows while Python loads: the answer to the form's presets. cards.json has the
    # other cards.
    few = [card for card in offer["cards"] if card["name"] in CHIPS]
    # the models are those that have names
    nameless = {key: value for key, value in offer.items() if key != "models"}
    rows = _shown(engine, PRESET, offer["jobs"][USUAL])
    first: dict[str, Any] = {
        "offer": {**nameless, "cards": few},
        "asked": PRESET,
        "rows": rows,
        **_answered(engine, PRESET, rows[0]),
    }
    written["first.json"] = _compact(first)
    # For search engines, and where no script runs
    said = f"{first_words(first)}</noscript>".encode()
    written["index.html"] = written["index.html"].replace(b"</noscript>", said, 1)
    files_of = {name: name.replace(",", "+") + ".json" for name in machines}
    # Minutes of work on one core
    for name, made in zip(machines, in_processes(_listed, machines), strict=True):
        if isinstance(made, AutolayersError):
            raise made
        written[f"known-{files_of[name]}"], written[f"answer-{files_of[name]}"] = made
    sources = ["pyodide/"] if local else [pyodide.rstrip("/") + "/"] if pyodide else list(PYODIDE)
    sizes = {name: size for name, (size, _) in PYODIDE_FILES.items()} | {WHEEL: len(written[WHEEL])}
    config = {
        "engine": "pyodide",
        "pyodide": sources,
        "wheel": WHEEL,
        "first": "first.json",
        "sizes": sizes,
        "cards": "cards.json",
        "lists": machines,
        "pages": {"models": MODELS, "machines": MACHINES, "ram": RAM} if url else None,
        "sha256": {name: digest for name, (_, digest) in PYODIDE_FILES.items()},
        # Lists are kept once they were read: those of all machines are megabytes
        "files": sorted(name for name in written if not name.startswith(("known-", "answer-"))),
    }
    # A browser keeps files by this version: any change gives another
    stamp = b"".join(written[name] for name in sorted(written)) + json.dumps(config).encode()
    written["config.json"] = json.dumps(
        {**config, "version": sha256(stamp).hexdigest()[:12]}
    ).encode()
    for name, data in written.items():
        (folder / name).write_bytes(data)
    if local:
        (folder / "pyodide").mkdir(exist_ok=True)
        for name in PYODIDE_FILES:
            shutil.copyfile(Path(pyodide) / name, folder / "pyodide" / name)
    listed = {
        name: tuple(json.loads(written[f"{kind}-{file}"]) for kind in ("known", "answer"))
        for name, file in files_of.items()
    }
    others = _answers(folder, url, listed) if url else []
    return [*sorted(written), *(f"pyodide/{name}" for name in PYODIDE_FILES if local), *others]


def _with_address(page: bytes, url: str) -> bytes:
    url = escape(url.rstrip("/"), quote=True)
    tags = (
        f'<link rel="canonical" href="{url}/"><meta property="og:url" content="{url}/">'
        f'<meta property="og:image" content="{url}/on/index.{previews()}">'
        '<meta name="twitter:card" content="summary_large_image">\n</head>'
    )
    # Search engines follow links, and find the pages by it
    index = b'<footer><p><a href="on/">Which model runs on which graphics card?</a></p>'
    return page.replace(b"</head>", tags.encode(), 1).replace(b"<footer>", index, 1)


def _answers(folder: Path, url: str, lists: dict[str, Any]) -> list[str]:
    """Return the pages of single answers and of lists; previews of links need PNG, which librsvg's
    program makes."""
    written = pages(url, lists)
    for name, data in written.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        # .IMAGE stands for the ending that the pictures get here
        path.write_bytes(data.replace(b'.IMAGE"', f'.{previews()}"'.encode()))
        if name.startswith("on/") and name.endswith(".svg") and previews() == "png":
            subprocess.run(
                ["rsvg-convert", "-o", str(path.with_suffix(".png")), str(path)],
                check=True,
                timeout=60,
            )
    return sorted(written)


def previews() -> str:
    """Return the kind of the pictures for previews of links, which show no SVG."""
    return "png" if shutil.which("rsvg-convert") else "svg"


def _compact(answer: object) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def _answered(
    engine: Engine, asked: dict[str, str], best: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the answer to a question without a model, which is that of the best one's."""
    question = {**asked, "for": USUAL, "model": best["model"], "mmproj": best.get("mmproj", "")}
    return {"question": question, "answer": whole_answer(engine, question)}


def _machines(lists: str) -> list[str]:
    """Return the GPUs of the lists, as the form has them. Raises UsageError for a card that is not
    known."""
    if lists in LISTS:
        return LISTS[lists]
    names = [name for name in lists.split(",") if name]
    for name in names:
        if name.partition("@")[0] not in CARDS and name != "none":
            raise UsageError(
                f"--lists: {name} is no known card: {', '.join(LISTS)}, or names of "
                f"autolayers --gpu list"
            )
    return names


def _listed(name: str) -> tuple[bytes, bytes]:
    """Return the list of a machine, and its answer: that of the best model there."""
    known = known_list(name)
    answer = _answered(Engine(), known["question"], known["rows"][0])
    return _compact(known), _compact(answer)


def known_list(name: str) -> dict[str, Any]:
    """Return what a machine, GPUs or GPUs@RAM, runs: {"question", "rows"}, a row for each model of
    today, its quantisation chosen, the best one first."""
    engine = Engine()
    gpus, _, ram = name.partition("@")
    # the preset on another card; what shares its memory has no RAM of its own
    shared = gpus in CARDS and CARDS[gpus].ram
    question = {
        **PRESET,
        "gpu": gpus,
        "ram": "" if shared else PRESET["ram"],
        **({"ram": ram} if ram else {}),
    }
    models = engine.call("start", {})["jobs"][USUAL]["models"]
    return {"question": question, "rows": _in_order(_row(engine, question, m) for m in models)}


def _row(engine: Engine, question: dict[str, str], model: str) -> dict[str, Any]:
    """Return the row of a model without what the page does not show."""
    row = engine.call("take", {**question, "model": model})
    return {name: value for name, value in row.items() if name not in _UNSHOWN}


def _in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["order"])


def _shown(engine: Engine, asked: dict[str, str], job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that the page shows beside its first answer, the best one first."""
    rows: list[dict[str, Any]] = []
    for model, following in zip(job["models"], [*job["worth"][1:], 0.0], strict=True):
        rows.append(_row(engine, asked, model))
        place, worth, _ = min(row["order"] for row in rows)
        enough = sum(row["how"] == "well" for row in rows) > _OTHERS
        if enough and place == 0 and -worth > following:
            break
    return _in_order(rows)


def whole_answer(engine: Engine, question: dict[str, str]) -> dict[str, Any]:
    """Return the answer with all its reasons, and the memory at other contexts for the slider."""
    answer = engine.call("plan", question)
    while not (following := engine.call("more", question)).get("done"):
        answer = following
    # the page shows alternatives as `instead`: a third of the file
    plan = {name: value for name, value in answer["plan"].items() if name != "alternatives"}
    return {**answer, "plan": plan, "ahead": engine.call("ahead", question)["points"]}


def wheel() -> bytes:
    """Return the installed package as a wheel, byte-identical each time (the binary distribution
    format, PEP 427)."""
    info = f"autolayers-{__version__}.dist-info"
    root = Path(str(files("autolayers")))
    members = {
        f"autolayers/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        # Another Python runs it, and would not read them
        if path.is_file() and "__pycache__" not in path.parts
    }
    # The three files that an installer looks for
    members[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: autolayers\nVersion: {__version__}\n".encode()
    )
    members[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: autolayers\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    digests = {
        name: urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
        for name, data in members.items()
    }
    members[f"{info}/RECORD"] = (
        "".join(
            f"{name},sha256={digest},{len(members[name])}\n" for name, digest in digests.items()
        ).encode()
        + f"{info}/RECORD,,\n".encode()
    )
    out = BytesIO()
    with ZipFile(out, "w", ZIP_DEFLATED) as archive:
        for name, data in members.items():
            # ZipInfo without a date has 1980: the same bytes each time
            archive.writestr(ZipInfo(name), data, ZIP_DEFLATED)
    return out.getvalue()
