"""The same training by hand, with rankwise, Accelerate and Fabric: lines, cost of a step, and what happens when each is held wrong."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles

from machine import machine_facts

PEERS = Path(__file__).with_name("peers")
RESULT = Path(__file__).parent / "results" / "train.md"
NAMES = {"by_hand": "DDP by hand", "with_rankwise": "rankwise", "with_accelerate": "Accelerate", "with_fabric": "Fabric"}
MISUSES = {
    "uneven_data": "37 samples, 2 ranks, 5 batches in a window of 8",
    "evaluation": "predictions for 37 samples on 2 ranks",
    "reshuffling": "nobody calls `set_epoch`",
    "replaced_layer": "a layer is replaced after wrapping",
    "other_optimizer": "the optimizer holds another model's parameters",
    "bare_model": "the loop calls the bare model",
    "skipped_batch": "one rank leaves out a batch",
    "different_lengths": "one rank has fewer samples",
    "not_finite": "one batch gives infinite gradients",
    "killed_while_saving": "rank 0 is killed while saving, at 5 moments; the worst",
}


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
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    rounds = json.loads(result_line(run_job([*torchrun, str(PEERS / "step_job.py")], timeout_s=600)))
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
    print("misuses", flush=True)
    done = run_job([sys.executable, str(PEERS / "misuse_job.py")], timeout_s=1500)
    results = json.loads(result_line(done))
    rows = [f"| {what} | {' | '.join(in_words(results[misuse][library]) for library in NAMES)} |" for misuse, what in MISUSES.items()]
    text = "Each was run. “Right”: the result was right in spite of it. “Silent”: both ranks ended as if all was well, with a wrong result."
    head = [f"| | {' | '.join(NAMES.values())} |", "|---|---|---|---|---|"]
    return "\n".join([text, "", *head, *rows])


def in_words(said: list[str]) -> str:
    """What two ranks came to, in a few words; an error that only tells that the other rank is gone comes last."""
    errors = sorted((one for one in said if one.startswith("ERROR")), key=lambda one: "gloo" in one or "RW711" in one)
    if errors:
        words = " ".join(errors[0].removeprefix("ERROR ").split()).replace("|", "/")
        return f"error: {words if len(words) <= 110 else words[:107] + '…'}"
    if "NOTHING" in said:
        return "hangs"
    worst = max(said)  # WRONG comes after RIGHT
    return "right" if worst == "RIGHT" else f"silent: {worst.removeprefix('WRONG ')}"


def result_line(said: str) -> str:
    found = [line for line in said.splitlines() if line.startswith("RESULT ")]
    if not found:
        raise SystemExit(f"the job ended without a result:\n{said[-3000:]}")
    return found[0].removeprefix("RESULT ")


def run_job(command: list[str], timeout_s: float) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{PEERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s).stdout


if __name__ == "__main__":
    main(sys.argv[1:])  # lines, cost, held
