"""All models by name and version, and what is said about them: metadata, configuration, statistics, the repository's index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from rankwise.pool import Pool
from rankwise.pool.models_file import TensorSpec
from rankwise.serve.errors import NotFound, Unavailable
from rankwise.serve.served import Served

log = logging.getLogger("rankwise.serve")


class Catalogue:
    def __init__(self, served: Iterable[Served], pool: Pool) -> None:
        self.pool = pool
        self.by_name: dict[str, dict[str, Served]] = {}
        for model in served:
            self.by_name.setdefault(model.name, {})[model.version] = model

    @property
    def all(self) -> list[Served]:
        return [model for versions in self.by_name.values() for model in versions.values()]

    @property
    def is_ready(self) -> bool:
        """Whether all that has to be loaded is."""
        return all(model.state == "READY" for model in self.all if model.preload and model.reason != "unloaded")

    async def load_all(self) -> None:
        """Those that have to be there from the start."""

        async def load(model: Served) -> None:
            try:
                await model.load()
            except Unavailable as error:
                log.error("model %s: %s", model.name, error)

        await asyncio.gather(*[load(model) for model in self.all if model.preload])

    def find(self, name: str, version: str = "") -> Served:
        """The newest version where none is named, of those that are not out of order if there are any."""
        versions = self.by_name.get(name)
        if versions is None:
            raise NotFound(f"there is no model {name[:200]!r}")
        if version:
            if version not in versions:
                raise NotFound(f"model {name!r} has no version {version[:50]!r}; it has {', '.join(versions)}")
            return versions[version]
        newest = sorted(versions.values(), key=_age)
        return next((model for model in newest if model.state != "UNAVAILABLE"), newest[0])

    def versions_of(self, name: str) -> list[Served]:
        if name not in self.by_name:
            raise NotFound(f"there is no model {name[:200]!r}")
        return list(self.by_name[name].values())

    async def load(self, name: str) -> None:
        for model in self.versions_of(name):
            await model.load()

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
        """As Triton has it: where rows are batched, the dimensions do not say how many there are."""
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
        if version:
            models: Sequence[Served] = [self.find(name, version)]
        else:
            models = self.versions_of(name) if name else self.all
        numbers = self.pool.stats()["models"]
        return [_statistics(model, numbers.get(model.key)) for model in models]


def _age(model: Served) -> tuple[int, int, str]:
    """Sorts the newest first: numbers before words, the highest before the others."""
    return (0, -int(model.version), "") if model.version.isdecimal() else (1, 0, model.version)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _config(spec: TensorSpec, is_batched: bool) -> dict[str, Any]:
    datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{datatype}", "dims": list(spec.shape[1:] if is_batched else spec.shape)}


def _statistics(model: Served, pool: dict[str, Any] | None) -> dict[str, Any]:
    """The pool knows how often and how long a model ran; the rest of the time of a request is counted as waiting."""
    tally = model.tally
    computed_ns = min(int(pool["busy_s"] * 1e9), tally.succeeded_ns) if pool is not None else 0
    ran = tally.succeeded

    def of(count: int, ns: int) -> dict[str, int]:
        return {"count": count, "ns": ns}

    return {
        "name": model.name,
        "version": model.version,
        "last_inference": tally.last_ms,
        "inference_count": tally.rows,
        "execution_count": min(pool["orders"], tally.rows) if pool is not None else 0,
        "inference_stats": {
            "success": of(tally.succeeded, tally.succeeded_ns),
            "fail": of(tally.failed, tally.failed_ns),
            "queue": of(ran, tally.succeeded_ns - computed_ns),
            "compute_input": of(ran, 0),
            "compute_infer": of(ran, computed_ns),
            "compute_output": of(ran, 0),
            "cache_hit": of(0, 0),
            "cache_miss": of(0, 0),
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }
