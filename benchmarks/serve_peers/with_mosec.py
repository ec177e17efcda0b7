"""mosec, one route per model and kind of body, batches of up to 32: `python with_mosec.py --port PORT`."""

import json

import numpy as np
import torch
from models import BUILDS, SHAPES
from mosec import Runtime, Server, Worker


def worker(name: str, is_json: bool) -> type[Worker]:
    class Model(Worker):
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.model = BUILDS[name]().eval()

        def deserialize(self, data: bytes) -> np.ndarray:
            numbers = np.array(json.loads(data)["data"], np.float32) if is_json else np.frombuffer(data, np.float32)
            return numbers.reshape(SHAPES[name])

        def serialize(self, data: np.ndarray) -> bytes:
            return json.dumps({"data": data.tolist()}).encode() if is_json else data.tobytes()

        def forward(self, data: list) -> list:
            with torch.inference_mode():
                return list(self.model(torch.from_numpy(np.stack(data))).numpy())

    Model.__name__ = Model.__qualname__ = f"{name}_{'json' if is_json else 'binary'}"
    globals()[Model.__name__] = Model
    return Model


KINDS = {(name, is_json): worker(name, is_json) for name in BUILDS for is_json in (True, False)}
if __name__ == "__main__":
    server = Server()
    routes = {}
    for (name, is_json), model in KINDS.items():
        routes[f"/{name}/{'json' if is_json else 'binary'}"] = [Runtime(model, num=1, max_batch_size=32, max_wait_time=1)]
    server.register_runtime(routes)
    server.run()
