"""Run by a launcher together with a group of torch.distributed: PyTorch's state dictionary helpers and checkpoints on
DTensors of random layouts, compared with regular tensors.

``torch_distributed_program.py CASE FOLDER`` prints ``CASE done`` on each rank.
"""

import copy
import os
import random
import sys

import torch
import torch.distributed as dist
from torch import nn

import dtensor
from dtensor import DTensor, Replicate, Shard, StridedShard

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DRAW = random.Random(7)  # the same on all ranks


def layout(mesh, dims):
    placements = [DRAW.choice([Replicate(), *map(Shard, range(dims))]) for _ in range(mesh.ndim)]
    if mesh.ndim == 2 and dims and DRAW.random() < 0.3:
        placements = [StridedShard(0, split_factor=mesh.size(1)), Shard(0)]
    return placements


def meshes():
    yield dtensor.init_device_mesh("cpu", (SIZE,))
    if SIZE == 4:
        yield dtensor.init_device_mesh("cpu", (2, 2))


class Model(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.first = nn.Linear(columns, rows)
        self.second = nn.Linear(rows, columns, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("steps", torch.arange(columns))

    def forward(self, x):
        return self.second(self.first(x)) * self.scale


def placed(model, mesh):
    model = copy.deepcopy(model)
    for module in model.modules():
        for name, tensor in list(module.named_parameters(recurse=False)):
            value = dtensor.distribute_tensor(tensor.detach(), mesh, layout(mesh, tensor.dim()))
            setattr(module, name, nn.Parameter(value))
    return model


def draws(count):
    """A model of regular tensors, and two models of the same sizes on random layouts."""
    for mesh in meshes():
        for _ in range(count):
            torch.manual_seed(DRAW.randint(0, 1 << 30))
            sizes = DRAW.randint(1, 9), DRAW.randint(1, 9)
            reference = Model(*sizes)
            yield reference, placed(reference, mesh), placed(Model(*sizes), mesh)


def full(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def check_same(got, want):
    assert got.keys() == want.keys(), (got.keys(), want.keys())
    for name, value in want.items():
        assert torch.equal(full(got[name]), value), name


def check_full(got, want):
    assert not any(isinstance(value, DTensor) for value in got.values())
    check_same(got, want)


def gather():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    for reference, model, _ in draws(4):
        check_full(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), reference.state_dict())
        offloaded = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        check_full(offloaded, reference.state_dict() if RANK == 0 else {})
        sharded = get_model_state_dict(model)
        assert isinstance(sharded["first.weight"], DTensor)


def scatter():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    everywhere = StateDictOptions(full_state_dict=True)
    from_first = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
    for reference, model, other in draws(4):
        before = [p.placements for p in other.parameters()]
        with torch.no_grad():
            torch._foreach_zero_(list(other.parameters()))
        set_model_state_dict(other, get_model_state_dict(model, options=from_first), options=from_first)
        check_same(other.state_dict(), reference.state_dict())
        with torch.no_grad():
            torch._foreach_zero_(list(other.parameters()))
        set_model_state_dict(other, get_model_state_dict(model, options=everywhere), options=everywhere)
        check_same(other.state_dict(), reference.state_dict())
        assert before == [p.placements for p in other.parameters()]


def optimizers():
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict,
    )  # fmt: skip

    def stepped(model, steps):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(3, model.first.in_features)).square().sum().backward()
            optimizer.step()
        return optimizer

    for from_first in (False, True):
        options = StateDictOptions(full_state_dict=True, cpu_offload=from_first, broadcast_from_rank0=from_first)
        for reference, model, other in draws(2):
            other.load_state_dict(reference.state_dict())
            want = get_optimizer_state_dict(reference, stepped(reference, 2), options=StateDictOptions())
            state = get_optimizer_state_dict(model, stepped(model, 2), options=options)
            if RANK == 0 or not from_first:
                for name, entry in want["state"].items():
                    assert not isinstance(state["state"][name]["exp_avg"], DTensor)
                    torch.testing.assert_close(state["state"][name]["exp_avg"], entry["exp_avg"])
            restored = torch.optim.AdamW(other.parameters(), lr=0.3)
            set_optimizer_state_dict(other, restored, state, options=options)
            assert restored.param_groups[0]["lr"] == 0.1
            for parameter, entry in zip(other.parameters(), want["state"].values()):
                torch.testing.assert_close(full(restored.state[parameter]["exp_avg"]), entry["exp_avg"])
                if parameter.dim():
                    assert isinstance(restored.state[parameter]["exp_avg"], DTensor)


def torch_dtensor(tensor):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard as TorchShard
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, init_device_mesh("cpu", (SIZE,)), [TorchShard(0)])


def on_meta():
    """The model is sharded before it has values; one process has them, or all."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    mesh = dtensor.init_device_mesh("cpu", (SIZE,))
    for from_first in (False, True):
        sizes = DRAW.randint(1, 9), DRAW.randint(1, 9)
        torch.manual_seed(3)
        want = Model(*sizes)
        with torch.device("meta"):
            model = nn.ModuleDict({"model": Model(*sizes)})
        model["model"].steps = want.steps.clone()
        dtensor.fully_shard(model, mesh=mesh)
        state = {f"model.{name}": value for name, value in want.state_dict().items()}
        given = dict(state) if RANK == 0 or not from_first else {}
        set_model_state_dict(model, given, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=from_first))
        check_same(model.state_dict(), state)
        assert isinstance(model["model"].first.weight, DTensor)


def checkpoints():
    import torch.distributed.checkpoint as dcp

    torch.set_grad_enabled(False)
    for number, (reference, model, other) in enumerate(draws(4)):
        folder = f"{sys.argv[2]}/{number}"
        if number % 2:
            dcp.async_save({"model": model.state_dict(), "step": 3}, checkpoint_id=folder).result()
        else:
            dcp.save({"model": model.state_dict(), "step": 3}, checkpoint_id=folder)
        state = {"model": other.state_dict(), "step": 0}
        dcp.load(state, checkpoint_id=folder)
        check_same(other.state_dict(), reference.state_dict())
        assert state["step"] == 3
        regular = {"model": {name: torch.zeros_like(value) for name, value in reference.state_dict().items()}}
        dcp.load(regular, checkpoint_id=folder)
        check_same(regular["model"], reference.state_dict())
        beside = {"weight": torch_dtensor(reference.first.weight.detach())}  # a DTensor of PyTorch
        dcp.save(beside, checkpoint_id=folder + "-torch")
        dcp.load({"weight": other.first.weight.zero_()}, checkpoint_id=folder + "-torch")
        check_same({"weight": other.first.weight}, {"weight": reference.first.weight})
        dcp.load({"model": {"first.weight": beside["weight"].zero_()}}, checkpoint_id=folder)
        assert torch.equal(beside["weight"].full_tensor(), reference.first.weight)


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/store", rank=RANK, world_size=SIZE)
    globals()[sys.argv[1]]()
    print(f"{sys.argv[1]} done", flush=True)
    dist.barrier()
    dist.destroy_process_group()
