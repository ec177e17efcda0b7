"""Three hosts of which two are wrong in several ways at once: one run of `rankwise check` names each fault on its host."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from tests.lab import faults
from tests.lab.hosts import lab, why_no_lab
from tests.preflight.lab_check import Start, Told, check_on

pytestmark = [pytest.mark.netns, pytest.mark.timeout(180)]

HOUR_S = 3600
# code: the host that must be named, a word of the summary
FAULTS = {
    "another torch": ("RW123", "node-b", ", 2.12.0 on node-b"),
    "another NCCL variable": ("RW125", "node-b", "NCCL_PROTO differs between hosts: not set on node-a and node-c, LL on node-b"),
    "another GLOO variable": ("RW125", "node-c", "GLOO_SOCKET_IFNAME differs between hosts: eth0 on node-a and node-b, eth0,lo on node-c"),
    "other code": ("RW622", "node-b", "model.py differs between hosts"),
    "a clock that is an hour ahead": ("RW616", "node-c", "the clock of node-c is"),
    "a memory limit": ("RW611", "node-c", "of memory for each of its 2 ranks"),
}


def check_wrong_hosts(folder: Path) -> dict[str, Told]:
    """One run for all faults: importing torch on three hosts is what takes long."""
    for name, text in (("same", "x = 1\n"), ("other", "x = 2\n")):
        (folder / name).mkdir()
        (folder / name / "train.py").write_text("import model\n")
        (folder / name / "model.py").write_text(text)
    clock = faults.other_clock(folder, HOUR_S) if shutil.which("cc") else {}
    limit = faults.memory_limit(f"rankwise-test-{os.getpid()}", 700 << 20)
    usual, other = (["--script", str(folder / name / "train.py")] for name in ("same", "other"))
    variables = {"NCCL_PROTO": "LL", "NCCL_TEST_TOKEN": "hunter2"}
    with lab(3) as hosts, limit as limited:
        return check_on(
            hosts,
            *("--nproc-per-node", "2", *usual),
            only="names,resources,parity",
            b=Start(other, env=variables, before=faults.other_torch(folder, "2.12.0")),
            c=Start(env={"GLOO_SOCKET_IFNAME": "eth0,lo", **clock}, before=limited),
        )


@pytest.mark.live
def test_each_fault_is_named_on_its_host_and_on_all_hosts_alike(tmp_path: Path) -> None:
    if reason := why_no_lab():
        pytest.skip(reason)
    told = check_wrong_hosts(tmp_path)
    report = told["node-a"].report

    assert {one.code for one in told.values()} == {1}
    assert told["node-a"].report == told["node-b"].report == told["node-c"].report
    for fault, (code, host, words) in FAULTS.items():
        if code == "RW616" and shutil.which("cc") is None:
            continue  # another time of day for one process needs a library that says so
        found = [finding for finding in report["findings"] if finding["code"] == code and words in finding["summary"]]
        assert found, f"{fault}: {[finding['summary'] for finding in report['findings']]}"
        assert [place["host"] for place in found[0]["culprits"]] == [host], fault
        assert found[0]["next"], fault
    assert "cgroup" in told["node-a"].finding("RW611")["why"]
    assert "NCCL_TEST_TOKEN" in str(report) and "hunter2" not in str(report), "a secret is compared, but never shown"
    assert "2.12.0" not in real_version_file().read_text(), "nothing is left of the other torch"


def real_version_file() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name("version.py")
