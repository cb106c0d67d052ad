// Tensor parallelism after Megatron-LM (arXiv:1909.08053): an all-reduce at the end of each pair of split layers, and
// in backward at its begin.
#include <torch/csrc/autograd/custom_function.h>

#include "by_hand/transformer.h"

namespace manual_spmd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const dtensor::Communicator& communicator(AutogradContext* context) {
  return *reinterpret_cast<const dtensor::Communicator*>(context->saved_data["world"].toInt());
}

at::Tensor reduced(const at::Tensor& x, const dtensor::Communicator& world) {
  const at::Tensor sum = at::empty_like(x, at::MemoryFormat::Contiguous);
  world.all_reduce(sum, x, dtensor::ReduceOp::sum).wait();
  return sum;
}

struct Enter : torch::autograd::Function<Enter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const dtensor::Communicator* world) {
    context->saved_data["world"] = reinterpret_cast<std::int64_t>(world);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {reduced(gradients[0], communicator(context)), {}};
  }
};

struct Leave : torch::autograd::Function<Leave> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const dtensor::Communicator* world) {
    return reduced(x, *world);
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return {gradients[0], {}}; }
};

std::vector<at::Tensor> split(const at::Tensor& t, const dtensor::Communicator& world, int dim) {
  return t.chunk(world.size(), dim);
}

// Gathers the last dimension, of which each rank has a chunk of `size`.
struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const dtensor::Communicator* world,
                            std::int64_t size) {
    context->saved_data["world"] = reinterpret_cast<std::int64_t>(world);
    auto sizes = x.sizes().vec();
    sizes.back() = size;
    const at::Tensor full = at::empty(sizes, x.options());
    world->all_gather(split(full, *world, -1), x).wait();
    return full;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto& world = communicator(context);
    return {split(gradients[0], world, -1)[world.rank()].contiguous(), {}, {}};
  }
};

class TensorParallel final : public ManualTraining {
 public:
  TensorParallel(const dtensor::Communicator& world, const train::Options& options)
      : world_(world), heads_(train::gpt_config(options).heads / world.size()) {
    const auto weights = make_weights(options);
    vocabulary_ = weights.head.size(0);
    embedding_ = own(weights.embedding, 0), head_ = own(weights.head, 0);
    norm_ = own(weights.norm, -1), norm_bias_ = own(weights.norm_bias, -1);
    for (const auto& block : weights.blocks) {
      auto& mine = blocks_.emplace_back();
      for (int i = 0; i < static_cast<int>(block.size()); ++i) {
        const bool rows = i == kQ || i == kK || i == kV || i == kUp, columns = i == kO || i == kDown;
        mine.push_back(own(block[i], rows ? 0 : columns ? 1 : -1));
      }
    }
    tp_comm_.enter = [this](const at::Tensor& x) { return Enter::apply(x, &world_); };
    tp_comm_.leave = [this](const at::Tensor& x) { return Leave::apply(x, &world_); };
  }

 private:
  // The local shard along `dim`; -1: the full tensor.
  at::Tensor own(const at::Tensor& full, int dim) {
    const auto part = dim < 0 ? full : split(full, world_, dim)[world_.rank()];
    const auto parameter = part.clone(at::MemoryFormat::Contiguous).requires_grad_();
    (dim < 0 ? full_ : split_).push_back(parameter);
    return parameter;
  }

  at::Tensor embed(const at::Tensor& ids) const {
    const std::int64_t begin = (vocabulary_ + world_.size() - 1) / world_.size() * world_.rank();
    const at::Tensor other = at::lt(ids, begin).logical_or(at::ge(ids, begin + embedding_.size(0)));
    const at::Tensor rows = at::embedding(embedding_, (ids - begin).masked_fill(other, 0));
    return tp_comm_.leave(rows.masked_fill(other.unsqueeze(-1), 0));
  }

  double forward_backward(const train::Batch& batch) override {
    at::Tensor x = embed(batch.ids);
    for (const auto& weights : blocks_) x = block(x, weights, heads_, tp_comm_);
    const at::Tensor normal = tp_comm_.enter(at::layer_norm(x, {x.size(-1)}, norm_, norm_bias_));
    const at::Tensor logits = Gather::apply(at::linear(normal, head_), &world_, vocabulary_);
    const at::Tensor loss = cross_entropy(logits, batch.targets);
    loss.backward();
    return loss.item<double>();
  }

  std::vector<at::Tensor> parameters() override {
    auto all = split_;
    all.insert(all.end(), full_.begin(), full_.end());
    return all;
  }
  std::vector<at::Tensor> gradients() override {
    std::vector<at::Tensor> all;
    for (const auto& p : parameters()) all.push_back(p.grad());
    return all;
  }
  double total_norm(const std::vector<at::Tensor>& gradients) override {
    const at::Tensor norms = at::stack(at::_foreach_norm(gradients)).square();
    const auto splits = static_cast<std::int64_t>(split_.size());
    const at::Tensor squares = norms.narrow(0, 0, splits).sum();
    world_.all_reduce(squares, dtensor::ReduceOp::sum).wait();
    return std::sqrt((squares + norms.narrow(0, splits, norms.size(0) - splits).sum()).item<double>());
  }
  void zero_grad() override {
    for (const auto& p : parameters()) p.mutable_grad().reset();
  }

  dtensor::Communicator world_;
  std::int64_t heads_, vocabulary_ = 0;
  std::vector<at::Tensor> split_, full_;  // Parameters.
  at::Tensor embedding_, norm_, norm_bias_, head_;
  std::vector<std::vector<at::Tensor>> blocks_;
  TensorParallelComm tp_comm_;
};

}  // namespace

std::unique_ptr<Training> tensor_parallel(const dtensor::Communicator& world, const train::Options& options) {
  return std::make_unique<TensorParallel>(world, options);
}

}  // namespace manual_spmd
