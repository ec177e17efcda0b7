"""TorchServe, its own API, batches of up to 32, one worker per model, no request log: `python with_torchserve.py PORT`.

Not its KServe v2 envelope: that answers only the first request of a batch.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from models import BUILDS, SHAPES

WORKERS = 1  # two were no faster on two cores
LOG = '<Configuration status="ERROR"><Appenders><Console name="c"/></Appenders><Loggers><Root level="error"/></Loggers></Configuration>'


class Handler:
    """Runs in a worker of TorchServe, which finds it in the archive."""

    def initialize(self, context) -> None:
        torch.set_num_threads(1)
        self.model, self.shape = BUILDS[context.model_name]().eval(), SHAPES[context.model_name]

    def handle(self, requests: list, context) -> list:
        bodies = [request["body"] for request in requests]  # TorchServe has parsed what came as JSON
        rows = [np.array(body["data"], np.float32) if isinstance(body, dict) else np.frombuffer(body, np.float32) for body in bodies]
        with torch.inference_mode():
            answers = self.model(torch.from_numpy(np.stack(rows).reshape(-1, *self.shape))).numpy()
        return [{"data": row.tolist()} if isinstance(body, dict) else row.tobytes() for body, row in zip(bodies, answers)]


def pack(name: str, store: Path) -> None:
    command = ["torch-model-archiver", "--model-name", name, "--version", "1.0", "--handler", __file__, "--export-path", str(store)]
    subprocess.run([Path(sys.executable).with_name(command[0]), *command[1:]], check=True)


if __name__ == "__main__":
    port, folder = int(sys.argv[1]), Path(tempfile.mkdtemp())
    models = {}
    for name in BUILDS:
        pack(name, folder)
        said = {"defaultVersion": True, "marName": f"{name}.mar", "minWorkers": WORKERS, "maxWorkers": WORKERS}
        models[name] = {"1.0": {**said, "batchSize": 32, "maxBatchDelay": 1}}
    addresses = ("inference_address", "management_address", "metrics_address")
    ports = {key: f"http://127.0.0.1:{port + number}" for number, key in enumerate(addresses)}
    properties = {**ports, "grpc_inference_port": port + 3, "grpc_management_port": port + 4, "models": json.dumps(models)}
    properties |= {"model_store": folder, "load_models": "all", "disable_system_metrics": "true", "disable_token_authorization": "true"}
    (folder / "config.properties").write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    (folder / "log4j2.xml").write_text(LOG)
    os.chdir(folder)  # it writes its logs there
    program = str(Path(sys.executable).with_name("torchserve"))
    options = ["--ts-config", "config.properties", "--log-config", "log4j2.xml", "--foreground", "--no-config-snapshots"]
    os.execve(program, [program, *options], {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder)})
