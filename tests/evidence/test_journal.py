"""Journals as the probe writes them and the watcher reads them; damaged lines are skipped, and what is kept has the type it claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.evidence.journal import Journal
from rankwise.evidence.records import Ended, Frame, Init, Model, NewGroup, Raised
from rankwise.ranks import read_rank_env
from tests.evidence.strategies import FUZZ, deep, json_values

FRAMES = [["train.py", 3, "main"]]
# One good line of every kind; t is when.
GOOD: list[dict[str, Any]] = [
    {"k": "process", "pid": 7, "ppid": 1, "argv": ["python", "train.py"], "host": "node-a", "env": {"RANK": "1", "WORLD_SIZE": "2"}},
    {"k": "torch", "version": "2.13.0"},
    {"k": "streams", "out": "/tmp/out.txt", "err": "/tmp/err.txt"},
    {"k": "server", "path": "/dev/shm/x/s-7"},
    {"k": "ring", "ops": ["all_reduce", "barrier"]},
    {"k": "name", "i": 1, "s": "torch.float32"},
    {"k": "site", "i": 1, "frames": FRAMES},
    {
        "k": "init", "site": 1, "backend": "gloo", "method": "env://", "rank": 1, "world_size": 2, "timeout_s": 30.0, "address": "node-a",
        "port": "29500", "file_mtime": None, "env": {"MASTER_PORT": "29500"},
    },
    {"k": "inited", "error": ""},
    {"k": "rank", "rank": 1, "world_size": 2, "backend": "gloo"},
    {"k": "new_group", "ranks": [0, 1], "site": 1, "local": False},
    {"k": "new_group_made", "name": "1"},
    {"k": "model", "site": 1, "names": ["w"], "shapes": [[2, 3]], "dtypes": ["torch.half"], "file": "n.py", "buffers": False},
    {"k": "unused", "names": ["w"], "replaced": [], "added": ["v"]},
    {"k": "raise", "type": "KeyError", "message": "'x'", "frames": FRAMES, "thread": "main", "text": "T…"},
    {"k": "exit", "kind": "exception", "code": 1, "frames": FRAMES},
    {"k": "child_exit", "pid": 9, "code": -9},
    {"k": "signal", "target": 9, "signal": 15, "frames": FRAMES},
    {"k": "broken", "what": "ring", "error": "no room"},
]  # fmt: skip


def read(path: Path, lines: list[bytes]) -> Journal:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    journal = Journal(7)
    journal.read_more(path)
    return journal


def good_lines() -> list[bytes]:
    return [json.dumps({**line, "t": 1000 + i}).encode() for i, line in enumerate(GOOD)]


def check_types(journal: Journal) -> None:
    """What the watcher relies on without looking."""
    assert isinstance(journal.process, dict)
    read_rank_env(journal.process.get("env", {}))
    assert isinstance(journal.process.get("host") or "", str)
    assert isinstance(journal.process.get("t") or 0, int)
    assert isinstance(journal.process.get("ppid") or 0, int)
    assert journal.rank is None or (isinstance(journal.rank, int) and not isinstance(journal.rank, bool))
    assert journal.world_size is None or isinstance(journal.world_size, int)
    assert all(isinstance(text, str) for text in [journal.torch, journal.server, journal.out])
    assert all(isinstance(text, str) for text in [*journal.ops, *journal.names.values(), *journal.broken])
    assert all(isinstance(number, int) for number in [*journal.names, *journal.sites])
    assert all(isinstance(frame, Frame) for stack in journal.sites.values() for frame in stack)
    for init in journal.inits:
        assert isinstance(init, Init)
        assert init.rank is None or isinstance(init.rank, int)
        assert init.world_size is None or isinstance(init.world_size, int)
        assert init.timeout_s is None or isinstance(init.timeout_s, int | float)
        assert init.file_mtime is None or isinstance(init.file_mtime, int | float)
    for ended in filter(None, [journal.ended]):
        assert ended.code is None or isinstance(ended.code, int)
    for model in journal.models:
        assert all(isinstance(name, str) for name in [*model.names, *model.unused, *model.replaced, *model.added])
        assert all(isinstance(n, int) for shape in model.shapes for n in shape)
    assert all(isinstance(rank, int) for group in journal.groups for rank in group.ranks)
    assert all(isinstance(number, int) for sent in journal.signals for number in (sent.by, sent.target, sent.signal, sent.time_ns))


def test_every_kind_of_line_is_understood(tmp_path: Path) -> None:
    journal = read(tmp_path / "j", good_lines())
    stack = (Frame("train.py", 3, "main"),)

    check_types(journal)
    assert (journal.rank, journal.world_size, journal.torch, journal.server) == (1, 2, "2.13.0", "/dev/shm/x/s-7")
    assert journal.process["env"] == {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    assert journal.inits == [Init(1, 2, "gloo", "env://", "node-a", 29500, 30.0, 1007, 1008, stack)]
    assert journal.groups == [NewGroup("1", (0, 1), 1010, 1011, stack)]
    assert journal.models == [Model(("w",), ((2, 3),), ("torch.half",), "n.py", stack, ("w",), (), ("v",))]
    assert journal.raised == [Raised("KeyError", "'x'", stack, 1014, "main", "T…")]
    assert journal.ended == Ended("exception", 1015, code=1, stack=stack)
    assert journal.child_exits == {9: (-9, 1016)}
    assert journal.broken == ["ring: no room"]
    assert (journal.ops, journal.names, journal.out) == (["all_reduce", "barrier"], {1: "torch.float32"}, "/tmp/out.txt")


def test_it_is_read_as_it_grows_and_only_whole_lines_count(tmp_path: Path) -> None:
    path = tmp_path / "j"
    lines = good_lines()
    journal = Journal(7)
    assert not journal.read_more(path)
    path.write_bytes(lines[0] + b"\n" + lines[1][:10])
    assert journal.read_more(path)
    assert not journal.torch
    assert not journal.read_more(path)
    with path.open("ab") as file:
        file.write(lines[1][10:] + b"\n")
    assert journal.read_more(path)
    assert journal.torch == "2.13.0"
    assert not journal.broken


def test_a_line_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    journal = read(tmp_path / "j", [b'{"k": "from the future", "x": 1}', *good_lines()])

    assert journal.rank == 1
    assert journal.broken == ["ring: no room"]


@pytest.mark.parametrize("line", [b"", b"nonsense", b"null", b"[]", b'"k"', b"{}", b'{"k": []}', b"\xff\xfe", deep(), b'{"k": "take"}'])
def test_a_line_that_is_none_is_skipped(tmp_path: Path, line: bytes) -> None:
    journal = read(tmp_path / "j", [line, *good_lines(), line])

    check_types(journal)
    assert journal.rank == 1


@FUZZ
@given(lines=st.lists(st.binary(max_size=100), max_size=5))
def test_any_bytes_are_read_without_an_error(tmp_path: Path, lines: list[bytes]) -> None:
    check_types(read(tmp_path / "j", lines))


@FUZZ
@pytest.mark.parametrize("kind", [line["k"] for line in GOOD])
@given(data=st.data())
def test_any_values_are_read_without_an_error(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """Good lines, but for one in which some values are of any type and size, or not there."""
    lines = []
    for good in GOOD:
        line: dict[str, Any] = {**good, "t": 5}
        if good["k"] == kind:
            for key in data.draw(st.lists(st.sampled_from([key for key in line if key != "k"]), min_size=1, max_size=2, unique=True)):
                line[key] = data.draw(json_values)
                if data.draw(st.booleans()):
                    del line[key]
        lines.append(json.dumps(line).encode())

    check_types(read(tmp_path / "j", lines))
