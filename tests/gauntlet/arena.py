"""Runs one gauntlet case under `rankwise run` (or bare) and says what its verdict got wrong."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

CASES = Path(__file__).resolve().parent / "cases"
STALL_AFTER_S = 4.0
GONE_WITHIN_S = 10.0
QUIET_S = 6.0  # a bare run that uses no CPU for so long is called a hang
ENDS_ITSELF_WITHIN_S = 60.0  # a loaded machine takes its time to raise, and to end what is left
_MARK = "GAUNTLET_RUN"
_SCRIPTS = (".py", ".sh")
_FOREIGN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH", "TORCH_DISTRIBUTED_DEBUG")


@dataclass(frozen=True)
class Case:
    """One script and the truth about it; lines come from its `# fault` and `# now` comments."""

    id: str
    folder: Path
    launch: tuple[str, ...]
    nproc: int
    symptom: str  # hang, crash, ok
    cause: str
    code: tuple[str, ...] = ()  # any of these
    culprit_ranks: tuple[int, ...] = ()
    must_not_blame: tuple[int, ...] = ()
    keywords: tuple[tuple[str, ...], ...] = ()  # a word of each group must be said
    line: bool = False  # is the line asserted?
    exit: tuple[int, ...] = ()  # acceptable exit codes, where they are known
    wall: float = 90.0
    extra: bool = False  # a variant: left out unless all cases are asked for
    needs: str = ""  # "unshare": needs the right to make namespaces
    note: str = ""

    @property
    def is_healthy(self) -> bool:
        return self.symptom == "ok"

    def __str__(self) -> str:
        return self.id

    def marked(self, comment: str) -> list[tuple[str, int]]:
        """(file name, line) of every script line that ends in this comment."""
        ending = re.compile(rf"#\s*(\w+, )?{comment}(, \w+)?\s*$")
        return [
            (path.name, number)
            for path in sorted(self.folder.rglob("*"))
            if path.suffix in _SCRIPTS
            for number, text in enumerate(path.read_text().splitlines(), 1)
            if ending.search(text)
        ]


def load_case(folder: Path) -> Case:
    data = json.loads((folder / "case.json").read_text())
    data["keywords"] = tuple(tuple(group) for group in data.get("keywords", ()))
    for name in ("launch", "code", "culprit_ranks", "must_not_blame", "exit"):
        data[name] = tuple(data.get(name, ()))
    return Case(folder=folder, **data)


def all_cases() -> list[Case]:
    return [load_case(path.parent) for path in sorted(CASES.glob("*/case.json"))]


def why_not_here(case: Case) -> str:
    """Why this machine cannot run the case; empty when it can."""
    if case.needs == "unshare":
        tried = subprocess.run(["unshare", "-m", "true"], capture_output=True) if shutil.which("unshare") else None
        if tried is None or tried.returncode != 0:
            return "needs the right to make a mount namespace"
    return ""


@dataclass
class Run:
    """What happened to one case."""

    case: Case
    work: Path
    port: int
    exit_code: int | None = None  # None: it was still running when we ended it
    verdict: dict[str, Any] | None = None  # as a user would first read it
    final_verdict: dict[str, Any] | None = None
    seconds: float = 0.0
    told_after_s: float | None = None
    left: list[str] = field(default_factory=list)  # commands that outlived the launcher
    output: str = ""
    stacks: str = ""  # of what still ran in the end, bare runs only

    @property
    def top(self) -> dict[str, Any]:
        return next(iter((self.verdict or {}).get("findings") or []), {})


def run_case(case: Case, work: Path, *, rankwise: list[str] | None = None, stall_after_s: float = STALL_AFTER_S) -> Run:
    """Run the case in a copy of its folder until it ends or its verdict is right; nothing of it survives."""
    out = work / "out"
    head = [*(rankwise or [sys.executable, "-m", "rankwise"]), "run", "--out", str(out), "--stall-after", str(stall_after_s)]
    tail = case.launch[1:] if case.launch[0] == "{torchrun}" else ("--", *case.launch)
    return _supervise(case, work, [*head, *tail], out / "verdict.json")


def run_bare(case: Case, work: Path) -> Run:
    """Run the case without rankwise, to see what it really does; hung means alive, and quiet for a while or past its time."""
    launch = list(case.launch)
    if launch[0] == "{torchrun}":
        launch[:1] = [sys.executable, "-m", "torch.distributed.run"]
    return _supervise(replace(case, wall=min(case.wall, 40.0 if case.symptom == "hang" else case.wall)), work, launch, None)


def find_problems(run: Run) -> list[str]:
    """Everything that is wrong with this run's verdict; empty when it is right."""
    problems = [f"left running: {command}" for command in run.left]
    if run.verdict is None:
        return [*problems, f"no verdict.json (exit code {run.exit_code})"]
    return problems + (_problems_healthy(run) if run.case.is_healthy else _problems_faulty(run))


