"""Pages of docs/, and tables between markers in other files, that are made from the program's own
tables.

    python docs/make.py                  # all of them
    python docs/make.py architectures    # docs/architectures.md alone
    python docs/make.py plans  # docs/plans.md, which takes a minute and is not among all of them
    # exit code 1 and their names where a file is not what would be made
    python docs/make.py --check

A table stands between <!-- made by docs/make.py: NAME --> and <!-- end -->; make_flags.part(NAME)
makes it.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

from autolayers.builds import NEWEST  # noqa: E402

# name -> its file
FILES = {
    "api": DOCS / "api.md",
    "architectures": DOCS / "architectures.md",
    "builds": DOCS / "builds.md",
    "rules": DOCS / "rules.md",
    "reliability": DOCS / "reliability.md",
    "troubleshooting": DOCS / "troubleshooting.md",
    "launch": DOCS / "launch.md",
    "launch-files": DOCS / "launch-files.md",
    "planner": DOCS / "planner.md",
    "search": DOCS / "search.md",
    "decisions": DOCS / "decisions.txt",
    "tune": DOCS / "tune.md",
    "reading-a-plan": DOCS / "reading-a-plan.md",
    "README": DOCS.parent / "README.md",
    "commands": DOCS / "commands.md",
    "autolayers.1": DOCS / "autolayers.1",
    **{
        f"completion {shell}": DOCS / "completions" / f"autolayers.{shell}"
        for shell in ("bash", "zsh", "fish")
    },
}
LONG = {"plans": DOCS / "plans.md", "best": DOCS / "best.md"}  # minutes
# the newest that is modelled
_BUILD = re.compile(r"(follows? the source of llama\.cpp's build )\d+")
_PART = re.compile(
    r"(<!-- made by docs/make\.py: ([\w ]+) -->\n\n).*?(\n\n<!-- end "
    r"-->)",
    re.DOTALL,
)


def render(name: str) -> str:
    """The text of a file as it should be."""
    import make_flags
    import make_reading

    if name == "autolayers.1":
        return make_flags.man()
    if name == "decisions":
        return make_reading.decisions()
    if name.startswith("completion "):
        from autolayers.cli.completion import script

        return script(name.partition(" ")[2])
    if name in (
        "README",
        "commands",
        "launch",
        "launch-files",
        "planner",
        "reading-a-plan",
        "search",
        "tune",
    ):
        text = _BUILD.sub(rf"\g<1>{NEWEST}", FILES[name].read_text(encoding="utf-8"))
        return _PART.sub(
            lambda found: (
                found[1]
                + make_reading.PARTS.get(found[2], lambda: make_flags.part(found[2]))()
                + found[3]
            ),
            text,
        )
    return str(import_module(f"make_{name}").render())


def main(words: list[str]) -> int:
    check = "--check" in words
    stale = []
    known = FILES | LONG
    for name in [word for word in words if word in known] or FILES:
        file, text = known[name], render(name)
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(file.relative_to(DOCS.parent))
        if not check:
            file.write_text(text, encoding="utf-8")
    for file in stale:
        print(f"{file} {'is not current: run python docs/make.py' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
