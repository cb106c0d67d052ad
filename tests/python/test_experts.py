"""Mixture of experts, and modules that a router chooses, on one rank and on several."""

import copy
import gc
import unittest
import weakref

import torch
from torch import nn

import dtensor
from dtensor import Shard, moe

TOKENS = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)).double()


class InTurn(moe.RoutingStrategy):
    """Chooses the best scores, but never the last expert."""

    def choose(self, scores, top_k, bias):
        return (scores + bias)[:, :-1].topk(top_k, -1).indices


def layer(**options):
    made = moe.MixtureOfExperts(8, 16, experts=4, dtype=torch.float64, **options)
    for index, p in enumerate(made.parameters()):
        nn.init.uniform_(p, -0.3, 0.3, generator=torch.Generator().manual_seed(index))
    return made


class SharedGate(unittest.TestCase):
    """The block of Qwen2-MoE, written as transformers does."""

    def test_equals_the_formula(self):
        one = layer(shared_ffn=4, shared_gate=True)
        p = dict(one.named_parameters())
        silu, linear = nn.functional.silu, nn.functional.linear
        weights, experts = linear(TOKENS, p["gate.weight"]).softmax(-1).topk(2, -1)
        expected = torch.zeros_like(TOKENS)
        for e in range(4):
            y = linear(silu(linear(TOKENS, p["experts.w1"][e])) * linear(TOKENS, p["experts.w3"][e]), p["experts.w2"][e])
            expected = expected + (weights * (experts == e)).sum(-1, keepdim=True) * y
        y = linear(silu(linear(TOKENS, p["shared.w1"])) * linear(TOKENS, p["shared.w3"]), p["shared.w2"])
        expected = expected + torch.sigmoid(linear(TOKENS, p["shared.gate"])) * y
        torch.testing.assert_close(one(TOKENS), expected)
        with self.assertRaisesRegex(RuntimeError, "shared_gate needs a shared expert; expected shared_ffn > 0, got 0"):
            layer(shared_gate=True)


class Experts(unittest.TestCase):
    def reference(self, **options):
        one = layer(**options)
        y = one(TOKENS)
        y.square().sum().backward()
        return one, y

    def test_expert_parallel(self):
        for options in [{}, {"shared_ffn": 4, "score": "sigmoid", "normalize": True, "shared_gate": True}, {"strategy": InTurn()}]:
            one, expected = self.reference(**options)
            prototype = layer(**options)

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",))
                spread = copy.deepcopy(prototype)
                self.assertEqual(dtensor.apply_expert_parallel(spread, mesh), 1)
                self.assertEqual(spread.experts.w1.placements, (Shard(0),))
                self.assertEqual(spread.experts.w1.to_local().shape[0], 2)
                mine = TOKENS.chunk(2)[dtensor.rank()]
                y = spread(mine)
                y.square().sum().backward()
                return y, spread.experts.w2.grad.full_tensor(), spread.load

            results = dtensor.run(2, on_rank)
            torch.testing.assert_close(torch.cat([y for y, _, _ in results]), expected)
            for _, grad, _ in results:
                torch.testing.assert_close(grad, one.experts.w2.grad)
            self.assertEqual(sum(load for _, _, load in results).tolist(), one.load.tolist())
            self.assertEqual(one.load.sum().item(), 24)

    def test_a_custom_strategy_chooses(self):
        one, _ = self.reference(strategy=InTurn())
        self.assertEqual(one.load[-1].item(), 0)
        self.assertGreater(self.reference()[0].load[-1].item(), 0)

        class Wrong(moe.RoutingStrategy):
            def choose(self, scores, top_k, bias):
                return scores

        with self.assertRaisesRegex(RuntimeError, r"Wrong.choose\(\) returned a tensor \[12, 4\] of dtype Double"):
            layer(strategy=Wrong())(TOKENS)

    def test_a_strategy_may_refer_to_its_layer(self):
        """The reference cycle can be collected."""
        strategy = InTurn()
        strategy.layer = dtensor.MixtureOfExperts(6, 5, experts=3, top_k=1, strategy=strategy)
        strategy.layer(torch.randn(4, 6))
        gone = weakref.ref(strategy.layer)
        del strategy
        gc.collect()
        self.assertIsNone(gone())

    def test_options(self):
        with_loss = layer(aux_loss=0.1)
        with_loss(TOKENS)
        self.assertGreater(with_loss.loss.item(), 0)
        self.assertIsNone(self.reference()[0].loss)
        dropping = layer()
        dropping.set_dispatch("capacity", factor=0.5)
        dropping(TOKENS)
        self.assertGreater(dropping.dropped, 0)
        with self.assertRaisesRegex(ValueError, "score.*maximum.*softmax, sigmoid"):
            layer(score="maximum")
        self.assertEqual([name for name, _ in layer().named_parameters()][:2], ["gate.weight", "experts.w1"])

    def test_a_replaced_parameter_is_used(self):
        one = layer()
        before = one(TOKENS)
        one.experts.w2 = nn.Parameter(one.experts.w2.detach() * 2)
        torch.testing.assert_close(one(TOKENS), before * 2)
        zero = {name: torch.zeros_like(p) for name, p in one.named_parameters()}
        self.assertEqual(torch.func.functional_call(one, zero, TOKENS).abs().sum().item(), 0)

    def test_under_fully_shard(self):
        def make():
            return nn.Sequential(nn.Linear(8, 8).double(), layer(shared_ffn=4), nn.Linear(8, 8).double())

        prototype = make()
        expected = copy.deepcopy(prototype)
        optimizer = torch.optim.AdamW(expected.parameters(), lr=0.1)
        for _ in range(2):
            expected(TOKENS).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",))
            model = copy.deepcopy(prototype)
            dtensor.apply_expert_parallel(model, mesh)
            experts = set(model[1].experts.parameters())
            for part in (*model, model):
                dtensor.fully_shard(part, mesh=mesh, ignored_params=experts)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            rows = dtensor.distribute_tensor(TOKENS, mesh, [Shard(0)])
            for _ in range(2):
                model(rows).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return {name: p.full_tensor().detach() for name, p in model.named_parameters()}

        for parameters in dtensor.run(2, on_rank):
            for name, p in expected.named_parameters():
                torch.testing.assert_close(parameters[name], p.detach(), msg=name)

    def test_balancers(self):
        def on_rank():
            balanced = layer(balance_rate=0.5)
            balanced(TOKENS)
            before = balanced.load
            both = nn.ModuleList([balanced, nn.Linear(2, 2), layer(balance_rate=0.5), layer()])
            both[2](TOKENS)
            with dtensor.CommDebugMode() as comm:
                moe.update_load_balancers(both, dtensor.world())
            self.assertEqual(comm.get_comm_counts(), {"all_reduce": 1})
            self.assertTrue(both[2].balance.any())
            for _ in range(3):
                balanced(TOKENS)
                moe.update_load_balancers(balanced, dtensor.world())
            return before.tolist() == balanced.load.tolist()

        self.assertEqual(dtensor.run(2, on_rank), [False, False])


