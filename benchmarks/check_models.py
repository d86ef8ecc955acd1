"""Compares bundled/models.csv with the Hub: quantisations that are not there, sizes that are wrong,
and quantisations that the table lacks.

    python benchmarks/check_models.py [NAME...]  # HF_ENDPOINT: another Hub; exit code 1: differs

One request a repository, of its list of files; no file is fetched.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from urllib.error import URLError
from urllib.request import urlopen

from autolayers.bundled.published import MODELS, Published, quantisation

ALIKE = 0.005  # the table has rounded sizes too
PAGES = 20  # of one list
PATIENCE = 30  # seconds for a page
_KIND = re.compile(r"(?:UD-)?(?:I?Q\d\w*|MXFP4|BF16|F16)(?=[.-])", re.IGNORECASE)
_NEXT = re.compile(r'<([^>]+)>; *rel="next"')


def listed(repository: str) -> dict[str, int]:
    """Return the bytes of each quantisation in a repository, those of all its shards together."""
    sizes: dict[str, int] = {}
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{hub}/api/models/{repository}/tree/main?recursive=true"
    for _ in range(PAGES):
        with urlopen(url, timeout=PATIENCE) as answer:
            entries, further = json.load(answer), _NEXT.search(answer.headers.get("Link") or "")
        for entry in entries:
            name = str(entry.get("path")).rpartition("/")[2]
            kinds = _KIND.findall(name)
            if kinds and name.endswith(".gguf") and not name.startswith("mmproj"):
                sizes[kinds[-1].upper()] = sizes.get(kinds[-1].upper(), 0) + int(entry["size"])
        if further is None or not further[1].startswith(hub):
            break
        url = further[1]
    return sizes


def differences(model: Published, there: dict[str, int]) -> Iterator[str]:
    """Yield what the table says of a model and its repository (`there`) does not."""
    told = {quantisation(name): size for name, size in model.files.items()}
    for kind, size in told.items():
        if kind not in there:
            yield f"{kind} is not there"
        elif size and abs(there[kind] / size - 1) > ALIKE:
            yield f"{kind} has {there[kind]} bytes, not {size}"
        elif not size:
            yield f"{kind}:{there[kind]} is its size"
    # Q3 to Q8 are what people take
    more = sorted(kind for kind in there.keys() - told.keys() if re.search(r"Q[3-8]", kind))
    if more:
        yield "not in the table: " + " ".join(f"{kind}:{there[kind]}" for kind in more)


def main(names: Sequence[str]) -> int:
    """Print a line a difference."""
    found = 0
    for model in MODELS.values():
        if not model.repository or not model.current or (names and model.stem not in names):
            continue
        try:
            lines = list(differences(model, listed(model.repository)))
        except (URLError, ValueError, KeyError, TypeError) as error:
            lines = [f"its list cannot be read: {error}"]
        for line in lines:
            print(f"{model.stem} ({model.repository}): {line}")
        found += len(lines)
    return min(1, found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
