"""Operators that read values: result sizes depend on data, or no meta kernel exists. For all placements they equal one
device, gradients included, or raise an error with a reason."""

import copy
import random
import unittest
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn

import dtensor
from dtensor import DTensor, Replicate, Shard
from layouts import any_placements, mesh_of

try:
    import torchvision
except ImportError:
    torchvision = None

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(5, 4, generator=GENERATOR, dtype=torch.float64)
MASK = X > 0
VECTOR = torch.tensor([2.0, 0.0, 0.0, 3.0, 3.0, 0.0], dtype=torch.float64)
COUNTS = torch.tensor([2, 0, 3, 1, 1])
CUBE = torch.randn(4, 3, 6, generator=GENERATOR, dtype=torch.float64)
ADJACENCY = torch.tensor([[0.0, 1, 0, 2, 0], [1, 0, 0, 0, 0], [0, 0, 0, 3, 0]], dtype=torch.float64)
LSTM, GRU = nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True).double(), nn.GRU(6, 5, batch_first=True).double()


@torch.library.custom_op("value_readers::positive_rows", mutates_args=())
def positive_rows(x: torch.Tensor, limit: float) -> torch.Tensor:
    if x.dim() != 2:
        raise ValueError(f"positive_rows: expected a matrix, got sizes {list(x.shape)}")
    return x[x.sum(1) > limit]


@torch.library.custom_op("value_readers::kept", mutates_args=())
def kept(scores: torch.Tensor, limit: float) -> torch.Tensor:
    return (scores > limit).nonzero().squeeze(1)


@kept.register_fake
def _(scores, limit):
    """Like torchvision's description of nms, which needs a tracer."""
    return scores.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.long)


@torch.library.custom_op("value_readers::largest", mutates_args=())
def largest(x: torch.Tensor) -> tuple[torch.Tensor, float, list[torch.Tensor]]:
    return x.amax(0), float(x.max()), [x[0] * 2, x[:, 1].contiguous()]


@torch.library.custom_op("value_readers::add_one_", mutates_args={"x"})
def add_one_(x: torch.Tensor) -> None:
    x.add_(1)


