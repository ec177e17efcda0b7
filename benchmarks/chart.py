"""A bar chart as SVG, with nothing but text."""

from __future__ import annotations

from html import escape

_ROW, _LEFT, _WIDE = 22, 250, 420


def bars(title: str, groups: list[tuple[str, list[tuple[str, float, str]]]]) -> str:
    """Groups of (name, value, label); the longest bar of each group fills the width."""
    lines, y = [], 40
    for group, rows in groups:
        lines.append(f'<text x="10" y="{y + 14}" font-weight="bold">{escape(group)}</text>')
        y += _ROW
        largest = max(value for _, value, _ in rows) or 1.0
        for name, value, label in rows:
            colour = "#2b6cb0" if name.startswith("rankwise") else "#a0aec0"
            lines.append(f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
            lines.append(f'<rect x="{_LEFT}" y="{y + 2}" width="{max(1.0, value / largest * _WIDE):.1f}" height="15" fill="{colour}"/>')
            lines.append(f'<text x="{_LEFT + value / largest * _WIDE + 6:.1f}" y="{y + 14}">{escape(label)}</text>')
            y += _ROW
        y += 8
    style = "font-family: sans-serif; font-size: 12px"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDE + 120}" height="{y + 10}" style="{style}">'
    return "\n".join([head, f'<text x="10" y="22" font-size="16">{escape(title)}</text>', *lines, "</svg>"]) + "\n"
