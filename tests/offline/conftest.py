"""File systems that are elsewhere."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow.fs as pafs
import pytest


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """A file system of fsspec's, in this process."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


class S3:
    """A bucket of a server on this machine that speaks S3, and the environment that its clients need."""

    secret = "wJalrXUtnFEMI-hush-hush"

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

    def put(self, path: Path) -> str:
        """The address of the file, or the folder, once it is there."""
        pafs.copy_files(str(path), f"jobs/{path.name}", pafs.LocalFileSystem(), self.system)
        return f"s3://jobs/{path.name}"

    def read(self, name: str) -> bytes:
        with self.system.open_input_stream(f"jobs/{name}") as file:
            return bytes(file.read())

    def names(self) -> list[str]:
        found = self.system.get_file_info(pafs.FileSelector("jobs", recursive=True))
        return sorted(info.path.removeprefix("jobs/") for info in found if info.type == pafs.FileType.File)


@pytest.fixture
def s3(free_port: int, tmp_path: Path) -> Iterator[S3]:
    pytest.importorskip("moto.server", reason='pip install "moto[server]"')
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(free_port)]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not _listens(free_port):
            assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "server.log").read_text()
            time.sleep(0.05)
        found = S3(free_port)
        found.system.create_dir("jobs")
        yield found
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))
