"""Requests and replies as bytes that any language can write: JSON with base64 tensors, or JSON followed by the tensors' raw bytes.

The second is the binary shape of the Open Inference Protocol. Nothing in a message is ever executed or unpickled. Pure.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwise.broker.oip_tensors import as_array, raw_of, read_array
from rankwise.errors import UsageError
from rankwise.pool.api.model import by_text, named_list, output_names
from rankwise.protocol import Array, TensorSpec, bfloat16, datatype_of

JSON, BINARY = "application/json", "application/octet-stream"
UNREADABLE = "an unreadable envelope"  # the content type of messages that the Redis transport could not open
HEADER_LENGTH = "inference-header-content-length"  # in the message's headers: where the JSON of a binary body ends
_LONGEST_ID = 200

Fetch = Callable[[str], bytes]  # the bytes behind a reference
Keep = Callable[[memoryview], "str | None"]  # a reference for bytes too many for a message; None if they fit into it


class Malformed(UsageError):
    """A message that cannot be understood, or asks for something that cannot be done."""


class TensorMissing(Malformed):
    """The tensor that a message refers to does not exist, or no longer."""


@dataclass(frozen=True)
class Body:
    """The bytes of a message, with their content type and, of a binary one, the length of its JSON."""

    content_type: str
    data: bytes
    header_length: int = 0  # of a binary body


@dataclass(frozen=True)
class Request:
    id: str
    model: str
    inputs: tuple[Array, ...]
    deadline: float | None = None  # seconds since 1970
    priority: int = 0  # 0 to 9, the highest first
    seed: int | None = None
    refs: tuple[str, ...] = ()  # references from which its inputs were fetched


@dataclass(frozen=True)
class Reply:
    """Outputs and how they were nested ("tensor", "list" or "dict"), or the finding of the error."""

    id: str
    outputs: Mapping[str, Array] = field(default_factory=dict)
    structure: str = "tensor"
    error: dict[str, Any] | None = None
    refs: tuple[str, ...] = ()


def write_request(request: Request, content_type: str, keep: Keep) -> Body:
    parameters = {"deadline": request.deadline, "priority": request.priority, "seed": request.seed}
    head = {"id": request.id, "model": request.model, "parameters": {key: value for key, value in parameters.items() if value is not None}}
    return _write(head, "inputs", {f"input_{i}": array for i, array in enumerate(request.inputs)}, content_type, keep)


def read_request(body: Body, fetch: Fetch) -> Request:
    """A message as a request; raises Malformed, which says what is wrong."""
    said, arrays, refs = _read(body, "inputs", fetch)
    parameters = said.get("parameters", {})
    if not isinstance(said.get("model"), str) or not isinstance(parameters, dict):
        raise Malformed("a message needs the model's name, and its parameters are an object")
    deadline, priority, seed = (parameters.get(name) for name in ("deadline", "priority", "seed"))
    if deadline is not None and not (type(deadline) in (int, float) and math.isfinite(deadline)):
        raise Malformed("deadline has to be a number: seconds since 1970")
    if type(priority or 0) is not int or not 0 <= (priority or 0) <= 9:
        raise Malformed("priority has to be a number from 0 to 9")
    if seed is not None and type(seed) is not int:
        raise Malformed("seed has to be a number")
    return Request(read_id(said), said["model"], tuple(arrays.values()), deadline, priority or 0, seed, refs)


def read_id(said: Mapping[str, Any]) -> str:
    found = said.get("id")
    if not isinstance(found, str) or not 0 < len(found) <= _LONGEST_ID or not found.isprintable():
        raise Malformed(f"a message needs an id: a text of 1 to {_LONGEST_ID} printable characters, a new one for each task")
    return found


def find_id(body: Body) -> str:
    """The task's id, in a message of which nothing else can be read."""
    try:
        return read_id(_head(body)[0])
    except Malformed:
        return ""


def write_reply(reply: Reply, content_type: str, keep: Keep) -> Body:
    head: dict[str, Any] = {"id": reply.id}
    if reply.error is not None:
        return Body(JSON, json.dumps({**head, "error": reply.error}).encode())
    return _write({**head, "parameters": {"structure": reply.structure}}, "outputs", reply.outputs, content_type, keep)


