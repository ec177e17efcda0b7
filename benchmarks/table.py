"""One line of a benchmark's table: what was measured, ours, the other's, the ratio and what is required of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A ratio over 1 is in favour of rankwise."""

    what: str
    ours: str
    against: str
    ratio: float | None = None
    required: float | None = None

    @property
    def is_met(self) -> bool | None:
        return None if self.ratio is None or self.required is None else self.ratio >= self.required

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        required = "" if self.required is None else f"≥ {self.required:.3g} {'yes' if self.is_met else 'no'}"
        return f"| {self.what} | {self.ours} | {self.against} | {ratio} | {required} |"


Groups = list[tuple[str, list[tuple[str, float, str]]]]  # of bars: name, value, label


def measured(sections: dict[str, Callable[[Groups], list[Line]]], wanted: list[str], groups: Groups) -> list[Line]:
    """The lines of these sections, each printed as soon as it is there."""
    lines: list[Line] = []
    for name in wanted:
        print(f"-- {name}", flush=True)
        for line in sections[name](groups):
            print(line, flush=True)
            lines.append(line)
    return lines


HEAD = ["| what | rankwise | against | ratio | required |", "|---|---|---|---|---|"]
