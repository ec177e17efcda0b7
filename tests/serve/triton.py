"""NVIDIA's Triton server with the models of `conftest.entries`, to compare its answers with ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import tritonserver
from tests.ports import free_port

KINDS = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
_START_S = 120

_MODEL = """\
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse(self.answer(request)) for request in requests]

    def answer(self, request):
        def given(name):
            return pb.get_input_tensor_by_name(request, name).as_numpy()

"""
_BODIES = {
    "echo": """        return [pb.Tensor("y", given("x").copy())]\n""",
    "sums": """        a, b = given("a"), given("b")\n        return [pb.Tensor("sum", a + b), pb.Tensor("difference", a - b)]\n""",
    "words": """        words = given("w")
        loud = np.array([w.upper() for w in words.ravel()], object)
        return [pb.Tensor("W", loud.reshape(words.shape))]\n""",
}


@dataclass(frozen=True)
class Triton:
    http: str
    grpc: str


@contextlib.contextmanager
def triton(folder: Path) -> Iterator[Triton]:
    """Raises Unavailable where it cannot be installed."""
    command, env = tritonserver()
    for kind in KINDS:
        _write_model(folder, f"echo_{kind}", "echo", {"x": kind}, {"y": kind}, "-1, -1")
    _write_model(folder, "sums", "sums", {"a": "FP32", "b": "FP32"}, {"sum": "FP32", "difference": "FP32"}, "-1, 4")
    _write_model(folder, "words", "words", {"w": "BYTES"}, {"W": "BYTES"}, "-1")
    http, grpc = free_port(), free_port()
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    with (folder.parent / "triton.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--model-repository={folder}", *ports], env=env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_until_ready(process, http)
        yield Triton(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _write_model(folder: Path, name: str, body: str, inputs: dict[str, str], outputs: dict[str, str], dims: str) -> None:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL + _BODIES[body])

    def listed(tensors: dict[str, str]) -> str:
        kinds = {key: "STRING" if kind == "BYTES" else kind for key, kind in tensors.items()}
        return ", ".join(f'{{ name: "{key}" data_type: TYPE_{kind} dims: [{dims}] }}' for key, kind in kinds.items())

    text = f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\ninput [{listed(inputs)}]\noutput [{listed(outputs)}]\n'
    (version.parent / "config.pbtxt").write_text(text + "instance_group [{ kind: KIND_CPU }]\n")


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _START_S
    while True:
        assert process.poll() is None, f"Triton ended with {process.returncode}"
        assert time.monotonic() < end, "Triton does not become ready"
        with contextlib.suppress(OSError, urllib.error.URLError):
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).status == 200:
                return
        time.sleep(0.2)
