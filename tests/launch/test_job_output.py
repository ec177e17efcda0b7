"""What a job prints: whole in the logs, byte for byte; on the terminal each line with its rank in front and otherwise as it was."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.launch.job_output import OutputPump
from rankwise.probe import output_pipe
from tests.families import mostly_live
from tests.launch.jobs import write_script

RANK = {"RANK": "0", "WORLD_SIZE": "1"}


def test_everything_a_rank_prints(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    """One run for many lines: no newline at the end, carriage returns, bytes that are no text, a line of a megabyte, children."""
    script = write_script(
        tmp_path,
        r"""
        import os, subprocess, sys
        print("first")
        print("äöü 漢字 \U0001f600", flush=True)
        os.write(1, b"raw \xff\xfe\x00\x01 bytes\n")
        os.write(1, b"x" * (1 << 20) + b"\n")
        for percent in range(0, 101, 50):
            sys.stdout.write(f"\r{percent:3d}%|bar|")
            sys.stdout.flush()
        print()
        print("windows\r", flush=True)
        print("\x1b[31mred\x1b[0m", flush=True)
        subprocess.run(["echo", "a child's line"])
        subprocess.run([sys.executable, "-c", "import sys; print('a Python child'); print('its error', file=sys.stderr)"])
        print("to stderr", file=sys.stderr)
        os.write(2, b"an error without an end")
        sys.stdout.write("no newline at the end")
        """,
    )
    ran = run_rankwise("run", "--out", tmp_path / "out", "--", sys.executable, script, env=RANK)
    log = (tmp_path / "out" / "logs" / "rank-0.log").read_bytes()

    assert ran.code == 0, ran.text[-2000:]
    big = b"x" * (1 << 20)
    for part in [
        b"first\n",
        "äöü 漢字 \U0001f600\n".encode(),
        b"raw \xff\xfe\x00\x01 bytes\n",
        b"\n" + big + b"\n",
        b"\r  0%|bar|\r 50%|bar|\r100%|bar|\n",
        b"windows\r\n",
        b"\x1b[31mred\x1b[0m\n",
        b"a child's line\n",
        b"a Python child\n",
        b"its error\n",
        b"to stderr\n",
        b"an error without an end",
        b"no newline at the end",
    ]:
        assert part in log, part[:60]
    assert b"[rank" not in log  # the log holds what was printed, not what we made of it

    lines = ran.stdout.split("\n")
    assert "[rank 0] first" in lines
    assert "[rank 0] äöü 漢字 \U0001f600" in lines
    assert "[rank 0] " + "x" * (1 << 20) in lines  # whole, with one prefix
    assert "[rank 0] windows\r" in lines
    assert "[rank 0] \x1b[31mred\x1b[0m" in lines
    assert "[rank 0] a child's line" in lines
    assert "[rank 0] no newline at the end" in lines
    assert "[rank 0] to stderr" in ran.stderr.split("\n")
    assert "[rank 0] an error without an end" in ran.stderr.split("\n")
    assert "50%|bar|" in ran.stdout


def test_many_ranks_at_once_do_not_mix_their_lines(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    script = write_script(
        tmp_path,
        """
        import os, subprocess, sys
        if "RANK" in os.environ:
            for i in range(400):
                os.write(1 + i % 2, f"rank {os.environ['RANK']} line {i} {'.' * (i % 90)}\\n".encode())
        else:
            print("the launcher's own line", flush=True)
            ranks = [subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(r), "WORLD_SIZE": "4"}) for r in range(4)]
            sys.exit(max(rank.wait() for rank in ranks))
        """,
    )
    ran = run_rankwise("run", "--out", tmp_path / "out", "--", sys.executable, script)

    assert ran.code == 0, ran.text[-2000:]
    assert "the launcher's own line" in ran.stdout.splitlines()  # no rank, no prefix
    for rank in range(4):
        expected = [f"rank {rank} line {i} {'.' * (i % 90)}" for i in range(400)]
        log = (tmp_path / "out" / "logs" / f"rank-{rank}.log").read_text().splitlines()
        assert sorted(log) == sorted(expected)
        shown = [line for line in ran.stdout.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert shown == [f"[rank {rank}] {line}" for line in expected[::2]]
        shown = [line for line in ran.stderr.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert shown == [f"[rank {rank}] {line}" for line in expected[1::2]]


def test_redirection_is_respected_and_copied(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    """Five ranks, each with another redirection of the user's own: the files hold what they should, and so do the logs."""
    rank = write_script(tmp_path, "import sys; print('to stdout'); print('to stderr', file=sys.stderr)", "rank.py")
    python = f"{sys.executable} {rank}"
    launcher = write_script(
        tmp_path,
        f"""
        RANK=0 {python} > both.txt 2>&1 &
        RANK=1 {python} > only-out.txt &
        RANK=2 {python} > apart.out 2> apart.err &
        RANK=3 {python} 2> only-err.txt &
        RANK=4 {python} > /dev/null &
        RANK=5 {python} | cat > piped.txt &
        wait
        """,
        "launch.sh",
    )
    ran = run_rankwise("run", "--out", tmp_path / "out", "--", "bash", launcher, env={"WORLD_SIZE": "6"}, cwd=tmp_path)
    logs = {r: (tmp_path / "out" / "logs" / f"rank-{r}.log").read_text().splitlines() for r in range(6)}

    assert ran.code == 0
    assert sorted((tmp_path / "both.txt").read_text().splitlines()) == ["to stderr", "to stdout"]
    assert (tmp_path / "only-out.txt").read_text() == (tmp_path / "apart.out").read_text() == "to stdout\n"
    assert (tmp_path / "piped.txt").read_text() == "to stdout\n"
    assert (tmp_path / "apart.err").read_text() == (tmp_path / "only-err.txt").read_text() == "to stderr\n"
    for r in range(4):
        assert sorted(logs[r]) == ["to stderr", "to stdout"], f"rank {r}"
    assert logs[4] == ["to stderr"]
    assert "to stderr" in logs[5]
    assert not [line for line in ran.text.splitlines() if line.startswith(("[rank 0]", "[rank 2]"))]
    assert "[rank 1] to stderr" in ran.stderr.splitlines()
    assert "[rank 3] to stdout" in ran.stdout.splitlines()