positive_rows.register_autograd(
    lambda ctx, grad: (torch.ones_like(ctx.saved_tensors[0]) * grad.sum(), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def filled(x):
    x = x.clone()
    add_one_(x)
    return x


def packed(d, lengths=(3, 1, 2, 3)):
    return rnn.pack_padded_sequence(d(CUBE), list(lengths), batch_first=True, enforce_sorted=False)


def recurrent(module, d):
    parameters = {k: d(v.detach()) for k, v in module.named_parameters()}
    output, _ = torch.func.functional_call(copy.deepcopy(module), parameters, (packed(d),))
    return rnn.pad_packed_sequence(output, batch_first=True)[0]


def frames(d):
    probabilities = d(torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).log_softmax(-1)
    return probabilities, d(torch.tensor([[1, 2], [3, 1], [2, 2]]))


# Keys are operators that read values, for those that PyTorch tags; other keys are descriptive.
CASES = {
    "index": [lambda d: d(X)[d(MASK)], lambda d: d(X)[d(MASK[:, 0])], lambda d: d(X)[:, d(MASK[0])]],
    "masked_select": [lambda d: d(X).masked_select(d(MASK)), lambda d: d(X).masked_select(d(MASK[0]))],
    "nonzero": [lambda d: d(X.relu()).nonzero(), lambda d: torch.nonzero(d(VECTOR), as_tuple=True)[0], lambda d: torch.where(d(MASK))[1]],
    "argwhere": [lambda d: torch.argwhere(d(MASK))],
    "_unique": [lambda d: torch.ops.aten._unique(d(VECTOR), True, True)],
    "_unique2": [lambda d: d(VECTOR).unique(return_inverse=True, return_counts=True), lambda d: d(X.round()).unique()],
    "unique_dim": [lambda d: d(X.sign()).unique(dim=0, return_inverse=True, return_counts=True)],
    "unique_consecutive": [lambda d: d(VECTOR).unique_consecutive(return_inverse=True, return_counts=True)],
    "unique_dim_consecutive": [lambda d: d(X.sign()).unique_consecutive(return_counts=True, dim=1)],
    "repeat_interleave": [lambda d: d(X).repeat_interleave(d(COUNTS), 0), lambda d: torch.repeat_interleave(d(COUNTS))],
    "one_hot": [lambda d: F.one_hot(d(COUNTS)), lambda d: F.one_hot(d(COUNTS), 5)],
    "bincount": [lambda d: d(COUNTS).bincount(), lambda d: d(COUNTS).bincount(d(X[:, 0]), minlength=7)],
    "linalg_lstsq": [lambda d: torch.linalg.lstsq(d(X), d(X.cos())), lambda d: torch.linalg.lstsq(d(X), d(X.cos()), driver="gelsd")[2]],
    "_ctc_loss": [
        lambda d: F.ctc_loss(*frames(d), (6, 5, 6), (2, 1, 2)),
        lambda d: F.ctc_loss(*frames(d), torch.tensor([6, 5, 6]), torch.tensor([2, 1, 2])),
    ],
    "allclose": [lambda d: torch.allclose(d(X), d(X + 1e-9)), lambda d: torch.allclose(d(X), d(-X))],
    "equal": [lambda d: torch.equal(d(X), d(X.clone())), lambda d: torch.equal(d(X), d(-X))],
    "item": [lambda d: d(X).sum().item(), lambda d: bool(d(VECTOR).any()), lambda d: int(d(COUNTS)[2]), lambda d: d(X).tolist()],
    "_local_scalar_dense": [lambda d: torch.ops.aten._local_scalar_dense(d(X).sum())],
    "nonzero_static": [lambda d: torch.nonzero_static(d(VECTOR), size=4)],
    "tensor_split": [lambda d: d(X).tensor_split(torch.tensor([1, 3]))],
    "narrow": [lambda d: d(X).narrow(0, d(COUNTS)[0], 2)],
    "masked_scatter": [lambda d: d(X).masked_scatter(d(MASK), d(X * 2))],
    "index_put": [lambda d: d(X).index_put((d(MASK),), d(torch.tensor(1.0, dtype=torch.float64)))],
    "histogram": [lambda d: d(X).histc(5), lambda d: torch.histogram(d(VECTOR), 4)[0], lambda d: torch.histogramdd(d(X[:, :2]), [2, 3])[0]],
    "linalg": [lambda d: torch.linalg.matrix_rank(d(X)), lambda d: torch.linalg.pinv(d(X)), lambda d: torch.linalg.inv(d(X[:4]))],
    "segment_reduce": [lambda d: torch.segment_reduce(d(X), "sum", lengths=d(torch.tensor([2, 0, 3])))],
    "embedding_bag": [lambda d: F.embedding_bag(d(COUNTS), d(X), d(torch.tensor([0, 2, 2])))],
    "_pack_padded_sequence": [
        lambda d: packed(d).data,
        lambda d: packed(d).batch_sizes,
        lambda d: rnn.pad_packed_sequence(packed(d), batch_first=True)[0],
        lambda d: recurrent(LSTM, d),
        lambda d: recurrent(GRU, d),
    ],
    "custom operators": [lambda d: positive_rows(d(X), 0.0), lambda d: kept(d(VECTOR), 1.0), lambda d: largest(d(X)), lambda d: filled(d(X))],
    "sparse": [
        lambda d: torch.sparse.mm(ADJACENCY.to_sparse(), d(X)),
        lambda d: ADJACENCY.to_sparse() @ d(X),
        lambda d: ADJACENCY.to_sparse_csr() @ d(X),
        lambda d: ADJACENCY.to_sparse() @ d(X[:, 0]),
        lambda d: ADJACENCY.to_sparse_csr() * d(ADJACENCY + 1).detach(),
        lambda d: d(ADJACENCY) + ADJACENCY.to_sparse(),
        lambda d: d(ADJACENCY.clone()).detach().add_(ADJACENCY.to_sparse()),
        lambda d: d(X.t().contiguous()) @ ADJACENCY.t().to_sparse(),
        lambda d: torch.addmm(d(X[:3]), ADJACENCY.to_sparse(), d(X)),
        lambda d: d(ADJACENCY).sparse_mask(ADJACENCY.to_sparse().coalesce()).to_dense(),
    ],
    "numbers": [lambda d: torch.linspace(d(X)[0, 0], d(X)[1, 1], 3), lambda d: torch.full((2,), d(X)[0, 0].item())],
}
if torchvision is not None:
    BOXES = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2.1], [3, 3, 4, 4], [0, 0, 1.9, 2]])
    CASES["nms"] = [lambda d: torchvision.ops.nms(d(BOXES), d(torch.tensor([0.9, 0.8, 0.7, 0.6])), 0.5)]
REFUSED = {
    "sparse layouts have no placement": [lambda d: d(X).to_sparse(), lambda d: torch.ops.aten._coalesce(d(X))],
    "quantized tensors have no placement": [lambda d: torch.quantize_per_tensor(d(X).float(), 0.1, 0, torch.qint8)],
}


def values(result):
    found = result if isinstance(result, (tuple, list)) else [result]
    flat = [v for item in found for v in (item if isinstance(item, (tuple, list)) else [item])]
    full = [(v.full_tensor() if isinstance(v, DTensor) else v) for v in flat]
    return [v.to_dense() if isinstance(v, torch.Tensor) and v.layout != torch.strided else v for v in full]


