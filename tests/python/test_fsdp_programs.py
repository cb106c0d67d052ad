"""Random programs under fully_shard equal a simulation on one device.

A program draws the units, replicas, flags, divide factors and passes of a model whose layers mix rows. Passes have local
or global semantics, or both; they reduce gradients or leave them, over shards or replicas too; ranks may use different
layers. The simulation keeps two numbers for each parameter: what was reduced, and the sum over the ranks that waits.
"""

import copy
import random
import unittest

import torch

import dtensor
from dtensor import Shard
from dtensor.fsdp import fully_shard
from layouts import ranks_of, trials
from test_local_data import WIDTH, Mixes

MESHES = [((1,), None), ((2,), ("dp",)), ((3,), None), ((1, 2), ("dp", "fsdp")), ((2, 1), ("dp", "fsdp")), ((2, 2), ("dp", "fsdp"))]
GLOBAL_WAYS = {"rows", "softmax", "centered", "pairs"}  # of DTensors, too
SEMANTICS = ["local"] * 6 + ["global", "both", "create_graph", "autograd_grad"]


class Partly(Mixes):
    """Leaves out linear layers that are not in ``used``."""

    def forward(self, x, used=None):
        self.used = set(range(len(self.layers))) if used is None else used
        return super().forward(x)

    def one(self, way, layer, x):
        index = next(k for k, own in enumerate(self.layers) if own is layer)
        return super().one(way, layer if index in self.used else lambda h: h, x)


class Pass:
    """One backward pass. Values that the simulation adds: ``new_factors`` are set before it; the rest is expected after."""

    def __init__(self, draw, program):
        self.semantics = draw.choice(SEMANTICS)
        if self.semantics in ("global", "both") and not set(program.ways) <= GLOBAL_WAYS:
            self.semantics = "local"
        if self.semantics in ("create_graph", "autograd_grad") and program.model.recompute:
            self.semantics = "local"  # reentrant checkpoints support neither
        waits = draw.choice([0, 0, 0, 0.2, 1, 1])
        self.synced = {unit: draw.random() >= waits for unit in program.units}
        self.over_replicas = draw.random() < 0.7 or self.semantics == "create_graph"  # whose gradients are reduced at once
        self.rows = [program.draw_rows(draw.randint(1, 4)) for _ in range(program.ranks)]
        self.batch = program.draw_rows(program.ranks * draw.randint(1, 2))
        own = set(range(len(program.ways))) - program.root_layers
        uses = [own | {k for k in program.root_layers if draw.random() < 0.6} for _ in range(program.ranks)]
        self.by_rank = self.semantics == "local" and draw.random() < 0.4
        self.used = uses if self.by_rank else uses[:1] * program.ranks
        changes = draw.random() < 0.2 and program.ranks > 1  # one rank does not distinguish the semantics of what waits
        self.factors = program.draw_factors(draw) if changes else {}
        self.steps = draw.random() < 0.35

    def __str__(self):
        waits = [unit for unit, on in self.synced.items() if not on]
        return f"{self.semantics} used={self.used} waits={waits} replicas={self.over_replicas} factors={self.factors} steps={self.steps}"


