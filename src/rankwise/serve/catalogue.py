"""All models by name and version, and what clients may ask about them: metadata, configuration, statistics, the repository index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rankwise.errors import RankwiseError
from rankwise.pool import Pool
from rankwise.protocol import TensorSpec, to_raw
from rankwise.serve.answering import Answering
from rankwise.serve.errors import NotFound, RequestError, Unavailable
from rankwise.serve.infer_request import LEAST_URGENT, InferRequest, Output
from rankwise.serve.models_file import Entry, ModelsFile, VirtualModel

log = logging.getLogger("rankwise.serve")
Source = Callable[[], ModelsFile]
Count = Callable[[str, str, str], None]  # model, shadow, outcome
Make = Callable[[Entry | VirtualModel, Callable[[str], Answering]], Answering]
_MOST_SHADOWS = 32  # requests to a shadow at once; further ones are left out
_LONGEST_SHADOW_S = 60.0


class Catalogue:
    """All models. `make` makes the model of an entry, `source` reads MODELS.toml again if there is one, `count` counts shadows' answers."""

    def __init__(self, file: ModelsFile, pool: Pool, make: Make, count: Count, source: Source | None = None) -> None:
        self.pool, self._make, self._count, self._source = pool, make, count, source
        self._changing = asyncio.Lock()
        self.by_name: dict[str, dict[str, Answering]] = {}
        for entry in file.entries:
            self._add(entry)
        for virtual in file.virtual:
            self._add(virtual)

    def _add(self, said: Entry | VirtualModel) -> None:
        model = self._make(said, self.find_named)
        self.by_name.setdefault(model.name, {})[model.version] = model
        self._set_shadow(model, said.shadow)

    def _set_shadow(self, model: Answering, name: str) -> None:
        if name:
            shadow = Shadow(lambda: self.find_named(name), lambda outcome: self._count(model.name, name, outcome))
        model.follow = shadow.follow if name else None

    def find_named(self, text: str) -> Answering:
        """The model NAME or NAME:VERSION, as MODELS.toml writes it."""
        name, _, version = text.rpartition(":")
        return self.find(text) if text in self.by_name else self.find(name, version)

    @property
    def all(self) -> list[Answering]:
        return [model for versions in self.by_name.values() for model in versions.values()]

    @property
    def waiting(self) -> list[Answering]:
        """The models that are not loaded yet and have to be before the server is ready."""
        return [model for model in self.all if model.preload and model.state != "READY" and model.reason != "unloaded"]

    async def load_all(self) -> None:
        """Load the models that have to be there from the start."""

        async def load(model: Answering) -> None:
            try:
                await model.load()
            except Unavailable as error:
                log.error("model %s: %s", model.name, error)

        await asyncio.gather(*[load(model) for model in self.all if model.preload])

    def find(self, name: str, version: str = "") -> Answering:
        """A model by name and version; without a version the newest that works, else the newest."""
        versions = self.by_name.get(name)
        if versions is None:
            raise NotFound(f"there is no model {name[:200]!r}")
        if version:
            if version not in versions:
                raise NotFound(f"model {name!r} has no version {version[:50]!r}; it has {', '.join(versions)}")
            return versions[version]
        if len(versions) == 1:
            return next(iter(versions.values()))
        newest = sorted(versions.values(), key=_age)
        return next((model for model in newest if model.state != "UNAVAILABLE"), newest[0])

    def versions_of(self, name: str) -> list[Answering]:
        if name not in self.by_name:
            raise NotFound(f"there is no model {name[:200]!r}")
        return list(self.by_name[name].values())

    async def load(self, name: str) -> None:
        """Read the model's file or folder again: load new versions, drop versions that are gone, reload the others."""
        async with self._changing:
            said = await self._said_anew(name)
            known = self.by_name.get(name, {})
            for version, own in said.items():
                if version in known:
                    self._set_shadow(known[version], own.shadow)
                else:
                    if isinstance(own, Entry):
                        self.pool.add(own.key, own.model)
                    self._add(own)
            gone = [version for version in known if said and version not in said]
        for model in self.versions_of(name):
            if model.version not in gone:
                now = said.get(model.version)
                await model.load(now if isinstance(now, model.described_by) else None)
        for version in gone:  # dropped last, so that there is always a version that answers
            self.by_name[name].pop(version).discard()

    async def _said_anew(self, name: str) -> dict[str, Entry | VirtualModel]:
        if self._source is None:
            return {}
        try:
            file = await asyncio.to_thread(self._source)
        except RankwiseError as error:
            raise RequestError(error.finding.summary) from error
        said: list[Entry | VirtualModel] = [*file.entries, *file.virtual]
        return {own.version: own for own in said if own.name == name}

    def unload(self, name: str) -> None:
        for model in self.versions_of(name):
            model.unload()

    def index(self, only_ready: bool) -> list[dict[str, str]]:
        return [
            {"name": model.name, "version": model.version, "state": model.state, "reason": model.reason}
            for model in self.all
            if model.state == "READY" or not only_ready
        ]

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        model = self.find(name, version)
        return {
            "name": model.name,
            "versions": sorted(self.by_name[name], key=lambda own: _age(self.by_name[name][own]), reverse=True),
            "platform": model.platform,
            "inputs": [_tensor(spec) for spec in model.inputs],
            "outputs": [_tensor(spec) for spec in model.outputs],
        }

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """The model's configuration in Triton's form, where the dimensions of batched models leave out the batch."""
        model = self.find(name, version)
        is_batched = model.max_batch > 1 and all(spec.shape[:1] == (-1,) for spec in (*model.inputs, *model.outputs))
        config: dict[str, Any] = {
            "name": model.name,
            "platform": model.platform,
            "backend": model.backend,
            "version_policy": {"all": {}},
            "max_batch_size": model.max_batch if is_batched else 0,
            "input": [_config(spec, is_batched) for spec in model.inputs],
            "output": [_config(spec, is_batched) for spec in model.outputs],
        }
        if is_batched:
            config["dynamic_batching"] = {}
        return config

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        models = [self.find(name, version)] if version else self.versions_of(name) if name else self.all
        numbers = self.pool.stats()["models"]
        return [_statistics(model, numbers.get(model.key)) for model in models]