def read_reply(body: Body, fetch: Fetch) -> Reply:
    said = _head(body)[0]
    if isinstance(said.get("error"), dict):
        return Reply(read_id(said), error=said["error"])
    said, arrays, refs = _read(body, "outputs", fetch)
    structure = said.get("parameters", {}).get("structure", "tensor")
    return Reply(read_id(said), arrays, structure if structure in ("tensor", "list", "dict") else "dict", refs=refs)


def outputs_of(value: Any, declared: Sequence[TensorSpec] = ()) -> tuple[dict[str, Array], str]:
    """A model's outputs as named arrays. Raises TypeError for what no other language could read."""
    names = [spec.name for spec in declared]
    if isinstance(value, Mapping):
        found, structure = {name: as_array(item) for name, item in by_text(value).items()}, "dict"
    elif isinstance(value, (list, tuple)):
        found, structure = {name: as_array(item) for name, item in named_list(value, names).items()}, "list"
    else:
        found, structure = {output_names(None, names)[0]: as_array(value)}, "tensor"
    for spec in declared:
        if spec.datatype == "BF16" and spec.name in found:
            found[spec.name] = found[spec.name].astype(bfloat16())  # the pool widens it, which loses nothing
    return found, structure


def _write(head: dict[str, Any], what: str, arrays: Mapping[str, Array], content_type: str, keep: Keep) -> Body:
    listed, raws = [], []
    for name, array in arrays.items():
        raw = raw_of(array)
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if (ref := keep(raw)) is not None:
            entry["parameters"] = {"ref": ref}
        elif content_type == BINARY:
            entry["parameters"] = {"binary_data_size": len(raw)}
            raws.append(raw)
        else:
            entry["data"] = base64.b64encode(raw).decode()
        listed.append(entry)
    text = json.dumps({**head, what: listed}).encode()
    return Body(BINARY, b"".join([text, *raws]), len(text)) if content_type == BINARY else Body(JSON, text)


def _head(body: Body) -> tuple[dict[str, Any], memoryview]:
    """The JSON of a message, and the raw bytes behind it."""
    whole = memoryview(body.data)
    length = len(whole)
    if body.content_type == BINARY:
        length = body.header_length
        if type(length) is not int or not 0 < length <= len(whole):
            raise Malformed(f"a body of {BINARY} needs the header {HEADER_LENGTH}: a number up to {len(whole)}")
    elif body.content_type == UNREADABLE:
        why = "it has to be a JSON object with a text as body, an object as properties, and an object as headers where there are any"
        raise Malformed("its envelope cannot be read", why=why)
    elif body.content_type != JSON:
        raise Malformed(f"its content type is {str(body.content_type)[:60]!r}", why=f"it has to be {JSON} or {BINARY}")
    try:
        said = json.loads(bytes(whole[:length]))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"it is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(said, dict):
        raise Malformed("its JSON has to be an object")
    return said, whole[length:]


def _read(body: Body, what: str, fetch: Fetch) -> tuple[dict[str, Any], dict[str, Array], tuple[str, ...]]:
    said, raw = _head(body)
    listed = said.get(what)
    if not isinstance(listed, list) or not listed:
        raise Malformed(f"a message needs a list of {what}")
    arrays: dict[str, Array] = {}
    refs: list[str] = []
    at = 0
    for i, entry in enumerate(listed):
        parameters = entry.get("parameters", {}) if isinstance(entry, dict) else None
        if not isinstance(parameters, dict) or not isinstance(entry.get("name", ""), str):
            raise Malformed(f"{what}[{i}] has to be an object with a name, a datatype and a shape")
        size = parameters.get("binary_data_size")
        if isinstance(ref := parameters.get("ref"), str):
            refs.append(ref)
            data: Any = fetch(ref)
        elif type(size) is int and 0 <= size <= len(raw) - at:
            data, at = raw[at : at + size], at + size
        elif isinstance(entry.get("data"), (str, list)):
            data = entry["data"]
        else:
            raise Malformed(f"{what}[{i}] has neither data, nor a binary_data_size that is there, nor a ref")
        try:
            arrays[entry.get("name") or f"{i}"] = read_array(entry.get("datatype"), entry.get("shape"), data)
        except ValueError as error:
            raise Malformed(f"{what}[{i}]: {str(error)[:300]}") from None
    if len(arrays) != len(listed):
        raise Malformed(f"two of its {what} have the same name")
    return said, arrays, tuple(refs)
