"""The same training by hand, with rankwise, Accelerate and Fabric: lines, cost of a step, and what happens when each is held wrong."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles

from machine import machine_facts

PEERS = Path(__file__).with_name("peers")
RESULT = Path(__file__).parent / "results" / "train.md"
NAMES = {"by_hand": "DDP by hand", "with_rankwise": "rankwise", "with_accelerate": "Accelerate", "with_fabric": "Fabric"}
MISUSES = {
    "uneven_data": "37 samples, 2 ranks, a short last window",
    "evaluation": "predictions for 37 samples on 2 ranks",
    "reshuffling": "nobody calls `set_epoch`",
    "replaced_layer": "a layer is replaced after wrapping",
    "other_optimizer": "the optimizer holds another model's parameters",
    "bare_model": "the loop calls the bare model",
    "skipped_batch": "one rank leaves out a batch",
    "different_lengths": "one rank has fewer samples",
    "not_finite": "one batch gives infinite gradients",
    "killed_while_saving": "rank 0 is killed while saving over the last checkpoint",
}
TIMEOUT_S = 40


def main(wanted: list[str]) -> None:
    """Measure all sections, or those that are named; the others stay as they are in the result."""
    measure = {"Lines of user code": lines_section, "Cost of a step": steps_section, "Held wrong": misuses_section}
    before = dict(re.findall(r"^## (.+?)\n\n(.+?)(?=\n\n## |\Z)", RESULT.read_text(), re.DOTALL | re.MULTILINE)) if wanted else {}
    versions = ", ".join(f"{name} {version(name)}" for name in ("accelerate", "lightning-fabric"))
    parts = ["# The same training, four ways"]
    for title, section in measure.items():
        if wanted and title.split()[0].lower() not in wanted:
            parts.append(f"## {title}\n\n{before[title].strip()}")
        else:
            parts.append(f"## {title}\n\n{section()}\n\n{machine_facts()}; {versions}. Written by `benchmarks/train_peers.py`.")
    RESULT.write_text("\n\n".join(parts) + "\n")
    print(RESULT.read_text())


def lines_section() -> str:
    """Lines with code in them; the data and the model are the same for all and not counted."""
    rows = [f"| {name} | {code_lines(PEERS / f'{file}.py')} |" for file, name in NAMES.items()]
    text = "Accumulation, clipping, checkpoint and resume, evaluation: `benchmarks/peers/*.py`, without the data and the model."
    return "\n".join([text, "", "| | lines |", "|---|---|", *rows])


def code_lines(path: Path) -> int:
    source = path.read_text()
    docstring = ast.get_docstring(ast.parse(source), clean=False) or ""
    lines = source.replace(docstring, "", 1).splitlines()
    return sum(bool(line.strip()) and not line.strip().startswith("#") and line.strip() != '""""""' for line in lines)


def steps_section() -> str:
    print("steps", flush=True)
    done = run_job("step_job.py", timeout_s=400)
    rounds = json.loads(next(line for line in done.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))
    rows = []
    for file, name in NAMES.items():
        cells = [name, f"{median(one[file][0] for one in rounds) * 1e3:.2f} ms"]
        for which in (0, 1):
            ratios = [one[file][which] / one["by_hand"][which] - 1 for one in rounds]
            low, _, high = quantiles(ratios, n=4)
            cells.append("" if file == "by_hand" else f"{median(ratios):+.1%} ({low:+.1%} … {high:+.1%})")
        rows.append(f"| {' | '.join(cells)} |")
    text = "\n".join(
        [
            "Two ranks with one thread each on the CPU, a network of 800,000 parameters, batches of 64, accumulation over 4, clipping,",
            f"AdamW; each library trains an epoch of 16 batches in turn, in the same processes, {len(rounds)} rounds. Per batch, against",
            "the block by hand of the same round; median and quartiles. CPU time is rank 0's own.",
        ]
    )
    head = ["| | a batch takes | more than by hand | more CPU time |", "|---|---|---|---|"]
    return "\n".join([text, "", *head, *rows])


def misuses_section() -> str:
    rows = []
    for misuse, what in MISUSES.items():
        print(misuse, flush=True)
        rows.append(f"| {what} | {' | '.join(outcome(library, misuse) for library in NAMES)} |")
    text = "Each was run. “Right”: the result was right in spite of it. “Silent”: the job ended with exit code 0 and a wrong result."
    head = [f"| | {' | '.join(NAMES.values())} |", "|---|---|---|---|---|"]
    return "\n".join([text, "", *head, *rows])


def outcome(library: str, misuse: str) -> str:
    """In a few words what two ranks came to."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        said = run_job("misuse_job.py", library, misuse, folder)
        if misuse == "killed_while_saving":
            if "too late" in said:
                return "not hit"
            said = run_job("misuse_job.py", library, misuse, folder)
    told = [line.split(" ", 2)[2] for line in said.splitlines() if line.startswith("SAID ")]
    if "TIMEOUT" in said:
        return f"hangs (ended after {TIMEOUT_S} s)"
    if len(told) == 2:
        worst = max(told)  # WRONG comes after RIGHT
        return "right" if worst == "RIGHT" else f"silent: {worst.removeprefix('WRONG ')}"
    return f"error: {first_error(said)}"


def first_error(said: str) -> str:
    """The first line that names an exception: the rank that failed first."""
    for line in said.splitlines():
        text = line.split("]: ", 1)[-1].strip()
        head = text.split(":", 1)[0]
        if head.replace(".", "").isidentifier() and head.endswith(("Error", "Exception", "Interrupt")):
            words = text.replace("|", "/")
            return words if len(words) <= 110 else words[:107] + "…"
    return "ended without one"


def run_job(script: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> str:
    """Two ranks under torchrun; what is still there after the timeout is ended, with all it started."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PEERS / script), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{PEERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # torchrun ends its ranks
        try:
            return process.communicate(timeout=40)[0] + "\nTIMEOUT"
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0] + "\nTIMEOUT"


if __name__ == "__main__":
    main(sys.argv[1:])  # lines, cost, held
