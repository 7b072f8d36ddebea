"""Draw the README's picture: what `softleak audit` prints, as it prints it.

python tools/picture.py docs/audit.svg
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

from softleak.audit import audit_embedded
from softleak.cli.tables import audit_table, closing_words


def main() -> None:
    """Run the audit and write the picture."""
    console = Console(record=True, width=120, file=io.StringIO())
    report = audit_embedded(each=2, seed=2)
    console.print(audit_table(report))
    console.print(closing_words(report))
    Path(sys.argv[1]).write_text(console.export_svg(title="softleak audit"))


if __name__ == "__main__":
    main()
