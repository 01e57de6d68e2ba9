# SPDX-License-Identifier: Apache-2.0
"""What notebooks show. Every name and value is escaped."""
from __future__ import annotations

import html
import time
from typing import Any, Iterable, List, Sequence, Tuple


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table under a line of text."""
    def line(cells: Iterable[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<b>{html.escape(title)}</b><table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 180, 60, 24, 24


def freshness(model: str, past: Sequence[Tuple[int, float, float]], newest: int, now: float | None = None) -> str:
    """A picture of how a subscriber follows: the version that is served and the newest, over time. `past` has for each of the last
    updates the version, when it began to be served (seconds since 1970), and how many seconds after publish() began."""
    now = time.time() if now is None else now
    if not past:
        return ""
    served = sorted((at, version) for version, at, _ in past)
    published: List[Tuple[float, int]] = []
    for at, version in sorted((at - latency, version) for version, at, latency in past):
        published.append((at, max(version, published[-1][1] if published else version)))
    published.append((now, max(newest, published[-1][1])))
    served.append((now, served[-1][1]))
    begin, end = min(published[0][0], served[0][0]), max(now, served[-2][0])
    low = min(version for _, version in served)
    high = max(max(version for _, version in served), published[-1][1])

    def place(at: float, version: int) -> Tuple[float, float]:
        across = (at - begin) / (end - begin) if end > begin else 1.0
        up = (version - low) / (high - low) if high > low else 0.5
        return _LEFT + across * (_WIDTH - _LEFT - 10), _HEIGHT - _BOTTOM - up * (_HEIGHT - _BOTTOM - _TOP)

    def line(points: Sequence[Tuple[float, int]], color: str, dashes: str) -> str:
        steps = []
        for index, point in enumerate(points):
            if index:
                steps.append("{:.1f},{:.1f}".format(*place(point[0], points[index - 1][1])))
            steps.append("{:.1f},{:.1f}".format(*place(*point)))
        return (f'<polyline fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}" '
                f'points="{" ".join(steps)}"/>')

    def text(x: float, y: float, said: str, anchor: str = "start", color: str = "gray") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{html.escape(said)}</text>'

    numbers = [text(_LEFT - 6, place(end, version)[1] + 4, f"@{version}", "end") for version in sorted({low, high})]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'font-family="sans-serif" font-size="11" role="img"><title>{html.escape(model)}: served and newest version</title>'
            + line(published, "#d95f02", "5 3") + line(served, "#1b6ca8", "none") + "".join(numbers)
            + text(_LEFT, 14, "served", color="#1b6ca8") + text(_LEFT + 50, 14, "newest (dashed)", color="#d95f02")
            + text(_LEFT, _HEIGHT - 6, f"{end - begin:.3g} s ago") + text(_WIDTH - 10, _HEIGHT - 6, "now", "end") + "</svg>")
