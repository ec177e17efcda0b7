"""Writes checkpoints with the libraries that write them in real life: `RANK=0 WORLD_SIZE=2 … python make_corpus.py FOLDER`, and rank 1.

Everything holds the same trained weights, those of `expected.pt` (or `expected_tied.pt`), so that loading can be compared bit by bit.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path.insert(0, str(Path(__file__).parents[2]))
from rankwise.train import Checkpoints
from tests.weights.nets import Net, Tied

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)


def trained(kind: type[nn.Module] = Net) -> nn.Module:
    """A few steps, so that no tensor, the BatchNorm counters included, has its initial value."""
    torch.manual_seed(7)
    model = kind()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        model(model.example()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def by_both_ranks(folder: Path) -> None:
    model = trained()
    dcp.save({"model": DDP(model).state_dict(), "epoch": 3}, checkpoint_id=folder / "dcp_ddp")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType, fully_shard

    mesh = init_device_mesh("cpu", (2,))
    sharded = trained()
    fully_shard(sharded.body, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizer = torch.optim.AdamW(sharded.parameters())
    weights, moments = get_state_dict(sharded, optimizer)
    dcp.save({"model": weights, "optim": moments}, checkpoint_id=folder / "dcp_fsdp2")
    dcp.save(get_model_state_dict(sharded), checkpoint_id=folder / "dcp_fsdp2_bare")
    (folder / "dtensor_files").mkdir(exist_ok=True)
    torch.save({"model": sharded.state_dict(), "epoch": 3}, folder / "dtensor_files" / f"rank-{dist.get_rank()}.pt")
    ours = DDP(trained())
    for is_sharded, name in ((False, "rankwise_train"), (True, "rankwise_train_sharded")):
        things = {"model": ours, "optimizer": torch.optim.AdamW(ours.parameters())}
        assert Checkpoints(folder / name, sharded=is_sharded, **things).save(7)
    wrapped = FSDP(trained(), device_id=torch.device("cpu"))
    with FSDP.state_dict_type(wrapped, StateDictType.SHARDED_STATE_DICT):
        dcp.save({"state_dict": wrapped.state_dict()}, checkpoint_id=folder / "dcp_fsdp1")


def by_torch(folder: Path) -> None:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model, tied = trained(), trained(Tied)
    torch.save(model.state_dict(), folder / "expected.pt")
    torch.save(tied.state_dict(), folder / "expected_tied.pt")
    torch.save(DDP(model).state_dict(), folder / "ddp.pt")
    torch.save(nn.DataParallel(model).state_dict(), folder / "data_parallel.pt")
    torch.save(torch.compile(model).state_dict(), folder / "compiled.pt")
    torch.save(DDP(torch.compile(model)).state_dict(), folder / "ddp_of_compiled.pt")
    torch.save(torch.compile(DDP(model)).state_dict(), folder / "compiled_ddp.pt")
    torch.save(torch.compile(DDP(torch.compile(model))).state_dict(), folder / "compiled_ddp_of_compiled.pt")
    inner = trained()
    inner.body[0] = torch.compile(inner.body[0])
    torch.save(DDP(inner).state_dict(), folder / "compiled_inside_ddp.pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # its moments are tensors that must not be taken for weights
    optimizer.zero_grad()
    everything = {"model": DDP(model).state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": (0.5, "epoch-2")}
    torch.save({**everything, "rng": torch.get_rng_state()}, folder / "training.pt")
    torch.save({"model_state_dict": model.state_dict(), "loss": 0.1}, folder / "model_state_dict.pt")
    torch.save({"module": model.state_dict(), "ds_version": "0.16"}, folder / "deepspeed_like.pt")
    torch.save({"a": {"b": {"net": model.state_dict()}}}, folder / "nested_deep.pt")
    torch.save({"generator": model.state_dict(), "discriminator": Tied().state_dict()}, folder / "gan.pt")
    torch.save({"body": model.body.state_dict(), "head": model.head.state_dict(), "norm": model.norm.state_dict()}, folder / "by_part.pt")
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    average.update_parameters(model)
    torch.save(average.state_dict(), folder / "ema.pt")
    noise = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    torch.save({"model": noise, "ema": average.state_dict()}, folder / "model_and_ema.pt")
    torch.save(trained().half().state_dict(), folder / "half.pt")
    torch.save(trained().bfloat16().state_dict(), folder / "bfloat16.pt")
    torch.save(model.state_dict(), folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"model": DDP(model).state_dict()}, folder / "legacy_ddp.pt", _use_new_zipfile_serialization=False)
    torch.save(dict(model.named_parameters()) | dict(model.named_buffers()), folder / "parameters.pt")
    torch.save(tied.state_dict(), folder / "tied.pt")
    torch.serialization.set_crc32_options(False)
    torch.save(model.state_dict(), folder / "without_crc.pt")
    torch.serialization.set_crc32_options(True)
    torch.save(in_one_storage(model.state_dict()), folder / "views.pt")
    exported = torch.export.export(model.eval(), (model.example(),))
    torch.export.save(exported, folder / "program.pt2")


def in_one_storage(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All floats as views of one storage, and one of them not row-major: what flat parameters and transposed layers leave."""
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    parts = torch.cat([tensor.reshape(-1) for tensor in floats.values()]).split([tensor.numel() for tensor in floats.values()])
    views = {name: part.view(tensor.shape) for (name, tensor), part in zip(floats.items(), parts, strict=True)}
    return {**state, **views, "body.0.weight": state["body.0.weight"].t().contiguous().t()}


def by_others(folder: Path) -> None:
    import pytorch_lightning as lightning
    from accelerate import Accelerator
    from huggingface_hub import save_torch_state_dict
    from lightning_fabric import Fabric
    from safetensors.torch import save_file, save_model

    model, tied = trained(), trained(Tied)
    save_file(model.state_dict(), folder / "plain.safetensors")
    save_model(tied, str(folder / "tied.safetensors"))
    for name in ("hub_sharded", "hub_sharded_bin", "hub_tied"):
        (folder / name).mkdir()
    save_torch_state_dict(model.state_dict(), folder / "hub_sharded", max_shard_size=1500)
    save_torch_state_dict(model.state_dict(), folder / "hub_sharded_bin", max_shard_size=1500, safe_serialization=False)
    save_torch_state_dict(tied.state_dict(), folder / "hub_tied", max_shard_size=1500)
    accelerator = Accelerator(cpu=True)
    prepared, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.save_state(str(folder / "accelerate_state"))
    accelerator.save_model(prepared, str(folder / "accelerate_model"), max_shard_size="1KB")
    accelerator.save(accelerator.get_state_dict(prepared), folder / "accelerate.bin")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"lr": 0.1, "widths": [4, 8]})
            self.net = trained()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, barebones=False)
    trainer.strategy.connect(Module())
    trainer.save_checkpoint(folder / "lightning.ckpt")
    fabric = Fabric(accelerator="cpu", devices=1)
    module = fabric.setup(trained())
    fabric.save(folder / "fabric.ckpt", {"model": module, "step": 3})


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    by_both_ranks(folder)
    rank = dist.get_rank()
    dist.destroy_process_group()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name)  # Accelerate would wait for the other rank
    if rank == 0:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        by_torch(folder)
        dist.destroy_process_group()
    else:
        by_others(folder)


if __name__ == "__main__":
    main()
