"""An output at an address (`s3://…`): the job runs in a folder of this machine, and each part and journal entry is copied to the address.

The address gets what a disk would have: `.out.parquet.predict/` with the journal and the parts while the job is unfinished, then the output
and `.out.parquet.predicted`. The copy at the address counts, so another machine can go on. The folder here only saves fetching.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError
from rankwise.offline.addresses import Address
from rankwise.offline.lazy import pa, pafs
from rankwise.offline.parts import is_whole
from rankwise.offline.record_log import InUse, RecordLog, read_records
from rankwise.offline.workspace import folder_of, in_use, is_same, marker_of, not_written, read_marker, write_marker

_AT_ONCE = {"s3", "gcs"}  # file systems in which a file appears when it is complete


class RemoteOutput:
    """The output's address, and the folder of this machine where it is made."""

    def __init__(self, address: Address) -> None:
        self.address = address
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankwise" / "predict"
        self._home = cache / hashlib.sha256(f"{address.uri} {os.getuid()}".encode()).hexdigest()[:24]
        self.output = self._home / address.name
        self.errors = self._home / f"{address.name}.errors.jsonl"
        self._space = folder_of(self.output)
        self._unfinished = f"unfinished-{uuid.uuid4().hex}"  # a name that another machine at the same job does not use

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let only one process of this machine work on the output. Two machines at the same job only lose time: if one finds a part that
        does not agree with its journal, it computes that part again."""
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = RecordLog(self._home / "lock")
        except InUse:
            raise in_use(self.address) from None
        try:
            with self._errors_as_findings("nothing was done"):
                self.address.exists()  # before anything is opened: without credentials, Azure's client would end the process
            yield
        finally:
            lock.close()

    def finished(self, identity: dict[str, Any]) -> dict[str, Any] | None:
        """The result of this job if its output is there, complete."""
        marker = self._marker()
        return marker.get("predicted") if self._is_of(marker, identity) else None

    def check_replaceable(self, identity: dict[str, Any], overwrite: bool, restart: bool) -> None:
        """Raise if an output is there, unless replacing it was asked for, or a run of this very job was killed while it put it there."""
        marker = self._marker()
        if not self.address.exists() or overwrite:
            return
        if not self._is_of(marker, identity) or (marker.get("predicted") and not restart):
            raise UsageError(f"{self.address} is already there", next=("give another --output, or --overwrite",))

    def fetch(self, anew: bool) -> None:
        """Fetch what is done of the job, as far as it is not here."""
        for path in (self.output, marker_of(self.output), self.errors):
            path.unlink(missing_ok=True)
        journal = self._space / "journal"
        with self._errors_as_findings():
            if anew or not self._copy_here(journal):
                shutil.rmtree(self._space, ignore_errors=True)
                return
            for record in read_records(journal):
                if "part" in record:
                    path = self._space / f"part-{record['part']:08}"
                    if not is_whole(path, record["bytes"], record["crc"]):
                        self._copy_here(path)

    def send(self, path: Path) -> None:
        """Copy a file of the unfinished job that is new, or has changed, to the address."""
        with self._errors_as_findings():
            self._copy_there(path, self._there(path))

    def place(self, identity: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
        """Put the output and the list of failed rows in their places, and remove everything else of the job."""
        there = {**predicted, "output": str(self.address), "errors": None}
        facts: dict[str, Any] = {"job": identity, "bytes": self.output.stat().st_size}
        with self._errors_as_findings("the rows are all done, and kept"):
            self._write_marker(facts)  # if this run is killed from here on, the next run knows the output for its own
            list_of_failed = self.address.beside(self.errors.name)
            if predicted["errors"] and Path(predicted["errors"]) == self.errors:
                self._copy_there(self.errors, list_of_failed)
                there["errors"] = f"{str(self.address)[: -len(self.address.name)]}{self.errors.name}"
            elif self._exists(list_of_failed):
                self.address.system.delete_file(list_of_failed)
            self._copy_there(self.output, self.address.path)
            self._write_marker({**facts, "predicted": there})
            self._remove_there()
        shutil.rmtree(self._home, ignore_errors=True)
        return {**there, "errors": there["errors"] or predicted["errors"]}

    def tidy(self) -> None:
        """After a run that failed: if nothing was done, leave nothing at the address."""
        if not self._space.exists():
            with suppress(OSError):
                self._remove_there()

    def _remove_there(self) -> None:
        folder = self.address.beside(self._space.name)
        if self._exists(folder):
            with suppress(FileNotFoundError):  # in GCS a folder disappears with its last file
                self.address.system.delete_dir(folder)

    def _marker(self) -> dict[str, Any]:
        with suppress(OSError):
            if self._copy_here(marker_of(self.output)):
                return read_marker(self.output)
        return {}

    def _write_marker(self, facts: dict[str, Any]) -> None:
        write_marker(self.output, facts)
        self._copy_there(marker_of(self.output), self._there(marker_of(self.output)))

    def _is_of(self, marker: dict[str, Any], identity: dict[str, Any]) -> bool:
        return is_same(marker.get("job"), identity) and marker.get("bytes") == self.address.info().size

    def _there(self, path: Path) -> str:
        return self.address.beside(str(path.relative_to(self._home)))

    def _exists(self, path: str) -> bool:
        return bool(self.address.system.get_file_info(path).type != pafs.FileType.NotFound)

    def _copy_here(self, path: Path) -> bool:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            pafs.copy_files(self._there(path), str(path), self.address.system, pafs.LocalFileSystem())
        except FileNotFoundError:
            return False
        return True

    def _copy_there(self, path: Path, there: str) -> None:
        system = self.address.system
        if system.type_name in _AT_ONCE:
            pafs.copy_files(str(path), there, pafs.LocalFileSystem(), system)
            return
        folder = self.address.beside(self._space.name)
        temporary = f"{folder}/{self._unfinished}"  # removed with the folder
        is_azure = system.type_name == "abfs"  # there an upload shows an empty file first, but a copy within the account appears whole
        if not is_azure:
            system.create_dir(folder, recursive=True)
        pafs.copy_files(str(path), temporary, pafs.LocalFileSystem(), system)
        if is_azure:
            system.copy_file(temporary, there)
            return
        if self._exists(there):
            system.delete_file(there)
        system.move(temporary, there)

    @contextmanager
    def _errors_as_findings(self, why: str = "what is done so far is kept") -> Iterator[None]:
        try:
            yield
        except (OSError, NotImplementedError, pa.ArrowException) as error:  # the second: http:// and others that can only be read
            steps = ("see who may write there, and whether it can be reached; then give the same command again",)
            raise not_written(self.address, str(error)[:300] or "nothing can be written there", why, steps) from error
