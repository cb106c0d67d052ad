#!/usr/bin/env python3
"""Overheads from Python: an operator compared with regular tensors and with PyTorch's DTensor, the import, and a training
step compared with PyTorch's FSDP2 and tensor parallelism over gloo. All in one run on one machine.

    PYTHONPATH=build/release/python python bench/python_dispatch.py [--iters 2000] [--steps 30] [--ranks 2]

Overheads in microseconds over the call on regular tensors, minimum of interleaved rounds; steps as ratios to this library.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = os.path.dirname(os.path.abspath(__file__))


def cases(torch, make):
    n = 64
    x, y, bias = make(torch.randn(n, n)), make(torch.randn(n, n)), make(torch.randn(n))
    linear = torch.nn.functional.linear
    return {
        "add": lambda: x + y,
        "mm": lambda: torch.mm(x, y),
        "view": lambda: x.view(n, n // 2, 2),
        "sum": lambda: x.sum(),
        "linear": lambda: linear(x, y, bias),
    }


def seconds_per_call(fn, iters):
    begin = time.perf_counter()
    for _ in range(iters):
        fn()
    return (time.perf_counter() - begin) / iters


def dispatch(iters, rounds=40):
    import torch
    import torch.distributed as dist
    import torch.distributed.tensor as theirs

    import dtensor

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577")
    dist.init_process_group("gloo", rank=0, world_size=1)
    their_mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    mesh = dtensor.init_device_mesh("cpu", (1,))
    kinds = {
        "regular": lambda t: t,
        "dtensor": lambda t: dtensor.distribute_tensor(t, mesh, [dtensor.Replicate()]),
        "dtensor S(0)": lambda t: dtensor.distribute_tensor(t, mesh, [dtensor.Shard(0)] if t.dim() == 2 else None),
        "PyTorch": lambda t: theirs.distribute_tensor(t, their_mesh, [theirs.Replicate()]),
    }
    with torch.no_grad():
        calls = {kind: cases(torch, make) for kind, make in kinds.items()}
        print(f"{'over regular, us':<10}" + "".join(f"{kind:>14}" for kind in kinds if kind != "regular") + f"{'regular':>14}")
        for name in calls["regular"]:
            times = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for kind in kinds:
                    fewer = 10 if kind == "PyTorch" else 1
                    times[kind].append(seconds_per_call(calls[kind][name], max(10, iters // fewer)))
            regular = min(times["regular"])
            over = [min(times[kind]) - regular for kind in kinds if kind != "regular"]
            print(f"{name:<10}" + "".join(f"{1e6 * t:14.2f}" for t in over) + f"{1e6 * regular:14.2f}", flush=True)
    dist.destroy_process_group()


def import_time():
    def run(code):
        times = []
        for _ in range(5):
            out = subprocess.run([sys.executable, "-c", f"import time, torch; t = time.time(); {code}; print(time.time() - t)"],
                                 capture_output=True, text=True, check=True)  # fmt: skip
            times.append(float(out.stdout.split()[-1]))
        return statistics.median(times)

    print(f"import dtensor after import torch: {run('import dtensor'):.3f} s")


def network(torch, hidden=64, layers=4):
    nn = torch.nn
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def forward(self, x):
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    return nn.Sequential(*[Block() for _ in range(layers)])


def step_of(library, kind):
    """A step of training on this rank's mesh with the names of `library`: 'ours' or 'theirs'."""
    import torch

    if library == "ours":
        import dtensor as tensor
        from dtensor import init_device_mesh, world_size
        from dtensor.fsdp import fully_shard
        from dtensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    else:
        import torch.distributed.tensor as tensor
        from torch.distributed import get_world_size as world_size
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (world_size(),), mesh_dim_names=("ranks",))
    model = network(torch)
    x = torch.randn(8, 64)
    if kind == "fsdp":
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        plan = {}
        for i in range(len(model)):
            local = library == "theirs"  # with this library, programs keep DTensors between layers
            plan[f"{i}.up"] = ColwiseParallel(use_local_output=local)
            plan[f"{i}.down"] = RowwiseParallel(use_local_output=local)
        parallelize_module(model, mesh, plan)
    if library == "ours":  # inputs are DTensors with this library, local tensors with PyTorch
        if kind == "tp":
            tensor.distribute_module(model, mesh)
        x = tensor.distribute_tensor(x, mesh, [tensor.Shard(0) if kind == "fsdp" else tensor.Replicate()])
        import dtensor.optim

        optimizer = dtensor.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=kind == "fsdp")  # foreach needs lists of one kind

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def measure(step, steps):
    for _ in range(5):
        step()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def worker(library, kind, steps):
    """The main function of a process that steps() starts."""
    import torch

    torch.set_num_threads(1)
    if library == "theirs":
        torch.distributed.init_process_group("gloo")
    seconds = measure(step_of(library, kind), steps)
    if os.environ["RANK"] == "0":
        print("seconds", seconds, flush=True)
    if library == "theirs":
        torch.distributed.destroy_process_group()


def launched(library, kind, steps, ranks):
    command = ["bash", os.path.join(HERE, "..", "scripts", "processes.sh"), str(ranks), sys.executable, __file__,
               "--worker", library, "--kind", kind, "--steps", str(steps)]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in out.stdout.splitlines() if line.startswith("seconds")]
    if not lines:
        raise RuntimeError((out.stderr.strip().splitlines() or ["the program printed no error"])[-1])
    return float(lines[0].split()[1])


def training(steps, ranks):
    import torch

    import dtensor

    torch.set_num_threads(1)
    for kind, name in [("fsdp", "FSDP2"), ("tp", "TP")]:
        threads = dtensor.run(ranks, lambda kind=kind: measure(step_of("ours", kind), steps))[0]
        sockets = launched("ours", kind, steps, ranks)
        try:
            theirs = launched("theirs", kind, steps, ranks)
        except RuntimeError as error:
            print(f"step at hidden 64, {name}: PyTorch's does not run here: {error}")
            continue
        print(f"step at hidden 64 on {ranks} ranks: PyTorch's {name} over gloo takes {theirs / sockets:.1f} times ours over sockets "
              f"({1e3 * sockets:.2f} ms), {theirs / threads:.1f} times ours on threads ({1e3 * threads:.2f} ms)", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iters", type=int, default=500)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--worker", choices=["ours", "theirs"])
    parser.add_argument("--kind", choices=["fsdp", "tp"])
    flags = parser.parse_args()
    if flags.worker:
        return worker(flags.worker, flags.kind, flags.steps)
    dispatch(flags.iters)
    import_time()
    training(flags.steps, flags.ranks)


if __name__ == "__main__":
    main()
