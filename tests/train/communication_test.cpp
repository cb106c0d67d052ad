// Collectives of a step over tp: no more than in a hand-written tensor-parallel transformer.
#include <gtest/gtest.h>

#include "dtensor/debug.h"
#include "mesh_run.h"

namespace {

// Two all-reduces for each block in each direction, one for the embedding and one for the gradient of the head's input.
// The plan constrains no activation: the residual stream starts as the embedding's Partial, which is reduced once.
TEST(Communication, TensorParallelismIsMinimal) {
  for (const train::MeshShape shape : {train::MeshShape{1, 1, 2}, train::MeshShape{1, 2, 2}}) {
    dtensor::run_local(static_cast<int>(shape.size()), [&](dtensor::Communicator world) {
      const dtensor::DeviceMesh mesh = train::make_mesh(world, shape);
      const auto model = oracle::model();
      train::distribute(*model, mesh, oracle::options({.shape = shape}));
      const oracle::Batch b = oracle::batch(0);
      const at::Tensor ids = dtensor::distribute_tensor(b.ids, mesh, train::batch_placements());
      const dtensor::CommDebugMode comms;
      train::token_loss((*model)(ids).logits.front(), ids).backward();
      const int layers = static_cast<int>(train::tiny().layers);
      for (const auto phase : {dtensor::Phase::forward, dtensor::Phase::backward}) {
        const auto count = comms.total([&](const dtensor::CommDebugMode::Key& key) {
          return key.kind == "all_reduce" && key.axis == "tp" && key.phase == phase;
        });
        EXPECT_EQ(count.calls, 2 * layers + 1) << comms.table();
      }
    });
  }
}

}  // namespace
