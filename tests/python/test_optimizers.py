"""The library's optimizers behave like torch's: numeric types, options that change between steps, derived classes."""

import copy
import inspect
import pickle
import tempfile
import unittest
from fractions import Fraction

import torch

import dtensor


def steps(make, between=lambda optimizer, step: None, count=6):
    """A parameter after steps with gradients that are the same for every optimizer."""
    parameter = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    optimizer = make([parameter])
    for step in range(count):
        parameter.grad = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64) * (step - 2) + 0.5
        optimizer.step()
        between(optimizer, step)
    return parameter.detach()


class Numbers(unittest.TestCase):
    def test_numpy_and_tensor_scalars_are_accepted(self):
        expected = steps(lambda ps: dtensor.optim.AdamW(ps, lr=0.1, betas=(0.5, 0.75), eps=0.25, weight_decay=0.125))
        kinds = [Fraction, torch.tensor]
        try:
            import numpy

            kinds += [numpy.float32, numpy.float64]
        except ImportError:
            pass
        for of in kinds:
            betas = of(0.5), of(0.75)
            found = steps(lambda ps: dtensor.optim.AdamW(ps, lr=0.1, betas=betas, eps=of(0.25), weight_decay=of(0.125)))
            self.assertTrue(torch.equal(found, expected), of)

    def test_non_numbers_are_refused(self):
        for value in [None, "much", [0.1]]:
            with self.assertRaisesRegex(TypeError, "weight_decay: expected a number"):
                steps(lambda ps: dtensor.optim.AdamW(ps, weight_decay=value))


class Replaced(unittest.TestCase):
    """An optimizer of parameters that a module no longer has raises in its step."""

    def test_parameters_replaced_by_placing_a_module(self):
        def parallelized(net, mesh):
            dtensor.parallel.parallelize_module(net, mesh, {"0": dtensor.parallel.ColwiseParallel()})

        def distributed(net, mesh):
            dtensor.distribute_module(net, mesh)

        def split(net, mesh):
            def hand_written(name, module, on):
                for key, parameter in module._parameters.items():
                    module._parameters[key] = torch.nn.Parameter(dtensor.distribute_tensor(parameter.detach(), on))

            dtensor.distribute_module(net, mesh, hand_written)

        def sharded(net, mesh):
            dtensor.fully_shard(net, mesh=mesh)

        def sgd(params):
            return dtensor.optim.SGD(params, lr=0.1)

        kinds = [sgd, torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.Adafactor]
        for place in [parallelized, distributed, split, sharded]:
            for kind in kinds:
                net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
                early = kind(net.named_parameters())
                place(net, dtensor.init_device_mesh("cpu", (1,), mesh_dim_names=("tp",)))
                net(torch.ones(3, 4)).sum().backward()
                for _ in range(2):
                    with self.assertRaisesRegex(RuntimeError, "0.weight .*was replaced by a DTensor in its model"):
                        early.step()
                kind(net.named_parameters()).step()

    def test_an_optimizer_that_has_stepped_notices_a_later_replacement(self):
        net, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (net, other)]
        for module, optimizer in zip((net, other), optimizers):
            module(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        dtensor.fully_shard(net, mesh=dtensor.init_device_mesh("cpu", (1,)))
        with self.assertRaisesRegex(RuntimeError, "was replaced by a DTensor"):
            optimizers[0].step()
        optimizers[1].step()


class Groups(unittest.TestCase):
    """Changes of a group's options apply from the next step on, as in torch."""

    def compare(self, make, between=lambda optimizer, step: None):
        ours, theirs = (steps(lambda ps: make(module, ps), between) for module in (dtensor.optim, torch.optim))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)

    def test_schedulers_that_cycle_momentum(self):
        def scheduled(module, name, ps, **options):
            optimizer = getattr(module, name)(ps, lr=0.1, **options)
            optimizer.cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)
            return optimizer

        self.compare(lambda module, ps: scheduled(module, "AdamW", ps), lambda o, _: o.cycle.step())
        self.compare(lambda module, ps: scheduled(module, "SGD", ps, momentum=0.9), lambda o, _: o.cycle.step())

    def test_options_that_a_program_changes(self):
        def decay(optimizer, step):
            optimizer.param_groups[0]["weight_decay"] = 0.1 * step
            optimizer.param_groups[0]["eps"] = 0.01 * step + 1e-8

        self.compare(lambda module, ps: module.AdamW(ps, lr=0.1), decay)
        self.compare(lambda module, ps: module.Adagrad(ps, lr=0.1), decay)

    def test_invalid_option_changes_are_refused(self):
        def shape(optimizer, step):
            optimizer.param_groups[0]["block_size"] = 2

        with self.assertRaisesRegex(ValueError, "block_size and merge_to .* expected 1024"):
            steps(lambda ps: dtensor.optim.Shampoo(ps), shape)
        with self.assertRaisesRegex(ValueError, "Nesterov"):
            steps(lambda ps: dtensor.optim.SGD(ps, momentum=0.9, nesterov=True), lambda o, _: o.param_groups[0].update(momentum=0))

    def test_options_out_of_range_are_refused_at_construction(self):
        """Also in add_param_group; learning rates of schedules are not checked."""
        common = {"lr": [-1.0, float("nan")], "weight_decay": [-1.0], "eps": [-1.0], "betas": [(1.0, 0.9), (0.9, 1.1), (-0.1, 0.9)]}
        more = {"momentum": [-1.0], "lr_decay": [-1.0], "initial_accumulator_value": [-1.0], "nesterov": [True]}
        for name in ("AdamW", "SGD", "Adagrad", "Muon", "Shampoo"):
            for option, values in {**common, **more}.items():
                if option in inspect.signature(getattr(dtensor.optim, name)).parameters and (name, option) != ("Muon", "nesterov"):
                    for value in values:
                        with self.assertRaises(ValueError, msg=f"{name} {option}={value}"):
                            getattr(dtensor.optim, name)([torch.ones(2, 2, requires_grad=True)], **{option: value})
        optimizer = dtensor.optim.SGD([torch.ones(2, requires_grad=True)])
        with self.assertRaisesRegex(ValueError, "weight_decay must be >= 0, got -1"):
            optimizer.add_param_group({"params": [torch.ones(2, requires_grad=True)], "weight_decay": -1.0})
        self.assertEqual(len(optimizer.param_groups), 1)
        steps(lambda ps: dtensor.optim.SGD(ps), lambda o, _: o.param_groups[0].update(lr=-1e-20))


