"""Non-tensor values in a checkpoint are restored exactly, or refused before anything is written."""

import os
import random
import tempfile
import unittest
from typing import NamedTuple

import torch

import dtensor
from dtensor import Replicate, Shard


class Progress(NamedTuple):
    step: int
    best: float
    inner: tuple


class Values(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "run")

    def through(self, state, blank):
        dtensor.save(state, self.path)
        dtensor.load(blank, self.path)
        return blank

    def test_integers_are_exact_or_refused(self):
        draw = random.Random(0)
        edges = [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)] + [draw.getrandbits(63) for _ in range(5)]
        for value in edges:
            found = self.through({"seed": value}, {"seed": 0})["seed"]
            self.assertEqual((found, type(found)), (value, int))
        for value in [2**63, 2**64 - 1, -(2**63) - 1]:
            for save in [dtensor.save, dtensor.checkpoint.async_save]:
                with self.assertRaisesRegex(ValueError, f"'rng.seed', got {value}"):
                    save({"rng": {"seed": value}}, self.path)
        self.assertEqual(dtensor.checkpoint.read_index(self.path)["values"]["seed"], edges[-1])

    def test_duplicate_names_are_refused(self):
        for state in [{"a.b": 1, "a": {"b": 2}}, {1: 1, "1": 2}, {"x": [1], "x.0": 2}, {"a.b": torch.ones(1), "a": {"b": 2}}]:
            with self.assertRaisesRegex(ValueError, "twice: nested keys"):
                dtensor.save(state, self.path)
            self.assertFalse(os.path.exists(self.path))

    def test_tuples_keep_their_class(self):
        state = {"progress": Progress(3, 0.5, (7, Progress(1, 2.0, ()))), "size": torch.Size([2, 3])}
        blank = {"progress": Progress(0, 0.0, (0, Progress(0, 0.0, ()))), "size": torch.Size([0, 0])}
        found = self.through(state, blank)
        self.assertEqual(found, state)
        self.assertEqual((found["progress"].inner[1].best, type(found["size"])), (2.0, torch.Size))

    def loads(self):
        """Every way to load what is saved at ``self.path``."""
        series = lambda blank: dtensor.checkpoint.CheckpointSeries(self.path + "-series").load_newest(blank)
        return [
            lambda blank: dtensor.load(blank, self.path),
            lambda blank: dtensor.checkpoint.load_newest(blank, self.path),
            series,
        ]

    def save(self, state):
        dtensor.save(state, self.path)
        dtensor.checkpoint.CheckpointSeries(self.path + "-series").save(state, 1)

    def test_loading_values_looks_at_each_key_once(self):
        """Not at all keys of a dictionary for each value."""
        looked = 0

        class Key:
            def __init__(self, number):
                self.number = number

            def __str__(self):
                nonlocal looked
                looked += 1
                return f"key.{self.number}"

        def looks(count):
            nonlocal looked
            state = {"first": {Key(i): i for i in range(count)}, "second": tuple(range(count))}
            blank = {"first": {Key(i): 0 for i in range(count)}, "second": (0,) * count}
            dtensor.save(state, self.path)
            looked = 0
            dtensor.load(blank, self.path)
            self.assertEqual((list(blank["first"].values()), blank["second"]), (list(range(count)), tuple(range(count))))
            return looked

        self.assertLess(looks(200), 2.1 * looks(100))

    def test_none_and_lists_accept_any_saved_value(self):
        losses = [i / 2 for i in range(12)]
        state = {"best": 0.37, "note": "x", "losses": losses, "of": [{"m": 1}, 2, None, 4], "pair": (1, 2.5), "w": torch.ones(2)}
        self.save(state)
        for load in self.loads():
            for best in [None, 0, 0.0, "none yet"]:
                blank = {"best": best, "note": None, "losses": [7.0], "of": [{"m": None}], "pair": (None, 0), "w": torch.zeros(2)}
                load(blank)
                self.assertEqual(blank.pop("w").tolist(), [1, 1])
                self.assertEqual(blank, {name: value for name, value in state.items() if name != "w"})
        self.save({"complete": 3, "w": torch.ones(2)})
        for load in self.loads():
            blank = {"complete": 0.5, "nothing": None, "w": torch.zeros(2)}
            load(blank)
            self.assertEqual((blank["complete"], type(blank["complete"]), blank["nothing"]), (3.0, float, None))

    def test_unexpected_and_missing_values_are_errors(self):
        self.save({"metrics": {"loss": 1.5}, "losses": [1, 2], "size": (1, 2), "w": torch.ones(2)})
        complete = {"metrics": {"loss": 0}, "losses": [], "size": (0, 0)}
        for part, why in [
            ({"metrics": {}}, "not requested: 'metrics.loss'"),
            ({"metrics": None}, "not requested: 'metrics.loss'"),
            ({"size": (0,)}, "not requested: 'size.1'"),
            ({"losses": [0, 0, 0]}, "missing in the checkpoint: 'losses.2'"),
            ({"other": 1}, "missing in the checkpoint: 'other'"),
        ]:
            for load in self.loads():
                tensor = torch.zeros(2)
                with self.assertRaisesRegex(ValueError, why):
                    load({**complete, **part, "w": tensor})
                self.assertEqual(tensor.tolist(), [0, 0])
        dtensor.load({**complete, "metrics": {}, "w": tensor}, self.path, allow_unexpected=True)
        self.assertEqual(tensor.tolist(), [1, 1])