class Routed(unittest.TestCase):
    """Experts of any kind: four feed-forward networks of different widths."""

    def setUp(self):
        torch.manual_seed(1)
        self.experts = [nn.Sequential(nn.Linear(8, 4 + n), nn.GELU(), nn.Linear(4 + n, 8)).double() for n in range(4)]
        self.router = nn.Linear(8, 4).double()

    def block(self, routed, router, x):
        weights, ids = router(x).softmax(-1).topk(2, -1)
        return x + routed(x, ids, weights)

    def reference(self, x):
        weights, ids = self.router(x).softmax(-1).topk(2, -1)
        each = torch.stack([expert(x) for expert in self.experts], 1)
        return x + (each.gather(1, ids[..., None].expand(-1, -1, 8)) * weights[..., None]).sum(1)

    def test_expert_parallel(self):
        expected = self.reference(TOKENS)
        expected.square().sum().backward()
        grads = [[p.grad.clone() for p in expert.parameters()] for expert in self.experts]
        prototype, router = moe.RoutedExperts(copy.deepcopy(self.experts)), copy.deepcopy(self.router)
        torch.testing.assert_close(self.block(prototype, router, TOKENS), expected)

        def on_rank():
            mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",))
            routed, own_router = copy.deepcopy(prototype), copy.deepcopy(router)
            self.assertEqual(dtensor.apply_expert_parallel(routed, mesh), 1)
            with dtensor.CommDebugMode() as comm:
                y = self.block(routed, own_router, TOKENS.chunk(2)[dtensor.rank()])
            y.square().sum().backward()
            here = range(2 * dtensor.rank(), 2 * dtensor.rank() + 2)  # experts of this rank
            found = {n: [p.grad.full_tensor() for p in routed.get_submodule(str(n)).parameters()] for n in here}
            return y.detach(), found, comm.get_comm_counts(), routed.load

        results = dtensor.run(2, on_rank)
        torch.testing.assert_close(torch.cat([y for y, *_ in results]), expected.detach())
        for _, found, counts, _ in results:
            self.assertEqual(counts.get("all_to_all"), 2)  # dispatch and combine
            for n, own in found.items():
                for a, b in zip(own, grads[n]):
                    torch.testing.assert_close(a, b)
        self.assertEqual(sum(load for *_, load in results).sum().item(), 24)

    def test_a_replaced_module_is_used(self):
        routed = moe.RoutedExperts(copy.deepcopy(self.experts))
        routed._modules["1"] = self.experts[2]
        with self.assertRaisesRegex(RuntimeError, "do not match"):
            routed(TOKENS, torch.zeros(12, 2, dtype=torch.int64), torch.ones(12, 1).double())
        ids, weights = torch.ones(12, 1, dtype=torch.int64), torch.ones(12, 1).double()
        torch.testing.assert_close(routed(TOKENS, ids, weights), self.experts[2](TOKENS))


if __name__ == "__main__":
    unittest.main()
