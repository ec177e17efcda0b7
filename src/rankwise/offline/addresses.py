"""Files at an address: `s3://…`, and whatever else pyarrow or fsspec can open."""

from __future__ import annotations

import importlib
import io
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from rankwise.errors import UsageError
from rankwise.offline.lazy import pa, pafs

_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+://")
_SECRET = re.compile(r"secret|password|token|key|sig", re.IGNORECASE)  # names of secrets, in the part behind the question mark
_READ_BYTES = 1 << 20  # read at once for lines
_RETRY_S = 30


def is_address(given: Any) -> bool:
    return isinstance(given, str) and bool(_ADDRESS.match(given))


def path_or_address(given: str | os.PathLike[str]) -> Place:
    """A path of this machine, or an address such as `s3://…`."""
    if not isinstance(given, (str, os.PathLike)):
        raise UsageError(f"a {type(given).__name__} is no path", next=("give the path of a file, or of a folder",))
    if not is_address(given):
        return Path(given)
    parts = urlsplit(str(given))
    return Path(unquote(parts.path)) if parts.scheme == "file" else Address(str(given))


class Address:
    """A file or a folder in one of pyarrow's file systems, with the methods of `pathlib.Path` that readers use.

    Its text, for messages and journals, leaves out what is behind a question mark.
    """

    def __init__(self, uri: str) -> None:
        _check_no_secret(uri)
        self.uri = uri
        self.system, self.path = _opened(uri)
        self._shown = uri.partition("?")[0]

    def __str__(self) -> str:
        return self._shown

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix

    def beside(self, name: str) -> str:
        """The path of another file in the same folder."""
        return str(PurePosixPath(self.path).parent / name)

    def below(self, name: str) -> str:
        """The address of a file in this folder."""
        return f"{self._shown.rstrip('/')}/{quote(name)}{self.uri[len(self._shown) :]}"

    def info(self) -> Any:
        """What the file system says about it. Raises OSError if the server cannot be reached, or refuses us."""
        try:
            return self.system.get_file_info(self.path)
        except pa.ArrowException as error:  # of Azure, without credentials
            raise OSError(str(error)) from error

    def exists(self) -> bool:
        return bool(self.info().type != pafs.FileType.NotFound)

    def is_dir(self) -> bool:
        return bool(self.info().type == pafs.FileType.Directory)

    def files(self) -> Iterator[tuple[str, str]]:
        """All files below this folder: the relative name, and a text of size and time of change."""
        for info in self.system.get_file_info(pafs.FileSelector(self.path, recursive=True)):
            if info.type == pafs.FileType.File:
                yield str(PurePosixPath(info.path).relative_to(self.path)), f"{info.size} {info.mtime_ns}"

    def open_arrow(self) -> Any:
        """An open file for pyarrow's readers, which is seekable and fetches only what is read."""
        return self.system.open_input_file(self.path)

    def open(self, mode: str = "rb") -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(self.open_arrow(), _READ_BYTES))


class RemoteBytes:
    """The bytes of a file at an address, fetched when they are asked for, by `len` and slices."""

    stamp = None  # `FileBytes` has one, to notice another file at its place; here the open file is read to its end

    def __init__(self, address: Address) -> None:
        self._file = address.open_arrow()

    def __len__(self) -> int:
        return int(self._file.size())

    def __getitem__(self, span: slice) -> bytes:
        start, stop, _ = span.indices(len(self))
        return bytes(self._file.read_at(max(0, stop - start), start))


Place = Path | Address


def _check_no_secret(uri: str) -> None:
    parts = urlsplit(uri)
    if parts.password or any(_SECRET.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise UsageError(
            f"the address {parts.scheme}://…{parts.path} has a secret in it",
            why="a command line is seen by everybody on the machine, and stays in the shell's history",
            next=("give it by the environment (AWS_SECRET_ACCESS_KEY, AZURE_STORAGE_KEY, …) or the provider's own files",),
        )


def _opened(uri: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    parts = urlsplit(uri)
    system, base, is_quoted = _open_system(f"{parts.scheme}://{parts.netloc}{'?' if parts.query else ''}{parts.query}")
    path = base.rstrip("/") + (unquote(parts.path) if is_quoted else parts.path)
    return system, path.lstrip("/") if system.type_name == "abfs" else path  # abfs://ACCOUNT.blob.core.windows.net/CONTAINER/…


@lru_cache(maxsize=16)
def _open_system(root: str) -> tuple[Any, str, bool]:
    """pyarrow's file system, or fsspec's if pyarrow has none. A file system has connections, so one is kept for all its files."""
    try:
        system, base = pafs.FileSystem.from_uri(_with_patience(root))
        return _with_azure_key(system), base, True
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        own = error
    try:
        core = importlib.import_module("fsspec.core")
        system, base = core.url_to_fs(root)
    except (ImportError, ValueError) as error:
        steps = ("pip install fsspec, and what its message names",)
        raise UsageError(f"nothing here opens {root.partition('?')[0]}", why=f"pyarrow: {own}; fsspec: {error}"[:400], next=steps) from None
    return pafs.PyFileSystem(pafs.FSSpecHandler(system)), base, False


def _with_patience(root: str) -> str:
    """The address with a limit for retries: Google's client would try for a quarter of an hour to reach a server or find credentials."""
    if not root.startswith(("gs://", "gcs://")) or "retry_limit_seconds=" in root:
        return root
    return f"{root}{'&' if '?' in root else '?'}retry_limit_seconds={_RETRY_S}"


def _with_azure_key(system: Any) -> Any:
    """The same account with the key from the environment, where pyarrow itself only looks for identities."""
    key = _azure_key() if system.type_name == "abfs" else ""
    if not key:
        return system
    _, (options,) = system.__reduce__()  # the account and its hosts, which an address can name in four ways
    return pafs.AzureFileSystem(**{name: value for name, value in options.items() if value} | {"account_key": key})


def _azure_key() -> str:
    """The key, from the variables that Azure's own tools read."""
    parts = (part.partition("=") for part in os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";"))
    named = {name.strip(): value.strip() for name, _, value in parts}
    return os.environ.get("AZURE_STORAGE_KEY") or os.environ.get("AZURE_STORAGE_ACCOUNT_KEY") or named.get("AccountKey", "")