def find_bare_problems(run: Run) -> list[str]:
    """Where the case, run without rankwise, does not do what its truth says."""
    is_right = {
        "ok": run.exit_code == 0,
        "hang": run.exit_code is None,
        "crash": run.exit_code is not None and (run.exit_code != 0 or 0 in run.case.exit),
    }
    return [] if is_right[run.case.symptom] else [f"is no {run.case.symptom}: exit code {run.exit_code} after {run.seconds:.1f} s"]


def _problems_healthy(run: Run) -> list[str]:
    errors = [f for f in run.verdict["findings"] if f.get("severity") == "error"]
    problems = [f"alarm on a healthy job: {f.get('code')} {f.get('summary')}" for f in errors]
    return problems if run.exit_code == 0 else [*problems, f"exit code {run.exit_code}, not 0"]


def _problems_faulty(run: Run) -> list[str]:
    case, top = run.case, run.top
    if not top:
        return [f"no finding (outcome {run.verdict.get('outcome')}, exit code {run.exit_code})"]
    return [
        *_wrong_code(case, top),
        *_wrong_ranks(case, top),
        *_missing_words(case, top, run.port),
        *(_wrong_line(case, top) if case.line else ()),
        *_wrong_exit(run),
        *_changed_mind(run),
    ]


def _wrong_code(case: Case, top: dict[str, Any]) -> list[str]:
    return [] if top.get("code") in case.code else [f"code {top.get('code')}, not {' or '.join(case.code)}"]


def _wrong_ranks(case: Case, top: dict[str, Any]) -> list[str]:
    named = {place.get("rank") for place in top.get("culprits") or ()} - {None}
    truth, everyone = set(case.culprit_ranks), set(range(case.nproc))
    is_right = not truth or named == truth or (named and named < truth) or (truth == everyone and not named)
    problems = [] if is_right else [f"culprits {sorted(named)}, not {sorted(truth)}"]
    blamed = named & set(case.must_not_blame)
    return [*problems, f"blames innocent {sorted(blamed)}"] if blamed else problems


def _missing_words(case: Case, top: dict[str, Any], port: int) -> list[str]:
    said = text_of(top)
    groups = [[word.replace("{port}", str(port)) for word in group] for group in case.keywords]
    return [f"says none of {group}" for group in groups if not any(word.lower() in said for word in group)]


def _wrong_line(case: Case, top: dict[str, Any]) -> list[str]:
    truth = case.marked("fault") + case.marked("now")
    named = [(os.path.basename(str(place.get("file"))), place.get("line")) for place in top.get("culprits") or ()]
    return [] if set(named) & set(truth) else [f"line {named}, not {truth}"]


def _wrong_exit(run: Run) -> list[str]:
    wanted = run.case.exit
    if run.exit_code is None and not wanted:
        return []
    if wanted:
        return [] if run.exit_code in wanted else [f"exit code {run.exit_code}, not {wanted}"]
    return [f"exit code 0 of a {run.case.symptom}"] if run.exit_code == 0 else []


def _changed_mind(run: Run) -> list[str]:
    final = next(iter((run.final_verdict or {}).get("findings") or []), {})
    same = final.get("code") == run.top.get("code") or final.get("code") in run.case.code
    return [] if same else [f"told {run.top.get('code')} first, {final.get('code')} in the end"]


def text_of(finding: dict[str, Any]) -> str:
    """All that a finding says, in lower case."""
    places = [*(finding.get("culprits") or ()), *(finding.get("waiting") or ())]
    words = [finding.get(name) for name in ("name", "summary", "why")] + list(finding.get("next") or ())
    words += [f"rank {place.get('rank')} {place.get('file')} {place.get('function')} {place.get('op')}" for place in places]
    return " ".join(str(word) for word in words if word).lower()


