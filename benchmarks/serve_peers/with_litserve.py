"""LitServe, one API per model and kind of body, batches of up to 32: `python with_litserve.py PORT`."""

import sys

import litserve
import numpy as np
import torch
from fastapi import Request
from models import BUILDS, SHAPES


class Api(litserve.LitAPI):
    def __init__(self, name: str, is_json: bool) -> None:
        super().__init__(api_path=f"/{name}/{'json' if is_json else 'binary'}", max_batch_size=32, batch_timeout=0.0)
        self.name, self.is_json = name, is_json

    def setup(self, device: str) -> None:
        torch.set_num_threads(1)
        self.model = BUILDS[self.name]().eval()

    def decode_request(self, request: Request) -> np.ndarray:
        numbers = np.array(request["data"], np.float32) if self.is_json else np.frombuffer(request["content"], np.float32)
        return numbers.reshape(SHAPES[self.name])

    def batch(self, inputs: list) -> torch.Tensor:
        return torch.from_numpy(np.stack(inputs))

    def predict(self, x: torch.Tensor) -> np.ndarray:
        with torch.inference_mode():
            return self.model(x).numpy()

    def unbatch(self, output: np.ndarray) -> list:
        return list(output)

    def encode_response(self, output: np.ndarray):
        return {"data": output.tolist()}


if __name__ == "__main__":
    litserve.LitServer([Api(name, True) for name in BUILDS], accelerator="cpu", workers_per_device=1).run(
        port=int(sys.argv[1]), log_level="error", generate_client_file=False
    )