class Loader:
    """Like a data loader with resumable state."""

    def __init__(self, position):
        self.position = position

    def state_dict(self):
        return {"position": self.position, "buffer": torch.full((self.position,), self.position)}

    def load_state_dict(self, state):
        self.position = state["position"]
        assert state["buffer"].eq(self.position).all()


class PerRankValues(unittest.TestCase):
    """Each rank loads the value that the rank with the same number saved."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "run")

    def state(self, rank):
        """Values of every kind; tensor sizes are equal on all ranks, since a load fills tensors."""
        own = dtensor.checkpoint.PerRank
        generator = torch.Generator().manual_seed(rank)
        return {
            "step": 3,
            "offset": own(100 + rank),
            "torch": own(generator.get_state()),
            "random": own(random.Random(rank).getstate()),
            "pickled": own(bytes([rank, 255, 0])),
            "nested": {"deep": own({"list": [rank, 0.5 * rank], "text": f"of {rank}", "nothing": None}), "shared": 7},
        }

    def assert_same(self, got, want):
        for name, value in want.items():
            if isinstance(value, dict):
                self.assert_same(got[name], value)
            else:
                value, found = (getattr(v, "value", v) for v in (value, got[name]))
                same = torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value
                self.assertTrue(same, (name, found, value))

    def ways(self):
        """Every way to save and load."""
        def series():
            return dtensor.checkpoint.CheckpointSeries(self.path + "-series")

        yield lambda state: dtensor.save(state, self.path), lambda state: dtensor.load(state, self.path)
        yield lambda state: dtensor.checkpoint.async_save(state, self.path).wait(), lambda state: dtensor.load(state, self.path)
        yield lambda state: series().save(state, 1), lambda state: series().load_newest(state)
        yield lambda state: None, lambda state: dtensor.checkpoint.load_newest(state, self.path)

    def test_each_rank_loads_its_own_value(self):
        def on_rank(save, load):
            rank = dtensor.rank()
            save(self.state(rank))
            blank = self.state(rank + 5)
            load(blank)
            self.assert_same(blank, self.state(rank))

        for save, load in self.ways():
            dtensor.run(3, on_rank, save, load)

    def test_stateful_objects(self):
        def on_rank():
            rank, loader = dtensor.rank(), Loader(dtensor.rank() + 2)
            dtensor.save({"data": {"loader": dtensor.checkpoint.PerRank(loader)}}, self.path)
            loader.position = rank + 2
            target = Loader(rank + 2)
            target.position, kept = rank + 2, dtensor.checkpoint.PerRank(target)
            dtensor.load({"data": {"loader": kept}}, self.path)
            self.assertIs(kept.value, target)
            self.assertEqual(target.position, rank + 2)

        dtensor.run(2, on_rank)

    def test_another_number_of_ranks_is_an_error(self):
        dtensor.run(2, lambda: dtensor.save({"a": 1, "own": dtensor.checkpoint.PerRank(dtensor.rank())}, self.path))

        def on_rank():
            own = dtensor.checkpoint.PerRank(0)
            with self.assertRaisesRegex((ValueError, RuntimeError), "'own' was saved by each of 2 ranks, but 3"):
                dtensor.load({"a": 0, "own": own}, self.path)
            state = {"a": 0}
            dtensor.load(state, self.path, allow_unexpected=True)
            self.assertEqual(state, {"a": 1})

        dtensor.run(3, on_rank)

    def test_different_values_of_one_name_are_refused(self):
        def on_rank():
            for state in ({"offset": dtensor.rank()}, {"state": torch.tensor([dtensor.rank()])}):
                with self.assertRaisesRegex(RuntimeError, "in Python: dtensor.checkpoint.PerRank"):
                    dtensor.save(state, self.path)
            names = {f"rank{dtensor.rank()}": dtensor.rank()}  # different names on each rank
            dtensor.save(names, self.path)
            back = dict.fromkeys(names, 9)
            dtensor.load(back, self.path)
            self.assertEqual(back, names)

        dtensor.run(2, on_rank)


class Complex(unittest.TestCase):
    def test_complex128_and_bytes(self):
        torch.manual_seed(0)
        regular = torch.randn(5, 3, dtype=torch.complex128)
        with tempfile.TemporaryDirectory() as folder:

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", (2,))
                for source, target in [(Shard(0), Shard(1)), (Replicate(), Shard(0)), (None, Shard(1)), (Shard(1), None)]:
                    def place(tensor, placement):
                        return tensor.clone() if placement is None else dtensor.distribute_tensor(tensor, mesh, [placement])

                    state = {"w": place(torch.zeros_like(regular), target)}
                    dtensor.save({"w": place(regular, source), "raw": b"\0\xff"}, f"{folder}/run")
                    dtensor.load({**state, "raw": b""}, f"{folder}/run")
                    found = state["w"]
                    self.assertTrue(torch.equal(found if target is None else found.full_tensor(), regular))

            dtensor.run(2, on_rank)
            with self.assertRaisesRegex(ValueError, "pass bytes"):
                dtensor.save({"text": "data:application/octet-stream;base64,AA=="}, f"{folder}/run")

    def test_optimizer_states(self):
        with tempfile.TemporaryDirectory() as folder:

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", (2,))

                def make():
                    numbers = torch.arange(6).view(3, 2).to(torch.complex128)
                    weight = torch.nn.Parameter(dtensor.distribute_tensor(numbers, mesh, [Shard(0)]))
                    return weight, torch.optim.Adam([weight])

                weight, optimizer = make()
                weight.abs().square().sum().backward()
                optimizer.step()
                dtensor.save({"optimizer": optimizer}, f"{folder}/run")
                other, fresh = make()
                dtensor.load({"optimizer": fresh}, f"{folder}/run")
                got, want = (o.state[w]["exp_avg"] for o, w in ((fresh, other), (optimizer, weight)))
                self.assertEqual(got.dtype, torch.complex128)
                self.assertTrue(torch.equal(got.full_tensor(), want.full_tensor()))

            dtensor.run(2, on_rank)


class Errors(unittest.TestCase):
    """A value that one rank cannot save or load is an error on every rank, and the ranks can continue."""

    def on_ranks(self, folder):
        def broken():
            raise KeyError("no state")

        state = type("Stateful", (), {"state_dict": lambda self: broken(), "load_state_dict": lambda self, state: None})()
        mine = dtensor.rank() == 1
        wrong = {"value": object() if mine else 1, "tensor": torch.ones(2)}
        fails = {"value": state if mine else 1, "tensor": torch.zeros(2)}
        dtensor.save({"value": 3, "tensor": torch.full((2,), 7.0)}, f"{folder}/good")
        series = dtensor.checkpoint.CheckpointSeries(f"{folder}/series")
        series.save({"value": 3, "tensor": torch.full((2,), 7.0)}, 1)
        for call, kind, why in [
            (lambda: dtensor.save(wrong, f"{folder}/good"), TypeError, "'value', got object"),
            (lambda: dtensor.checkpoint.async_save(wrong, f"{folder}/good"), TypeError, "'value', got object"),
            (lambda: series.save(wrong, 2), TypeError, "'value', got object"),
            (lambda: dtensor.load(fails, f"{folder}/good"), KeyError, "no state"),
            (lambda: series.load_newest(fails), KeyError, "no state"),
        ]:
            with self.assertRaisesRegex(kind if mine else RuntimeError, why if mine else f"rank 1 failed: {kind.__name__}: .*{why}"):
                call()
            dtensor.barrier()
        for call in [dtensor.load, dtensor.checkpoint.load_newest]:  # other names on one rank
            with self.assertRaisesRegex(ValueError, r"rank 1:\s+missing in the checkpoint: 'other'"):
                call({"other" if mine else "value": 0, "tensor": torch.zeros(2)}, f"{folder}/good")
            dtensor.barrier()
        back = {"value": 0, "tensor": torch.zeros(2)}
        dtensor.load(back, f"{folder}/good")
        return back["value"], back["tensor"].tolist(), fails["tensor"].tolist(), dtensor.checkpoint.steps(f"{folder}/series")

    def test_errors_of_one_rank_are_raised_on_all(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(dtensor.run(2, self.on_ranks, folder, timeout=60), [(3, [7, 7], [0, 0], [1])] * 2)


if __name__ == "__main__":
    unittest.main()
