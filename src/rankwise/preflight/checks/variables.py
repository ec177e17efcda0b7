"""environment variables

Every variable that begins with `NCCL_`, `GLOO_`, `TORCH_`, `OMP_`, `CUDA_` (and `MKL_`, `PYTORCH_`), compared between hosts. Values of variables
whose name speaks of a key, token, secret or password are never shown: only a fingerprint leaves the host, to be compared.

Fails with RW125 where one that all ranks must agree on differs; warns where a difference can be meant (which interface, which GPUs, how
many threads, where logs go).
"""

from __future__ import annotations

import hashlib
import re

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts

GROUP = "parity"
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "OMP_", "CUDA_", "MKL_", "PYTORCH_")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_OWN = re.compile(r"_IFNAME$|_HCA$|_HOSTID$|_DEBUG|_VISIBLE_DEVICES$|_NUM_THREADS$|_FILE$|_DIR$|_PATH$|_HOME$|_TOPO|_CACHE")
_HIDDEN = "\0hidden "  # no value of an environment variable can begin so
_LONGEST = 300
_MOST = 300


def look(here: Here) -> Facts:
    names = sorted(name for name in here.environ if name.startswith(_PREFIXES))[:_MOST]
    return {"variables": {name: _shown(name, here.environ[name], here.plan.job_id) for name in names}}


def _shown(name: str, value: str, salt: str) -> str:
    if not _SECRET.search(name):
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}… ({_fingerprint(value, '')})"
    return f"{_HIDDEN}{_fingerprint(value, salt)}"


def _fingerprint(value: str, salt: str) -> str:
    return hashlib.blake2s(f"{salt}\0{value}".encode(errors="surrogateescape"), digest_size=4, person=b"rankwise").hexdigest()


def judge(job: CheckedJob, seen: Seen) -> None:
    facts_of = {host.name: facts["variables"] for host, facts in seeing_hosts(job, "variables", seen)}
    for name, variables in facts_of.items():
        seen.values[name] = f"{len(variables)} set" if variables else "none set"
    for variable in sorted({variable for variables in facts_of.values() for variable in variables}):
        values = _speakable({name: str(variables.get(variable, "not set")) for name, variables in facts_of.items()})
        seen.add_difference("RW125", variable, values, job, severity="warning" if _OWN.search(variable) else "error")


def _speakable(values: dict[str, str]) -> dict[str, str]:
    """Hidden values as "hidden value A", "hidden value B"; the rest as it is."""
    hidden = {value: i for i, value in enumerate(sorted({value for value in values.values() if value.startswith(_HIDDEN)}))}
    words = {value: f"hidden value {chr(ord('A') + i % 26)}" for value, i in hidden.items()}
    return {name: words.get(value, value) for name, value in values.items()}