class Program:
    def __init__(self, seed):
        draw = random.Random(seed)
        self.shape, self.names = draw.choice(MESHES)
        self.ranks = ranks_of(self.shape)
        self.replicas = self.shape[0] if len(self.shape) == 2 else 1
        self.values = torch.Generator().manual_seed(seed)
        kinds = sorted(GLOBAL_WAYS) if draw.random() < 0.5 else Mixes.WAYS
        self.ways = [draw.choice(kinds) for _ in range(draw.randint(1, 4))]
        torch.manual_seed(seed)
        self.model = Partly(self.ways, draw.choice([None, None, False, True])).double()
        self.units = ["root", *(f"layers.{k}" for k in range(len(self.ways)) if draw.random() < 0.4)]
        self.root_layers = {k for k in range(len(self.ways)) if f"layers.{k}" not in self.units}
        self.reshard = draw.choice([None, True, False])
        self.keeps = draw.random() < 0.2  # set_reshard_after_backward(False)
        self.factors = self.draw_factors(draw) if draw.random() < 0.5 else {}
        self.passes = [Pass(draw, self) for _ in range(draw.randint(2, 6))]
        if any(one.by_rank for one in self.passes):  # sums of both semantics have other kinds on ranks without one of them
            for one in self.passes:
                one.semantics = "local" if one.semantics in ("global", "both") else one.semantics
        self.unused = self.ranks > 1 and draw.random() < 0.2
        segments = self.model.recompute and any(one.by_rank for one in self.passes)  # ranks reduce them one by one
        if Simulation(self).run() or (segments and self.ranks > 1):  # set_reduce_scatter_unused_params
            self.unused = True
            Simulation(self).run()

    def draw_rows(self, count):
        return torch.randn(count, WIDTH, generator=self.values).double()

    def draw_factors(self, draw):
        return {unit: draw.choice([1.0, 2.0, 3.5, 8.0]) for unit in self.units if draw.random() < 0.7}

    def unit_of(self, name):
        return next((unit for unit in self.units if name.startswith(unit + ".")), "root")

    def __str__(self):
        head = f"mesh {self.shape} ways={self.ways} units={self.units} recompute={self.model.recompute}"
        flags = f"reshard={self.reshard} keeps={self.keeps} unused={self.unused} factors={self.factors}"
        return "\n".join([head, flags, *map(str, self.passes)])


def loss(y):
    return y.square().sum()


class Simulation:
    """One regular model, and the gradients of all ranks."""

    def __init__(self, program):
        self.program, self.model = program, copy.deepcopy(program.model)
        self.factors = {unit: program.factors.get(unit, float(program.ranks)) for unit in program.units}
        self.names = [name for name, _ in self.model.named_parameters()]
        self.zero_grad()

    def zero_grad(self):
        self.reduced = dict.fromkeys(self.names)  # None: no gradient
        self.waiting = dict.fromkeys(self.names)  # sums over ranks, not divided
        self.holders = {name: set() for name in self.names}  # ranks whose parts of the gradient wait
        self.scattered = set()  # names of gradients that are reduced over the shard axis
        self.global_waits = set()  # units

    def gradients(self, x, used):
        self.model.zero_grad()
        loss(self.model(x.clone().requires_grad_(), used)).backward()
        return {name: p.grad for name, p in self.model.named_parameters()}

    def factor_of(self, name):
        return self.factors[self.program.unit_of(name)]

    def run(self):
        """Records what the passes expect; returns whether ranks reduce different parameters."""
        diverges = False
        for one in self.program.passes:
            one.new_factors = {unit: f for unit, f in one.factors.items() if unit not in self.global_waits}
            self.factors.update(one.new_factors)
            if any(self.would_reduce(one, name) for name in self.names):
                one.used = one.used[:1] * self.program.ranks
            at_once = [name for name in self.names if self.would_reduce(one, name) and self.waiting[name] is None]
            self.contribute(one)
            for name in at_once:
                self.reduce(name, True)
            for name in self.names:
                if one.synced[self.program.unit_of(name)]:
                    diverges |= len(self.holders[name]) not in (0, self.program.ranks)
                    self.reduce(name, self.over_replicas(one))
            if self.over_replicas(one):
                self.global_waits -= {unit for unit, on in one.synced.items() if on}
            one.expected = {name: self.value(name) for name in self.names if len(self.holders[name]) in (0, self.program.ranks)}
            one.steps = one.steps and not any(self.holders.values())
            if one.steps:
                self.step()
        self.program.parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        return diverges

    def would_reduce(self, one, name):
        """Whether a pass that leaves sums adds to a reduced gradient, which then reduces what is added."""
        if not one.synced[self.program.unit_of(name)]:
            return name in self.scattered
        return not self.over_replicas(one) and self.reduced[name] is not None and self.waiting[name] is None

    def over_replicas(self, one):
        return one.over_replicas or self.program.replicas == 1

    def contribute(self, one):
        local = [self.gradients(x, used) for x, used in zip(one.rows, one.used)]
        everywhere = self.gradients(one.batch, one.used[0])
        one.captured = None
        if one.semantics == "autograd_grad":
            one.captured = {n: None if g is None else sum(l[n] for l in local) / self.factor_of(n) for n, g in local[0].items()}
            return
        for name in self.names:
            if one.semantics != "global":
                for rank, grads in enumerate(local):
                    self.add(self.waiting, name, grads[name], {rank})
            if one.semantics in ("global", "both"):
                self.add(self.reduced, name, everywhere[name], set(range(self.program.ranks)))
                self.global_waits.add(self.program.unit_of(name))

    def add(self, sums, name, value, holders):
        if value is not None:
            sums[name] = value if sums[name] is None else sums[name] + value
            self.holders[name] |= holders

    def reduce(self, name, over_replicas):
        if self.program.unused and self.value(name) is None:
            (self.reduced if over_replicas else self.waiting)[name] = torch.zeros_like(self.model.get_parameter(name))
        self.holders[name] = set()
        if self.value(name) is not None:
            self.scattered.add(name)
        if over_replicas:
            self.reduced[name], self.waiting[name] = self.value(name), None

    def value(self, name):
        waits, reduced = self.waiting[name], self.reduced[name]
        if waits is None:
            return reduced
        return waits / self.factor_of(name) + (0 if reduced is None else reduced)

    def step(self):
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                if self.value(name) is not None:
                    p.sub_(self.value(name), alpha=0.01)
        self.zero_grad()


