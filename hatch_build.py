"""Metadata that depends on where the project is hosted, which `tool.autolayers` of pyproject.toml
alone says: the URLs, and the README with its links made whole, for a package index."""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")
_PAGES = {
    "Repository": "",
    "Documentation": "/blob/{at}/docs/index.md",
    "Changelog": "/blob/{at}/CHANGELOG.md",
    "Issues": "/issues",
    "Security": "/security/policy",
}


class Hosted(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        root = Path(self.root)
        settings = (root / "pyproject.toml").read_text(encoding="utf-8")
        package = (root / "autolayers/__init__.py").read_text(encoding="utf-8")
        project = re.search(r'^repository = "(\S+)"$', settings, re.MULTILINE)
        version = re.search(r'^__version__ = "(\S+)"$', package, re.MULTILINE)
        assert project and version
        at = f"v{version[1]}"
        metadata["urls"] = {name: project[1] + page.format(at=at) for name, page in _PAGES.items()}
        text = (root / "README.md").read_text(encoding="utf-8")
        whole = _LINK.sub(lambda link: f"]({project[1]}/blob/{at}/{link[1]})", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": whole}
