"""Faults between real hosts (network namespaces), each named right by `rankwise check`, and the same on every host that can know."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import faults
from tests.lab.hosts import Host, lab, why_no_lab
from tests.preflight.lab_check import PORT, Start, Told, check_on

pytestmark = [pytest.mark.live, pytest.mark.netns, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Two hosts; one set-up serves all faults, as each of them undoes itself."""
    if reason := why_no_lab() or faults.why_no_nft():
        pytest.skip(reason)
    with lab(2) as found:
        yield found


def same_everywhere(told: dict[str, Told]) -> Told:
    """The report all hosts agree on."""
    reports = [one.report for one in told.values()]
    assert all(report == reports[0] for report in reports)
    return next(iter(told.values()))


def test_healthy_hosts_pass_and_say_the_same(hosts: list[Host]) -> None:
    told = check_on(hosts)
    one = same_everywhere(told)

    assert {each.code for each in told.values()} == {0}, one.report["findings"]
    assert {result["status"] for result in one.report["results"]} == {"pass"}
    assert one.report["exports"]["node-b"] == ["export GLOO_SOCKET_IFNAME=eth0", "export NCCL_SOCKET_IFNAME==eth0"]
    assert all("rankwise check: " in each.stderr for each in told.values())


def test_master_port_blocked(hosts: list[Host]) -> None:
    with faults.port_blocked(hosts[0], PORT):
        told = check_on(hosts)

    one = same_everywhere(told)
    assert {each.code for each in told.values()} == {1}
    assert one.codes == ["RW111"]
    assert one.hosts_of("RW111") == {"node-b"}
    assert f"node-a:{PORT}" in one.finding("RW111")["summary"] and "firewall" in one.finding("RW111")["why"]


def test_all_ports_blocked_still_gives_a_report_on_each(hosts: list[Host]) -> None:
    with faults.firewall(hosts[0], f"tcp dport {PORT}-{PORT + 10} drop"):
        told = check_on(hosts, "--wait", "5")

    assert told["node-b"].codes == ["RW111"] and told["node-b"].hosts_of("RW111") == {"node-b"}
    assert told["node-a"].codes == ["RW101"] and "node 1 did not come" in told["node-a"].finding("RW101")["summary"]


def test_only_high_ports_blocked(hosts: list[Host]) -> None:
    with faults.high_ports_blocked(hosts[1]):
        one = same_everywhere(check_on(hosts))

    assert one.codes == ["RW114"]
    assert "ports that the system picks" in one.finding("RW114")["summary"]
    assert one.hosts_of("RW114") == {"node-a", "node-b"}  # two hosts cannot tell which side holds back; see the four-host test
    assert "node-a → node-b" in one.finding("RW114")["why"]


def test_wrong_interface_first(hosts: list[Host]) -> None:
    unset = Start(env={"GLOO_SOCKET_IFNAME": ""})
    with faults.other_interface_first(hosts[1]) as wrong:
        one = same_everywhere(check_on(hosts, a=unset, b=unset))

    assert one.codes == ["RW114"]
    assert one.hosts_of("RW114") == {"node-b"}
    assert f"offers 192.168.77.2 ({wrong}), which node-a cannot reach" in one.finding("RW114")["summary"]
    assert "export GLOO_SOCKET_IFNAME=eth0" in one.finding("RW114")["next"]


def test_a_host_that_takes_itself_for_loopback(hosts: list[Host]) -> None:
    """127.0.1.1, as many systems write it into /etc/hosts: the hosts meet, and gloo would offer an address nobody can reach."""
    unset = Start(env={"GLOO_SOCKET_IFNAME": ""})
    with faults.name_means(hosts[0], "node-a", "127.0.1.1"):
        one = same_everywhere(check_on(hosts, a=unset, b=unset))

    assert one.codes == ["RW114"] and one.hosts_of("RW114") == {"node-a"}
    assert "gloo on node-a offers 127.0.1.1 (lo), which node-b cannot reach" in one.finding("RW114")["summary"]
    assert "export GLOO_SOCKET_IFNAME=eth0" in one.finding("RW114")["next"]


def test_name_unresolvable_on_one_host(hosts: list[Host]) -> None:
    with faults.name_unknown(hosts[1], "node-a"):
        told = check_on(hosts, "--wait", "4")

    assert told["node-b"].codes == ["RW106"] and told["node-b"].hosts_of("RW106") == {"node-b"}
    assert told["node-a"].codes == ["RW101"]
    assert {each.code for each in told.values()} == {1}


def test_two_different_masters(hosts: list[Host]) -> None:
    told = check_on(hosts, "--wait", "4", b=Start(["--master-addr", "node-b"]))

    assert told["node-b"].codes[0] == "RW103" and told["node-b"].hosts_of("RW103") == {"node-b"}
    assert (
        "node-b is node 1, but its rendezvous address node-b is an address of this very host" in told["node-b"].finding("RW103")["summary"]
    )
    assert told["node-a"].codes == ["RW101"]


