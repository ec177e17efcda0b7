"""Whatever a script can see of its interpreter is as it would be without the probe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.probe.probed import bare_environment, probed_environment, run, run_bare, run_script, write_script

# Prints what it sees. Signals 4, 6, 7, 8, 11 are faulthandler's and SIGRTMAX-2 the request for a stack; nobody else's may differ.
LOOK = """
import json, os, signal, sys, threading, warnings
import faulthandler_free_zone as _  # beside the script: sys.path[0] works

OURS = {4, 6, 7, 8, 11, signal.SIGRTMAX - 2}

def mask(name):
    with open("/proc/self/status") as file:
        bits = next(line.split()[1] for line in file if line.startswith(name))
    return [n for n in range(1, 65) if int(bits, 16) >> (n - 1) & 1 and n not in OURS]

def stream(s):
    return [type(s).__name__, s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno(), s.name]

seen = {
    "path": sys.path,
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "excepthook": sys.excepthook is sys.__excepthook__,
    "displayhook": sys.displayhook is sys.__displayhook__,
    "unraisablehook": sys.unraisablehook is sys.__unraisablehook__,
    "threading": threading.excepthook is threading.__excepthook__,
    "handlers": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
    "masks": [mask("SigCgt"), mask("SigIgn"), mask("SigBlk")],
    "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)],
    "same": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "trace": [sys.gettrace() is None, sys.getprofile() is None],
    "filters": len(warnings.filters),
    "recursion": sys.getrecursionlimit(),
    "switch": sys.getswitchinterval(),
    "threads": threading.active_count(),
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:3],
    "cwd": os.getcwd(),
    "main": [__name__, __doc__, globals().get("__file__"), __spec__ and __spec__.name],
    "flags": str(sys.flags),
    "children": [os.environ.get(n) for n in ("HOME", "LANG", "PYTHONSTARTUP")],
}
print(json.dumps(seen, indent=1))
"""


def look(style: str, folder: Path, env: dict[str, str], live: Path) -> dict[str, Any]:
    commands: dict[str, list[str | Path]] = {
        "script": ["look.py", "--lr", "0.1"],
        "module": ["-m", "package.look", "x"],
        "code": ["-c", LOOK, "x"],
        "stdin": ["-", "x"],
        "unbuffered": ["-u", "-X", "dev", "look.py"],
    }
    ended = run([sys.executable, *commands[style]], live, env, folder, given=LOOK if style == "stdin" else "")
    assert ended.code == 0, ended.err
    assert not ended.err
    seen: dict[str, Any] = json.loads(ended.out)
    return seen


@pytest.mark.parametrize("rank", [{}, {"RANK": "0", "WORLD_SIZE": "2"}], ids=["helper", "rank"])
@pytest.mark.parametrize("style", ["script", "module", "code", "stdin", "unbuffered"])
def test_the_interpreter_looks_as_without_the_probe(tmp_path: Path, live: Path, style: str, rank: dict[str, str]) -> None:
    for folder in (tmp_path, tmp_path / "package"):
        folder.mkdir(exist_ok=True)
        (folder / "look.py").write_text(LOOK)
        (folder / "faulthandler_free_zone.py").write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # An empty entry of PYTHONPATH means the current folder.
    common = {"PYTHONPATH": os.pathsep.join([str(elsewhere), "", str(tmp_path)]), **rank}

    with_probe = look(style, tmp_path, probed_environment(live, **common), live)
    without = look(style, tmp_path, bare_environment(**common), live)

    assert with_probe == without


def test_no_pythonpath_gives_the_same_path(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, "import sys; print(sys.path, 'sitecustomize' in sys.modules)")

    assert run_script(script, live).out == run_bare(script, live).out


SITECUSTOMIZE = {
    "works": "import sys; sys.user_was_here = __name__; print('hello from', __file__)",
    "raises": "print('before'); raise ValueError('in the user\\'s own sitecustomize')",
    "import-error": "import no_such_module_at_all",
    "exits": "import sys; sys.exit(7)",
    "syntax": "def f(:",
}


@pytest.mark.parametrize("content", SITECUSTOMIZE.values(), ids=SITECUSTOMIZE)
def test_the_users_sitecustomize_does_what_it_did(tmp_path: Path, live: Path, content: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write_script(own, content, "sitecustomize.py")
    script = write_script(tmp_path, "import sys; print(getattr(sys, 'user_was_here', None), sys.modules.get('sitecustomize'), sys.path)")

    with_probe = run_script(script, live, PYTHONPATH=str(own))
    without = run_bare(script, live, PYTHONPATH=str(own))

    assert (with_probe.code, with_probe.out) == (without.code, without.out)
    assert with_probe.err.splitlines()[:2] == without.err.splitlines()[:2]
    assert with_probe.err.splitlines()[-2:] == without.err.splitlines()[-2:]  # between them a traceback of Python's start may stand


def test_importing_sitecustomize_finds_the_users_or_none(tmp_path: Path, live: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write_script(own, "MARK = 7", "sitecustomize.py")
    script = write_script(
        tmp_path,
        """
        try:
            import sitecustomize
            print(sitecustomize.MARK, sitecustomize.__file__)
        except ImportError as error:
            print("none:", error)
        """,
    )

    for env in ({"PYTHONPATH": str(own)}, {}):
        assert run_script(script, live, **env).out == run_bare(script, live, **env).out


def test_a_virtual_environment_keeps_its_own(tmp_path: Path, live: Path) -> None:
    """Another interpreter, in which rankwise is not installed, with a sitecustomize of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=120)
    python = tmp_path / "venv" / "bin" / "python"
    packages = next((tmp_path / "venv" / "lib").glob("python3*/site-packages"))
    write_script(packages, "import sys; sys.venv_was_here = True", "sitecustomize.py")
    script = write_script(tmp_path, "import sys; print(sys.prefix, sys.path, sys.venv_was_here); raise KeyError('x')  # here")

    with_probe = run([python, script], live, probed_environment(live, RANK="3"))
    without = run([python, script], live, bare_environment(RANK="3"))

    assert (with_probe.code, with_probe.out, with_probe.err) == (without.code, without.out, without.err) == (1, without.out, without.err)
    assert [line["type"] for line in with_probe.lines("raise")] == ["KeyError"]


