"""A hook of MkDocs: links to files outside docs/ lead to the repository.

On the repository's own pages such links work as they are.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

UPWARDS = re.compile(r"\]\((\.\./[^)#\s]+)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: object) -> str:  # noqa: ANN401
    """Return a page whose links out of docs/ are addresses of the repository."""
    here = posixpath.dirname(page.file.src_uri)
    repository = config["repo_url"].rstrip("/")

    def address(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[1]))
        inside = not target.startswith("../")
        return link[0] if inside else f"]({repository}/blob/main/{target.removeprefix('../')}"

    return UPWARDS.sub(address, markdown)
