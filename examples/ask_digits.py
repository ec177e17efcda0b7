"""Asks the server that `rankwise serve` is, with NVIDIA's own client; nothing in here knows rankwise: `python ask_digits.py HOST:PORT`."""

import sys

import tritonclient.http as triton
from train_ddp import digits


def main(address: str) -> None:
    _, testing = digits()
    x, y = (tensor.numpy() for tensor in testing.tensors)
    picture = triton.InferInput("picture", list(x.shape), "FP32")
    picture.set_data_from_numpy(x)
    with triton.InferenceServerClient(address) as client:
        answers = client.infer("digits", [picture]).as_numpy("output").argmax(axis=1)
    print(f"{(answers == y).mean():.1%} of {len(y)} digits right, over HTTP", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
