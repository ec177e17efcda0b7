"""The usual names for ranks in users' code: variables, functions, environment variables, decorators."""

from __future__ import annotations

import ast
from functools import cache

from rankwise.ranks import RANK_VARIABLES
from rankwise.source.tree import called_name, last_name, owner_name, string_key

_MEANINGS = {
    "rank": {"rank", "global_rank", "world_rank", "process_index", "my_rank", "proc_id", "rank_id"},
    "local_rank": {"local_rank", "local_process_index"},
    "world_size": {"world_size", "nprocs", "num_processes", "n_ranks", "num_replicas"},
    "size": {"size", "world", "ws"},  # world sizes only beside a name for a rank: def run(rank, size)
    "main": {"is_main_process", "is_master", "is_main", "is_rank_zero", "is_rank0", "main_process", "is_global_zero", "master_process"},
    "local_main": {"is_local_main_process"},
}
_CALLS = {"get_rank": "rank", "get_global_rank": "rank", "get_local_rank": "local_rank", "get_world_size": "world_size"}
_VARIABLES = dict(zip(("rank", "world_size", "local_rank"), zip(*RANK_VARIABLES)))
_ZERO_ONLY = ("rank_zero", "rank0_only", "main_process_only", "on_main_process", "master_only", "only_rank")
_PARTS = ("group", "mesh", "pg")  # ranks of these count from zero within a part of the job
_OTHER_RANKS = ("lora", "lowrank", "low_rank", "svd", "adapter")  # near these words `rank` is that of a matrix
_INITIALIZED = {"is_initialized", "is_dist_initialized", "is_dist_avail_and_initialized", "is_dist_available_and_initialized"}
TORCH_DISTRIBUTED = ("dist", "distributed", "c10d", "torch_dist", "td")
_CONVERSIONS = {"int", "bool", "str", "range", "len"}


@cache
def meaning_of(name: str) -> str:
    """What a variable of this name holds: rank, local_rank, world_size, size, main, local_main, or nothing known."""
    plain = name.lower().lstrip("_")
    return next((meaning for meaning, words in _MEANINGS.items() if plain in words), "")


def meaning_of_call(call: ast.Call) -> str:
    """What a call returns, as for `meaning_of`; empty for a rank within a group."""
    name = called_name(call).lower().lstrip("_")
    meaning = _CALLS.get(name) or meaning_of(name)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if meaning in ("main", "local_main"):
        return meaning if len(given) <= 1 and all(last_name(arg) and not is_part(last_name(arg)) for arg in given) else ""
    is_whole = all(last_name(arg) == "WORLD" or (isinstance(arg, ast.Constant) and arg.value is None) for arg in given)
    return meaning if is_whole and meaning != "size" and not is_part(owner_name(call)) else ""


def meaning_of_variable(name: str) -> str:
    """What an environment variable holds."""
    return next((meaning for meaning, names in _VARIABLES.items() if name in names), "")


def asks_whether_initialized(call: ast.Call) -> bool:
    """True for `dist.is_initialized()` and the like, which are true in every process of a job."""
    name, owner = called_name(call), owner_name(call)
    if name == "is_available" or isinstance(call.func, ast.Attribute):
        return name in {*_INITIALIZED, "is_available"} and owner in TORCH_DISTRIBUTED
    return name in _INITIALIZED


def is_question(call: ast.Call) -> bool:
    """True for calls that only look something up, so that no rank waits in them."""
    name = called_name(call)
    return bool(meaning_of_call(call) or string_key(call)) or name in _CONVERSIONS or name in {*_INITIALIZED, "is_available"}


def is_part(owner: str) -> bool:
    """True for the name of a process group or mesh."""
    return any(part in owner.lower() for part in _PARTS)


def is_other_rank(*names: str) -> bool:
    """True where the names around a `rank` show that it is not that of a process."""
    return any(word in name.lower() for name in names for word in _OTHER_RANKS)


def zero_only_mark(function: str) -> bool:
    """True for the name of a wrapper that lets only rank 0 through; `rank_zero_first` and the like let everybody through."""
    return any(mark in function for mark in _ZERO_ONLY) and "first" not in function


def tells_rank(node: ast.expr | None) -> bool:
    """True for an expression that is surely the process's rank if it is assigned to a variable called `rank`."""
    match node:
        case ast.Name() | ast.Attribute():
            return meaning_of(last_name(node)) in ("rank", "local_rank") and not is_part(owner_name(node))
        case ast.IfExp(body=first, orelse=second):
            return tells_rank(first) or tells_rank(second)
        case ast.BoolOp(values=values):
            return any(map(tells_rank, values))
        case ast.BinOp(op=ast.Add(), left=left, right=right):  # node_rank * gpus_per_node + gpu
            products = [side for side in (left, right) if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)]
            words = [last_name(part).lower() for part in ast.walk(node)]
            return len(products) == 1 and any(word in name for name in words for word in ("rank", "node", "gpu"))
        case ast.Call(args=[inner], keywords=[]) if called_name(node) in ("int", "str"):
            return tells_rank(inner)
        case ast.Call(args=[], keywords=[]):
            return "rank" in called_name(node).lower() and not is_part(owner_name(node))
        case ast.Call() | ast.Subscript():
            key = string_key(node)
            return meaning_of(key) in ("rank", "local_rank") or meaning_of_variable(key) in ("rank", "local_rank")
    return False
