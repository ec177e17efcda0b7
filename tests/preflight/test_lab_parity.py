"""Three hosts of which two are wrong in several ways at once: one run of `rankwise check` names each fault on its host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import faults
from tests.lab.hosts import lab, why_no_lab
from tests.preflight.lab_check import Start, Told, check_on

pytestmark = [pytest.mark.netns, pytest.mark.timeout(180)]

HOUR_S = 3600
# code: the host that must be named, a word of the summary
FAULTS = {
    "another torch": ("RW123", "node-b", "torch differs between hosts: 2.12.0 on node-b"),
    "another NCCL variable": ("RW125", "node-b", "NCCL_PROTO differs between hosts: LL on node-b, not set on node-a and node-c"),
    "another GLOO variable": ("RW125", "node-c", "GLOO_SOCKET_IFNAME differs between hosts: eth0,lo on node-c, eth0 on node-a and node-b"),
    "other code": ("RW622", "node-b", "model.py differs between hosts"),
    "a clock that is an hour ahead": ("RW616", "node-c", "the clock of node-c is"),
    "a memory limit": ("RW611", "node-c", "of memory for each of its 2 ranks"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Told]]:
    if reason := why_no_lab():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("parity")
    for name, text in (("same", "x = 1\n"), ("other", "x = 2\n")):
        (folder / name).mkdir()
        (folder / name / "train.py").write_text("import model\n")
        (folder / name / "model.py").write_text(text)
    clock = faults.other_clock(folder, HOUR_S) if shutil.which("cc") else {}
    limit = faults.memory_limit(f"rankwise-test-{os.getpid()}", 700 << 20)
    with lab(3) as hosts, limit as limited:
        other = ["--script", str(folder / "other" / "train.py")]
        yield check_on(
            hosts,
            "--nproc-per-node",
            "2",
            "--script",
            str(folder / "same" / "train.py"),
            only="names,resources,parity",
            b=Start(other, env={"NCCL_PROTO": "LL", "NCCL_TEST_TOKEN": "hunter2"}, before=faults.other_torch(folder, "2.12.0")),
            c=Start(env={"GLOO_SOCKET_IFNAME": "eth0,lo", **clock}, before=limited),
        )


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_on_its_host(told: dict[str, Told], fault: str) -> None:
    code, host, words = FAULTS[fault]
    if code == "RW616" and shutil.which("cc") is None:
        pytest.skip("no C compiler: another time of day for one process needs a library that says so")
    found = [finding for finding in told["node-a"].report["findings"] if finding["code"] == code and words in finding["summary"]]

    assert found, told["node-a"].codes
    assert [place["host"] for place in found[0]["culprits"]] == [host]
    assert found[0]["next"]


def test_all_hosts_say_the_same_and_fail(told: dict[str, Told]) -> None:
    assert {one.code for one in told.values()} == {1}
    assert told["node-a"].report == told["node-b"].report == told["node-c"].report


def test_a_secret_is_never_shown(told: dict[str, Told]) -> None:
    text = str(told["node-a"].report)

    assert "NCCL_TEST_TOKEN" in text
    assert "hunter2" not in text


def test_a_limit_of_the_cgroup_is_named_as_such(told: dict[str, Told]) -> None:
    assert "cgroup" in told["node-a"].finding("RW611")["why"]


def test_nothing_is_left_of_the_other_torch(told: dict[str, Told]) -> None:
    import importlib.util

    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    assert "2.12.0" not in Path(spec.origin).with_name("version.py").read_text()
