"""The folder beside the output that holds an unfinished job: `.out.parquet.predict/` with its journal and parts."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from rankwise.causes import load_cause
from rankwise.errors import RankwiseError
from rankwise.files import what_stops, write_whole
from rankwise.offline.parts import NextPart, Results, is_whole, read_part, write_part
from rankwise.offline.record_log import InUse, JournalRemoved, RecordLog, read_records

_FORMAT = 3


class PredictError(RankwiseError):
    """A job cannot start or go on; what is done so far stays done."""

    def __init__(self, code: str, summary: str, *, why: str = "", next: tuple[str, ...] = ()) -> None:
        super().__init__(load_cause(code).finding(summary, certain=True, why=why, next=next))


class Workspace:
    """What is done of one job. After a crash, opening it again finds everything up to the last whole part.

    `shown` is the output's name in messages; `send` is called with each file of the folder that is new or has changed.
    """

    def __init__(
        self, output: Path, identity: dict[str, Any], restart: bool = False, shown: Any = None, send: Callable[[Path], None] | None = None
    ) -> None:
        self.output, self._shown, self._send = output, shown or output, send or (lambda path: None)
        self._folder = folder_of(output)
        with writing(output):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            try:
                self._journal = RecordLog(self._folder / "journal")
            except InUse:
                raise in_use(output) from None
            except FileNotFoundError:
                raise JournalRemoved from None
        try:
            self._begin({"format": _FORMAT, **identity}, restart)
        except BaseException:
            self._journal.close()
            raise

    def _begin(self, identity: dict[str, Any], restart: bool) -> None:
        known = self._journal.records[0].get("job") if self._journal.records else None
        if known is not None and not is_same(known, identity) and self._parts and not restart:
            raise another_job(self._shown, _differences(known, identity))
        if not is_same(known, identity) or restart:
            self._journal.keep(0)
            self._append({"job": identity})
        self._drop_unfinished()

    def noted(self, what: str) -> Any:
        """What an earlier `note` has written down under this name; None if nothing."""
        return next((record[what] for record in self._journal.records if what in record), None)

    def note(self, **what: Any) -> None:
        """Write down for all runs of this job: the "plan" (batch size), the "end" (all rows are done), that the "errors" were begun."""
        self._append(what)

    def begin_again(self, **what: Any) -> None:
        """Discard what was done, because none of it can be used, and note what is known now."""
        self._journal.keep(1)
        self._append(what)
        self._drop_unfinished()

    @property
    def done_rows(self) -> int:
        return sum(record["length"] for record in self._parts)

    @property
    def failed_rows(self) -> int:
        return sum(record["failed"] for record in self._parts)

    @property
    def position(self) -> int | None:
        """The reader's position behind the last part; None for readers without positions."""
        return self._parts[-1]["position"] if self._parts else None

    def add(self, part: NextPart, position: int | None) -> None:
        """Store these results; the rows of the next part follow them."""
        number = len(self._parts)
        with writing(self.output, self._kept):
            written = write_part(self._part(number), part)
        self._send(self._part(number))
        facts = {"length": part.length, "failed": part.failed, "position": position}
        self._append({"part": number, "first_row": part.first_row, **facts, **written})

    def begin_placing(self, complete: Path) -> None:
        """Note what will be renamed to the output next, so that a later run knows it as its own even if this run is killed then."""
        self._append({"placing": _stamp(complete)})

    def results(self) -> Iterator[Results]:
        """The results of all batches, in order, one at a time."""
        return chain.from_iterable(read_part(self._part(record["part"])) for record in self._parts)

    def close(self) -> None:
        self._journal.close()

    def remove(self) -> None:
        """Remove the folder: the output is written, and nothing of the job is needed any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _kept(self) -> str:
        return f"the {self.done_rows:,} rows that are done are kept" if self.done_rows else ""

    @property
    def _parts(self) -> list[dict[str, Any]]:
        return [record for record in self._journal.records if "part" in record]

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number:08}"

    def _append(self, record: dict[str, Any]) -> None:
        with writing(self.output, self._kept):
            self._journal.append(record)
        self._send(self._folder / "journal")

    def _drop_unfinished(self) -> None:
        """Keep the records before the first part whose file is not what was written, and only the files of these parts."""
        for i, record in enumerate(self._journal.records):
            if "part" in record and not is_whole(self._part(record["part"]), record["bytes"], record["crc"]):
                self._journal.keep(i)
                break
        known = {self._part(record["part"]).name for record in self._parts} | {"journal"}
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)


def folder_of(output: Path) -> Path:
    return output.with_name(f".{output.name}.predict")


def is_placed(output: Path, identity: dict[str, Any]) -> bool:
    """Whether the output is what an unfinished run of this very job has put there."""
    records = read_records(folder_of(output) / "journal")
    if not records or not output.exists() or not is_same(records[0].get("job"), {"format": _FORMAT, **identity}):
        return False
    return _stamp(output) in [record.get("placing") for record in records]


def names_in(output: Path) -> str | None:
    """A hash of all names in a folder; None for a file."""
    if not output.is_dir():
        return None
    names = sorted(str(path.relative_to(output)) for path in output.rglob("*"))
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()


def _stamp(output: Path) -> dict[str, Any]:
    """Facts that stay the same when the file is renamed, and differ between files."""
    facts = output.stat()
    if output.is_dir():
        return {"inode": facts.st_ino, "names": names_in(output)}
    return {"bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def is_same(one: Any, other: Any) -> bool:
    """Whether both are the same as JSON, types and bits included: for Python, 1 == 1.0 == True, and 0.0 == -0.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def marker_of(output: Path) -> Path:
    """The file that says that the output is complete, and what it was made from: the same command again has nothing to do."""
    return output.with_name(f".{output.name}.predicted")


def write_marker(output: Path, facts: dict[str, Any]) -> None:
    write_whole(marker_of(output), json.dumps(facts, indent=2) + "\n")


def read_marker(output: Path) -> dict[str, Any]:
    try:
        facts = json.loads(marker_of(output).read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def holds_what_was_written(output: Path, marker: dict[str, Any]) -> bool:
    """Whether the output is still what was written, by its size, or the names of the files in it."""
    return bool(marker.get("bytes") == output.stat().st_size and marker.get("names") == names_in(output))


@contextmanager
def writing(output: Path, why: str = "") -> Iterator[None]:
    """Turn an error of the disk into a finding."""
    try:
        yield
    except OSError as error:
        what, step = what_stops(error)
        raise not_written(output, what, why, (f"{step}, and give the same command again",)) from error


def not_written(output: Any, what: str, why: str, steps: tuple[str, ...]) -> PredictError:
    return PredictError("RW741", f"{output} cannot be written: {what}", why=why, next=steps)


def in_use(output: Any) -> PredictError:
    return PredictError("RW832", f"another process is working on {output}")


def another_job(output: Any, why: str) -> PredictError:
    return PredictError("RW831", f"the unfinished job for {output} is another one", why=why)


def _differences(known: dict[str, Any], wanted: dict[str, Any]) -> str:
    differing = [key for key in {**known, **wanted} if not is_same(known.get(key), wanted.get(key))]
    return "\n".join(f"{key}: then {known.get(key)!r}, now {wanted.get(key)!r}"[:300] for key in differing)
