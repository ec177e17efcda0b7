"""Which format a path wants. Formats are found by listing their folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rankwise.errors import UsageError
from rankwise.offline import formats
from rankwise.offline.format import _by_suffix, format_to_read, format_to_write


def test_each_file_of_the_folder_is_a_format_with_suffixes_of_its_own() -> None:
    found = _by_suffix()

    assert {each.read.__module__.rsplit(".", 1)[1] for each in found.values()} == set(formats.names())
    assert {each.write.__module__.rsplit(".", 1)[1] for each in found.values()} == set(formats.names())
    assert Counter(suffix for each in set(found.values()) for suffix in each.suffixes).most_common(1)[0][1] == 1


@pytest.mark.parametrize(("name", "wanted"), [("x.PQ", "parquet"), ("x.tsv", "csv"), ("a.b/x.ndjson", "jsonl"), ("x.feather", "arrow")])
def test_a_suffix_is_enough(name: str, wanted: str) -> None:
    for found in (format_to_read(Path(name)), format_to_write(Path(name))):
        assert found.read.__module__.endswith(f".{wanted}")


def test_a_folder_is_read_whatever_its_name_and_written_without_a_suffix(tmp_path: Path) -> None:
    (tmp_path / "images.csv").mkdir()

    assert format_to_read(tmp_path / "images.csv") is format_to_write(tmp_path / "out") is _by_suffix()[""]


def test_what_nothing_reads_or_writes_is_a_finding_that_lists_what_is_known() -> None:
    for look, name in ((format_to_read, "x.xlsx"), (format_to_write, "x.xlsx"), (format_to_read, "data")):
        with pytest.raises(UsageError, match="er for") as caught:
            look(Path(name))
        assert ".parquet" in caught.value.finding.why and ".tsv" in caught.value.finding.why
