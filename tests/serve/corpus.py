"""Requests for a server of the Open Inference Protocol, good ones and bad ones of many kinds, as hypothesis makes them up."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.serve.triton import KINDS

NUMPY = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "u2", "UINT32": "u4", "UINT64": "u8", "INT8": "i1", "INT16": "i2", "INT32": "i4", "INT64": "i8",
    "FP16": "f2", "FP32": "f4", "FP64": "f8",
}  # fmt: skip
_WORDS = st.lists(st.binary(max_size=8).filter(lambda word: b"\0" not in word), max_size=4)  # numpy drops trailing zeros
_TEXTS = st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=6), max_size=4)


@dataclass(frozen=True)
class Request:
    kind: str  # "good", or what is wrong with it
    path: str
    said: Any
    raw: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    is_cut: bool = False  # the JSON ends too early

    def body(self) -> bytes:
        text = json.dumps(self.said).encode()
        return (text[:-3] if self.is_cut else text) + self.raw

    def all_headers(self) -> dict[str, str]:
        own = {"Inference-Header-Content-Length": str(len(json.dumps(self.said).encode()))} if self.raw else {}
        return {"Content-Type": "application/octet-stream" if self.raw else "application/json", **own, **self.headers}


@st.composite
def good(draw: st.DrawFn) -> Request:
    """A request that both servers have to answer; the same numbers nested, flat, as binary data or mixed."""
    model = draw(st.sampled_from([*(f"echo_{kind}" for kind in KINDS), "sums", "words"]))
    if model == "words":
        outputs, parts = ["W"], [draw(_words())]
    elif model == "sums":
        shape = (draw(st.integers(0, 3)), 4)
        outputs, parts = ["sum", "difference"], [draw(_tensor(name, "FP32", shape)) for name in ("a", "b")]
    else:
        shape = (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
        outputs, parts = ["y"], [draw(_tensor("x", model.removeprefix("echo_"), shape))]
    said: dict[str, Any] = {"inputs": [tensor for tensor, _ in parts]}
    wanted = draw(st.sampled_from(["nothing", "all binary", "named", "named, binary"]))
    if model == "echo_FP16" and wanted != "named, binary":
        wanted = "all binary"  # neither server writes FP16 as JSON in the same way
    if wanted == "all binary":
        said["parameters"] = {"binary_data_output": True}
    elif wanted != "nothing":
        chosen = draw(st.permutations(outputs))[: draw(st.integers(1, len(outputs)))]
        said["outputs"] = [{"name": name, "parameters": {"binary_data": wanted != "named"}} for name in chosen]
    if draw(st.booleans()):
        said["id"] = draw(st.sampled_from(["1", "ä", "a b", "0" * 40]))
    version = draw(st.sampled_from(["", "/versions/1"]))
    return Request("good", f"/v2/models/{model}{version}/infer", said, b"".join(data for _, data in parts))


@st.composite
def _tensor(draw: st.DrawFn, name: str, kind: str, shape: tuple[int, ...]) -> tuple[dict[str, Any], bytes]:
    array = draw(arrays.arrays(NUMPY[kind], shape))
    tensor: dict[str, Any] = {"name": name, "datatype": kind, "shape": list(shape)}
    ways = ["binary"] if kind == "FP16" else ["flat", "nested", "binary"]
    way = draw(st.sampled_from(ways if kind == "BOOL" or np.isfinite(array.astype("f8")).all() else ["binary"]))
    if way == "binary":
        return {**tensor, "parameters": {"binary_data_size": array.nbytes}}, array.tobytes()
    return {**tensor, "data": (array.ravel() if way == "flat" else array).tolist()}, b""


@st.composite
def _words(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    if draw(st.booleans()):
        texts = draw(_TEXTS)
        return {"name": "w", "datatype": "BYTES", "shape": [len(texts)], "data": texts}, b""
    words = draw(_WORDS)
    data = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    return {"name": "w", "datatype": "BYTES", "shape": [len(words)], "parameters": {"binary_data_size": len(data)}}, data


PLAIN = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}
BINARY = {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}}
ECHO = "/v2/models/echo_FP32/infer"
DATA = bytes(16)


def _with(**changes: Any) -> Any:
    return {"inputs": [{**PLAIN, **changes}]}


def _sized(size: Any) -> Any:
    return {"inputs": [{**BINARY, "parameters": {"binary_data_size": size}}]}


def bad() -> st.SearchStrategy[Request]:
    """One thing is wrong with each."""
    counts = st.lists(st.integers(0, 9), max_size=8).filter(lambda data: len(data) != 4)
    kinds: list[st.SearchStrategy[Request]] = [
        counts.map(lambda data: Request("wrong number of values", ECHO, _with(data=data))),
        st.lists(st.integers(0, 3), max_size=4)
        .filter(lambda s: len(s) != 2)
        .map(lambda shape: Request("wrong number of dimensions", ECHO, _with(shape=shape, data=[1] * int(np.prod(shape))))),
        st.integers(0, 6)
        .filter(lambda n: n != 4)
        .map(
            lambda n: Request(
                "wrong size of a dimension",
                "/v2/models/sums/infer",
                {"inputs": [{"name": k, "datatype": "FP32", "shape": [1, n], "data": [1] * n} for k in "ab"]},
            )
        ),
        st.integers(-9, -1).map(lambda n: Request("negative size", ECHO, _with(shape=[n, 2]))),
        st.sampled_from([["2", 2], "2", None, {}, [2.5, 2], [[2], 2], [True, 4]]).map(
            lambda shape: Request("strange shape", ECHO, _with(shape=shape))
        ),
        st.sampled_from([k for k in KINDS if k not in ("FP32", "BOOL", "FP16")]).map(
            lambda k: Request("wrong datatype", ECHO, _with(datatype=k))
        ),
        st.sampled_from(["FLOAT", "fp32", "", None, 7]).map(lambda k: Request("no datatype", ECHO, _with(datatype=k))),
        st.sampled_from(["X", "", "xx", None, 3]).map(lambda name: Request("no such input", ECHO, _with(name=name))),
        st.just(
            Request(
                "input missing", "/v2/models/sums/infer", {"inputs": [{"name": "a", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}]}
            )
        ),
        st.just(Request("input twice", ECHO, {"inputs": [PLAIN, PLAIN]})),
        st.just(Request("no inputs", ECHO, {"inputs": []})),
        st.sampled_from([{}, {"inputs": None}, {"inputs": {}}, {"inputs": "x"}, {"inputs": [1]}, [], 3, None, "x"]).map(
            lambda said: Request("not a request", ECHO, said)
        ),
        st.sampled_from(["z", "", None]).map(lambda name: Request("no such output", ECHO, {**_with(), "outputs": [{"name": name}]})),
        st.sampled_from([["1", "2", "3", "4"], ["a"] * 4, [None] * 4, [{}] * 4]).map(
            lambda data: Request("not numbers", ECHO, _with(data=data))
        ),
        st.sampled_from([[1.5, 2, 3, 4], [1, 2, 3, 1e300]]).map(
            lambda data: Request("not whole numbers", "/v2/models/echo_INT32/infer", _with(datatype="INT32", data=data))
        ),
        st.sampled_from([300, -1, 2**40]).map(
            lambda n: Request("out of range", "/v2/models/echo_UINT8/infer", _with(datatype="UINT8", data=[n, 1, 2, 3]))
        ),
        st.just(Request("JSON cut off", ECHO, _with(), is_cut=True)),
        st.sampled_from(["nobody", "echo", "ECHO_FP32", "echo_FP32%00"]).map(
            lambda m: Request("no such model", f"/v2/models/{m}/infer", _with())
        ),
        st.sampled_from(["7", "0", "x"]).map(lambda v: Request("no such version", f"/v2/models/echo_FP32/versions/{v}/infer", _with())),
        st.sampled_from(["GET", "PUT", "DELETE"]).map(lambda method: Request("wrong method", ECHO, _with(), method=method)),
        st.sampled_from([0, 8, 15, 17, 64]).map(lambda n: Request("binary size does not fit the shape", ECHO, _sized(n), bytes(n))),
        st.integers(1, 15).map(lambda n: Request("binary data cut off", ECHO, {"inputs": [BINARY]}, bytes(n))),
        st.just(Request("binary data missing", ECHO, {"inputs": [BINARY]})),
        st.integers(1, 20).map(lambda n: Request("bytes left over", ECHO, {"inputs": [BINARY]}, bytes(16 + n))),
        st.sampled_from(["99999", "-1", "x", "1e2", ""]).map(
            lambda n: Request("wrong length of the header", ECHO, {"inputs": [BINARY]}, DATA, {"Inference-Header-Content-Length": n})
        ),
        st.sampled_from(["16", -1, 1.5, None]).map(lambda n: Request("strange binary size", ECHO, _sized(n), DATA)),
        st.sampled_from([3, ["a"], {"a": 1}, 1.5]).map(lambda i: Request("strange id", ECHO, {**_with(), "id": i})),
    ]
    return st.one_of(kinds)