def test_wrapped_functions_can_still_be_pickled_and_inspected(tmp_path: Path, live: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import inspect, os, pickle, sys
        for function in (os.kill, os._exit, sys.exit):
            assert pickle.loads(pickle.dumps(function)) is function, function
            print(function.__name__, inspect.signature(function), function.__doc__)
        try:
            os.kill()
        except TypeError:
            print("TypeError")
        try:
            os.kill(os.getpid(), 0)
        except OSError as error:
            print(error)
        """,
    )

    with_probe, without = run_script(script, live, RANK="0"), run_bare(script, live, RANK="0")

    assert (with_probe.code, with_probe.out) == (without.code, without.out), with_probe.err


def test_the_users_own_hooks_are_called(tmp_path: Path, live: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import atexit, signal, sys, threading
        sys.excepthook = lambda *what: print("excepthook", what[0].__name__)
        threading.excepthook = lambda args: print("threading.excepthook", args.exc_type.__name__)
        atexit.register(print, "atexit")
        signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM"))
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        signal.raise_signal(signal.SIGTERM)
        raise KeyError("last")
        """,
    )

    with_probe, without = run_script(script, live, RANK="0"), run_bare(script, live, RANK="0")

    assert (with_probe.code, with_probe.out, with_probe.err) == (without.code, without.out, without.err)
    assert with_probe.out.split() == ["threading.excepthook", "ZeroDivisionError", "SIGTERM", "excepthook", "KeyError", "atexit"]
