"""Triton's Python backend, batches of up to 32, one instance per model: `python with_triton.py PORT`, with the Python of this project."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from models import BUILDS, SHAPES

CONFIG = """\
backend: "python"
max_batch_size: 32
dynamic_batching {{ }}
input [{{ name: "x" data_type: TYPE_FP32 dims: {dims} }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [10] }}]
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""


class TritonPythonModel:
    """Runs in a process of Triton, which imports a copy of this file."""

    def initialize(self, args: dict) -> None:
        torch.set_num_threads(1)
        self.model = BUILDS[args["model_name"]]().eval()

    def execute(self, requests: list) -> list:
        import triton_python_backend_utils as triton

        rows = [triton.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        with torch.inference_mode():
            answers = self.model(torch.from_numpy(np.concatenate(rows))).numpy()
        parts = np.split(answers, np.cumsum([len(part) for part in rows])[:-1])
        return [triton.InferenceResponse([triton.Tensor("y", part)]) for part in parts]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from benchmarks.environments import tritonserver

    command, env = tritonserver()
    folder = Path(tempfile.mkdtemp())
    for name, shape in SHAPES.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(dims=list(shape)))
        shutil.copy(__file__, folder / name / "1" / "model.py")
    options = [f"--model-repository={folder}", "--http-address=127.0.0.1", f"--http-port={sys.argv[1]}", "--allow-grpc=false"]
    os.execve(command[0], [*command, *options], env)
