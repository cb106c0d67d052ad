"""Parameters of a unit while its module runs with local semantics: leaves, as on one device."""

import abc
import copy
import unittest

import torch
from torch import nn

import dtensor
from dtensor import Replicate, Shard
from dtensor.fsdp import fully_shard
from layouts import mesh_of


class Holder(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.register_parameter("weight", weight)

    def forward(self, x):
        return x @ self.weight


class Weights(nn.Module):
    """Parameters of several sizes, one of them frozen, one tied; ``use`` is called with the module in forward."""

    def __init__(self, use):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.eye(4) + 0.1), nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.tied, self.use = Holder(self.weight), use

    def forward(self, x):
        return self.use(self, x) * self.scale + self.frozen


def multiplied(module, x):
    return x @ module.weight


def registered(module, x):
    return Holder(module.weight)(x)


def assigned(module, x):
    other = Holder(nn.Parameter(torch.zeros(4, 4)))
    other.weight = module.weight
    return other(x)


def kept(module, x):
    module.others = [module.weight, module.tied.weight]
    return x @ module.others[0] + x @ module.others[1]


def hooked(module, x):
    module.weight.register_hook(lambda gradient: 3 * gradient)
    return module.tied(x)


def inner_gradient(module, x):
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad((x @ module.weight).square().sum(), module.weight, create_graph=True)
    return x @ gradient


def copied(module, x):
    return x @ copy.deepcopy(module.weight).detach() + module.tied(x)


def rows(rank):
    return torch.randn(2 + rank, 4, generator=torch.Generator().manual_seed(rank))


def mean_gradients(use, ranks):
    """Results and mean gradients of the module on one device."""
    results, gradients = [], []
    for rank in range(ranks):
        module = Weights(use)
        results.append(module(rows(rank)))
        (results[-1].square().sum() / ranks).backward()
        gradients.append([module.weight.grad, module.scale.grad])
    return [r.detach() for r in results], [sum(each) for each in zip(*gradients)]


class Leaves(unittest.TestCase):
    def check(self, use, ranks, shard):
        def on_rank():
            module = shard(Weights(use))
            result = module(rows(dtensor.rank() % 2))
            result.square().sum().backward()
            return result.detach(), [p.grad.full_tensor() for p in (module.weight, module.scale)]

        want, gradients = mean_gradients(use, min(ranks, 2))
        for rank, (result, found) in enumerate(dtensor.run(ranks, on_rank)):
            torch.testing.assert_close(result, want[rank % 2])
            torch.testing.assert_close(found, gradients)

    def test_what_modules_do_with_a_parameter(self):
        for use in (multiplied, registered, assigned, kept, hooked, inner_gradient, copied):
            for ranks in (1, 2):
                with self.subTest(use.__name__, ranks=ranks):
                    self.check(use, ranks, fully_shard)

    def test_replicas_and_kept_units(self):
        replicated = lambda m: fully_shard(m, mesh=dtensor.init_device_mesh("cpu", (2, 2)))
        for shard in (replicated, lambda m: fully_shard(m, reshard_after_forward=False)):
            for use in (registered, inner_gradient, hooked):
                self.check(use, 4 if shard is replicated else 2, shard)

    def test_kinds(self):
        def look(module, x):
            module.seen = [(type(p), p.is_leaf, p.requires_grad, p.grad_fn) for p in module.parameters()]
            return module.tied(x)

        def on_rank():
            module = fully_shard(Weights(look))
            module(torch.ones(2, 4)).sum().backward()
            return module.seen

        for ranks in (1, 2):
            want = [(nn.Parameter, True, True, None)] * 2 + [(nn.Parameter, True, False, None)]
            self.assertEqual(dtensor.run(ranks, on_rank)[0], want)

    def test_parameters_of_a_tensor_parallel_unit_are_leaves(self):
        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            layer = nn.Linear(4, 4, bias=False)
            nn.init.eye_(layer.weight)
            layer.weight = nn.Parameter(dtensor.distribute_tensor(layer.weight.detach(), mesh["tp"], [Shard(0)]))
            seen = []

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = layer

                def forward(self, x):
                    seen.append(self.layer.weight.is_leaf)
                    return Holder(self.layer.weight)(x)

            net = fully_shard(Net(), mesh=mesh["dp"])
            x = torch.full((2, 4), 1.0 + mesh.get_coordinate()[0])
            net(dtensor.DTensor.from_local(x, mesh["tp"], [Replicate()])).sum().backward()
            return seen, layer.weight.grad.full_tensor()

        for seen, gradient in dtensor.run(4, on_rank):
            self.assertEqual(seen, [True])
            torch.testing.assert_close(gradient, torch.full((4, 4), 3.0))


