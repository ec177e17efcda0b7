"""The gRPC side of the Open Inference Protocol."""
