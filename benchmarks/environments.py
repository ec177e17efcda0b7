"""Other people's programs whose pins clash with ours: each in a virtual environment of its own, below the one we run in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(sys.prefix) / "peers"
_INSTALL_S = 900


class Unavailable(Exception):
    """It cannot be installed here; the text says why."""


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Tests in several processes may want the same thing installed at once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def environment(name: str, *requirements: str, with_torch: bool = False) -> Path:
    """The Python of this environment; made and filled the first time. With torch: ours is found behind what is installed there."""
    with one_at_a_time():
        folder = FOLDER / name
        python, done = folder / "bin" / "python", folder / ".installed"
        if not python.exists():
            venv.create(folder, with_pip=True)
        behind = next((folder / "lib").glob("python3*")) / "site-packages" / "zz-torch.pth"
        if with_torch and not behind.exists():
            behind.write_text(sysconfig.get_path("purelib") + "\n")
        if not done.exists() or done.read_text() != " ".join(requirements):
            _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
            done.write_text(" ".join(requirements))
    return python


def java() -> None:
    """Debian's, installed where it is missing and we may."""
    if shutil.which("java") is not None:
        return
    if os.geteuid() or shutil.which("apt-get") is None:
        raise Unavailable("needs Java 17 (on Debian: apt-get install openjdk-17-jre-headless)")
    _run("apt-get", "install", "-y", "openjdk-17-jre-headless")


def wheel(requirement: str, *options: str) -> Path:
    """The file of a package, not installed."""
    folder = FOLDER / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    name, _, version = requirement.partition("==")

    def found() -> Path | None:
        return next(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"), None)

    with one_at_a_time():
        if found() is None:
            _run(Path(sys.executable), "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), *options, requirement)
    path = found()
    assert path is not None
    return path


def perf_analyzer() -> tuple[Path, dict[str, str]]:
    """NVIDIA's load generator and the environment it needs; of two wheels, since newer ones want a newer C library than Debian 12 has."""
    if platform.machine() != "x86_64":
        raise Unavailable("perf_analyzer's wheels are for x86 only")
    folder = FOLDER / "perf_analyzer"
    program = folder / "perf_analyzer"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        client = wheel("tritonclient==2.50.0", "--platform", "manylinux1_x86_64", "--only-binary=:all:")
        server = wheel("nvidia-pytriton==0.7.0")
        with zipfile.ZipFile(server) as archive:
            for start, name in (("libb64-", "libb64.so.0d"), ("libcudart-", "libcudart.so.12")):
                member = next(item for item in archive.namelist() if item.startswith(f"nvidia_pytriton.libs/{start}"))
                _place(folder / name, archive.read(member))
        with zipfile.ZipFile(client) as archive:
            member = next(item for item in archive.namelist() if item.endswith("/bin/perf_analyzer"))
            _place(program, archive.read(member))
    return program, {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def tritonserver() -> tuple[list[str], dict[str, str]]:
    """NVIDIA's server as a command without its models and ports, and the environment it needs: torch, and the numpy its models want."""
    folder = FOLDER / "tritonserver"
    root = folder / "pytriton" / "tritonserver"
    stub = root / "backends" / "python" / "triton_python_backend_stub"
    if not stub.exists():
        with zipfile.ZipFile(wheel("nvidia-pytriton==0.7.0")) as archive, one_at_a_time():
            archive.extractall(folder)
        (root / "bin" / "tritonserver").chmod(0o755)
        _place(stub, (root / "python_backend_stubs" / f"3.{sys.version_info.minor}" / stub.name).read_bytes())
    python = environment("triton", "numpy<2", with_torch=True)
    libraries = f"{folder / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
    command = [str(root / "bin" / "tritonserver"), f"--backend-directory={root / 'backends'}", "--allow-metrics=false"]
    return command, {**os.environ, "LD_LIBRARY_PATH": libraries, "PATH": f"{python.parent}:{os.environ['PATH']}"}


def _place(path: Path, data: bytes) -> None:
    """There at once or not at all: another process may be about to do the same."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_bytes(data)
    own.chmod(0o755)
    own.replace(path)


def _run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=_INSTALL_S)
    if done.returncode:
        raise Unavailable((done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:300])
