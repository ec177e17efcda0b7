"""Archives whose entries lie uncompressed where the directory says, each wholly there."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest

from rankwise.weights import zipped
from rankwise.weights.tensor_records import CheckpointError, Damaged
from rankwise.weights.zipped import open_archive

PATH = Path("last.pt")
ENTRIES = {"x/data.pkl": b"pickle", "x/data/0": b"0123456789", "x/version": b"3\n"}


def made(entries: dict[str, bytes] = ENTRIES, compress: int = zipfile.ZIP_STORED) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", compress) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return whole.getvalue()


def test_entries_are_found_where_they_lie_by_their_names_without_the_folder() -> None:
    data = made()

    archive = open_archive(PATH, data)

    assert list(archive.entries) == ["data.pkl", "data/0", "version"]
    assert {f"x/{name}": data[at.offset : at.offset + at.nbytes] for name, at in archive.entries.items()} == ENTRIES
    assert archive.read("data/0") == b"0123456789"


def test_an_archive_inside_a_file_has_places_of_that_file() -> None:
    data = b"before" + made() + b"behind"

    archive = open_archive(PATH, data, 6, len(data) - 12)

    assert archive.read("data.pkl") == b"pickle"
    assert data[archive.entries["data.pkl"].offset :].startswith(b"pickle")


def test_a_flipped_bit_is_found_where_there_is_a_checksum() -> None:
    data = made().replace(b"0123456789", b"0123456798")
    archive = open_archive(PATH, data)

    with pytest.raises(Damaged, match="the bytes of data/0 are not what was written"):
        archive.read("data/0")
    assert archive.read("data.pkl") == b"pickle"


def test_what_was_written_without_checksums_is_read() -> None:
    data = bytearray(made())
    at = data.index(b"PK\x01\x02")
    data[at + 16 : at + 20] = bytes(4)

    archive = open_archive(PATH, bytes(data))

    assert archive.entries["data.pkl"].crc is None
    assert archive.read("data.pkl") == b"pickle"


def test_an_entry_that_is_missing_or_too_large_to_be_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = open_archive(PATH, made())
    with pytest.raises(Damaged, match="byteorder is missing"):
        archive.read("byteorder")

    monkeypatch.setattr(zipped, "MAX_SMALL_ENTRY", 6)
    assert archive.read("data.pkl") == b"pickle"
    with pytest.raises(Damaged, match="data/0 has 10 bytes, where at most 6 are sensible"):
        archive.read("data/0")


def beyond(data: bytes) -> bytes:
    """The size of the last entry, in the directory, is a lie."""
    changed = bytearray(data)
    at = changed.rindex(b"PK\x01\x02")
    changed[at + 20 : at + 28] = struct.pack("<II", 1 << 20, 1 << 20)
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "directory of entries cannot be read"),
        (made()[:-1], "directory of entries cannot be read"),
        (made(compress=zipfile.ZIP_DEFLATED), "torch.save never compresses"),
        (made().replace(b"PK\x03\x04", b"PK\x03\x05"), "x/data.pkl is not where the directory says"),
        (b"other bytes" + made(), "that of another archive inside it"),
        (made({"x/a": b"1", "y/a": b"2"}), "two entries are called a"),
        (beyond(made()), "x/version should have 1,048,576 bytes"),
    ],
)
def test_what_is_no_whole_archive_is_damage(data: bytes, said: str) -> None:
    with pytest.raises(Damaged, match=said):
        open_archive(PATH, data)


def test_the_number_of_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipped, "_MAX_ENTRIES", 3)
    assert open_archive(PATH, made()).entries

    monkeypatch.setattr(zipped, "_MAX_ENTRIES", 2)
    with pytest.raises(Damaged, match="3 entries"):
        open_archive(PATH, made())


def test_a_program_of_torch_script_is_named_and_its_data_alone_is_none() -> None:
    with pytest.raises(CheckpointError) as caught:
        open_archive(PATH, made({"x/constants.pkl": b"", "x/code/net.py": b""}, zipfile.ZIP_DEFLATED))

    assert caught.value.finding.code == "RW740"
    assert list(open_archive(PATH, made({"x/constants.pkl": b"", "x/decode/net.py": b""})).entries) == ["constants.pkl", "decode/net.py"]
