"""The journal: whatever happens to its end, what is read back is what was written, up to one point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwise.offline.record_log import InUse, RecordLog

RECORDS = st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=3), max_size=6)
again = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(path: Path, records: list[dict[str, object]]) -> bytes:
    path.unlink(missing_ok=True)
    journal = RecordLog(path)
    for record in records:
        journal.append(record)
    journal.close()
    return path.read_bytes()


def read(path: Path) -> list[dict[str, object]]:
    journal = RecordLog(path)
    journal.close()
    return journal.records


@again
@given(RECORDS)
def test_it_holds_what_was_appended(tmp_path: Path, records: list[dict[str, object]]) -> None:
    written(tmp_path / "journal", records)

    assert read(tmp_path / "journal") == records


@again
@given(RECORDS, st.data())
def test_a_torn_end_costs_the_torn_record_and_no_other(tmp_path: Path, records: list[dict[str, object]], data: st.DataObject) -> None:
    path = tmp_path / "journal"
    whole = written(path, records)
    cut = data.draw(st.integers(0, len(whole)))
    tail = data.draw(st.binary(max_size=20) | st.just(b"\0" * 5000))  # what a file system may leave behind the last write
    path.write_bytes(whole[:cut] + tail)

    found = read(path)
    journal = RecordLog(path)
    journal.append({"next": 1})
    journal.close()

    assert found == records[: len(found)]
    assert cut < len(whole) or found == records
    assert read(path) == [*found, {"next": 1}]


@again
@given(RECORDS.filter(bool), st.data())
def test_a_flipped_bit_ends_it_there(tmp_path: Path, records: list[dict[str, object]], data: st.DataObject) -> None:
    path = tmp_path / "journal"
    whole = bytearray(written(path, records))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)

    found = read(path)

    assert len(found) < len(records)
    assert found == records[: len(found)]


def test_forgetting_the_end(tmp_path: Path) -> None:
    journal = RecordLog(tmp_path / "journal")
    for i in range(5):
        journal.append({"number": i, "text": "ü" * i})
    journal.keep(2)
    journal.append({"number": 9})
    journal.close()

    assert [record["number"] for record in read(tmp_path / "journal")] == [0, 1, 9]


def test_only_one_process_has_it(tmp_path: Path) -> None:
    journal = RecordLog(tmp_path / "journal")
    code = """if True:
        import pathlib, sys
        from rankwise.offline import record_log
        from rankwise.offline.record_log import InUse, RecordLog
        record_log._PATIENCE_S = 0.1
        try:
            RecordLog(pathlib.Path(sys.argv[1]))
        except InUse:
            sys.exit(7)"""

    other = subprocess.run([sys.executable, "-c", code, str(tmp_path / "journal")], timeout=30)
    journal.close()

    assert other.returncode == 7
    assert read(tmp_path / "journal") == []


def test_a_full_disk_leaves_it_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = RecordLog(tmp_path / "journal")
    journal.append({"number": 0})
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, data, at: real_pwrite(file, data[:5], at))
        with pytest.raises(OSError, match="No space"):
            journal.append({"number": 1})
    journal.append({"number": 2})
    journal.close()

    assert [record["number"] for record in read(tmp_path / "journal")] == [0, 2]


real_pwrite = os.pwrite
assert issubclass(InUse, Exception)
