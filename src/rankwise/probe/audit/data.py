"""Looks at what a DataLoader gives this rank: the indices of every pass, fingerprints of some batches, and the random numbers they used."""

import random
import sys
import weakref
import zlib
from types import ModuleType
from typing import Any

from .. import hooks, sites
from . import fingerprints, record, window

_IDS = 8  # sample ids shown of a batch
_KEPT_IDS = 256  # of a pass, to tell whether a sample is drawn twice
_FIELDS = 4
_FIRST_PASSES = 4
_AT_ONCE = 64  # batches whose ids are counted together
_PASS, _EARLY = "_rankwise_pass", "_rankwise_early"  # attributes of torch's iterators, which scripts do not save
_MASK = 0xFFFFFFFF

_numbers: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()  # loader: its number, the place it was made
_num_loaders = 0
_pass_counts: dict[int, int] = {}
_num_fetches = 0


class LoaderPass:
    """One iteration over a loader so far."""

    def __init__(self, loader: int, number: int) -> None:
        self.loader, self.number = loader, number
        self.drawn, self.samples, self.checksum = 0, 0, 0
        self.given = 0
        self.began_backwards = window.backwards
        self.repeats = 0
        self.first_ids: set[Any] = set()
        self.is_over = False
        self.uncounted: list[tuple[Any, ...]] = []


def attach(module: ModuleType) -> None:
    """Wrap the DataLoader once its module is imported; only in a process that is audited."""
    module.DataLoader.__init__ = hooks.wrap(module.DataLoader.__init__, after=_note_loader)
    cls = module._BaseDataLoaderIter
    cls._next_index = hooks.wrap(cls._next_index, after=_note_index)


def attach_fetchers(module: ModuleType) -> None:
    """Wrap `torch.utils.data._utils.fetch`, which reads the dataset, in a worker or in the rank itself."""
    for cls in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        cls.fetch = hooks.surround(cls.fetch, _fetch_begins, _fetch_ended)


@record.budgeted
def _note_loader(frame: Any, _: None, loader: Any, *args: Any, **kwargs: Any) -> None:
    global _num_loaders
    _numbers[loader] = (_num_loaders, sites.number_of_caller(frame))
    _num_loaders += 1


@record.budgeted
def pass_began(frame: Any, iterator: Any, loader: Any) -> None:
    """`iter(loader)` has returned this iterator."""
    if loader not in _numbers:
        return
    number, made = _numbers[loader]
    sampler, dataset = _innermost_sampler(loader), loader.dataset
    n = _pass_counts[number] = _pass_counts.get(number, -1) + 1
    before = _pass_of(iterator)  # persistent workers: the same iterator again
    if before is not None and not before.is_over:
        _end(before, False)
    one = LoaderPass(number, n)
    setattr(iterator, _PASS, one)
    record.write(
        "pass",
        loader=number,
        n=n,
        site=sites.number_of_caller(frame),
        made=made,
        sampler=type(sampler).__name__,
        shuffles=_shuffles(sampler),
        epoch=_whole(getattr(sampler, "epoch", None)),
        has_epoch=hasattr(sampler, "set_epoch"),
        is_distributed=isinstance(sampler, _class("torch.utils.data.distributed", "DistributedSampler")),
        size=_length(dataset),
        is_iterable=isinstance(dataset, _class("torch.utils.data", "IterableDataset")),
        workers=int(getattr(loader, "num_workers", 0) or 0),
        backwards=window.backwards,
        data_sum=_dataset_sum(dataset) if n == 0 else None,
    )
    for index in iterator.__dict__.pop(_EARLY, ()):
        _draw(one, index)


def _pass_of(iterator: Any) -> "LoaderPass | None":
    found: LoaderPass | None = iterator.__dict__.get(_PASS)
    return found


