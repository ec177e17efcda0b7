"""Facts of this host's GPUs, from NVML."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

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
    except (ImportError, AttributeError):  # AttributeError: another thread's import has just failed and left an empty module
        return {"blind": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {"gpus": [_from_nvml(pynvml, handle) for handle in handles], **_xids()}
    except failures as error:
        return {"blind": f"NVML: {error}"}
    finally:
        with contextlib.suppress(failures):
            pynvml.nvmlShutdown()


def slowed_text(reasons: int | None) -> str:
    """What slows the clocks down; empty where nothing bad does, or the GPU does not say."""
    return ", ".join(text for bit, text in _SLOWED.items() if (reasons or 0) & bit)


def _from_nvml(nvml: Any, handle: Any) -> dict[str, Any]:
    def ask(function: str, *args: Any) -> Any:
        """An NVML value; None where this GPU, driver or package does not support it."""
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
