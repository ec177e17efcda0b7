"""How a process ends is written down by itself: exceptions without @record, exits with the line that called them, native crashes."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.probe.probed import Ended, line_of, run_bare, run_script, write_script

RANK = {"RANK": "1", "WORLD_SIZE": "2"}


def end(folder: Path, live: Path, text: str, **env: str) -> tuple[Ended, Path]:
    """Run the script as a rank; its result must be what it is without the probe."""
    script = write_script(folder, text)
    with_probe, without = run_script(script, live, **RANK, **env), run_bare(script, live, **RANK, **env)
    assert (with_probe.code, with_probe.out, with_probe.err) == (without.code, without.out, without.err)
    return with_probe, script


def test_an_exception_in_the_main_thread(tmp_path: Path, live: Path) -> None:
    ended, script = end(
        tmp_path,
        live,
        """
        def load(name):
            raise KeyError(name)  # here
        try:
            load("crop_0713")
        except KeyError as error:
            raise RuntimeError("no data, said ünïcödé") from error  # outer
        """,
    )
    (raised,) = ended.lines("raise")
    (exit_,) = ended.lines("exit")

    assert ended.code == 1
    assert (raised["type"], raised["message"], raised["thread"]) == ("RuntimeError", "no data, said ünïcödé", "MainThread")
    assert raised["frames"] == [[str(script), line_of(script, "outer"), "<module>"]]
    assert raised["text"] in ended.err  # the whole traceback, as Python prints it
    assert (exit_["kind"], exit_["code"]) == ("exception", 1)


def test_an_exception_in_a_thread_is_not_the_end(tmp_path: Path, live: Path) -> None:
    ended, script = end(
        tmp_path,
        live,
        """
        import threading
        def prefetch():
            raise OSError("stale handle")  # here
        thread = threading.Thread(target=prefetch, name="prefetcher")
        thread.start()
        thread.join()
        print("went on")
        """,
    )
    (raised,) = ended.lines("raise")
    (exit_,) = ended.lines("exit")

    assert (raised["type"], raised["thread"]) == ("OSError", "prefetcher")
    assert [str(script), line_of(script, "here"), "prefetch"] in raised["frames"]
    assert (exit_["kind"], exit_["code"]) == ("finished", 0)


EXITS = {
    "sys.exit": ("sys_exit", 3, "sys.exit(3)  # here"),
    "sys.exit text": ("sys_exit", 1, "sys.exit('no such dataset')  # here"),
    "sys.exit nothing": ("sys_exit", 0, "sys.exit()  # here"),
    "exit": ("sys_exit", 4, "exit(4)  # here"),
    "quit": ("sys_exit", 5, "quit(5)  # here"),
    "os._exit": ("os_exit", 6, "os._exit(6)  # here"),
}


@pytest.mark.parametrize(("kind", "code", "call"), EXITS.values(), ids=EXITS)
def test_who_called_exit_is_written_down(tmp_path: Path, live: Path, kind: str, code: int, call: str) -> None:
    ended, script = end(tmp_path, live, f"import os, sys\ndef give_up():\n    {call}\ngive_up()\n")
    (exit_,) = ended.lines("exit")

    assert ended.code == code
    assert (exit_["kind"], exit_["code"]) == (kind, code)
    assert [str(script), line_of(script, "here"), "give_up"] in exit_["frames"][:3]


def test_an_exit_that_was_caught_is_no_exit(tmp_path: Path, live: Path) -> None:
    ended, _ = end(
        tmp_path,
        live,
        """
        import sys
        try:
            sys.exit(2)
        except SystemExit:
            pass
        raise ValueError("the real end")
        """,
    )
    (exit_,) = ended.lines("exit")

    assert exit_["kind"] == "exception"
    assert [raised["type"] for raised in ended.lines("raise")] == ["ValueError"]


def test_exit_while_handling_tells_the_exception_too(tmp_path: Path, live: Path) -> None:
    ended, script = end(
        tmp_path,
        live,
        """
        import sys
        try:
            [][0]  # here
        except IndexError:
            print("giving up")
            sys.exit(9)
        """,
    )
    (raised,) = ended.lines("raise")

    assert ended.code == 9
    assert raised["type"] == "IndexError"
    assert [str(script), line_of(script, "here"), "<module>"] in raised["frames"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_kills_itself_says_from_where(tmp_path: Path, live: Path, number: signal.Signals) -> None:
    ended, script = end(tmp_path, live, f"import os, signal\nos.kill(os.getpid(), {int(number)})  # here\n")
    (sent,) = ended.lines("signal")

    assert ended.code == -number
    assert sent["signal"] == number
    assert sent["target"] in ended.journals()
    assert sent["frames"][0] == [str(script), line_of(script, "here"), "<module>"]


CRASHES = {"SIGSEGV": "ctypes.string_at(0)", "SIGABRT": "os.abort()"}


@pytest.mark.parametrize(("name", "call"), CRASHES.items(), ids=CRASHES)
def test_a_native_crash_leaves_the_python_stack(tmp_path: Path, live: Path, name: str, call: str) -> None:
    script = write_script(tmp_path, f"import ctypes, os\ndef step():\n    {call}  # here\nstep()\n")
    ended = run_script(script, live, **RANK)
    (stack,) = [path.read_text() for path in live.glob("f-*")]

    assert ended.code == -getattr(signal, name)
    assert f'File "{script}", line {line_of(script, "here")} in step' in stack
    assert not ended.err  # where nobody asked for faulthandler, it says nothing


def test_a_crash_in_a_forked_child_is_not_laid_at_its_parents_door(tmp_path: Path, live: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import ctypes, multiprocessing, os

        def crash():
            ctypes.string_at(0)

        child = multiprocessing.get_context("fork").Process(target=crash)
        child.start()
        child.join()
        forked = os.fork()
        if not forked:
            crash()
        os.waitpid(forked, 0)
        print(os.getpid(), child.pid, forked, child.exitcode)
        """,
    )
    ended = run_script(script, live, **RANK)
    parent, child, forked, code = ended.out.split()

    assert (ended.code, code) == (0, "-11"), ended.err
    assert not (live / f"f-{parent}").read_text()
    assert "in crash" in (live / f"f-{child}").read_text()
    assert "in crash" in (live / f"f-{forked}").read_text()


def test_the_users_own_faulthandler_stays_theirs(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, "import faulthandler, ctypes\nfaulthandler.enable()\nctypes.string_at(0)\n")

    with_probe, without = run_script(script, live, **RANK), run_bare(script, live, **RANK)

    assert with_probe.code == without.code == -signal.SIGSEGV
    assert _without_addresses(with_probe.err) == _without_addresses(without.err)


def test_an_exception_that_cannot_be_shown_is_no_trouble(tmp_path: Path, live: Path) -> None:
    ended, _ = end(
        tmp_path,
        live,
        """
        import sys
        class Unspeakable(Exception):
            def __str__(self):
                raise RuntimeError("no words")
        sys.stderr.flush()
        raise Unspeakable
        """,
    )

    assert ended.code == 1
    assert [line["kind"] for line in ended.lines("exit")] == ["exception"]


def test_a_huge_exception_is_cut(tmp_path: Path, live: Path) -> None:
    ended, _ = end(
        tmp_path,
        live,
        """
        def dig(depth):
            if not depth:
                raise ValueError("x" * 1_000_000)
            dig(depth - 1)
        dig(900)
        """,
    )
    (path,) = live.glob("p-*.jsonl")

    assert ended.code == 1
    assert path.stat().st_size < 64 << 10
    assert [line["type"] for line in ended.lines("raise")] == ["ValueError"]


def _without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x…", text)