def _dataset_sum(dataset: Any) -> int | None:
    """A checksum of the tensors and lists a dataset holds: it shows whether all ranks have the same dataset or each its own."""
    found: list[Any] = _held(dataset)
    inner, depth = dataset, 0
    while inner is not None and depth < 4:
        for value in list(getattr(inner, "__dict__", {}).values())[:32]:
            found += _held(value)
        inner, depth = getattr(inner, "dataset", None), depth + 1
    tensors = [value for value in found if hasattr(value, "dtype")]
    known = [one[0] for one in fingerprints.of_tensors(tensors) if one] + [value for value in found if type(value) is int]
    return hash((_length(dataset), *known)) & _MASK if known else None


def _held(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if type(value) in (list, tuple) and value and isinstance(value[0], torch.Tensor):
        return list(value[:4])
    if type(value) in (list, tuple, range) and value and type(value[0]) in (int, str, float):
        return [zlib.crc32(repr((len(value), list(value[:: max(1, len(value) // 32)][:32]))).encode())]
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes") and value.size:
        flat = value.reshape(-1) if value.flags.c_contiguous else value.ravel()[:64]
        return [zlib.crc32(flat[:: max(1, flat.size // 64)][:64].tobytes())]
    return []


def _innermost_sampler(loader: Any) -> Any:
    """The loader's sampler; for a batch sampler of the user's, the sampler inside it, if it has one."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    if batch_sampler is not None and getattr(loader, "batch_size", None) is None:
        return batch_sampler if hasattr(batch_sampler, "set_epoch") else getattr(batch_sampler, "sampler", batch_sampler)
    return getattr(loader, "sampler", None)


def _shuffles(sampler: Any) -> bool:
    shuffle = getattr(sampler, "shuffle", None)
    return bool(shuffle) if isinstance(shuffle, bool) else type(sampler).__name__ == "RandomSampler"


@record.budgeted
def _note_index(_frame: Any, index: Any, iterator: Any) -> None:
    one = _pass_of(iterator)
    if one is not None:
        _draw(one, index)
        return
    early = iterator.__dict__.setdefault(_EARLY, [])  # workers are given their first batches before the iterator is returned
    if len(early) < 4096:
        early.append(index)


def _draw(one: LoaderPass, index: Any) -> None:
    """Keep a batch's ids, and count the ids of many batches at once: code that runs once between two steps always has cold caches."""
    ids = tuple(index) if isinstance(index, (list, tuple)) else (index,)
    one.uncounted.append(ids)
    n = one.drawn
    one.drawn += 1
    if _is_shown(one, n):
        checksum = _count(one)
        record.write(
            "drawn",
            loader=one.loader,
            p=one.number,
            n=n,
            sum=checksum,
            ids=[i if type(i) is int else str(i)[:40] for i in ids[:_IDS]],
            size=len(ids),
        )
    elif len(one.uncounted) >= _AT_ONCE:
        _count(one)


def _is_shown(one: LoaderPass, n: int) -> bool:
    """Whether batch `n` is recorded: many batches of the first passes and of sampled ones, the first four of all others."""
    if one.number < _FIRST_PASSES:
        return n < 16 or record.is_sampled(n)
    return n < 4 or (record.is_sampled(one.number) and record.is_sampled(n))


def _count(one: LoaderPass) -> int:
    """Count what is not counted yet; returns the checksum of the last batch."""
    checksum = 0
    for ids in one.uncounted:
        are_numbers = all(type(i) is int for i in ids)
        checksum = hash(ids) & 0x7FFFFFFFFFFFFFFF if are_numbers else zlib.crc32(repr(list(ids)).encode())
        one.samples += len(ids)
        one.checksum = zlib.crc32(checksum.to_bytes(8, "little"), one.checksum)
        if are_numbers:
            one.repeats += len(ids) - len(set(ids) - one.first_ids)
            one.first_ids.update(ids[: max(0, _KEPT_IDS - len(one.first_ids))])
    one.uncounted.clear()
    return checksum


@record.budgeted
def batch_given(iterator: Any, batch: Any) -> None:
    """The loop got a batch."""
    one = _pass_of(iterator)
    if one is None:
        return
    n = one.given
    one.given += 1
    if not record.is_sampled(n) or (one.number >= _FIRST_PASSES and n >= 4 and not record.is_sampled(one.number)):
        return
    fields = first_tensors(batch)
    record.write(
        "batch",
        loader=one.loader,
        p=one.number,
        n=n,
        sums=[found[0] if found else None for found in fingerprints.of_tensors(fields)],
        bad=[i for i, t in enumerate(fields) if _is_bad(t)],
        numel=sum(t.numel() for t in fields),
        rows=int(fields[0].shape[0]) if fields and fields[0].dim() else 0,
        backwards=window.backwards,
    )


def first_tensors(batch: Any) -> list[Any]:
    """The first tensors of a batch, whatever holds them."""
    import torch

    found: list[Any] = []
    stack = [batch]
    while stack and len(found) < _FIELDS:
        item = stack.pop()
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, dict):
            stack += [item[key] for key in list(item)[::-1][:16]]
        elif isinstance(item, (list, tuple)):
            stack += list(item)[::-1][:16]
    return found


def _is_bad(tensor: Any) -> bool:
    return tensor.device.type == "cpu" and tensor.is_floating_point() and tensor.numel() < 1 << 16 and not bool(tensor.isfinite().all())


@record.budgeted
def pass_ended(iterator: Any) -> None:
    """The loader raised StopIteration."""
    window.data_ended()
    one = _pass_of(iterator)
    if one is not None and not one.is_over:
        _end(one, True)


def _end(one: LoaderPass, whole: bool) -> None:
    one.is_over = True
    _count(one)
    record.write(
        "pass_end",
        loader=one.loader,
        n=one.number,
        whole=whole,
        batches=one.given,
        samples=one.samples,
        sum=one.checksum,
        backwards=window.backwards - one.began_backwards,
        repeats=one.repeats,
    )


@record.budgeted
def _fetch_begins(_frame: Any, args: Any, _kwargs: Any) -> tuple[int, dict[str, int], Any] | None:
    global _num_fetches
    n, dataset = _num_fetches, args[0].dataset
    _num_fetches += 1
    return (n, _random_state(dataset), dataset) if record.is_sampled(n) else None


@record.budgeted
def _fetch_ended(begun: tuple[int, dict[str, int], Any] | None, _data: Any, error: BaseException | None) -> None:
    if begun is None or error is not None:
        return
    n, before, dataset = begun
    after = _random_state(dataset)
    used = [name for name, value in before.items() if after.get(name) != value]
    if used:
        info = _worker_info()
        record.write("random", n=n, used=used, before=[before[name] for name in used], worker=-1 if info is None else int(info.id))


def _random_state(dataset: Any) -> dict[str, int]:
    """Checksums of the random generators that datasets use: the global ones, and those the dataset holds."""
    import torch

    state = {"random": hash(random.getstate()[1]) & _MASK, "torch": fingerprints.of_bytes(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _kind, keys, position, *_ = numpy.random.get_state()
        state["numpy"] = zlib.crc32(keys.tobytes(), position)
    for name, value in list(getattr(dataset, "__dict__", {}).items())[:32]:
        if isinstance(value, torch.Generator):
            state[f"dataset.{name}"] = fingerprints.of_bytes(value.get_state())
        elif isinstance(value, random.Random):
            state[f"dataset.{name}"] = hash(value.getstate()[1]) & _MASK
        elif type(value).__name__ == "Generator" and hasattr(value, "bit_generator"):
            state[f"dataset.{name}"] = zlib.crc32(repr(value.bit_generator.state).encode())
    return state


def _worker_info() -> Any:
    ask = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return ask() if ask is not None else None


def is_worker() -> bool:
    """Whether this process is a DataLoader worker, whose steps and passes are its parent's."""
    return _worker_info() is not None


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, ())


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
