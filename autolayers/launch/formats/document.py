"""YAML of dicts and lists: the one writer of files that are such documents.

write({"kind": "Service", "spec": {"ports": [{"port": 8080}]}})    # its text
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    Document = dict[str, Any]


def write(*documents: Mapping[str, Any], notes: list[str] | None = None) -> str:
    """Return the text of a file, behind its comments."""
    text = "---\n".join("\n".join(_lines(each)) + "\n" for each in documents)
    return "".join(f"{note}\n" for note in notes or ()) + text


def _lines(value: object, indent: str = "") -> Iterator[str]:
    """Yield the lines of a value. A string is a scalar as it stands in the file, so what is not
    the format's own goes through `quoting.yaml`; a key with None is left out, and one that starts
    with # is a comment."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            if key[0] == "#":
                yield indent + key
            elif isinstance(each, (dict, list)) and each:
                yield f"{indent}{key}:"
                yield from _lines(each, indent + "  ")
            elif each is not None:
                yield f"{indent}{key}: {next(_lines(each))}".rstrip()
    elif isinstance(value, list):
        for each in value:
            first, *others = _lines(each, indent + "  ")
            yield f"{indent}- {first.strip()}"
            yield from others
    else:
        yield indent + (str(value).lower() if isinstance(value, bool) else str(value))
