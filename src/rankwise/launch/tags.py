"""Splits the single output stream of mpirun by rank: Open MPI can write a tag with the rank in front of each piece."""

from __future__ import annotations

import os
import re

_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:")
_CUT = re.compile(rb"\[[\d,]*\]?<?[a-z]*>?\Z")  # the beginning of a tag at the end of what has been read so far
_MPI = ("mpirun", "mpiexec", "orterun")


def tagging_environment(command: tuple[str, ...]) -> dict[str, str]:
    """The variable that makes mpirun tag its ranks' output; empty for other launchers, and where the user has chosen already."""
    is_mpi = os.path.basename(command[0]) in _MPI
    chosen = any("tag-output" in word or "tag_output" in word for word in command) or "OMPI_MCA_orte_tag_output" in os.environ
    return {"OMPI_MCA_orte_tag_output": "1"} if is_mpi and not chosen else {}


class TagReader:
    """Splits bytes into pieces, each with its rank; None for the launcher's own output."""

    def __init__(self) -> None:
        self._held = b""
        self._rank: int | None = None

    def feed(self, data: bytes) -> list[tuple[int | None, bytes]]:
        text = self._held + data
        cut = _CUT.search(text)
        text, self._held = (text[: cut.start()], text[cut.start() :]) if cut and len(cut[0]) < 32 else (text, b"")
        found: list[tuple[int | None, bytes]] = []
        at = 0
        for tag in _TAG.finditer(text):
            self._take(text[at : tag.start()], found)
            self._rank, at = int(tag[1]), tag.end()
        self._take(text[at:], found)
        return found

    def rest(self) -> list[tuple[int | None, bytes]]:
        """Bytes that were held back because they looked like the beginning of a tag."""
        held, self._held = self._held, b""
        return [(self._rank, held)] if held else []

    def _take(self, piece: bytes, found: list[tuple[int | None, bytes]]) -> None:
        """Add a piece: up to the end of the line it is the tagged rank's, the lines after that are the launcher's."""
        end = piece.find(b"\n") + 1
        own, others = (piece[:end], piece[end:]) if end else (piece, b"")
        if own:
            found.append((self._rank, own))
        if end:
            self._rank = None
        if others:
            found.append((None, others))
