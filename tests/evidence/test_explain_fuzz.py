"""`rankwise explain FOLDER` on folders that are cut off, damaged or meant to do harm: a verdict or a finding, and nothing else happens."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rankwise
from rankwise.cli.main import main
from rankwise.evidence.run_folder import save_evidence
from tests.evidence.strategies import HOSTILE, HUGE, deep
from tests.report.example_job import crash, hostile, skipped_collective

FILES = ("evidence/job.json", "evidence/ranks/0.json", "evidence/ranks/1.json", "evidence/ranks/1.bin", "verdict.json")
NEST: Any = []
for _ in range(200):
    NEST = [NEST]
PLAIN: list[Any] = [None, True, False, 0, -1, 1.5, "", "x", [], {}, [[]], [None], {"": {}}, float("nan"), float("inf")]
REPLACEMENTS = [*PLAIN, NEST, *HUGE, *HOSTILE]
NEVER = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "socket.getaddrinfo", "ctypes.dlopen")


@dataclass
class Witness:
    """What Python's audit events say this process did while it was being watched."""

    is_watching: bool = False
    opened: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_watching:
            return
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            self.opened.add(os.path.abspath(os.fsdecode(args[0])))
        elif event in NEVER:
            self.done.add(event)


_WITNESS = Witness()
_HOMES = tuple({os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, Path(rankwise.__file__).parent)})
_hooked = False


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Witness]:
    global _hooked
    if not _hooked:  # an audit hook cannot be taken away again
        sys.addaudithook(_WITNESS)
        _hooked = True
    monkeypatch.setenv("NO_COLOR", "1")
    _WITNESS.opened.clear()
    _WITNESS.done.clear()
    yield _WITNESS
    _WITNESS.is_watching = False


@pytest.fixture
def explain(witness: Witness, capsys: pytest.CaptureFixture[str]) -> Callable[..., int]:
    def explain(folder: Path, *options: str) -> int:
        """Explain it and check everything that must hold whatever the folder holds."""
        capsys.readouterr()
        witness.opened.clear()
        witness.is_watching = True
        try:
            code = main(["explain", str(folder), *options])
        finally:
            witness.is_watching = False
        out, err = capsys.readouterr()
        assert code in (0, 2)
        assert "Traceback" not in out + err
        assert bool(err.strip()) == (code == 2)
        bad = {char for char in out + err if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}
        assert not bad, f"raw control characters {bad!r}"
        if options == ("--json",) and code == 0:
            json.loads(out)
        assert not witness.done
        # Python itself looks for a file "<unknown>" here when text that is no Python is parsed.
        outside = {path for path in witness.opened if not path.startswith((str(folder), *_HOMES)) and not path.endswith("/<unknown>")}
        assert not outside
        return code

    return explain


