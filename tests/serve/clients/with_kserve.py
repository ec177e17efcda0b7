"""KServe's own client against the server: `python with_kserve.py HTTP_ADDRESS GRPC_ADDRESS`."""

import asyncio
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

A, B = np.array([[1, 2, 3, 4]], np.float32), np.ones((1, 4), np.float32)


def request(model: str = "sums", as_binary: bool = False) -> InferRequest:
    inputs = [InferInput(name, [1, 4], "FP32") for name in "ab"]
    for tensor, array in zip(inputs, (A, B)):
        tensor.set_data_from_numpy(array, binary_data=as_binary)
    return InferRequest(model, inputs, request_id="7")


async def main(http: str, grpc: str) -> None:
    rest = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    base = f"http://{http}"
    assert await rest.is_server_live(base) and await rest.is_server_ready(base) and await rest.is_model_ready(base, "sums")
    for as_binary in (False, True):
        answer = await rest.infer(base, request(as_binary=as_binary), model_name="sums")
        assert answer.id == "7" and answer.model_name == "sums"
        assert np.array_equal(answer.outputs[0].as_numpy(), A + B) and answer.outputs[1].name == "difference"
    try:
        await rest.infer(base, request(), model_name="nowhere")
        raise AssertionError("there is no such model")
    except Exception as error:
        assert "404" in str(error), error
    await rest.close()

    channel = InferenceGRPCClient(grpc)
    assert await channel.is_server_live() and await channel.is_server_ready() and await channel.is_model_ready("sums")
    for as_binary in (False, True):
        answer = await channel.infer(request(as_binary=as_binary))
        assert answer.id == "7" and np.array_equal(answer.outputs[0].as_numpy(), A + B)
    await channel.close()
    print("fine")


asyncio.run(main(*sys.argv[1:]))