def test_different_ports_meet_all_the_same_and_are_told(hosts: list[Host]) -> None:
    one = same_everywhere(check_on(hosts, b=Start(["--master-port", str(PORT + 1)])))

    assert one.codes[0] == "RW103"
    assert f"node-a:{PORT + 1} on node-b" in one.finding("RW103")["summary"]


def test_another_job_id_is_told_on_both_sides(hosts: list[Host]) -> None:
    told = check_on(hosts, "--wait", "4", b=Start(["--rdzv-id", "other"]))

    assert told["node-a"].codes[0] == "RW103" and told["node-a"].hosts_of("RW103") == {"node-b"}
    assert told["node-b"].codes == ["RW103"] and told["node-b"].code == 1


def test_port_held_by_another_program(hosts: list[Host]) -> None:
    program = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(60)"
    squatter = hosts[0].start([sys.executable, "-c", program])
    with contextlib.suppress(TimeoutError):
        faults.wait_for(lambda: f":{PORT:04X}" in Path(f"/proc/{squatter.pid}/net/tcp").read_text())
    try:
        one = same_everywhere(check_on(hosts))
    finally:
        squatter.kill()
        squatter.wait()

    assert one.codes[0] == "RW107"
    assert one.hosts_of("RW107") == {"node-a"}
    assert f"pid {squatter.pid}" in one.finding("RW107")["summary"] and "user root" in one.finding("RW107")["summary"]


def test_no_permission_for_the_port(hosts: list[Host]) -> None:
    without = ["setpriv", "--bounding-set=-net_bind_service"]
    one = same_everywhere(check_on(hosts, "--master-port", "1022", only="names,ports", a=Start(before=without)))

    assert one.codes == ["RW602"] and one.hosts_of("RW602") == {"node-a"}


def test_ranks_that_torchrun_hands_out(hosts: list[Host]) -> None:
    """c10d: no node ranks; who has the rendezvous address leads, wherever it stands in the list."""
    one = same_everywhere(check_on(hosts, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"node-b:{PORT}", only="names,ports"))

    assert one.codes == [] and one.code == 0
    assert [host["name"] for host in one.report["hosts"]] == ["node-b", "node-a"]


def test_a_host_missing(hosts: list[Host]) -> None:
    told = check_on(hosts, "--wait", "2", b=Start(is_absent=True))

    assert told["node-a"].codes == ["RW101"]
    assert "node 1 did not come within 2" in told["node-a"].finding("RW101")["summary"]
    assert "waiting for node 1" in told["node-a"].stderr


@pytest.mark.parametrize("late", ["a", "b"])
def test_a_host_late(hosts: list[Host], late: str) -> None:
    one = same_everywhere(check_on(hosts, only="names", **{late: Start(delay_s=7.0)}))

    assert one.codes == ["RW601"] and one.hosts_of("RW601") == {f"node-{late}"}
    assert one.code == 0  # late is not wrong


def test_thirty_percent_loss(hosts: list[Host]) -> None:
    with faults.losing(hosts[1], 30):
        one = same_everywhere(check_on(hosts))

    assert one.codes[0] == "RW605"
    assert one.hosts_of("RW605") == {"node-a", "node-b"}
    assert "RW607" not in one.codes and "RW114" not in one.codes


def test_two_hundred_milliseconds(hosts: list[Host]) -> None:
    if reason := faults.why_no_relay():
        pytest.skip(reason)
    with faults.far_away(hosts, hosts[1], 0.1):
        one = same_everywhere(check_on(hosts))

    assert one.codes == ["RW606"]
    assert "take 20" in one.finding("RW606")["summary"] and "node-a – node-b" in one.finding("RW606")["summary"]


def test_one_megabit(hosts: list[Host]) -> None:
    with faults.thin_link(hosts[1], "1mbit"):
        one = same_everywhere(check_on(hosts))

    assert one.codes == ["RW607"]
    assert "node-a – node-b moves" in one.finding("RW607")["summary"]


def test_large_packets_dropped(hosts: list[Host]) -> None:
    with faults.swallowing(hosts, hosts[1], 1400):
        one = same_everywhere(check_on(hosts))

    assert one.codes == ["RW608"]
    assert "packets above 1400 bytes vanish" in one.finding("RW608")["summary"]


def test_duplicate_rank(hosts: list[Host]) -> None:
    one = same_everywhere(check_on(hosts, only="names", b=Start(["--node-rank", "0"])))

    assert one.codes[0] == "RW102"
    assert one.hosts_of("RW102") == {"node-a", "node-b"}
    assert "node 0" in one.finding("RW102")["summary"]


def test_world_size_off_by_one(hosts: list[Host]) -> None:
    one = same_everywhere(check_on(hosts, "--wait", "60", only="names", a=Start(["--nnodes", "3"])))

    assert one.codes[0] == "RW112"
    assert "3 on node-a, 2 on node-b" in one.finding("RW112")["summary"]
    assert one.seconds < 50  # nobody waits long for a host that nobody will start