def test_redirection_into_our_own_log_does_not_copy_a_file_onto_itself(tmp_path: Path, start: Callable[..., Any]) -> None:
    log = tmp_path / "out" / "logs" / "rank-0.log"
    script = write_script(tmp_path, f"{sys.executable} -c 'print(200_000 * \"x\")' > {log} 2>&1", "launch.sh")

    def at_most_a_little_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))

    run = start("--out", tmp_path / "out", "--", "bash", script, cwd=tmp_path, preexec_fn=at_most_a_little_disk, env={**os.environ, **RANK})

    assert run.wait(timeout=60) == 0
    assert log.stat().st_size == 200_001


def test_on_a_terminal_the_status_line_comes_and_goes(tmp_path: Path) -> None:
    """What a person sees in the end is the job's lines, and nothing of the line that was drawn and taken away between them."""
    script = write_script(
        tmp_path,
        """
        import pathlib, sys, time
        here = pathlib.Path(__file__).parent
        print("first", flush=True)
        while not (here / "go").exists():
            time.sleep(0.05)
        print("last", flush=True)
        """,
    )
    ours, theirs = pty.openpty()
    env = {**os.environ, **RANK, "NO_COLOR": "1", "COLUMNS": "100", "TERM": "xterm"}
    command = [sys.executable, "-m", "rankwise", "run", "--out", str(tmp_path / "out"), "--", sys.executable, str(script)]
    run = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    try:
        while chunk := _read_terminal(ours):
            seen += chunk
            if b"1 of 1 ranks alive" in seen and b"first" in seen:
                (tmp_path / "go").touch()
        assert run.wait(timeout=60) == 0
    finally:
        run.kill()
        run.wait()
        os.close(ours)

    assert b"ranks alive" in seen
    assert [line for line in _terminal(seen.decode()) if line] == ["[rank 0] first", "[rank 0] last"]


@pytest.mark.parametrize("style", mostly_live(["command", "torchrun"]))
def test_breakpoint_on_a_terminal(tmp_path: Path, style: str) -> None:
    """The prompt is shown, the status line steps aside, and what is typed arrives."""
    script = write_script(tmp_path, "answer = 41\nbreakpoint()\nprint('went on with', answer, flush=True)\n")
    job = ["--", sys.executable, str(script)] if style == "command" else ["--standalone", "--nproc-per-node", "1", str(script)]
    env = {**os.environ, **(RANK if style == "command" else {}), "NO_COLOR": "1", "COLUMNS": "100", "TERM": "xterm"}
    terminal = Terminal([sys.executable, "-m", "rankwise", "run", "--out", str(tmp_path / "out"), *job], env)
    try:
        terminal.read_until(b"(Pdb) ")
        terminal.read_for(2.5)  # several turns of the status line
        assert terminal.seen.endswith(b"(Pdb) ")
        os.write(terminal.fd, b"p answer + 1\n")
        terminal.read_until(b"42")
        os.write(terminal.fd, b"c\n")
        terminal.read_until(b"went on with 41")
        terminal.read_to_end()
        assert terminal.run.wait(timeout=60) == 0
    finally:
        terminal.close()


def test_an_unfinished_line_is_ended_when_another_rank_speaks(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, pathlib, sys, time
        here = pathlib.Path(__file__).parent
        if os.environ["RANK"] == "0":
            sys.stdout.write("loading ...")
            sys.stdout.flush()
            while not (here / "go").exists():
                time.sleep(0.05)
            print(" done", flush=True)
        else:
            while not (here / "seen").exists():
                time.sleep(0.05)
            print("I am rank 1", flush=True)
        """,
    )
    rank = f"{sys.executable} {script}"
    env = {**os.environ, "WORLD_SIZE": "2", "NO_COLOR": "1", "COLUMNS": "100", "TERM": "xterm"}
    command = [sys.executable, "-m", "rankwise", "run", "--out", str(tmp_path / "out"), "--", "sh", "-c"]
    terminal = Terminal([*command, f"RANK=0 {rank} & RANK=1 {rank} & wait"], env)
    try:
        terminal.read_until(b"loading ...")
        (tmp_path / "seen").touch()
        terminal.read_until(b"I am rank 1")
        (tmp_path / "go").touch()
        terminal.read_to_end()
        assert terminal.run.wait(timeout=60) == 0
    finally:
        terminal.close()

    lines = [line for line in _terminal(terminal.seen.decode()) if line]
    assert lines == ["[rank 0] loading ...", "[rank 1] I am rank 1", "[rank 0]  done"]
    assert (tmp_path / "out" / "logs" / "rank-0.log").read_text() == "loading ... done\n"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.fd, theirs = pty.openpty()
        self.run = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        self.seen = b""

    def read_until(self, wanted: bytes, patience_s: float = 60) -> None:
        deadline = time.monotonic() + patience_s
        while wanted not in self.seen:
            assert time.monotonic() < deadline, f"waited in vain for {wanted!r}: {self.seen[-500:]!r}"
            self.read_for(0.1)

    def read_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                self.seen += _read_terminal(self.fd)

    def read_to_end(self) -> None:
        while chunk := _read_terminal(self.fd):
            self.seen += chunk

    def close(self) -> None:
        self.run.kill()
        self.run.wait()
        os.close(self.fd)


def _read_terminal(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:  # the last writer is gone
        return b""


def _terminal(text: str) -> list[str]:
    """What stays on a terminal that knows carriage return, newline and "erase to the end of the line"."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+|\x1b", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            lines.append("")
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part) :]
            column += len(part)
        if part == "\n":
            column = 0
    return [line.rstrip() for line in lines]


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[OutputPump]:
    """The real thing, with pipes of its own; nothing is started."""
    (tmp_path / "logs").mkdir()
    sink = Path(os.environ["TMPDIR"]) / "sink"
    made = OutputPump(sink, tmp_path / "logs")
    yield made
    with contextlib.suppress(OSError, RuntimeError):
        made.stop()
    sink.unlink(missing_ok=True)


def test_a_line_end_cut_in_two_is_still_one(pump: OutputPump, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """\\r at the end of one read and \\n at the start of the next belong together."""
    read_end, write_end = os.pipe()
    pump.start()
    output_pipe._send(str(Path(os.environ["TMPDIR"]) / "sink"), f"{os.getpid()} o 3\n", [read_end])
    os.close(read_end)
    sent = b""
    for part in (b"one\r", b"\ntwo", b"\r\n", b"half ", b"a line\n", b"10%\r", b"20%\r", b"\n", b"three"):
        os.write(write_end, part)
        sent += part
        _until(lambda: (tmp_path / "logs" / "rank-3.log").read_bytes(), sent)
    os.close(write_end)
    pump.stop()

    assert capfdbinary.readouterr().out == (
        b"[rank 3] one\r\n[rank 3] two\r\n[rank 3] half a line\n[rank 3] 10%\r[rank 3] 20%\r\n[rank 3] three\n"
    )


def test_a_line_whose_start_was_read_before_a_fault_is_shown_whole(
    pump: OutputPump, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    pump.start()
    output_pipe._send(str(Path(os.environ["TMPDIR"]) / "sink"), f"{os.getpid()} o 3\n", [read_end])
    os.close(read_end)
    os.write(write_end, b"half ")
    _until(lambda: (tmp_path / "logs" / "rank-3.log").read_bytes(), b"half ")
    monkeypatch.delattr(OutputPump, "_emit")
    os.write(write_end, b"a line\n")
    _until(lambda: (tmp_path / "logs" / "rank-3.log").read_bytes(), b"half a line\n")
    os.close(write_end)
    pump.stop()

    assert capfdbinary.readouterr().out == b"half a line\n"


def test_a_rank_named_late_is_named_before_its_lines_are_shown(
    pump: OutputPump, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """mp.spawn and Fabric: a process learns its rank from init_process_group and prints right after; all of it may wait for us at once."""
    sink = str(Path(os.environ["TMPDIR"]) / "sink")
    pipes = [os.pipe() for _ in range(8)]
    for rank, (read_end, _) in enumerate(pipes):
        output_pipe._send(sink, f"{1000 + rank} o -\n", [read_end])
        os.close(read_end)
    for rank, (_, write_end) in enumerate(pipes):
        output_pipe._send(sink, f"{1000 + rank} - {rank}\n", [])
        os.write(write_end, b"hello\n")
    pump.start()
    for rank, (_, write_end) in enumerate(pipes):
        os.close(write_end)
        _until((tmp_path / "logs" / f"rank-{rank}.log").read_bytes, b"hello\n")
    pump.stop()

    assert sorted(capfdbinary.readouterr().out.splitlines()) == [f"[rank {rank}] hello".encode() for rank in range(8)]


def test_a_writer_is_never_kept_waiting_for_the_terminal(pump: OutputPump, tmp_path: Path) -> None:
    out, err = map(os.dup, pump.shared_writers)
    pump.start()
    data = os.urandom(1 << 22).replace(b"\n", b"\0")
    writer = threading.Thread(target=lambda: (os.write(out, data), os.close(out), os.close(err)))
    writer.start()
    writer.join(60)

    assert not writer.is_alive()
    pump.stop()
    assert (tmp_path / "logs" / "launcher.log").read_bytes() == data


def test_a_terminal_that_went_away_costs_no_line_of_the_log(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    """`rankwise run … | head -1`: the job goes on, and its logs are whole."""
    script = write_script(tmp_path, "import time\nfor i in range(2000):\n    print('line', i, flush=True)\n")
    command = f"{sys.executable} -m rankwise run --out {tmp_path}/out -- {sys.executable} {script} | head -1; exit ${{PIPESTATUS[0]}}"
    shell = write_script(tmp_path, command, "pipe.sh")

    ran = run_rankwise("run", "--out", tmp_path / "outer", "--", "bash", shell, env=RANK)

    assert ran.code == 0, ran.text
    log = (tmp_path / "out" / "logs" / "rank-0.log").read_text().splitlines()
    assert log == [f"line {i}" for i in range(2000)]


def _until(look: Callable[[], bytes], wanted: bytes, patience_s: float = 20) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if look() == wanted:
                return
        time.sleep(0.01)
    raise AssertionError("waited in vain")
