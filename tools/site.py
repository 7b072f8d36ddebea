"""A hook of MkDocs: links to files outside docs/ lead to the repository.

On the repository's own pages such links work as they are.
"""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)")


def on_page_markdown(markdown: str, config: Any, **_: object) -> str:  # noqa: ANN401
    """Return a page whose links out of docs/ are addresses of the repository."""
    return OUTSIDE.sub(rf"]({config['repo_url'].rstrip('/')}/blob/main/\1", markdown)
