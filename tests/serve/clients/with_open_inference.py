"""The clients made from the protocol's own descriptions: `python with_open_inference.py HTTP_ADDRESS GRPC_ADDRESS`."""

import sys

import grpc
from open_inference.grpc import protocol, service
from open_inference.openapi.client import OpenInferenceClient
from open_inference.openapi.core.api_error import ApiError
from open_inference.openapi.types.inference_request import InferenceRequest
from open_inference.openapi.types.request_input import RequestInput


def over_http(address: str) -> None:
    client = OpenInferenceClient(base_url=f"http://{address}")
    client.check_server_liveness()
    client.check_server_readiness()
    client.check_model_readiness("sums")
    client.check_model_version_readiness("sums", "1")
    assert client.read_server_metadata().name == "rankwise"
    assert [tensor.name for tensor in client.read_model_metadata("sums").inputs] == ["a", "b"]
    assert client.read_model_version_metadata("sums", "1").platform == "pytorch_module"
    flat = RequestInput(name="a", shape=[1, 4], datatype="FP32", data=[1, 2, 3, 4])
    nested = RequestInput(name="b", shape=[1, 4], datatype="FP32", data=[[1, 1, 1, 1]])
    for answer in (
        client.model_infer("sums", request=InferenceRequest(id="7", inputs=[flat, nested])),
        client.model_version_infer("sums", "1", request=InferenceRequest(id="7", inputs=[flat, nested])),
    ):
        assert answer.id == "7" and answer.outputs[0].data.__root__ == [2, 3, 4, 5]
    try:
        client.read_model_metadata("nowhere")
        raise AssertionError("there is no such model")
    except ApiError as error:
        assert error.status_code == 404 and "nowhere" in error.body["error"]


def over_grpc(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = service.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(protocol.ServerLiveRequest()).live and stub.ServerReady(protocol.ServerReadyRequest()).ready
        assert stub.ModelReady(protocol.ModelReadyRequest(name="sums")).ready
        assert stub.ServerMetadata(protocol.ServerMetadataRequest()).name == "rankwise"
        assert stub.ModelMetadata(protocol.ModelMetadataRequest(name="sums")).outputs[0].name == "sum"
        tensor = protocol.ModelInferRequest.InferInputTensor
        contents = protocol.InferTensorContents(fp32_contents=[1, 2, 3, 4])
        inputs = [tensor(name=name, datatype="FP32", shape=[1, 4], contents=contents) for name in "ab"]
        answer = stub.ModelInfer(protocol.ModelInferRequest(model_name="sums", id="7", inputs=inputs))
        assert answer.id == "7" and list(answer.outputs[0].contents.fp32_contents) == [2, 4, 6, 8]


over_http(sys.argv[1])
over_grpc(sys.argv[2])
print("fine")
