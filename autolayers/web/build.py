"""The page as static files for any host: Python in the browser, nothing uploaded.

    build(Path("site"))                                     # Pyodide from its public CDN
    build(Path("site"), pyodide="node_modules/pyodide")     # a folder with Pyodide's files is copied into the site
"""

from __future__ import annotations

import json
import shutil
from base64 import urlsafe_b64encode
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from .. import __version__
from ..errors import UsageError
from .server import page_files

# Python 3.13: the 3.14 of Pyodide 314.0.7 overflows a worker's stack when it frees the tensors of a long
# graph
PYODIDE = "https://cdn.jsdelivr.net/npm/pyodide@0.29.5/"
PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
PYODIDE_LOADERS = ("pyodide.asm.mjs", "pyodide.asm.js")      # one of them, by version
WHEEL = f"autolayers-{__version__}-py3-none-any.whl"


def build(folder: Path, pyodide: str = PYODIDE) -> list[str]:
    """Writes the site to `folder`; returns its file names. `pyodide` is a URL, or a folder that is copied.
    Raises UsageError, OSError."""
    local = "://" not in pyodide
    found = [name for name in (*PYODIDE_FILES, *PYODIDE_LOADERS) if local
             and (Path(pyodide) / name).is_file()]
    if local and not (set(PYODIDE_FILES) <= set(found) and set(PYODIDE_LOADERS) & set(found)):
        raise UsageError(f"{pyodide}: not a Pyodide folder: it lacks some of {', '.join(PYODIDE_FILES)}")
    written = page_files()
    base = "pyodide/" if local else pyodide.rstrip("/") + "/"
    written[WHEEL] = wheel()
    version = sha256(b"".join(written[name] for name in sorted(written))).hexdigest()[:12]
    written["config.json"] = json.dumps({"engine": "pyodide", "pyodide": base, "wheel": WHEEL,
                                         "version": version,
                                         "files": sorted(written)}).encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in written.items():
        (folder / name).write_bytes(data)
    if found:
        (folder / "pyodide").mkdir(exist_ok=True)
        for name in found:
            shutil.copyfile(Path(pyodide) / name, folder / "pyodide" / name)
    return [*sorted(written), *(f"pyodide/{name}" for name in found)]


def wheel() -> bytes:
    """The installed package as a wheel, byte-identical each time (the binary distribution format, PEP
    427)."""
    info = f"autolayers-{__version__}.dist-info"
    root = Path(str(files("autolayers")))
    members = {f"autolayers/{path.relative_to(root).as_posix()}": path.read_bytes()
               for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts}
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: autolayers\nVersion: {__version__}\n".encode()
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: autolayers\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    digests = {name: urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
               for name, data in members.items()}
    members[f"{info}/RECORD"] = "".join(
        f"{name},sha256={digest},{len(members[name])}\n" for name, digest in digests.items()).encode() \
        + f"{info}/RECORD,,\n".encode()
    out = BytesIO()
    with ZipFile(out, "w", ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(ZipInfo(name), data, ZIP_DEFLATED)
    return out.getvalue()
