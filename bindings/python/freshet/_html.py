# SPDX-License-Identifier: Apache-2.0
"""What notebooks show. Every name and value is escaped."""
from __future__ import annotations

import html
from typing import Any, Iterable


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table under a line of text."""
    def line(cells: Iterable[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<b>{html.escape(title)}</b><table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"
