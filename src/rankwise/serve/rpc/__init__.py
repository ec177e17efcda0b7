"""The gRPC side of the Open Inference Protocol: `listening` is the server, `tensors` converts messages, `types` declares them."""
