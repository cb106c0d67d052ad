"""context_parallel: attention of regular tensors covers the full sequence."""

import inspect
import unittest

import torch
import torch.distributed.tensor.experimental as theirs
from torch import nn
from torch.nn import functional

import dtensor
from dtensor.experimental import context_parallel, context_parallel_unshard

torch.manual_seed(0)
Q, K, V = (torch.randn(2, heads, 11, 4, dtype=torch.float64) for heads in (4, 2, 2))


class ContextParallel(unittest.TestCase):
    def everywhere(self, check):
        for ranks in (1, 2, 3):
            dtensor.run(ranks, lambda: check(dtensor.init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))))

    def test_attention_of_the_full_sequence(self):
        def check(mesh):
            for causal in (True, False):
                full = [t.clone().requires_grad_() for t in (Q, K, V)]
                expected = functional.scaled_dot_product_attention(*full, is_causal=causal, enable_gqa=True)
                expected.square().sum().backward()
                buffers = [t.clone() for t in (Q, K, V)]
                with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2]):
                    own = [t.clone().requires_grad_() for t in buffers]
                    y = functional.scaled_dot_product_attention(*own, is_causal=causal, enable_gqa=True)
                    y.square().sum().backward()
                    found = context_parallel_unshard(mesh, [y, *(t.grad for t in own)], [2, 2, 2, -2])
                for a, b in zip(found, [expected.detach(), *(t.grad for t in full)]):
                    torch.testing.assert_close(a, b)
                for buffer, before in zip(buffers, (Q, K, V)):
                    torch.testing.assert_close(buffer, before, rtol=0, atol=0)

        self.everywhere(check)

    def test_buffers_are_restored_except_no_restore_buffers(self):
        def check(mesh):
            ids, labels = torch.arange(22).reshape(2, 11), torch.arange(11)
            with context_parallel(mesh, buffers=[ids, labels], buffer_seq_dims=[1, 0], no_restore_buffers={labels}):
                self.assertEqual(ids.shape[1], labels.shape[0])
                torch.testing.assert_close(ids[0], labels)
                full = context_parallel_unshard(mesh, [ids, labels], [1, 0])
            torch.testing.assert_close(full[0], torch.arange(22).reshape(2, 11))
            torch.testing.assert_close(full[1], torch.arange(11))
            torch.testing.assert_close(ids, full[0])
            self.assertEqual(labels.shape[0] == 11, mesh.size() == 1)

        self.everywhere(check)

    def test_no_effect_outside_the_scope(self):
        def check(mesh):
            with context_parallel(mesh, buffers=[torch.ones(4)], buffer_seq_dims=[0]):
                pass
            expected = functional.scaled_dot_product_attention(Q, Q, Q)
            self.assertEqual(expected.shape, Q.shape)
            with self.assertRaisesRegex(ValueError, "same number of elements"):
                context_parallel(mesh, buffers=[Q], buffer_seq_dims=[]).__enter__()
            with self.assertRaisesRegex(ValueError, "must be a subset"):
                context_parallel(mesh, buffers=[Q], buffer_seq_dims=[2], no_restore_buffers={K}).__enter__()

        self.everywhere(check)
        self.assertEqual(list(inspect.signature(theirs.context_parallel).parameters), list(inspect.signature(context_parallel).parameters))


if __name__ == "__main__":
    unittest.main()
