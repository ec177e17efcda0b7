"""File systems that are elsewhere."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import fsspec
import pyarrow.fs as pafs
import pytest

from tests.warm import warm_pools

__all__ = ["warm_pools"]


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """A file system of fsspec's, in this process."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


class Store:
    """A bucket of a server on this machine, the environment that its clients need, and the system that reads and writes it."""

    secret = "(it has none)"
    env: dict[str, str]
    system: pafs.FileSystem
    before: str  # of an address: scheme and bucket
    behind: str = ""  # the same: its options

    def address(self, name: str) -> str:
        return f"{self.before}/{name}{self.behind}"

    def put(self, path: Path) -> str:
        """The address of the file, or the folder, once it is there."""
        pafs.copy_files(str(path), f"jobs/{path.name}", pafs.LocalFileSystem(), self.system)
        return self.address(path.name)

    def read(self, name: str) -> bytes:
        with self.system.open_input_stream(f"jobs/{name}") as file:
            return bytes(file.read())

    def sizes(self) -> dict[str, int]:
        found = self.system.get_file_info(pafs.FileSelector("jobs", recursive=True))
        return {info.path.removeprefix("jobs/"): info.size for info in found if info.type == pafs.FileType.File}

    def names(self) -> list[str]:
        return sorted(self.sizes())


class S3(Store):
    secret = "wJalrXUtnFEMI-hush-hush"
    before = "s3://jobs"

    def __init__(self, port: int) -> None:
        self.env = {
            "AWS_ACCESS_KEY_ID": "AKIAHUSHHUSH",
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.system = pafs.S3FileSystem(
            access_key="AKIAHUSHHUSH", secret_key=self.secret, endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1",
            allow_bucket_creation=True,
        )  # fmt: skip

    @staticmethod
    def command(folder: Path, port: int) -> list[str]:
        pytest.importorskip("moto.server", reason='pip install "moto[server]"')
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


class Google(Store):
    """The emulator asks nobody who they are, so there is no secret."""

    before = "gs://anonymous@jobs"

    def __init__(self, port: int) -> None:
        self.env = {}
        self.behind = f"?endpoint_override=127.0.0.1:{port}&scheme=http"
        self.system = pafs.GcsFileSystem(
            anonymous=True, scheme="http", endpoint_override=f"127.0.0.1:{port}", retry_time_limit=timedelta(seconds=10), project_id="jobs"
        )

    @staticmethod
    def command(folder: Path, port: int) -> list[str]:
        pytest.importorskip("gcp_storage_emulator", reason="pip install gcp-storage-emulator")
        start = f"from gcp_storage_emulator.server import create_server; create_server('127.0.0.1', {port}, in_memory=True).run()"
        return [sys.executable, "-c", start]


class Azure(Store):
    """With the account and the key of which Microsoft says that everybody may know them, as they are Azurite's only ones."""

    secret = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def __init__(self, port: int) -> None:
        self.env = {"AZURE_STORAGE_KEY": self.secret}
        self.before = f"abfs://devstoreaccount1@127.0.0.1:{port}/jobs"
        self.behind = "?enable_tls=false"
        here = dict.fromkeys(("blob_storage_authority", "dfs_storage_authority"), f"127.0.0.1:{port}")
        schemes = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
        self.system = pafs.AzureFileSystem("devstoreaccount1", account_key=self.secret, **here, **schemes)

    @staticmethod
    def command(folder: Path, port: int) -> list[str]:
        program = shutil.which("azurite-blob")
        if program is None:
            pytest.skip("needs Azurite: npm install -g azurite")
        words = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        return [program, "--location", str(folder / "azurite"), *words]


@contextmanager
def running(kind: type[S3 | Google | Azure], port: int, folder: Path) -> Iterator[Store]:
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(kind.command(folder, port), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not _listens(port):
            assert server.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()
            time.sleep(0.05)
        found = kind(port)
        found.system.create_dir("jobs")
        yield found
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3(free_port: int, tmp_path: Path) -> Iterator[Store]:
    with running(S3, free_port, tmp_path) as found:
        yield found


@pytest.fixture(params=[S3, Google, Azure], ids=["s3", "gcs", "azure"])
def store(request: pytest.FixtureRequest, free_port: int, tmp_path: Path) -> Iterator[Store]:
    with running(request.param, free_port, tmp_path) as found:
        yield found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))
