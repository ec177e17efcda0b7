"""Every value of every type comes back as it was, and what is no value of its type is refused."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from rankwise.broker.oip_tensors import as_array, as_tensor, raw_of, read_array
from rankwise.protocol import bfloat16, datatype_of

torch = pytest.importorskip("torch")


def there_and_back(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raw = raw_of(array)
    as_text = read_array(datatype_of(array), list(array.shape), base64.b64encode(raw).decode())
    assert as_text.tobytes() == array.tobytes() or datatype_of(array) == "BYTES"
    return read_array(datatype_of(array), list(array.shape), raw)


def test_every_value_of_bf16() -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(256, 256)
    array = as_array(every.T)
    assert datatype_of(array) == "BF16" and array.shape == (256, 256)
    back = as_tensor(there_and_back(array), torch)
    assert back.dtype == torch.bfloat16 and torch.equal(back.view(torch.int16), every.T.contiguous().view(torch.int16))


@pytest.mark.parametrize("value", [b"", b"\x00\xff", "text", ["one", b"", "\u00e9\U0001f600"], [["a"], ["b" * 70000]], []])
def test_texts_and_bytes(value: Any) -> None:
    array = as_array(value if isinstance(value, (str, bytes)) else np.array(value, object))
    expected = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    back = there_and_back(array)
    assert back.shape == array.shape and back.ravel().tolist() == expected


def test_arrays_of_numpys_own_texts() -> None:
    assert there_and_back(as_array(np.array(["ab", "c"]))).tolist() == [b"ab", b"c"]
    assert there_and_back(as_array(np.array([b"ab", b"c"]))).tolist() == [b"ab", b"c"]


@pytest.mark.parametrize("raw", [b"", b"\x01", b"\x02\0\0\0a", b"\x01\0\0\0ab", b"\xff\xff\xff\xff", b"\x01\0\0\0a\x01\0\0\0b"])
def test_wrong_frames_of_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="of BYTES"):
        read_array("BYTES", [1], raw)


@pytest.mark.parametrize(
    ("datatype", "data"),
    [("BYTES", [1]), ("BYTES", ["a", "b"]), ("INT32", [True]), ("UINT8", [300]), ("BF16", [1.5]), ("BYTES", ["\ud800"])],
)
def test_wrong_lists_are_refused(datatype: str, data: list[Any]) -> None:
    with pytest.raises(ValueError):
        read_array(datatype, [1], data)


@pytest.mark.parametrize("value", [None, object(), np.array([1, "a"], object), np.array(1j), torch.ones(1, dtype=torch.complex64)])
def test_what_has_no_type_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        as_array(value)


def test_bf16_needs_two_bytes_each() -> None:
    assert read_array("BF16", [1], b"\x80\x3f") == np.ones(1, bfloat16())
    with pytest.raises(ValueError, match="takes 2 bytes"):
        read_array("BF16", [1], b"\0\0\0\0")
