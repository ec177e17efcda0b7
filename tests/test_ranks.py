"""Which rank a process is, as its environment says it: torchrun, Open MPI, PMI, Slurm."""

from __future__ import annotations

import pytest

from rankwise.probe import process
from rankwise.ranks import RANK_VARIABLES, MeetingPlace, RankEnv, read_meeting_place, read_rank_env

LAUNCHERS = {
    "torchrun": {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
    "PMIx": {"PMIX_RANK": "5", "PMIX_SIZE": "8", "PMIX_LOCAL_RANK": "1"},
    "MPICH and Intel MPI": {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"},
    "Slurm": {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_reads_what_each_launcher_sets(launcher: str) -> None:
    found = read_rank_env(LAUNCHERS[launcher])

    assert (found.rank, found.world_size, found.local_rank) == (5, 8, 1)


@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if name != "torchrun"])
def test_torchruns_own_variables_are_believed_first(launcher: str) -> None:
    found = read_rank_env({**LAUNCHERS[launcher], "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2"})

    assert (found.rank, found.world_size, found.local_rank) == (2, 3, 2)


def test_the_probe_knows_the_same_variables() -> None:
    """It has a list of its own because it imports nothing of rankwise."""
    assert tuple(rank for rank, _, _ in RANK_VARIABLES) == process.RANK_VARIABLES


def test_families_are_not_mixed() -> None:
    """A pod of Slurm in which somebody set RANK by hand: the sizes of another world would be wrong."""
    found = read_rank_env({"RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "64", "SLURM_LOCALID": "7"})

    assert (found.rank, found.world_size, found.local_rank) == (1, None, None)


SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"PMIX_RANK": "5", **SLURM}, (5, 8, 1)),  # srun --mpi=pmix: PMIx has no variable for the size
        ({"PMI_RANK": "5", "PMI_SIZE": "8", **SLURM}, (5, 8, 1)),  # srun --mpi=pmi2
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1"}, (5, 8, 1)),  # mpiexec of HPE's PALS
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}, (5, 8, None)),
        ({"PMI_RANK": "0", "PMI_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}, (0, 8, None)),
        ({"PMIX_RANK": "5"}, (5, None, None)),
        ({**SLURM, "SLURM_NTASKS": "64", "SLURM_STEP_NUM_TASKS": "8"}, (5, 8, 1)),
        ({"PMIX_RANK": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, (0, 1, None)),  # the shell of salloc
    ],
)
def test_what_one_family_lacks_is_told_by_another_of_the_same_world(environ: dict[str, str], found: tuple[int | None, ...]) -> None:
    env = read_rank_env(environ)

    assert (env.rank, env.world_size, env.local_rank) == found


def test_a_world_size_without_a_rank_is_kept() -> None:
    assert read_rank_env({"WORLD_SIZE": "4"}) == RankEnv(None, 4, None, None, None)


def test_an_empty_environment_says_nothing() -> None:
    assert read_rank_env({}) == RankEnv(None, None, None, None, None)


@pytest.mark.parametrize("text", ["", " ", "x", "-1", "1.5", "1e3", "0x1", "²", "1" * 5000])
def test_what_is_no_number_is_not_believed(text: str) -> None:
    found = read_rank_env({"RANK": text, "WORLD_SIZE": text, "LOCAL_RANK": text, "MASTER_PORT": text})

    assert found == RankEnv(None, None, None, None, None)


def test_spaces_around_a_number_do_no_harm() -> None:
    assert read_rank_env({"RANK": " 3\n", "WORLD_SIZE": "4 "}).rank == 3


def test_reads_where_the_job_meets() -> None:
    found = read_rank_env({"MASTER_ADDR": "node-a", "MASTER_PORT": "29500"})

    assert (found.master_addr, found.master_port) == ("node-a", 29500)
    assert read_rank_env({"MASTER_ADDR": ""}).master_addr is None


@pytest.mark.parametrize(("text", "restarts"), [("2", 2), ("0", 0), ("", 0), ("many", 0)])
def test_counts_the_restarts_of_the_elastic_launcher(text: str, restarts: int) -> None:
    assert read_rank_env({"TORCHELASTIC_RESTART_COUNT": text}).restarts == restarts


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"MASTER_ADDR": "node-a", "MASTER_PORT": "29500"}, MeetingPlace("node-a", 29500)),
        (
            {"MASTER_ADDR": "h", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"},
            MeetingPlace("h", 1, kept_by_launcher=True),
        ),
        ({"MASTER_ADDR": "node-a"}, None),
        ({"MASTER_ADDR": "node-a", "MASTER_PORT": "0"}, None),
        ({"MASTER_ADDR": "node-a", "MASTER_PORT": "70000"}, None),
        ({"MASTER_ADDR": "node-a", "MASTER_PORT": "http"}, None),
        ({}, None),
    ],
)
def test_the_meeting_place_is_the_masters(environ: dict[str, str], place: MeetingPlace | None) -> None:
    assert read_meeting_place(environ) == place


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("node1,node2", "node1"),
        ("login", "login"),
        ("a[3,5]", "a3"),
        ("gpu[01-04]-ib,login", "gpu01-ib"),
        ("r[0-1]n[3-4]", "r0n3"),
    ],
)
def test_slurm_jobs_meet_on_their_first_host_at_a_port_of_their_own(hosts: str, first: str) -> None:
    environ = {"SLURM_PROCID": "1", "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": hosts}
    place, next_job = read_meeting_place(environ), read_meeting_place({**environ, "SLURM_JOB_ID": "78"})

    assert place is not None and next_job is not None
    assert place.address == first
    assert 20000 <= place.port < 30000 and place.port != next_job.port


def test_open_mpi_on_one_host_meets_on_loopback_and_on_several_must_be_told() -> None:
    one = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-1"}

    place = read_meeting_place(one)
    assert place is not None and place.address == "127.0.0.1"
    assert read_meeting_place({**one, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}) is None
