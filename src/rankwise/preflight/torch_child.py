"""The child of `TorchProcess`: imports torch, reports its versions, then runs commands; ends when the parent closes the pipe."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any


def main() -> None:
    # Whatever torch or the user's code prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    command: dict[str, Any] = {"do": "facts"}
    while True:
        try:
            for answer in _answers(command):
                answers.write(json.dumps(answer) + "\n")
        except Exception as error:  # any failure is an answer for the parent
            answers.write(json.dumps({"error": f"{type(error).__name__}: {str(error).strip() or 'no message'}"[:500]}) + "\n")
        answers.write('{"done": true}\n')
        command = commands.get()


def _read_commands(commands: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    os._exit(0)


def _answers(command: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if command["do"] == "collective":
        from rankwise.preflight.torch_collective import run_collective

        yield run_collective(command)
    elif command["do"] == "fit":
        from rankwise.preflight.torch_fit import find_fit

        sys.path.insert(0, os.getcwd())
        yield from find_fit(command["target"], command["limit_s"], command["memory"])
    else:
        yield _versions()


def _versions() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:
        return {"error": f"import torch: {type(error).__name__}: {error}"[:500]}
    import torch.distributed as dist

    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "gloo": bool(dist.is_available() and dist.is_gloo_available()),
        "nccl": "",
        "gpus": 0,
    }
    try:
        if dist.is_available() and dist.is_nccl_available():
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        facts |= _devices(torch)
    except Exception as error:
        facts["cuda_error"] = f"{type(error).__name__}: {error}"[:300]
    return facts


def _devices(torch: Any) -> dict[str, Any]:
    if not torch.version.cuda:
        return {}
    count = torch.cuda.device_count()
    blocked = [[a, b] for a in range(count) for b in range(count) if a != b and not torch.cuda.can_device_access_peer(a, b)]
    facts: dict[str, Any] = {"gpus": count, "no_peer_access": blocked}
    if count and not torch.cuda.is_available():
        facts["cuda_error"] = "torch.cuda.is_available() is False"
    return facts


if __name__ == "__main__":
    main()
