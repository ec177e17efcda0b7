"""Message classes from our own descriptors, in a pool of their own: tritonclient registers messages of the same names in protobuf's default
pool, and both have to live in one process. Nothing is generated code, so any protobuf from 6.30 on will do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FILE = Path(__file__).with_name("descriptors.binpb")  # written by `make proto` from the .proto files beside it
POOL = descriptor_pool.DescriptorPool()
_FILES = descriptor_pb2.FileDescriptorSet.FromString(_FILE.read_bytes())
for _file in _FILES.file:
    POOL.Add(_file)
SERVICES = [f"{file.package}.{service.name}" for file in _FILES.file for service in file.service]


def message(name: str) -> Any:
    """The class of a message, by its full name."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


def methods(service: str) -> list[Any]:
    """The descriptors of a service's methods."""
    return list(POOL.FindServiceByName(service).methods)
