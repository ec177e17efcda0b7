"""Reads a pickle without executing it: opcodes become plain values, and calls become records of calls that are never made."""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rankwise.weights.tensor_records import Damaged, StateDictNode

MAX_OPCODES = 10_000_000  # each makes at most one small object, so this bounds the memory
MAX_READ = 64 << 20  # of one string
_MARK = object()


@dataclass(frozen=True)
class Global:
    """A name the pickle asks to be imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class FunctionCall:
    """A call that the pickle asks for. It is never made; `state` and `items` are what its result would be given."""

    target: Any
    args: tuple[Any, ...]
    state: Any = None
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Persistent:
    """A reference to something outside of the pickle: one of torch's storages."""

    id: Any


@dataclass(frozen=True)
class Pickled:
    """The value that a pickle describes, the names it would import, and the calls it would make, in order."""

    value: Any
    imports: tuple[Global, ...]
    calls: tuple[FunctionCall, ...]


class PickleBytes:
    """Bytes as pickletools reads them. A string longer than MAX_READ, or than the rest, raises Damaged before memory is taken."""

    def __init__(self, data: Any) -> None:
        self._data, self._at, self._end = data, 0, len(data)

    def tell(self) -> int:
        return self._at

    def read(self, count: int) -> bytes:
        if count < 0 or count > MAX_READ:
            raise Damaged(f"a string of {count:,} bytes is declared at byte {self._at:,}")
        if count > self._end - self._at:
            raise Damaged(f"{count:,} bytes are declared at byte {self._at:,}, {self._end - self._at:,} are left")
        chunk = bytes(self._data[self._at : self._at + count])
        self._at += count
        return chunk

    def readline(self) -> bytes:
        for most in (256, 65536):
            if length := bytes(self._data[self._at : min(self._end, self._at + most)]).find(b"\n") + 1:
                return self.read(length)
        raise Damaged(f"a line that does not end, at byte {self._at:,}")


def read_pickle(stream: PickleBytes) -> Pickled:
    """Read the pickle at the stream's position, up to its STOP. Raises Damaged for anything else."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):  # type: ignore[arg-type]  # duck-typed
            if count >= MAX_OPCODES:
                raise Damaged(f"more than {MAX_OPCODES:,} pickle opcodes")
            if opcode.name == "STOP":
                return Pickled(machine.stack.pop(), tuple(machine.imports), tuple(machine.calls))
            machine.step(opcode.name, argument)
    except Damaged:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, struct.error, DeprecationWarning) as error:
        raise Damaged(f"not a valid pickle: {str(error)[:200] or type(error).__name__}") from error
    raise Damaged("the pickle has no end")


class _Machine:
    """The stack machine of the pickle format, without the importing and calling."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.imports: dict[Global, None] = {}  # a set that keeps its order
        self.calls: list[FunctionCall] = []

    def step(self, name: str, argument: Any) -> None:
        if name in _PUSH_ARGUMENT:
            self.stack.append(argument)
        elif name in _PUSH_NEW:
            self.stack.append(_PUSH_NEW[name]())
        elif name not in _IGNORED:
            _STEPS[name](self, argument)

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise Damaged("not a valid pickle: no mark on its stack")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise Damaged("not a valid pickle: its stack is empty")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def ask_import(self, module: Any, name: Any) -> Global:
        wanted = Global("builtins" if module == "__builtin__" else str(module), str(name))  # as Python reads what torch.save writes
        self.imports[wanted] = None
        return wanted

    def call(self, target: Any, args: Any) -> Any:
        arguments = tuple(args) if isinstance(args, (tuple, list)) else (args,)
        if str(target) in ("collections.OrderedDict", "builtins.dict") and not arguments:
            return StateDictNode()
        if str(target) == "collections.OrderedDict" and len(arguments) == 1 and _is_pairs(arguments[0]):  # as Python 2 wrote it
            return StateDictNode(dict(arguments[0]))
        if str(target) == "builtins.set" and len(arguments) == 1 and isinstance(arguments[0], list):
            return list(arguments[0])
        made = FunctionCall(target, arguments)
        self.calls.append(made)
        return made

    def set_items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update(_dict_of(pairs))
        elif isinstance(target, FunctionCall):
            target.items += pairs
        else:
            raise Damaged(f"not a valid pickle: items for a {type(target).__name__}")

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        target.items.extend(values) if isinstance(target, FunctionCall) else target.extend(values)

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, FunctionCall):
            target.state = state
        elif isinstance(target, StateDictNode):
            target.notes = _notes(state)
        elif not isinstance(target, dict):
            raise Damaged(f"not a valid pickle: a state for a {type(target).__name__}")


def _reduce(machine: _Machine, _: Any) -> None:
    target, args = machine.pop(2)
    machine.stack.append(machine.call(target, args))


def _newobj_ex(machine: _Machine, _: Any) -> None:
    target, args, kwargs = machine.pop(3)
    machine.stack.append(machine.call(target, (*args, *([kwargs] if kwargs else []))))


def _obj(machine: _Machine, _: Any) -> None:
    target, *args = machine.since_mark()
    machine.stack.append(machine.call(target, args))


def _inst(machine: _Machine, argument: str) -> None:
    args = machine.since_mark()
    machine.stack.append(machine.call(machine.ask_import(*argument.split(" ", 1)), args))


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(tuple(machine.pop(count)))


def _memoize(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else int(argument)] = machine.stack[-1]


def _recall(machine: _Machine, argument: Any) -> None:
    machine.stack.append(machine.memo[int(argument)])


def _extension(machine: _Machine, code: Any) -> None:
    machine.stack.append(machine.ask_import("copyreg extension", code))


_PUSH_ARGUMENT = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_PUSH_NEW: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "MARK": lambda: _MARK,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list,
}  # fmt: skip
_IGNORED = {"PROTO", "FRAME", "READONLY_BUFFER"}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "POP": lambda m, _: m.pop(1).clear(),
    "POP_MARK": lambda m, _: m.since_mark().clear(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _memoize),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _recall),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _extension),
    "DICT": lambda m, _: m.stack.append(_dict_of(m.since_mark())),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "FROZENSET": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "SETITEM": lambda m, _: m.set_items(m.pop(2)),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "APPEND": lambda m, _: m.extend(m.pop(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "ADDITEMS": lambda m, _: m.extend(m.since_mark()),
    "GLOBAL": lambda m, text: m.stack.append(m.ask_import(*text.split(" ", 1))),
    "STACK_GLOBAL": lambda m, _: m.stack.append(m.ask_import(*m.pop(2))),
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _newobj_ex,
    "OBJ": _obj,
    "INST": _inst,
    "BUILD": lambda m, _: m.build(),
    "PERSID": lambda m, text: m.stack.append(Persistent(text)),
    "BINPERSID": lambda m, _: m.stack.append(Persistent(m.pop(1)[0])),
    "NEXT_BUFFER": lambda m, _: m.stack.append(b""),
}


def _notes(attributes: Any) -> dict[str, dict[str, Any]]:
    """What nn.Module.state_dict notes on its OrderedDict: plain values, by the module's name. Other attributes are ignored."""
    noted = attributes.get("_metadata") if isinstance(attributes, dict) else None
    if not isinstance(noted, dict):
        return {}
    plain = (str, int, float, type(None))
    return {
        name: {key: value for key, value in about.items() if isinstance(key, str) and isinstance(value, plain)}
        for name, about in noted.items()
        if isinstance(name, str) and isinstance(about, dict)
    }


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)


def _dict_of(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))
