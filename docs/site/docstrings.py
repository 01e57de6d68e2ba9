# SPDX-License-Identifier: Apache-2.0
"""The package's docstrings name parameters in two columns. Markdown knows none, so mkdocstrings gets lists in their place."""
import ast
import re

import griffe

ENTRY = re.compile(r"^(\S(?:.*?\S)??) {2,}(\S.*)$")


def with_lists(text: str) -> str:
    """A line `name   what it is` and the lines below it that stand further in become one entry of a list."""
    lines, in_entry = [], False
    for line in text.split("\n"):
        entry = ENTRY.match(line)
        if entry:
            if not in_entry and lines and lines[-1]:
                lines.append("")
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif in_entry and line.startswith(" "):
            lines[-1] += " " + line.strip()
        else:
            if in_entry and line:
                lines.append("")
            lines.append(line)
        in_entry = bool(entry) or (in_entry and line.startswith(" "))
    return "\n".join(lines)


class Lists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is None:
            return
        text = obj.docstring.value
        if obj.is_module:  # Griffe took the margin away, and an example with it that is all of the rest.
            text = ast.get_docstring(ast.parse(obj.filepath.read_text(encoding="utf-8")), clean=False).strip()
        obj.docstring.value = with_lists(text)
