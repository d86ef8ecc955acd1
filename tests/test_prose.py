"""Words that a native engineer would not write: a stranger has to read such a sentence twice.

"so many" and "of which" hide a number and a noun; ", else" is Python's, "otherwise" is English.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from support import ROOT

FOREIGN = re.compile(r"\bso many\b|\bof which\b|, else\b", re.IGNORECASE)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def prose(path: Path) -> Iterator[str]:
    """Yield the comments and strings of a module, each run of comments as one text."""
    comments: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            comments.append(token.string.lstrip("# "))
        elif token.type != tokenize.NL:
            yield " ".join(comments)
            comments = []
        if token.type == tokenize.STRING:
            yield token.string


def foreign(text: str) -> list[str]:
    """Return the foreign words of a text, with what stands around them."""
    flat = " ".join(text.split())
    return [flat[max(0, found.start() - 30) : found.end() + 20] for found in FOREIGN.finditer(flat)]


def test_code_is_written_in_plain_english() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): words
        for path in (ROOT / "autolayers").rglob("*.py")
        if (words := [word for text in prose(path) for word in foreign(text)])
    }
    assert not found


def test_pages_are_written_in_plain_english() -> None:
    found = {
        path.name: words for path in PAGES if (words := foreign(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_a_foreign_word_is_found_over_a_line_s_end(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""The layers, of\nwhich one is."""\n# a\n# b, else c\n', encoding="utf-8")
    assert [word for text in prose(module) for word in foreign(text)]
    assert len([word for text in prose(module) for word in foreign(text)]) == 2
