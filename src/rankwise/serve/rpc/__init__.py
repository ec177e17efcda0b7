"""The gRPC side of the Open Inference Protocol.

Begin with `listening`, the server. `contents` turns messages into arrays and back; `types` makes the message classes from
`descriptors.binpb`, which `make proto` makes from the `.proto` files.
"""