class Attributes(unittest.TestCase):
    def test_attributes_of_parameters(self):
        def count(module, x):
            module.weight.calls += 1
            return module.tied(x)

        def on_rank():
            module = Weights(count)
            module.weight.calls, module.scale.mine = 5, "kept"
            fully_shard(module)
            for _ in range(2):
                module(torch.ones(2, 4)).sum().backward()
            return module.weight.calls, module.scale.mine, hasattr(module.frozen, "calls")

        self.assertEqual(dtensor.run(2, on_rank), [(7, "kept", False)] * 2)

    def test_attributes_survive_other_distribution(self):
        def on_rank():
            module = nn.Linear(4, 4)
            module.weight.mine = 5
            return dtensor.distribute_module(module, mesh_of((2,))).weight.mine

        self.assertEqual(dtensor.run(2, on_rank), [5, 5])


class Abstract(nn.Module, abc.ABC):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


class OwnGetattr(Abstract):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise AttributeError(name) from None


class Slotted(Abstract):
    __slots__ = ("note",)


class Classes(unittest.TestCase):
    def test_classes_of_modules(self):
        for kind in (Abstract, OwnGetattr, Slotted):
            with self.subTest(kind.__name__):

                def on_rank():
                    module = fully_shard(kind())
                    module(torch.ones(2, 4)).sum().backward()
                    return isinstance(module, kind), type(module).__name__, module.layer.weight.grad is not None

                self.assertEqual(dtensor.run(2, on_rank)[0], (True, f"FSDP{kind.__name__}", True))

    def test_a_shared_submodule_is_in_the_first_unit(self):
        class Block(nn.Module):
            def __init__(self, shared):
                super().__init__()
                self.shared, self.layer = shared, nn.Linear(4, 4)

            def forward(self, x):
                return self.layer(self.shared(x))

        def made():
            torch.manual_seed(0)
            shared = nn.Linear(4, 4)
            return nn.Sequential(Block(shared), Block(shared))

        regular = made()
        for rank in range(2):
            (regular(rows(rank)).square().sum() / 2).backward()
        nets = [made(), made()]

        def on_rank():
            net = nets[dtensor.rank()]
            for block in net:
                fully_shard(block)
            fully_shard(net)
            net(rows(dtensor.rank())).square().sum().backward()
            return [p.grad.full_tensor() for p in net.parameters()]

        torch.testing.assert_close(dtensor.run(2, on_rank)[0], [p.grad for p in regular.parameters()])


class Transforms(unittest.TestCase):
    """torch.func of a unit: parameters are constants of the transform."""

    def transforms(self):
        from torch.func import grad, hessian, jacrev, jvp, vjp

        yield "grad", lambda f, x: grad(lambda v: f(v).square().sum())(x)
        yield "vjp", lambda f, x: (lambda out, pull: pull(torch.ones_like(out))[0])(*vjp(f, x))
        yield "jacrev", lambda f, x: jacrev(f)(x)
        yield "jacrev twice", lambda f, x: jacrev(jacrev(lambda v: f(v).square().sum()))(x)
        yield "jvp", lambda f, x: jvp(f, (x,), (torch.ones_like(x),))[1]
        yield "hessian", lambda f, x: hessian(lambda v: f(v).square().sum())(x)

    def test_transforms_equal_those_of_the_module(self):
        torch.manual_seed(0)
        for name, transform in self.transforms():
            for ranks in (1, 2):
                regular = nn.Sequential(Weights(multiplied), nn.Tanh(), nn.Linear(4, 4))
                nets = [copy.deepcopy(regular) for _ in range(ranks)]

                def on_rank():
                    net = nets[dtensor.rank()]
                    fully_shard(net[0])
                    fully_shard(net)
                    return transform(net, rows(0))

                with self.subTest(name, ranks=ranks):
                    if ranks > 1 and name in ("jvp", "hessian"):
                        with self.assertRaisesRegex(NotImplementedError, "one level for all threads"):
                            dtensor.run(ranks, on_rank)
                    else:
                        torch.testing.assert_close(dtensor.run(ranks, on_rank)[0], transform(regular, rows(0)))

    def test_forward_mode_on_thread_ranks(self):
        def on_rank():
            with torch.autograd.forward_ad.dual_level():
                pass

        dtensor.run(1, on_rank)
        with self.assertRaisesRegex(NotImplementedError, "one level for all threads"):
            dtensor.run(2, on_rank)
        on_rank()  # the level is closed

    def test_batched_gradients(self):
        def on_rank():
            net = nn.Linear(4, 3)
            fully_shard(net)
            x = rows(0).requires_grad_()
            y = net(x)
            (batched,) = torch.autograd.grad(y, x, torch.eye(y.numel()).reshape(-1, *y.shape), is_grads_batched=True)
            return batched, net.weight.full_tensor()

        batched, weight = dtensor.run(2, on_rank)[0]
        torch.testing.assert_close(batched[0][0], weight[0].detach())

        def of_parameters():
            y = fully_shard(net := nn.Linear(4, 3))(rows(0))
            torch.autograd.grad(y, list(net.parameters()), torch.ones(5, *y.shape), is_grads_batched=True)

        with self.assertRaisesRegex(NotImplementedError, "expected one gradient of parameter '(weight|bias)', got a batch"):
            dtensor.run(2, of_parameters)


if __name__ == "__main__":
    unittest.main()