class Saved(unittest.TestCase):
    """A state includes the options, as in torch: changes by a scheduler or program are restored by a load."""

    def go_on(self, module, name, options, through, change=lambda optimizer: None):
        """The result of a run that is saved after three steps and resumed by an optimizer with other options."""

        def parts(**given):
            parameter = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
            optimizer = getattr(module, name)([parameter], lr=0.1, **given)
            return parameter, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=9)

        def steps(parameter, optimizer, scheduler):
            for step in range(3):
                parameter.grad = parameter.detach() * (step + 1) + 0.5
                optimizer.step()
                scheduler.step()

        first, second = parts(**options), parts(**({"momentum": 0.5} if name == "SGD" else {}))
        steps(*first)
        change(first[1])
        with torch.no_grad():
            second[0].copy_(first[0])
        second[1].load_state_dict(through(first[1].state_dict(), second[1]))
        second[2].load_state_dict(first[2].state_dict())
        steps(*second)
        return second[0].detach()

    def through_a_checkpoint(self, state, optimizer):
        with tempfile.TemporaryDirectory() as folder:
            dtensor.save(state, folder + "/state")
            read = copy.deepcopy(state)
            for group in read["param_groups"]:
                group.update({key: 0.5 for key, value in group.items() if isinstance(value, float)})
            dtensor.load(read, folder + "/state")
            return read

    def test_options_are_restored_as_in_torch(self):
        def change(optimizer):
            optimizer.param_groups[0]["weight_decay"] = 0.25

        for name, options in [("SGD", {"momentum": 0.9, "weight_decay": 0.1}), ("AdamW", {"betas": (0.5, 0.75), "eps": 1e-3})]:
            expected = self.go_on(torch.optim, name, options, lambda state, _: copy.deepcopy(state), change)
            for through in [lambda state, _: copy.deepcopy(state), self.through_a_checkpoint]:
                found = self.go_on(dtensor.optim, name, options, through, change)
                torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    def test_states_without_options_restore_learning_rates(self):
        parameter = torch.ones(2, requires_grad=True)
        one, other = (dtensor.optim.AdamW([parameter], lr=rate, eps=rate) for rate in (0.5, 0.25))
        state = one.state_dict()
        del state["param_groups"]
        other.load_state_dict(state)
        self.assertEqual([other.param_groups[0][key] for key in ("lr", "eps")], [0.5, 0.25])

    def test_a_mismatched_state_changes_nothing(self):
        parameters = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
        one, other = (dtensor.optim.AdamW([p], lr=rate) for p, rate in zip(parameters, (0.5, 0.25)))
        two = dtensor.optim.AdamW([{"params": [p]} for p in parameters])
        parameters[0].grad = torch.ones(2)
        one.step()
        with self.assertRaisesRegex(RuntimeError, "sizes"):
            other.load_state_dict(one.state_dict())
        self.assertEqual(other.param_groups[0]["lr"], 0.25)
        with self.assertRaisesRegex(ValueError, "1 parameter groups, but the optimizer has 2"):
            two.load_state_dict(one.state_dict())


    def test_state_dict_functions_of_torch_refuse_them(self):
        from torch.distributed.checkpoint import state_dict

        net = torch.nn.Linear(2, 2)
        own = dtensor.optim.AdamW(net.parameters(), lr=0.1)
        for call in (state_dict.get_state_dict, state_dict.get_optimizer_state_dict):
            with self.assertRaisesRegex(TypeError, "expected an optimizer of torch.optim, got dtensor.optim.AdamW"):
                call(net, own)
        with self.assertRaisesRegex(TypeError, "expected an optimizer of torch.optim, got dtensor.optim.AdamW"):
            state_dict.set_optimizer_state_dict(net, own, {"state": {}, "param_groups": []})

    def test_state_dict_hooks(self):
        seen = []
        for module in (torch.optim, dtensor.optim):
            optimizer, calls = module.SGD([torch.ones(2, requires_grad=True)]), []
            optimizer.register_state_dict_pre_hook(lambda o: calls.append("state"))
            optimizer.register_state_dict_post_hook(lambda o, state: {**state, "note": "kept"})
            optimizer.register_load_state_dict_pre_hook(lambda o, state: calls.append(state.pop("note")))
            optimizer.register_load_state_dict_pre_hook(lambda o, state: calls.append("other") or {**state})
            optimizer.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))
            optimizer.load_state_dict(optimizer.state_dict())
            seen.append(calls)
        self.assertEqual(*seen)


