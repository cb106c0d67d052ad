#include "by_hand/training.h"

#include <ATen/ATen.h>

#include <chrono>

#include "dtensor/dtensor.h"

namespace manual_spmd {

Weights make_weights(const train::Options& options) {
  Weights weights;
  dtensor::run_local(1, [&](const dtensor::Communicator& world) {
    const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {1});
    auto config = train::gpt_config(options);
    config.tensor = config.tensor.device(at::kMeta);
    train::Gpt model(config);
    dtensor::parallelize(model, mesh, {});
    dtensor::manual_seed(mesh, options.seed);
    model.reset();
    std::map<std::string, at::Tensor> by_name;
    for (const auto& [name, tensor] : model.named_parameters()) {
      by_name[name] = dtensor::DTensor(tensor->detach()).full_tensor().clone();
    }
    weights.embedding = by_name.at("embed.weight");
    weights.norm = by_name.at("norm.weight"), weights.norm_bias = by_name.at("norm.bias");
    weights.head = by_name.at("lm_head.weight");
    for (std::int64_t i = 0; i < config.layers; ++i) {
      auto& block = weights.blocks.emplace_back();
      for (const char* name :
           {"attn_norm.weight", "attn_norm.bias", "attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight",
            "attn.o_proj.weight", "mlp_norm.weight", "mlp_norm.bias", "mlp.up_proj.weight", "mlp.down_proj.weight"}) {
        block.push_back(by_name.at(c10::str("layers.", i, ".", name)));
      }
    }
  });
  return weights;
}

void ManualTraining::update(double clip, double lr) {
  const auto values = parameters(), slices = gradients();
  const double norm = total_norm(slices);
  if (norm > clip) at::_foreach_mul_(slices, clip / (norm + 1e-6));
  for (const auto& p : values) {
    if (first_.size() == values.size()) break;
    first_.push_back(at::zeros_like(p)), second_.push_back(at::zeros_like(p));
    steps_.push_back(at::zeros({}, at::kFloat));
  }
  at::_foreach_add_(steps_, 1);
  at::_fused_adamw_(values, slices, first_, second_, {}, steps_, lr, kBeta1, kBeta2, kWeightDecay, kEps, false, false);
  zero_grad();
}

Losses Training::run(const train::Options& o, const train::Corpus& corpus) {
  using Clock = std::chrono::steady_clock;
  Losses losses;
  for (std::int64_t step = 0; step < o.steps; ++step) {
    const auto begin = Clock::now();
    losses.loss.push_back(forward_backward(corpus.batch(o.seed, step, {o.batch, o.seq})));
    const at::NoGradGuard no_grad;
    const double reached = o.warmup == 0 ? 1.0 : static_cast<double>(step + 1) / static_cast<double>(o.warmup);
    update(o.clip, o.lr * std::min(1.0, reached));
    losses.seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return losses;
}

}  // namespace manual_spmd
