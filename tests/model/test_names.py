"""Anyone who adds an architecture would have to look for its name in the whole package.

Only the rows of architectures and their builders know an architecture by name.
"""

from __future__ import annotations

from support import ROOT, strings

from autolayers.model import NAMES

PACKAGE = ROOT / "autolayers"
PLACES = (
    PACKAGE / "model" / "architectures.py",
    PACKAGE / "model" / "created.py",
    PACKAGE / "model" / "demanded.py",
    # of another program
    PACKAGE / "engines" / "ik_llama",
    PACKAGE / "graph" / "rows.py",
    PACKAGE / "graph" / "models",
)
# strings that are spelt like an architecture and mean something else
OTHERS = {
    "flags/own.py": {"llama"},  # an attribute
    "launch/checked_builds.py": {"llama"},  # a library
    "bundled/projectors.py": {"clip"},  # a projector's architecture
    "launch/command.py": {"llama"},  # the program
    # kinds of tokenizers
    "model/keys.py": {"llama", "bert", "gpt2", "gemma4", "t5", "plamo2", "plamo3"},
    "model/vocabulary.py": {"gemma4"},
    # kinds of projectors
    "model/projectors.py": {"cogvlm", "gemma3", "lfm2", "llama4", "muse-glimmer", "paddleocr"},
    # kinds of projectors
    "memory/extras.py": {"gemma3", "gemma4", "lfm2", "llama4", "muse-glimmer", "paddleocr"},
}


def named(text: str) -> list[tuple[int, str]]:
    """(line, string) of a module's strings that are an architecture's name or a list of names;
    docstrings may."""
    return [
        (line, string)
        for line, string in strings(text, NAMES)
        if string.split() and set(string.split()) <= set(NAMES)
    ]


def test_no_architecture_is_named_outside_its_rows() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if not any(place in (path, *path.parents) for place in PLACES):
            name = path.relative_to(PACKAGE).as_posix()
            found += [
                f"{name}:{line}: {text!r}"
                for line, text in named(path.read_text())
                if text not in OTHERS.get(name, ())
            ]
    assert not found, "\n".join(found)


def test_the_search_finds_what_it_must() -> None:
    text = '"""llama"""\nx = f"{y}qwen3"\nz = ["llama.cpp", "gpt2 bloom", "a llama", ""]\n'
    assert named(text) == [(2, "qwen3"), (3, "gpt2 bloom")]