class Classes(unittest.TestCase):
    def test_a_derived_class_equals_its_base(self):
        class Slow(dtensor.optim.AdamW):
            pass

        self.assertTrue(torch.equal(steps(lambda ps: Slow(ps, lr=0.1)), steps(lambda ps: dtensor.optim.AdamW(ps, lr=0.1))))

    def test_a_copy_continues_independently(self):
        """With the moments and the step count of the original."""
        kinds = {"AdamW": {}, "SGD": {"momentum": 0.9}, "Adagrad": {}, "Shampoo": {"start": 1, "frequency": 1}}
        for name, options in kinds.items():
            for copied in [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))]:
                first = self.pair(name, options)
                self.steps(*first, 3)
                second = copied(copied(first))
                for pair in (first, second):
                    self.steps(*pair, 2)
                self.assertIsNot(first[0], second[0])
                self.assertTrue(torch.equal(first[0], second[0]), name)

    def test_a_copy_with_a_mismatched_state_takes_no_step(self):
        first = self.pair("AdamW", {})
        self.steps(*first, 2)
        _, twin = copy.deepcopy(first)
        larger = torch.ones(5, requires_grad=True)
        larger.grad = torch.ones(5)
        twin.param_groups[0]["params"] = [larger]
        for _ in range(2):
            with self.assertRaisesRegex(RuntimeError, "sizes"):
                twin.step()
        self.assertTrue(torch.equal(larger, torch.ones(5)))

    def pair(self, name, options):
        parameter = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64, requires_grad=True)
        return parameter, getattr(dtensor.optim, name)([parameter], lr=0.1, **options)

    def steps(self, parameter, optimizer, count):
        for step in range(count):
            parameter.grad = torch.tensor([[1.0, 2.0], [-3.0, 1.0]], dtype=torch.float64) * (step + 1)
            optimizer.step()


class Norms(unittest.TestCase):
    def test_a_single_tensor_is_accepted(self):
        for shape in [(3, 2), (4,), ()]:
            found = []
            for module in [dtensor.optim, torch.nn.utils]:
                parameter = torch.ones(shape, requires_grad=True)
                parameter.grad = torch.full(shape, 10.0)
                norm = module.clip_grad_norm_(parameter, 1.0).item()
                largest = module.clip_grad_norm_(parameter, 0.5, norm_type="inf").item()
                found.append((norm, largest, module.get_total_norm(parameter.grad, "inf").item()))
            torch.testing.assert_close(*found)


if __name__ == "__main__":
    unittest.main()
