"""A dozen families of the transformers package; a manual run of families.py --all covers every family."""

import copy
import random
import unittest
import unittest.mock
import warnings

try:
    import families
    import tiny_models
    import transformers
except ImportError:
    transformers = None

import torch

import dtensor
from dtensor import Replicate, Shard
from layouts import mesh_of, ranks_of


@unittest.skipIf(transformers is None, "transformers is not installed")
class Families(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()

    def test_equal_one_device(self):
        for family in families.CI:
            with self.subTest(family):
                failures, cases = families.compare(family, ["dp", "fsdp", "last", "mixed"], [(2,), (2, 2)])
                self.assertEqual((failures, cases), ([], 8))

    def test_a_difference_is_reported(self):
        tiny = tiny_models.make("llama")
        with families.single_is_double():
            expected = families.Result(copy.deepcopy(tiny), lambda t: t)
        tiny.model.model.norm.weight.data.mul_(1.0001)
        with families.single_is_double():
            other = families.Result(copy.deepcopy(tiny), lambda t: t)
        self.assertIn("logits", expected.differences(other))

    def test_generation_options(self):
        for family, ways in {"llama": ["sampling", "static cache"], "t5": ["beams"]}.items():
            with self.subTest(family):
                failures, cases = families.compare_generation(family, ["dp", "mixed"], [(2,)], ways)
                self.assertEqual((failures, cases), ([], 2 * len(ways)))

    def test_sampling_depends_on_the_seed(self):
        tiny, options = tiny_models.make("llama"), families.GENERATION["sampling"]
        first, again, other = (families.generated(tiny, (1,), "dp", options, seed) for seed in (5, 5, 6))
        self.assertEqual((first.tolist() == again.tolist(), first.tolist() == other.tolist()), (True, False))

    def test_default_experts_equal_one_device(self):
        """Grouped products do not support float64, so the comparison uses float32 tolerances."""

        def make(family):
            tiny = tiny_models.make(family)
            tiny.model.float()
            for module in tiny.model.modules():
                if hasattr(module, "config"):
                    module.config._experts_implementation = "grouped_mm"
            return tiny

        def trained(tiny, place):
            out = tiny.model(**{key: place(t) for key, t in tiny.inputs.items()}, **tiny.model_kwargs)
            out.loss.backward()
            named = {"loss": out.loss, "logits": out.logits, **{n: p.grad for n, p in tiny.model.named_parameters()}}
            return {name: families.Result.full(t) for name, t in named.items() if t is not None}

        def on_rank(tiny, layout, shape, expected):
            mesh, draw = mesh_of(shape), random.Random(f"{layout} {shape}")
            placed = copy.deepcopy(tiny)
            families.place_parameters(placed.model, mesh, layout, draw)
            rows = [Shard(0) if layout == "fsdp" else draw.choice([Shard(0), Replicate()]) for _ in shape]
            torch.testing.assert_close(
                trained(placed, lambda t: dtensor.distribute_tensor(t, mesh, rows)), expected, rtol=1e-3, atol=1e-5
            )

        for family in ("mixtral", "qwen3_moe", "gpt_oss"):
            tiny = make(family)
            with unittest.mock.patch.object(torch.nn.functional, "grouped_mm", wraps=torch.nn.functional.grouped_mm) as grouped:
                expected = trained(copy.deepcopy(tiny), lambda t: t)
                self.assertTrue(grouped.called)
            for layout in ("fsdp", "last", "mixed"):
                for shape in ((2,), (2, 2)):
                    with self.subTest(family, layout=layout, shape=shape):
                        dtensor.run(ranks_of(shape), on_rank, tiny, layout, shape, expected)

    def test_fully_shard_of_a_model(self):
        tiny = tiny_models.make("llama")
        with families.single_is_double():
            expected = families.Result(copy.deepcopy(tiny), lambda t: t)

            def on_rank():
                mesh = dtensor.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
                sharded = copy.deepcopy(tiny)
                for layer in sharded.model.model.layers:
                    dtensor.fully_shard(layer, mesh=mesh)
                dtensor.fully_shard(sharded.model, mesh=mesh)
                return expected.differences(families.Result(sharded, lambda t: dtensor.distribute_tensor(t, mesh, [Shard(0)])))

            self.assertEqual(dtensor.run(2, on_rank), [[], []])


if __name__ == "__main__":
    unittest.main()