class Shadow:
    """A model that gets each request of another model after that one has answered, so that their answers can be compared.

    No client sees its answers or waits for them. `count` is called with the outcome: same, different, failed or left out.
    """

    def __init__(self, find: Callable[[], Answering], count: Callable[[str], None]) -> None:
        self._find, self._count = find, count
        self._open: set[asyncio.Task[None]] = set()

    def follow(self, request: InferRequest, outputs: list[Output]) -> None:
        if len(self._open) >= _MOST_SHADOWS:
            self._count("left out")
            return
        own = replace(request, parameters={"priority": LEAST_URGENT}, remaining_s=_LONGEST_SHADOW_S)
        task = asyncio.get_running_loop().create_task(self._ask(own, outputs))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _ask(self, request: InferRequest, outputs: list[Output]) -> None:
        try:
            found = (await self._find().infer(request)).outputs
        except RequestError:
            self._count("failed")
        else:
            self._count("same" if is_same(found, outputs) else "different")


def is_same(first: list[Output], second: list[Output]) -> bool:
    """Whether two answers have the same names, types, shapes and bits."""
    if [(name, kind, array.shape) for name, kind, array in first] != [(name, kind, array.shape) for name, kind, array in second]:
        return False
    return all(bytes(to_raw(a, kind)) == bytes(to_raw(b, kind)) for (_, kind, a), (_, _, b) in zip(first, second))


def _age(model: Answering) -> tuple[int, int, str]:
    """A key that sorts versions from new to old: numbers first, the highest in front, then words."""
    return (0, -int(model.version), "") if model.version.isdecimal() else (1, 0, model.version)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _config(spec: TensorSpec, is_batched: bool) -> dict[str, Any]:
    datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{datatype}", "dims": list(spec.shape[1:] if is_batched else spec.shape)}


def _statistics(model: Answering, numbers: Mapping[str, Any] | None) -> dict[str, Any]:
    """A model's statistics: how often and how long it ran is known from the pool, the rest of a request's time counts as waiting."""
    tally, batches = model.tally, model.batches(numbers)
    ran, answered_ns = tally.of("success")
    computed_ns = min(sum([ns for _, ns in batches.values()]), answered_ns)

    def of(count: int, ns: int) -> dict[str, int]:
        return {"count": count, "ns": ns}

    return {
        "name": model.name,
        "version": model.version,
        "last_inference": tally.last_ms,
        "inference_count": sum([rows * count for rows, (count, _) in batches.items()]),
        "execution_count": sum([count for count, _ in batches.values()]),
        "inference_stats": {
            **{what: of(*tally.of(what)) for what in ("success", "fail", "cache_hit", "cache_miss")},
            "queue": of(ran, answered_ns - computed_ns),
            "compute_input": of(ran, 0),
            "compute_infer": of(ran, computed_ns),
            "compute_output": of(ran, 0),
        },
        "response_stats": {},
        "batch_stats": [
            {"batch_size": rows, "compute_input": of(count, 0), "compute_infer": of(count, ns), "compute_output": of(count, 0)}
            for rows, (count, ns) in sorted(batches.items())
        ],
        "memory_usage": [],
    }
