// What surrounds a loss: tensors that are written to before backward, autocast, half types, ranks outside the mesh.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dtensor.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace {

using namespace dtensor;

// A loader that fills one tensor of targets for every batch, and weights that a schedule changes.
TEST(CrossEntropy, TargetsAndWeightsMayChangeBeforeBackward) {
  test::on_mesh({2}, [](const DeviceMesh& mesh) {
    test::Draw draw(1);
    const at::Tensor values = draw.normal({4, 5}), classes = draw.integers({4}, 5), w = draw.normal({5}).abs();
    const at::Tensor expected = values.clone().requires_grad_();
    at::cross_entropy_loss(expected, classes, w, at::Reduction::Mean, -100, 0.2).backward();
    for (const bool graph : {false, true}) {
      for (const int on_mesh : {0, 1, 2}) {  // how many of logits and targets are DTensors
        const at::Tensor targets =
            on_mesh == 2 ? at::Tensor(distribute_tensor(classes, mesh, {Shard(0)})) : classes.clone();
        const at::Tensor logits =
            (on_mesh > 0 ? at::Tensor(distribute_tensor(values, mesh, {Shard(0)})) : values.clone()).requires_grad_();
        const at::Tensor weight = w.clone();
        const at::Tensor loss = cross_entropy(logits, targets, {.weight = weight, .label_smoothing = 0.2});
        targets.zero_();
        weight.fill_(3);
        const auto found = torch::autograd::grad({loss}, {logits}, {}, graph, graph);
        test::expect_close(found[0].detach(), expected.grad(), c10::str("DTensors ", on_mesh, " graph ", graph));
      }
    }
  });
}

}  // namespace
