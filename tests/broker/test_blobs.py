"""A reference comes from outside: it leads to what was put there for it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.broker.blobs import Blobs
from rankwise.broker.messages import Malformed


def test_bytes_over_the_limit_go_to_a_file_and_are_taken_away(tmp_path: Path) -> None:
    blobs = Blobs(None, tmp_path, large_bytes=10)
    assert blobs.keep(memoryview(b"few")) is None
    ref = blobs.keep(memoryview(b"x" * 10))
    assert ref is not None and blobs.fetch(ref) == b"x" * 10
    blobs.drop((ref,))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "ref", ["file:../secret", "file:/etc/passwd", "file:link", "file:", "file:.", "redis:other", "http://x", "x\0y", "file:a\0b"]
)
def test_no_reference_leads_out(tmp_path: Path, ref: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    blobs = Blobs(None, folder)
    with pytest.raises(Malformed):
        blobs.fetch(ref)
    blobs.drop((ref,))
    assert (tmp_path / "secret").exists()


def test_without_a_folder_no_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="--files"):
        Blobs().fetch(f"file:{tmp_path}")