class OnRank:
    """The program under fully_shard."""

    def __init__(self, program):
        self.program = program
        self.mesh = dtensor.init_device_mesh("cpu", program.shape, mesh_dim_names=program.names)
        self.model = copy.deepcopy(program.model)
        self.modules = {"root": self.model, **{f"layers.{k}": layer for k, layer in enumerate(self.model.layers)}}
        for unit in reversed(program.units):
            fully_shard(self.modules[unit], mesh=self.mesh, reshard_after_forward=program.reshard)
        self.set_factors(program.factors)
        self.model.set_reduce_scatter_unused_params(program.unused)
        self.model.set_reshard_after_backward(not program.keeps)

    def set_factors(self, factors):
        for unit, factor in factors.items():
            self.modules[unit].set_gradient_divide_factor(factor)

    def run(self, one):
        self.set_factors(one.new_factors)
        for unit, on in one.synced.items():
            self.modules[unit].set_requires_gradient_sync(on, recurse=False)
            self.modules[unit].set_requires_all_reduce(on and one.over_replicas, recurse=False)
        rank = dtensor.rank()
        inputs = [one.rows[rank].clone()] if one.semantics != "global" else []
        if one.semantics in ("global", "both"):
            inputs.append(dtensor.distribute_tensor(one.batch, self.mesh, [Shard(0)] * self.mesh.ndim))
        losses = [loss(self.model(x.requires_grad_(), one.used[rank])) for x in inputs]
        if one.captured is not None:
            return torch.autograd.grad(losses[0], list(self.model.parameters()), allow_unused=True)
        torch.autograd.backward(losses, create_graph=one.semantics == "create_graph")
        for p in self.model.parameters():
            p.grad = None if p.grad is None else p.grad.detach()
        return None

    def step(self):
        with torch.no_grad():
            for p in self.model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=0.01)
        self.model.zero_grad()


def check(program):
    def on_rank():
        mine = OnRank(program)
        for number, one in enumerate(program.passes):
            captured = mine.run(one)
            for k, (name, p) in enumerate(mine.model.named_parameters()):
                if captured is not None:
                    same(captured[k], one.captured[name], f"pass {number}: {name} of autograd.grad")
                if name in one.expected:
                    same(p.grad, one.expected[name], f"pass {number}: {name}")
            if one.steps:
                mine.step()
        for name, p in mine.model.named_parameters():
            same(p.detach(), program.parameters[name], name)
        if not program.keeps and all(one.semantics != "create_graph" for one in program.passes):  # which keep units
            assert mine.model.fsdp_stats()["gathered_bytes"] == 0, "gathered memory is left"

    dtensor.run(program.ranks, on_rank)


def same(got, want, what):
    assert (got is None) == (want is None), f"{what}: got {got}, expected {want}"
    if want is not None:
        torch.testing.assert_close(got.full_tensor(), want, rtol=1e-8, atol=1e-10, msg=lambda text: f"{what}: {text}")


class Programs(unittest.TestCase):
    def test_random_programs_equal_a_simulation(self):
        for seed in range(trials(24)):
            program = Program(seed)
            try:
                check(program)
            except Exception as error:
                self.fail(f"program {seed}:\n{program}\n{error}")


if __name__ == "__main__":
    unittest.main()
