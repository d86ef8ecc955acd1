"""For mkdocs: links of the pages to files beside docs/ lead to the repository, where its address is
known; without one they are words."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)]*)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Return a page's text for the site; called by mkdocs."""
    address = str(config["repo_url"] or "").rstrip("/")
    link = rf"[\1]({address}/blob/main/\2)" if address else r"\1"
    return _OUTSIDE.sub(link, markdown)
