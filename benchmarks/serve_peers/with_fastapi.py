"""FastAPI on uvicorn, models in the server's own threads, one torch thread each: `python with_fastapi.py PORT`."""

import sys

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from models import BUILDS, SHAPES
from starlette.concurrency import run_in_threadpool

torch.set_num_threads(1)
MODELS = {name: build().eval() for name, build in BUILDS.items()}
app = FastAPI()


def run(name: str, x: torch.Tensor) -> np.ndarray:
    with torch.inference_mode():
        return MODELS[name](x.reshape(1, *SHAPES[name])).numpy()


@app.post("/{name}/json")
async def as_json(name: str, request: Request) -> dict:
    x = torch.tensor((await request.json())["data"], dtype=torch.float32)
    return {"data": (await run_in_threadpool(run, name, x)).ravel().tolist()}


@app.post("/{name}/binary")
async def as_binary(name: str, request: Request) -> Response:
    x = torch.frombuffer(bytearray(await request.body()), dtype=torch.float32)
    return Response((await run_in_threadpool(run, name, x)).tobytes(), media_type="application/octet-stream")


uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