def run(case, place, differentiable=True):
    """Results, and gradients of the placed floating-point inputs."""
    leaves = []

    def leaf(t):
        t = place(t)
        if t.is_floating_point() and differentiable:
            leaves.append(t.requires_grad_())
        return t

    results = values(case(leaf))
    through = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    grads = torch.autograd.grad(sum((r * r).sum() for r in through), leaves, allow_unused=True) if through else []
    return results, [g.full_tensor() if isinstance(g, DTensor) else g for g in grads]


def is_differentiable(case):
    try:
        return bool(run(case, lambda t: t.clone())[1])
    except RuntimeError as error:
        assert "derivative for" in str(error) or "no autograd formula" in str(error), error
        return False


def differs(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) > 1e-9
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape != b.shape or a.dtype != b.dtype or not torch.allclose(a.double(), b.double(), rtol=1e-7, atol=1e-9)
    if a is None or b is None:
        other = b if a is None else a
        return other is not None and bool(other.any())
    return type(a) is not type(b) or a != b


class ValueReaders(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")

    def test_equal_one_device_for_all_placements(self):
        for name, cases in CASES.items():
            for number, case in enumerate(cases):
                differentiable = is_differentiable(case)
                expected = run(case, lambda t: t.clone(), differentiable)
                for shape in [(2,), (3,)]:
                    with self.subTest(name, number=number, shape=shape):
                        for found in dtensor.run(shape[0], self.on_rank, case, shape, f"{name} {number}", differentiable):
                            for results, wanted in zip(found, expected):
                                self.assertEqual(len(results), len(wanted))
                                self.assertFalse(any(differs(a, b) for a, b in zip(results, wanted)), (results, wanted))

    def on_rank(self, case, shape, seed, differentiable):
        draw, mesh = random.Random(seed), mesh_of(shape)
        return run(case, lambda t: dtensor.distribute_tensor(t, mesh, any_placements(draw, t.shape, mesh)), differentiable)

    def test_all_operators_tagged_by_pytorch_are_covered(self):
        tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        tagged = set()
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("aten::"):
                packet, _, overload = name[len("aten::") :].partition(".")
                operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                if tags & set(operator.tags):
                    tagged.add(packet)
        self.assertEqual(tagged - set(CASES), set())

    def test_sparse_and_quantized_results_are_refused(self):
        def on_rank(case, reason):
            mesh = mesh_of((2,))
            with self.assertRaisesRegex(NotImplementedError, reason):
                case(lambda t: dtensor.distribute_tensor(t, mesh, [Shard(0)]))

        for reason, cases in REFUSED.items():
            for case in cases:
                dtensor.run(2, on_rank, case, reason)

    def test_errors_are_those_of_the_operator(self):
        def on_rank():
            mesh = mesh_of((2,))
            x = dtensor.distribute_tensor(X, mesh, [Shard(0)])
            with self.assertRaisesRegex(ValueError, r"expected a matrix, got sizes \[5\]"):
                positive_rows(x[:, 0], 0.0)
            self.assertEqual(positive_rows(x, 0.0).placements, (Replicate(),))  # the error had no lasting effect
            with self.assertRaisesRegex(RuntimeError, "batch_first|length"):
                rnn.pack_padded_sequence(dtensor.distribute_tensor(CUBE, mesh, [Shard(0)]), [3, 2], batch_first=True)

        dtensor.run(2, on_rank)

    def test_sparse_results_are_regular_tensors(self):
        def on_rank():
            x = dtensor.distribute_tensor(ADJACENCY, mesh_of((2,)), [Shard(0)])
            masked = x.sparse_mask(ADJACENCY.to_sparse().coalesce())
            self.assertTrue(masked.is_sparse and not isinstance(masked, DTensor))
            weights = ADJACENCY.to_sparse().requires_grad_()
            (weights @ dtensor.distribute_tensor(X, mesh_of((2,)), [Shard(1)])).sum().backward()
            return weights.grad.full_tensor()

        regular = ADJACENCY.to_sparse().requires_grad_()
        (regular @ X).sum().backward()
        for grad in dtensor.run(2, on_rank):
            torch.testing.assert_close(grad, regular.grad.to_dense())

    def test_sparse_meta_tensors_behave_as_in_pytorch(self):
        dtensor.run(2, lambda: mesh_of((2,)))  # initializes the library
        sparse = ADJACENCY.to_sparse().to("meta")
        self.assertEqual((sparse + sparse).shape, sparse.shape)
        with self.assertRaisesRegex(NotImplementedError, "'aten::mm' with arguments from the 'SparseMeta' backend"):
            sparse @ X.to("meta")

    def test_sparse_operands_are_compared_between_ranks(self):
        def on_rank():
            x = dtensor.distribute_tensor(X, mesh_of((2,)), [Replicate()])
            with self.assertRaisesRegex(RuntimeError, "differ between ranks"):
                (ADJACENCY + dtensor.rank()).to_sparse() @ x

        dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
