"""Inputs elsewhere: the rows of every format as from a file here, secrets refused, and only what is asked for is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest

from rankwise.errors import UnreadableInput, UsageError
from rankwise.offline import addresses
from rankwise.offline.addresses import Address, RemoteBytes, path_or_address
from rankwise.offline.child import load_file
from rankwise.offline.row_batches import Selection
from rankwise.offline.source import open_source
from tests.offline.inputs import KINDS, rows, write
from tests.offline.test_source import matrix

COUNT = 101


def put(memory: fsspec.AbstractFileSystem, path: Path) -> str:
    if path.is_dir():
        for file in path.iterdir():
            memory.pipe(f"/data/{path.name}/{file.name}", file.read_bytes())
    else:
        memory.pipe(f"/data/{path.name}", path.read_bytes())
    return f"memory://data/{path.name}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_rows_it_gives_here(tmp_path: Path, memory: fsspec.AbstractFileSystem, kind: str) -> None:
    path, chosen = write(tmp_path, kind, COUNT)
    here, there = (open_source(given, Selection(**chosen)) for given in (path, put(memory, path)))
    batches = list(there.batches(16))

    assert there.total == here.total and there.is_recognisable and "data" in there.identity["path"]
    for one, two in zip(here.batches(16), batches, strict=True):
        if "__file__" in two.columns:
            two.columns["input"] = np.stack([load_file(name) for name in two.columns.pop("__file__")])
        np.testing.assert_array_equal(matrix(one), matrix(two))
        assert (one.first_row, one.position) == (two.first_row, two.position)
    resumed = list(there.batches(16, 48, batches[2].position))
    assert resumed[0].first_row == 48 and sum(batch.length for batch in resumed) == COUNT - 48


def test_a_changed_input_is_another_one(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    path, _ = write(tmp_path, "files", 3)
    address = put(memory, path)
    before = open_source(address, Selection()).identity
    np.save(path / "00001.npy", rows(7)[:2])
    put(memory, path)

    assert open_source(address, Selection()).identity != before


@pytest.mark.parametrize(
    "given",
    [
        "s3://key:hush@bucket/x.npy",
        "s3://bucket/x.npy?secret_key=hush",
        "abfs://c@a.net/x.npy?client_secret=hush",
        "https://h/x.npy?sig=hush",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(UsageError, match="has a secret in it") as refused:
        path_or_address(given)
    assert "hush" not in str(refused.value) + str(refused.value.finding.to_dict())


def test_what_is_behind_the_question_mark_is_not_shown() -> None:
    address = path_or_address("s3://bucket/a/x.npy?endpoint_override=localhost:1&scheme=http&region=us-east-1")

    assert isinstance(address, Address) and str(address) == "s3://bucket/a/x.npy" and address.path == "bucket/a/x.npy"
    assert address.below("y z") == "s3://bucket/a/x.npy/y%20z?endpoint_override=localhost:1&scheme=http&region=us-east-1"


def test_google_is_not_asked_for_a_quarter_of_an_hour() -> None:
    limits = [Address(f"gs://anonymous@bucket/x.npy{more}").system for more in ("", "?scheme=http", "?retry_limit_seconds=5")]
    assert [system.__reduce__()[1][0]["retry_time_limit"].seconds for system in limits] == [30, 30, 5]


@pytest.mark.parametrize(
    "variable, value",
    [
        ("AZURE_STORAGE_KEY", "aHVzaA=="),
        ("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaA=="),
        ("AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;AccountKey=aHVzaA==;EndpointSuffix=core.windows.net"),
    ],
)
@pytest.mark.parametrize("before", ["abfs://a.blob.core.windows.net/jobs", "abfss://jobs@a.dfs.core.windows.net", "abfs://a@jobs"])
def test_azure_takes_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch, before: str, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    addresses._open_system.cache_clear()
    address = Address(f"{before}/in/x.npy")
    options = address.system.__reduce__()[1][0]
    assert (options["account_name"], options["account_key"], address.path) == ("a", "aHVzaA==", "jobs/in/x.npy")
    addresses._open_system.cache_clear()


@pytest.mark.parametrize("role", ["input", "output"])
def test_without_credentials_azure_is_a_finding(tmp_path: Path, role: str) -> None:
    """Its client has ended the process where something was opened before anything was asked."""
    path, _ = write(tmp_path, "npy", 4)
    places = {"input": str(path), "output": str(tmp_path / "out.npy"), role: "abfs://account@127.0.0.1:1/jobs/x.npy?enable_tls=false"}
    words = [word for name, place in places.items() for word in (f"--{name}", place)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AZURE_")} | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "rankwise", "predict", "--build", "torch.nn:Identity", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)

    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert f"jobs/x.npy cannot be {'read' if role == 'input' else 'written'}" in " ".join(done.stderr.split())


def test_an_address_that_nothing_opens_says_what_was_tried() -> None:
    with pytest.raises(UsageError, match="nothing here opens nowhere://x"):
        path_or_address("nowhere://x/y.npy")


def test_a_file_of_this_machine_is_a_path() -> None:
    assert path_or_address("file:///tmp/a%20b.npy") == Path("/tmp/a b.npy")


def test_bytes_are_fetched_by_their_places(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/data/b", bytes(range(100)))
    address = path_or_address("memory://data/b")

    assert isinstance(address, Address)
    found = RemoteBytes(address)
    assert len(found) == 100 and found[:3] == b"\0\1\2" and found[98:200] == b"bc"


def test_an_array_in_fortrans_order_is_refused(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(rows(4)))
    with pytest.raises(UnreadableInput, match="Fortran"):
        open_source(put(memory, tmp_path / "x.npy"), Selection())
