"""A stranger would have to read a sentence twice.

Words that a native engineer would not write: a stranger has to read such a sentence twice.

"so many" and "of which" hide a number and a noun; ", else" is Python's, "otherwise" is English;
"anew" is again, "till" is until. Pages, which most people read, also say "its own X" and "next to".
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from support import ROOT

FOREIGN = re.compile(
    r"\bso many\b|\bof which\b|, else\b|\banew\b|\btill\b|\bthat which\b|\bas there (?:is|are)\b",
    re.IGNORECASE,
)
FOREIGN_ON_PAGES = re.compile(
    rf"{FOREIGN.pattern}|\bof (?:its|their) own\b|\bbeside\b|\bis there twice\b", re.IGNORECASE
)
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


def foreign(text: str, words: re.Pattern[str] = FOREIGN) -> list[str]:
    """Return the foreign words of a text, with the words around them."""
    flat = " ".join(text.split())
    return [flat[max(0, match.start() - 30) : match.end() + 20] for match in words.finditer(flat)]


def without_code(page: str) -> str:
    """Return a page without its code spans, whose names may be any word."""
    return re.sub(r"`[^`]*`", "", page)


def may_be_foreign(path: Path) -> bool:
    """Whether the module's text has a foreign word: most have none, and tokens take longer."""
    return bool(FOREIGN.search(re.sub(r"[\s#]+", " ", path.read_text(encoding="utf-8"))))


def test_code_is_written_in_plain_english() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): words
        for path in filter(may_be_foreign, (ROOT / "autolayers").rglob("*.py"))
        if (words := [word for text in prose(path) for word in foreign(text)])
    }
    assert not found


def test_pages_are_written_in_plain_english() -> None:
    found = {
        path.name: words
        for path in PAGES
        if (words := foreign(without_code(path.read_text(encoding="utf-8")), FOREIGN_ON_PAGES))
    }
    assert not found