@pytest.fixture(params=["skipped", "crash"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    verdict, job = skipped_collective(world_size=3, num_slots=12) if request.param == "skipped" else crash(world_size=3)
    _write(tmp_path / "run", verdict, job)
    return tmp_path / "run"


def _write(folder: Path, verdict: dict[str, Any], job: Any) -> None:
    save_evidence(folder / "evidence", job)
    (folder / "verdict.json").write_text(json.dumps(verdict))


def test_a_whole_folder_is_explained(folder: Path, explain: Callable[..., int]) -> None:
    assert explain(folder) == 0
    assert explain(folder, "--json") == 0


@pytest.mark.parametrize("name", FILES)
def test_cut_off_anywhere(folder: Path, explain: Callable[..., int], name: str) -> None:
    whole = (folder / name).read_bytes()
    for end in sorted({0, 1, 2, 8, 9, len(whole) // 3, len(whole) // 2, len(whole) - 2, len(whole) - 1}):
        (folder / name).write_bytes(whole[:end])
        assert explain(folder) == (2 if name == "evidence/job.json" else 0)


@pytest.mark.parametrize("name", FILES)
def test_bits_flipped(folder: Path, explain: Callable[..., int], name: str) -> None:
    chance = random.Random(name)
    whole = (folder / name).read_bytes()
    for _ in range(30):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 1, 3, 40])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(data)
        explain(folder)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_values_replaced(folder: Path, explain: Callable[..., int], name: str, seed: int) -> None:
    """Each time one to three values, anywhere in the file, become something else."""
    chance = random.Random(f"{name} {seed}")
    whole = json.loads((folder / name).read_text())
    for _ in range(25):
        data = copy.deepcopy(whole)
        for _ in range(chance.choice([1, 1, 2, 3])):
            replace_one(data, chance)
        (folder / name).write_text(json.dumps(data))
        explain(folder, *chance.choice([(), ("--json",)]))


def replace_one(data: Any, chance: random.Random) -> None:
    """Walk to some value below `data` and put another in its place, or take it away, or add one."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        key = chance.choice(keys)
        if not isinstance(data[key], dict | list) or not data[key] or chance.random() < 0.15:
            break
        data = data[key]
    value = data[key]
    how = chance.random()
    if how < 0.1:
        del data[key]
    elif how < 0.25 and type(value) is int:
        data[key] = chance.choice([value + 1, -value, value * 10**6, 2**31 + value, 10**25])  # of the right type, and wrong
    elif how < 0.35 and isinstance(data, dict):
        data[chance.choice(HOSTILE[:-2])] = value
    else:
        data[key] = copy.deepcopy(chance.choice(REPLACEMENTS))


@pytest.mark.parametrize("payload", [text for text in HOSTILE if text], ids=lambda text: ascii(text[:20]))
def test_hostile_strings_everywhere(tmp_path: Path, explain: Callable[..., int], payload: str) -> None:
    _write(tmp_path / "run", *hostile(payload))

    assert explain(tmp_path / "run") == 0
    assert explain(tmp_path / "run", "--json") == 0


def test_file_names_and_sources_are_only_words(folder: Path, explain: Callable[..., int], tmp_path: Path) -> None:
    """Evidence that names files of this machine does not make `explain` open them."""
    secret = tmp_path / "secret.py"
    secret.write_text("import os; os.system('touch owned')  # the secret\n")
    for name in FILES[:3]:
        text = (folder / name).read_text()
        for file in (secret, "/etc/passwd", "../../../../etc/passwd", "~/.ssh/id_rsa", "https://example.com/x.py"):
            data = json.loads(text.replace("/home/ada/projects/segmenter/train.py", str(file)))
            data.pop("sources", None)
            (folder / name).write_text(json.dumps(data))
            assert explain(folder) == 0  # the fixture sees what is opened
        (folder / name).write_text(text)


def test_nesting_deeper_than_the_stack(folder: Path, explain: Callable[..., int]) -> None:
    for name in FILES:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(deep())
        assert explain(folder) == (2 if name == "evidence/job.json" else 0)
        (folder / name).write_bytes(whole)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FILES)
def test_something_else_in_place_of_a_file(folder: Path, explain: Callable[..., int], tmp_path: Path, name: str) -> None:
    """A folder, a pipe nobody writes to, a device without end, links in a circle, links out of the folder."""
    path = folder / name
    path.rename(tmp_path / "original")
    makers: list[Callable[[], None]] = [
        path.mkdir,
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path),
        lambda: path.symlink_to(tmp_path / "original"),
    ]
    for make in makers:
        make()
        assert explain(folder) == (2 if name == "evidence/job.json" else 0)
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FILES)
def test_a_file_far_too_large(folder: Path, explain: Callable[..., int], name: str) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.truncate(folder / name, 700 << 20)  # sparse: it takes no disk

    explain(folder)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB


def test_a_folder_that_holds_no_run(tmp_path: Path, explain: Callable[..., int]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("empty", "file"):
        assert explain(tmp_path / name) == 2


def test_parts_missing(folder: Path, explain: Callable[..., int]) -> None:
    (folder / "verdict.json").unlink()
    assert explain(folder) == 0
    (folder / "evidence" / "ranks" / "0.bin").unlink()
    assert explain(folder) == 0
    shutil.rmtree(folder / "evidence" / "ranks")
    assert explain(folder) == 0
    (folder / "evidence" / "job.json").unlink()
    assert explain(folder) == 2
