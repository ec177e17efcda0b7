"""A run folder's evidence is read back as it was written; damage is said, never guessed around, and never raises anything else."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import stat
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import JobEvidence, RankEvidence
from rankwise.evidence.run_folder import load_evidence, load_rank, pack_log, save_evidence, unpack_log
from tests.evidence.strategies import FUZZ, deep, json_values, logs, some_record
from tests.report.example_job import crash, skipped_collective


@pytest.mark.parametrize("make", [skipped_collective, crash])
def test_a_job_comes_back_equal(tmp_path: Path, make: object) -> None:
    _, job = make()  # type: ignore[operator]

    save_evidence(tmp_path / "evidence", job)

    assert load_evidence(tmp_path / "evidence") == job


@pytest.mark.parametrize("seed", range(20))
def test_any_job_comes_back_equal(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    job = some_record(JobEvidence, chance)
    ranks = chance.sample(range(5000), 3)
    job = dataclasses.replace(job, ranks={rank: dataclasses.replace(some_record(RankEvidence, chance), rank=rank) for rank in ranks})

    save_evidence(tmp_path, job)

    assert load_evidence(tmp_path) == job


def test_a_second_process_that_claims_a_rank_comes_back(tmp_path: Path) -> None:
    _, job = crash()
    job = dataclasses.replace(job, duplicates=(job.ranks[1], RankEvidence(0)))

    save_evidence(tmp_path / "evidence", job)

    assert load_evidence(tmp_path / "evidence") == job


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    save_evidence(tmp_path / "evidence", skipped_collective()[1])

    for path in [tmp_path / "evidence", *(tmp_path / "evidence").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_saving_again_replaces_and_leaves_no_scraps(tmp_path: Path) -> None:
    save_evidence(tmp_path, skipped_collective(world_size=4)[1])
    smaller = skipped_collective(world_size=2)[1]
    save_evidence(tmp_path, smaller)

    assert load_evidence(tmp_path) == smaller  # not the four ranks of before
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


@FUZZ
@given(log=logs())
def test_a_packed_log_comes_back_equal(log: CollectiveLog) -> None:
    back = unpack_log(pack_log(log), log.signatures, log.sites)
    back.is_partial = log.is_partial

    assert back == log


@FUZZ
@given(data=st.binary(max_size=400) | st.binary(max_size=200).map(lambda tail: b"RWC1" + struct.pack("<I", len(tail) // 22) + tail))
def test_any_bytes_are_a_log_or_a_value_error(data: bytes) -> None:
    try:
        log = unpack_log(data, [Signature("0", "barrier")], [])
    except ValueError:
        return
    assert all(entry.what.op == "barrier" for entry in log)  # whatever was accepted can be read to its end


@FUZZ
@given(data=st.binary(max_size=300) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_in_place_of_a_file(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    save_evidence(folder, skipped_collective(world_size=2, num_slots=6)[1])
    for name in ("ranks/0.json", "ranks/1.bin"):
        (folder / name).write_bytes(data)
    job = load_evidence(folder)  # damaged ranks are left out, and said so
    assert len(job.ranks) + sum("is damaged" in spot for spot in job.blind) == 2

    (folder / "job.json").write_bytes(data)
    with pytest.raises((ValueError, OSError)):
        load_evidence(folder)


def test_every_prefix_of_every_file_is_refused(tmp_path: Path) -> None:
    save_evidence(tmp_path, skipped_collective(world_size=2, num_slots=6)[1])
    for name in ("job.json", "ranks/1.json", "ranks/1.bin"):
        whole = (tmp_path / name).read_bytes()
        for end in sorted({0, 1, 4, 8, len(whole) // 2, len(whole) - 1}):
            (tmp_path / name).write_bytes(whole[:end])
            if name == "job.json":
                with pytest.raises((ValueError, OSError)):
                    load_evidence(tmp_path)
            else:
                job = load_evidence(tmp_path)
                assert list(job.ranks) == [0]
                assert any("rank 1 is damaged" in spot for spot in job.blind)
        (tmp_path / name).write_bytes(whole)


def test_flipped_bits_raise_nothing_unexpected(tmp_path: Path) -> None:
    chance = random.Random(20260101)
    save_evidence(tmp_path, crash()[1])
    for name in ("job.json", "ranks/1.json", "ranks/1.bin"):
        whole = (tmp_path / name).read_bytes()
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            (tmp_path / name).write_bytes(data)
            try:
                load_evidence(tmp_path)
            except (ValueError, OSError):
                pass
        (tmp_path / name).write_bytes(whole)


@pytest.mark.parametrize("name", ["job.json", "ranks/0.json"])
def test_nesting_deeper_than_the_stack(tmp_path: Path, name: str) -> None:
    save_evidence(tmp_path, skipped_collective(world_size=2, num_slots=6)[1])
    (tmp_path / name).write_bytes(deep())

    if name == "job.json":
        with pytest.raises(ValueError):
            load_evidence(tmp_path)
    else:
        assert list(load_evidence(tmp_path).ranks) == [1]


@pytest.mark.parametrize("stem", ["-1", "1e3", "٣", "0x1", " 1", "99999999999999999999", "0001", "nul", "1_000"])
def test_files_that_are_not_named_after_a_rank(tmp_path: Path, stem: str) -> None:
    """A rank is a plain number; what else int() would take is somebody's trick or mistake."""
    save_evidence(tmp_path, skipped_collective(world_size=1, num_slots=3)[1])
    (tmp_path / "ranks" / "0.json").rename(tmp_path / "ranks" / f"{stem}.json")

    job = load_evidence(tmp_path)

    assert not job.ranks
    assert job.blind


@pytest.mark.timeout(60)
def test_links_out_of_the_folder_and_pipes_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere"
    save_evidence(secret, skipped_collective(world_size=2, num_slots=6)[1])
    folder = tmp_path / "evidence"
    save_evidence(folder, skipped_collective(world_size=2, num_slots=6)[1])
    (folder / "ranks" / "0.json").unlink()
    (folder / "ranks" / "0.json").symlink_to(secret / "ranks" / "0.json")
    (folder / "ranks" / "1.bin").unlink()
    os.mkfifo(folder / "ranks" / "1.bin")  # opening it would wait for ever

    job = load_evidence(folder)
    assert not job.ranks
    assert len([spot for spot in job.blind if "is damaged" in spot]) == 2

    (folder / "job.json").unlink()
    (folder / "job.json").symlink_to(secret / "job.json")
    with pytest.raises((ValueError, OSError)):
        load_evidence(folder)


def test_a_claim_of_many_rows_takes_no_memory(tmp_path: Path) -> None:
    for count in (2**32 - 1, 1 << 22, 1 << 21):
        with pytest.raises(ValueError):
            unpack_log(b"RWC1" + struct.pack("<I", count) + bytes(100), [], [])


def test_a_rank_that_points_outside_its_tables_is_refused(tmp_path: Path) -> None:
    save_evidence(tmp_path, skipped_collective(world_size=1, num_slots=6)[1])
    path = tmp_path / "ranks" / "0.json"
    data = json.loads(path.read_text())
    data["signatures"] = data["signatures"][:1]
    path.write_text(json.dumps(data))

    with pytest.raises(ValueError):
        load_rank(path)
