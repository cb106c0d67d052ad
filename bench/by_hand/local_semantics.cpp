// For comparison: the same transformer under fully_shard, called with each rank's local part of the batch.
#include "by_hand/transformer.h"
#include "dtensor/dtensor.h"

namespace manual_spmd {
namespace {

struct Layer : dtensor::nn::Callable<Layer> {
  Layer(std::vector<at::Tensor> weights, std::int64_t heads) : w(std::move(weights)), heads_(heads) {
    for (std::size_t i = 0; i < w.size(); ++i) register_parameter(std::to_string(i), w[i]);
  }
  at::Tensor forward(const at::Tensor& x) { return block(x, w, heads_, {}); }
  std::vector<at::Tensor> w;

 private:
  std::int64_t heads_;
};

struct Transformer : dtensor::nn::Callable<Transformer> {
  Transformer(Weights weights, std::int64_t heads)
      : rest{weights.embedding, weights.norm, weights.norm_bias, weights.head} {
    for (std::size_t i = 0; i < rest.size(); ++i) register_parameter("rest." + std::to_string(i), rest[i]);
    for (std::size_t i = 0; i < weights.blocks.size(); ++i) {
      layers.push_back(std::make_unique<Layer>(weights.blocks[i], heads));
      register_module(std::to_string(i), *layers.back());
    }
  }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& targets) {
    at::Tensor x = at::embedding(rest[0], ids);
    for (auto& layer : layers) x = (*layer)(x);
    return cross_entropy(at::linear(at::layer_norm(x, {x.size(-1)}, rest[1], rest[2]), rest[3]), targets);
  }
  std::vector<at::Tensor> rest;
  std::vector<std::unique_ptr<Layer>> layers;
};

class LocalSemantics final : public Training {
 public:
  LocalSemantics(const dtensor::Communicator& world, const train::Options& options)
      : world_(world), model_(make_weights(options), train::gpt_config(options).heads) {
    const auto mesh = dtensor::init_device_mesh(world, at::kCPU, {world.size()}, {"shard"});
    for (auto& layer : model_.layers) dtensor::fully_shard(*layer, mesh);
    dtensor::fully_shard(model_, mesh);
    parameters_ = model_.parameters();
    optimizer_.emplace(parameters_, dtensor::AdamWOptions{
                                        .beta1 = kBeta1, .beta2 = kBeta2, .eps = kEps, .weight_decay = kWeightDecay});
  }

 private:
  double forward_backward(const train::Batch& batch) override {
    const auto part = [&](const at::Tensor& t) { return t.chunk(world_.size())[world_.rank()]; };
    const at::Tensor loss = model_(part(batch.ids), part(batch.targets));
    loss.backward();
    const at::Tensor mean = loss.detach().clone();
    world_.all_reduce(mean, dtensor::ReduceOp::avg).wait();
    return mean.item<double>();
  }
  void update(double clip, double lr) override {
    dtensor::clip_grad_norm_(parameters_, clip);
    optimizer_->set_lr(lr);
    optimizer_->step();
    optimizer_->zero_grad();
  }

  dtensor::Communicator world_;
  Transformer model_;
  std::vector<at::Tensor> parameters_;
  std::optional<dtensor::AdamW> optimizer_;
};

}  // namespace

std::unique_ptr<Training> local_semantics(const dtensor::Communicator& world, const train::Options& options) {
  return std::make_unique<LocalSemantics>(world, options);
}

}  // namespace manual_spmd
