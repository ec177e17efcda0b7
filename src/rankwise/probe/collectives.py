"""Wraps the functions of `torch.distributed`, so that each call leaves its place, its tensor and its peers in the ring.

torch's flight recorder knows more about collectives (also DDP's own), but not the user's line, `src` or the reduce op, nor send and recv.
"""

import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import calls, ddp, exits, hooks, journal, output_pipe, port_owner, process, recording, ring, sites, splits, worker_server
from .audit import record, reduces, times

_FUNCTIONS = ring.OPS[: ring.OPS.index("init_process_group")]
# The names these functions give to their tensor, group, peer, and reduce op or tag; of each kind the first name that a function has counts.
_TENSORS, _GROUPS, _PEERS, _OPS = ("tensor", "input_tensor", "output"), ("group",), ("src", "dst"), ("op", "tag")
_ABSENT = (1 << 30, "")
_SPLITS: dict[str, Callable[..., splits.Splits]] = {"all_to_all": splits.of_lists, "all_to_all_single": splits.of_one}


def attach(module: ModuleType) -> None:
    """Wrap the functions right after `distributed_c10d` ran, before other modules can import them by name."""
    recording.start()
    import torch

    journal.write("torch", version=torch.__version__)
    for name in _FUNCTIONS:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _recorded(original, name))
    for name, begin, end in (("init_process_group", _begin_init, _end_init), ("new_group", _begin_new_group, _end_new_group)):
        setattr(module, name, hooks.surround(getattr(module, name), hooks.guarded(begin), hooks.guarded(end)))
    module.destroy_process_group = calls.noted(module.destroy_process_group, "destroy_process_group")  # type: ignore[attr-defined]


def _recorded(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    number, is_audited, splits_of = ring.NUMBER[name], record.is_on(), _SPLITS.get(name)
    parameters = list(inspect.signature(original).parameters)
    (tensor_at, tensor_key), (group_at, group_key), (peer_at, peer_key), (op_at, op_key) = (
        next(((parameters.index(key), key) for key in keys if key in parameters), _ABSENT) for keys in (_TENSORS, _GROUPS, _PEERS, _OPS)
    )
    group_peer_key, has_tag = f"group_{peer_key}", op_key == "tag"

    def begin(frame: Any, args: Any, kwargs: Any) -> calls.Opened:
        try:
            given = len(args)
            tensor = args[tensor_at] if tensor_at < given else kwargs.get(tensor_key)
            group = args[group_at] if group_at < given else kwargs.get(group_key)
            peer = args[peer_at] if peer_at < given else kwargs.get(peer_key)
            if peer is None and group_peer_key in kwargs:
                peer = _global_rank(group, kwargs[group_peer_key])
            op = args[op_at] if op_at < given else kwargs.get(op_key)
            place = ring.current or ring.open_ring(process.live)
            if place is None:
                return None
            name_of_group = "0" if group is None else _group_name(group)
            if is_audited:
                reduces.note(name, name_of_group, tensor, frame)
            n = place.enter(
                number,
                frame,
                tensor if hasattr(tensor, "dtype") else None,
                name_of_group,
                peer if isinstance(peer, int) else -1,
                str(op or 0) if has_tag else getattr(op, "op", op),  # to torch 0 == SUM; a ReduceOp with a factor says nothing about itself
            )
            if splits_of is not None:
                calls.note_splits(place, n, splits_of, args, kwargs)
            if times.HAS_SPANS:
                times.begin_span("collective")
            return place, n
        except Exception as error:
            hooks.note_broken(name, error)
            return None

    return hooks.surround(original, begin, times.timed("collective", calls.end) if is_audited else calls.end)


def _global_rank(group: Any, rank: Any) -> Any:
    """The peer as `group_src` and `group_dst` name it (batch_isend_irecv always does): by its number within the group."""
    return rank if group is None or rank is None else _c10d().get_global_rank(group, rank)


def _begin_init(frame: Any, args: Any, kwargs: Any) -> calls.Opened:
    recording.start()
    recording.separate_output()
    exits.go_first()
    names = ("backend", "init_method", "timeout", "world_size", "rank", "store", "group_name")
    given = {**dict(zip(names, args)), **kwargs}
    timeout = given.get("timeout")
    journal.write(
        "init",
        site=sites.number_of_caller(frame),
        backend=str(given.get("backend") or ""),
        method=str(given.get("init_method") or ("store" if given.get("store") is not None else "env://")),
        rank=_whole(given.get("rank"), "RANK"),
        world_size=_whole(given.get("world_size"), "WORLD_SIZE"),
        timeout_s=getattr(timeout, "total_seconds", lambda: None)(),
        address=os.environ.get("MASTER_ADDR", ""),
        port=os.environ.get("MASTER_PORT", ""),
        file_mtime=_age_of_store(str(given.get("init_method") or "")),
        env=journal.rank_environment(),
    )
    worker_server.start(process.live)
    return calls.begin(ring.NUMBER["init_process_group"], frame)


def _age_of_store(method: str) -> float | None:
    """When a file:// store that already exists was last written: ranks cannot meet in one that an earlier job left behind."""
    path = method.removeprefix("file://")
    if path == method or not os.path.isfile(path) or not os.path.getsize(path):
        return None
    return os.path.getmtime(path)


def _end_init(opened: calls.Opened, _result: None, error: BaseException | None) -> None:
    calls.end(opened, None, error)
    text = "" if error is None else f"{type(error).__name__}: {error}"[:1000]
    taken = "EADDRINUSE" in text or "already in use" in text
    # Looked up here, because the process that holds the port may be gone by the time the watcher looks.
    journal.write("inited", error=text, holder=port_owner.holder_of(text) if taken else None)
    if error is None:
        c10d = _c10d()
        output_pipe.name_rank(c10d.get_rank())
        ddp.mark_backward()
        journal.write("rank", rank=c10d.get_rank(), world_size=c10d.get_world_size(), backend=str(c10d.get_backend()))


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]


def _begin_new_group(frame: Any, args: Any, kwargs: Any) -> calls.Opened:
    ranks = args[0] if args else kwargs.get("ranks")
    journal.write(
        "new_group",
        ranks=None if ranks is None else [int(rank) for rank in ranks][:8192],
        site=sites.number_of_caller(frame),
        local=bool(kwargs.get("use_local_synchronization")),
    )
    return calls.begin(ring.NUMBER["new_group"], frame)


def _end_new_group(opened: calls.Opened, group: Any, error: BaseException | None) -> None:
    calls.end(opened, group, error)
    journal.write("new_group_made", name="0" if group is None else _group_name(group))


def _group_name(group: Any) -> str:
    name = getattr(group, "group_name", None)
    return str(name) if name is not None else "none"


def _whole(value: Any, variable: str) -> int | None:
    """The number as torch reads it: the argument if it was given, else the environment."""
    if isinstance(value, int) and value >= 0:
        return value
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None


def hide_from_compiler(module: ModuleType) -> None:
    """Have torch.compile skip the probe's code inside the wrappers, as it skips torch.distributed's own functions."""
    own = ("calls", "collectives", "hooks", "journal", "process", "ring", "sites")
    for part in (*own, "audit.events", "audit.written_files", "audit.record", "audit.reduces", "audit.times"):
        module.add(f"{__package__}.{part}")
