"""Ray Serve, one replica per model: `python with_ray.py PORT`."""

import sys
import time

import numpy as np
import ray
import torch
from models import BUILDS, SHAPES
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(num_replicas=1, max_ongoing_requests=64, ray_actor_options={"num_cpus": 0.1})
class Model:
    def __init__(self, name: str) -> None:
        torch.set_num_threads(1)
        self.model, self.shape = BUILDS[name]().eval(), SHAPES[name]

    async def __call__(self, request: Request) -> object:
        is_json = request.url.path.endswith("json")
        numbers = (
            np.array((await request.json())["data"], np.float32) if is_json else np.frombuffer(await request.body(), np.float32).copy()
        )
        with torch.inference_mode():
            output = self.model(torch.from_numpy(numbers.reshape(1, *self.shape))).numpy()
        return {"data": output.ravel().tolist()} if is_json else Response(output.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"port": int(sys.argv[1])})
    for name in BUILDS:
        serve.run(Model.bind(name), name=name, route_prefix=f"/{name}")
    while True:
        time.sleep(60)
