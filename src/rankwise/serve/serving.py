"""The server from Python: in this thread until a signal, or in a thread of its own until it is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from rankwise.errors import UsageError
from rankwise.pool import Pool
from rankwise.protocol import TensorSpec
from rankwise.serve.models_file import Entry, ModelsFile, VirtualModel, described
from rankwise.serve.server import Server, ServerOptions, address_text, run

_START_S = 60.0


def serve(
    pool: Pool,
    *,
    inputs: Mapping[str, Iterable[TensorSpec | tuple[str, str, Iterable[int]]]] | None = None,
    outputs: Mapping[str, Iterable[TensorSpec | tuple[str, str, Iterable[int]]]] | None = None,
    entries: Iterable[Entry] | None = None,
    virtual: Iterable[VirtualModel] = (),
    block: bool = True,
    **options: Any,
) -> Serving | None:
    """Serve all models of a pool.

    `inputs` and `outputs` declare tensors by model: `{"mlp": [("x", "FP32", [-1, 784])]}`; `virtual` are models made of others. `options`
    are those of `rankwise.serve.server.ServerOptions`: `http`, `grpc`, `token`, … With `block=False` it runs in a thread until `close()`.
    """
    _check_options(options)
    if entries is None:
        entries = [_entry(pool, name, inputs or {}, outputs or {}) for name in pool.models]
    serving = Serving(Server(pool, ModelsFile(tuple(entries), tuple(virtual)), ServerOptions(**options)))
    if not block:
        return serving.start()
    asyncio.run(run(serving.server, lambda server: None))
    return None


class Serving:
    """A server in a thread of its own."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._is_up = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rankwise-serve", daemon=True)

    @property
    def http(self) -> str:
        """HOST:PORT that the server listens on."""
        return _shown(self.server.http_address)

    @property
    def grpc(self) -> str:
        return _shown(self.server.grpc_address)

    def start(self) -> Serving:
        self._thread.start()
        self._is_up.wait(_START_S)
        if self._error is not None:
            raise self._error
        return self

    def close(self) -> None:
        """Answer the requests that are here, then end. The pool stays open."""
        if self._loop is not None and self._ended is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._is_up.set()

    async def _main(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        await run(self.server, lambda server: self._is_up.set(), self._ended)


def _entry(pool: Pool, name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Entry:
    takes, gives = (tuple([_spec(tensor) for tensor in said.get(name, ())]) for said in (inputs, outputs))
    return described(Entry(name, "1", name, pool.model(name), takes, gives))


def _spec(said: Any) -> TensorSpec:
    if isinstance(said, TensorSpec):
        return said
    try:
        name, datatype, shape = said
        return TensorSpec(name, datatype, tuple(shape))
    except (TypeError, ValueError):
        raise UsageError(f"{said!r} does not describe a tensor", next=('write it as ("x", "FP32", [-1, 784])',)) from None


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in ServerOptions.__dataclass_fields__:
            raise UsageError(f"serve() has no option {name!r}", why=f"it has {', '.join(ServerOptions.__dataclass_fields__)}")


def _shown(address: tuple[str, int] | None) -> str:
    if address is None:
        raise UsageError("the server does not listen there")
    return address_text(*address)