def _supervise(case: Case, work: Path, command: list[str], verdict_path: Path | None) -> Run:
    mark, port = uuid.uuid4().hex, _free_port()
    shutil.copytree(case.folder, work / "job", ignore=shutil.ignore_patterns("case.json", "__pycache__"))
    run = Run(case, work, port)
    started = time.monotonic()
    with open(work / "output.txt", "wb") as output:
        process = subprocess.Popen(
            [part.replace("{python}", sys.executable).replace("{port}", str(port)) for part in command],
            cwd=work / "job",
            env=_environment(mark, port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        if verdict_path:
            _watch(run, process, verdict_path, started)
        else:
            _watch_bare(run, process, mark, started)
        run.seconds = time.monotonic() - started
        if verdict_path:
            run.left += _wait_until_gone(mark, GONE_WITHIN_S)
        else:
            run.stacks = _stacks(mark)
    finally:
        _kill_marked(mark)
        process.wait()
    run.final_verdict = _read_verdict(verdict_path)
    run.verdict = run.verdict or run.final_verdict
    run.output = (work / "output.txt").read_text(errors="replace")
    return run


def _watch_bare(run: Run, process: subprocess.Popen[bytes], mark: str, started: float) -> None:
    busy_s, quiet_since = 0.0, time.monotonic()
    while process.poll() is None and time.monotonic() < started + run.case.wall:
        used_s = sum(_cpu_s(pid) for pid in _marked_processes(mark))
        if abs(used_s - busy_s) > 0.2:
            busy_s, quiet_since = used_s, time.monotonic()
        if run.case.symptom == "hang" and time.monotonic() - quiet_since > QUIET_S:
            break
        time.sleep(0.2)
    run.exit_code = process.poll()


def _watch(run: Run, process: subprocess.Popen[bytes], verdict_path: Path, started: float) -> None:
    """Wait for the end; a hang that rankwise only reports is ended by SIGTERM once the report is right."""
    deadline = started + run.case.wall
    while process.poll() is None and time.monotonic() < deadline:
        verdict = _read_verdict(verdict_path) if run.told_after_s is None else None
        if verdict and _is_told(run.case, verdict):
            run.verdict, run.told_after_s = verdict, time.monotonic() - started
            if run.case.symptom == "hang" and not _is_proven(verdict):
                break
            deadline = min(deadline, time.monotonic() + ENDS_ITSELF_WITHIN_S)
        time.sleep(0.05)
    run.exit_code = process.poll()
    if run.exit_code is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GONE_WITHIN_S)
        except subprocess.TimeoutExpired:
            run.left.append("rankwise itself, after SIGTERM")


def _is_told(case: Case, verdict: dict[str, Any]) -> bool:
    findings = verdict.get("findings") or [{}]
    return not case.is_healthy and findings[0].get("code") in case.code


def _is_proven(verdict: dict[str, Any]) -> bool:
    return verdict.get("outcome") == "hung" or bool(verdict["findings"][0].get("deadlock"))


def _read_verdict(path: Path | None) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text()) if path else None
    except FileNotFoundError:
        return None


def _environment(mark: str, port: int) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    here = os.path.dirname(sys.executable)
    return env | {
        _MARK: mark,
        "GAUNTLET_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{here}{os.pathsep}{env.get('PATH', '')}",
        "PYTHON": sys.executable,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _free_port() -> int:
    """A free port below the range the kernel hands out by itself, so that no connection takes it meanwhile."""
    while True:
        port = random.randrange(15000, 30000, 2)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
                return port
            except OSError:
                continue


def _marked_processes(mark: str) -> dict[int, str]:
    """pid → command of every living process whose environment carries the mark."""
    found, wanted = {}, f"{_MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in Path(entry.path, "environ").read_bytes() and _state(entry.path) != "Z":
                found[int(entry.name)] = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    return found


def _stacks(mark: str) -> str:
    """Where every process of a bare run is now, for whoever writes the truth."""
    texts, spy = [], Path(sys.executable).with_name("py-spy")
    for pid, command in _marked_processes(mark).items():
        dump = subprocess.run([spy, "dump", "--pid", str(pid)], capture_output=True, text=True)
        texts.append(f"[{_state(f'/proc/{pid}')}] {command}\n{dump.stdout}")
    return "\n".join(texts)


def _state(process: str) -> str:
    return Path(process, "stat").read_text().rpartition(")")[2].split()[0]


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait_until_gone(mark: str, within_s: float) -> list[str]:
    deadline = time.monotonic() + within_s
    while (alive := _marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return sorted(alive.values())


def _kill_marked(mark: str) -> None:
    while alive := _marked_processes(mark):
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
