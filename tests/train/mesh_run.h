// The reference run on a mesh: the same model and optimizer with DTensors that are distributed by the example's plan.
#pragma once

#include <vector>

#include "dtensor/comm.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"
#include "oracle.h"
#include "train/model/optimizer.h"
#include "train/model/plan.h"

namespace oracle {

struct Curves {
  std::vector<double> loss, grad_norm;
};

struct Variant {
  train::MeshShape shape = {};
  bool loss_parallel = false;
  double dropout = 0;
  at::ScalarType dtype = at::kFloat;
  bool units = false;  // Calls fully_shard for each block.
  bool sequence_parallel = false, checkpoint_activations = false;
};

inline double full(const at::Tensor& t) {
  const at::Tensor value = t.detach();
  return dtensor::is_dtensor(value) ? dtensor::DTensor(value).full_tensor().item<double>() : value.item<double>();
}

inline train::Options options(const Variant& variant) {
  train::Options o;
  o.parallel = variant.units ? "fsdp" : "plain";
  o.loss_parallel = variant.loss_parallel, o.sequence_parallel = variant.sequence_parallel;
  return o;
}

inline Curves run_on_mesh(const dtensor::Communicator& world, const Variant& variant) {
  const dtensor::DeviceMesh mesh = train::make_mesh(world, variant.shape);
  dtensor::manual_seed(mesh, 7);
  train::GptConfig config = train::tiny();
  config.dropout = variant.dropout;
  if (variant.checkpoint_activations) config.run.recompute = dtensor::Recomputation::full;
  config.tensor = config.tensor.dtype(variant.dtype);
  const auto model = oracle::model(config);
  const auto units = train::distribute(*model, mesh, options(variant));
  const auto place = [&](const at::Tensor& t) {
    return dtensor::distribute_tensor(t, mesh, train::batch_placements());
  };
  train::Optimizer optimizer(model->named_parameters(), {});
  Curves curves;
  for (std::int64_t step = 0; step < 10; ++step) {
    const Batch b = batch(step);
    const at::Tensor loss = train::token_loss((*model)(place(b.ids)).logits.front(), place(b.targets));
    loss.backward();
    curves.grad_norm.push_back(full(optimizer.step()));
    curves.loss.push_back(full(loss));
  }
  return curves;
}

}  // namespace oracle
