"""MLServer, one model each, batches of up to 32, two worker processes: `python with_mlserver.py PORT`."""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from models import BUILDS


class Model(MLModel):
    async def load(self) -> bool:
        torch.set_num_threads(1)
        self._model = BUILDS[self.settings.name]().eval()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = torch.from_numpy(NumpyCodec.decode_input(payload.inputs[0]).copy())
        with torch.inference_mode():
            y = self._model(x).numpy()
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])


def write(path: Path, value: dict) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


if __name__ == "__main__":
    port, folder = int(sys.argv[1]), Path(tempfile.mkdtemp())
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    write(folder / "settings.json", {"host": "127.0.0.1", "parallel_workers": 2, "debug": False, "metrics_dir": str(folder), **ports})
    for name in BUILDS:
        batching = {"max_batch_size": 32, "max_batch_time": 0.001}
        write(folder / name / "model-settings.json", {"name": name, "implementation": "with_mlserver.Model", **batching})
    os.execv(program := str(Path(sys.executable).with_name("mlserver")), [program, "start", str(folder)])
