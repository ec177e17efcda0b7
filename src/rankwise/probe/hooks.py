"""Runs the probe's parts right after the modules they attach to are imported."""

import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

live = ""
_aboard_pid = 0


def install() -> None:
    sys.meta_path.insert(0, _PostImport())
    for name in list(_AFTER):
        if name in sys.modules:
            _run(name, sys.modules[name])


def come_aboard() -> None:
    """This process matters: write its card, note how it ends. Idempotent, and once more after a fork."""
    global _aboard_pid
    if _aboard_pid == os.getpid():
        return
    _aboard_pid = os.getpid()
    from . import exits, journal

    journal.open_in(live)
    guarded(journal.write_card)()
    guarded(exits.install)()


def keep_output_apart() -> None:
    """Only for what is (or may become) a rank: a launcher's pipe must stay the one its ranks inherit."""
    from . import streams

    guarded(streams.keep_apart)()


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A step of the probe that may fail without anybody noticing but the journal."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            note_broken(function.__name__, error)
            return None

    return run


def note_broken(what: str, error: BaseException) -> None:
    try:
        from . import journal

        journal.open_in(live)
        journal.write("broken", what=what, error=f"{type(error).__name__}: {error}"[:500])
    except Exception:
        pass


class _PostImport:
    """A meta path finder that lets the real finders find, and runs our part after the module's own code."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _AFTER:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _wrap_loader(spec.loader, name)
                return spec
        return None


def _wrap_loader(loader: Any, name: str) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        loader.__dict__.pop("exec_module", None)
        _run(name, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader written in C with no room for attributes: go without
        pass


def _run(name: str, module: ModuleType) -> None:
    parts = _AFTER.pop(name, ())
    for part in parts:
        guarded(part)(module)


def _after_distributed(module: ModuleType) -> None:
    from . import collectives

    collectives.attach(module)


def _after_ddp(module: ModuleType) -> None:
    from . import ddp

    ddp.attach(module)


def _after_dataloader(module: ModuleType) -> None:
    from . import ddp

    ddp.attach_dataloader(module)


def _after_process(module: ModuleType) -> None:
    from . import exits

    exits.watch_multiprocessing(module)


def _after_popen(module: ModuleType) -> None:
    from . import exits

    exits.watch_forked_exit(module)


def _after_subprocess(module: ModuleType) -> None:
    from . import exits

    exits.watch_subprocess(module)


_AFTER: dict[str, tuple[Callable[[ModuleType], None], ...]] = {
    "torch.distributed.distributed_c10d": (_after_distributed,),
    "torch.nn.parallel.distributed": (_after_ddp,),
    "torch.utils.data.dataloader": (_after_dataloader,),
    "multiprocessing.process": (_after_process,),
    "multiprocessing.popen_fork": (_after_popen,),
    "subprocess": (_after_subprocess,),
}
