"""Graph halos: ghost rows, their gradients and second derivatives, and errors."""

import unittest

import torch

import dtensor


def ring(ranks):
    """Rank r owns rows 2 r and 2 r + 1 of a ring, and sends its last row to the next rank."""
    nothing, last = torch.empty(0, dtype=torch.int64), torch.tensor([1])
    following = (dtensor.rank() + 1) % ranks
    return [last if to == following else nothing for to in range(ranks)]


class GraphHalos(unittest.TestCase):
    def test_rows(self):
        def on_rank():
            me = dtensor.rank()
            halo = dtensor.GraphHalo(dtensor.world(), 2, ring(3))
            self.assertEqual((halo.owned, halo.ghosts, halo.ranks.size), (2, 1, 3))
            self.assertEqual(sum(halo.send_counts), 1)
            self.assertEqual(halo.receive_counts[(me - 1) % 3], 1)
            rows = torch.tensor([2 * me, 2 * me + 1])
            return halo.exchange(rows).tolist(), halo.reduce(torch.tensor([1, 10, 100])).tolist()

        expected = [([0, 1, 5], [1, 110]), ([2, 3, 1], [1, 110]), ([4, 5, 3], [1, 110])]
        self.assertEqual(dtensor.run(3, on_rank), expected)

    def test_second_derivatives_equal_one_part(self):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def force_loss_gradient(x, extend):
            """Each row reads the row before it: row 0 of a part reads the ghost."""
            x = x.clone().requires_grad_()
            before = extend(x)
            (forces,) = torch.autograd.grad((before.sin() * x**2).sum(), x, create_graph=True)
            (gradient,) = torch.autograd.grad(forces.square().sum(), x)
            return forces.detach(), gradient

        expected = force_loss_gradient(x, lambda rows: rows.roll(1, 0))

        def on_rank():
            halo = dtensor.GraphHalo(dtensor.world(), 2, ring(3))
            mine = slice(2 * dtensor.rank(), 2 * dtensor.rank() + 2)
            return force_loss_gradient(x[mine], lambda rows: halo.exchange(rows)[[2, 0]])

        results = dtensor.run(3, on_rank)
        for i in range(2):
            torch.testing.assert_close(torch.cat([r[i] for r in results]), expected[i], rtol=1e-10, atol=1e-10)

    def test_parts(self):
        """A ring in parts: row i of the result is node i - 1."""
        target = torch.arange(7)
        source = target.roll(1)
        owner = torch.tensor([0, 2, 2, 0, 0, 2, 0])  # rank 1 owns nothing

        def on_rank():
            part = dtensor.graph_part(source, target, owner, dtensor.rank(), 3)
            halo = dtensor.GraphHalo(dtensor.world(), len(part.nodes), part.send_lists)
            rows = halo.exchange(part.nodes)
            self.assertEqual(rows.tolist(), part.nodes.tolist() + part.ghosts.tolist())
            self.assertEqual(rows[part.source].tolist(), source[part.edges].tolist())
            self.assertEqual(rows[part.target].tolist(), target[part.edges].tolist())
            return len(part.edges)

        self.assertEqual(dtensor.run(3, on_rank), [4, 0, 3])

    def test_partitions(self):
        def on_rank():
            nodes = torch.arange(12)
            arguments = (nodes, nodes.roll(1), 12, dtensor.world())
            if not dtensor.is_metis_available():
                with self.assertRaisesRegex(RuntimeError, "expected a build with METIS"):
                    dtensor.partition_graph(*arguments)
                return
            self.assertEqual(dtensor.partition_graph(*arguments).bincount().tolist(), [6, 6])

        dtensor.run(2, on_rank)

    def test_lists_that_do_not_match_are_an_error_on_every_rank(self):
        def on_rank():
            expected = [1 if dtensor.rank() == 1 and peer == 0 else 0 for peer in range(2)]
            with self.assertRaisesRegex(RuntimeError, "GraphHalo: rank 1: expected 1 rows from rank 0, but its send list"):
                dtensor.GraphHalo(dtensor.world(), 2, [torch.empty(0, dtype=torch.int64)] * 2, expected)
            with self.assertRaisesRegex(RuntimeError, r"GraphHalo: rank 0: the send list for rank 0: .* got 1 at position 0"):
                dtensor.GraphHalo(dtensor.world(), 1 + dtensor.rank(), [torch.tensor([1])] * 2)

        dtensor.run(2, on_rank)


if __name__ == "__main__":
    unittest.main()
