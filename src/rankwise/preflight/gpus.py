"""What the GPUs of this host say about themselves: through NVML, or nvidia-smi where its Python package is missing."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

_SMI_S = 10.0
_SMI_FIELDS = {
    "name": "name",
    "total": "memory.total",
    "used": "memory.used",
    "ecc": "ecc.errors.uncorrected.volatile.total",
    "throttle": "clocks_throttle_reasons.active",
}
_XID = re.compile(r"NVRM: Xid \((PCI:[^)]+)\): (\d+)")
# Bits of NVML's clock event reasons that mean trouble; idle, power cap and chosen clocks do not.
_SLOWED = {0x8: "hardware slowdown", 0x20: "too hot (software)", 0x40: "too hot (hardware)", 0x80: "power brake"}


def gpu_facts() -> dict[str, Any]:
    """`gpus`, one record each, and `xids`; or `blind` with the reason."""
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/nvidiactl").exists():
        return {"blind": "no NVIDIA driver on this host"}
    try:
        import pynvml  # type: ignore[import-untyped]

        failures = pynvml.NVMLError
    except (ImportError, AttributeError):  # the latter where another thread's import of it has just failed: what is left has no names
        return _from_smi("nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except failures as error:
        return _from_smi(f"NVML: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {"gpus": [_from_nvml(pynvml, handle) for handle in handles], "source": "NVML", **_xids()}
    except failures as error:
        return _from_smi(f"NVML: {error}")
    finally:
        with contextlib.suppress(failures):
            pynvml.nvmlShutdown()


def slowed_text(reasons: int | None) -> str:
    """What holds the clocks down; empty where nothing bad does, or the GPU does not say."""
    return ", ".join(text for bit, text in _SLOWED.items() if (reasons or 0) & bit)


def _from_nvml(nvml: Any, handle: Any) -> dict[str, Any]:
    def ask(function: str, *args: Any) -> Any:
        """None where this GPU, driver or package does not know the question."""
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            return getattr(nvml, function)(handle, *args)
        return None

    memory, name = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetName")
    remapped = ask("nvmlDeviceGetRemappedRows")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    return {
        "name": name.decode() if isinstance(name, bytes) else str(name or "unknown"),
        "total": int(memory.total) if memory else None,
        "used": int(memory.used) if memory else None,
        "ecc": ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "remap_pending": bool(remapped[2]) if remapped else None,
        "remap_failed": bool(remapped[3]) if remapped else None,
        "throttle": ask("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons,
        "processes": [_holder(process.pid, process.usedGpuMemory) for process in ask("nvmlDeviceGetComputeRunningProcesses") or ()],
    }


def _holder(pid: int, memory: int | None) -> dict[str, Any]:
    name = user = ""
    with contextlib.suppress(psutil.Error):
        name, user = psutil.Process(pid).name(), psutil.Process(pid).username()
    return {"pid": pid, "program": name, "user": user, "memory": memory}


def _from_smi(why: str) -> dict[str, Any]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"blind": f"{why}, and there is no nvidia-smi"}
    command = [program, f"--query-gpu={','.join(_SMI_FIELDS.values())}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"blind": f"{why}; nvidia-smi: {type(error).__name__}"}
    if done.returncode:
        return {"blind": f"{why}; nvidia-smi: {(done.stdout + done.stderr).strip()[:200]}"}
    rows = csv.reader(io.StringIO(done.stdout), skipinitialspace=True)
    return {"gpus": [_from_row(row) for row in rows if len(row) == len(_SMI_FIELDS)], "source": "nvidia-smi", **_xids()}


def _from_row(row: list[str]) -> dict[str, Any]:
    values = dict(zip(_SMI_FIELDS, row))
    return {
        "name": values["name"],
        "total": _whole(values["total"], 1 << 20),
        "used": _whole(values["used"], 1 << 20),
        "ecc": _whole(values["ecc"]),
        "remap_pending": None,
        "remap_failed": None,
        "throttle": _whole(values["throttle"]),
        "processes": [],
    }


def _whole(text: str, unit: int = 1) -> int | None:
    """A number as nvidia-smi writes it, decimal or hexadecimal; None for [N/A]."""
    with contextlib.suppress(ValueError):
        return int(text, 0) * unit
    return None


def _xids() -> dict[str, Any]:
    """Errors the driver wrote to the kernel log since the machine started; only root may read it on most systems."""
    try:
        counts: dict[str, int] = {}
        for line in _kernel_log():
            if match := _XID.search(line):
                key = f"{match[2]} ({match[1]})"
                counts[key] = counts.get(key, 0) + 1
        return {"xids": counts, "xids_blind": ""}
    except OSError as error:
        return {"xids": {}, "xids_blind": f"the kernel log may not be read: {error.strerror}"}


def _kernel_log() -> Iterator[str]:
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                yield os.read(fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:  # older lines were overwritten meanwhile
                continue
    finally:
        os.close(fd)
