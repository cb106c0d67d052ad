// Fully sharded: parameters, gradients and optimizer states of each block are one flat buffer, which is split over
// ranks. Each block has a separate backward pass. Its parameters are gathered before, and its gradients are reduced
// after.
#include "by_hand/transformer.h"

namespace manual_spmd {
namespace {

// The unsharded parameters of one block at a time are in `memory`, which the blocks share.
class Unit {
 public:
  Unit(dtensor::Communicator world, const std::vector<at::Tensor>& full) : world_(std::move(world)) {
    for (const auto& w : full) sizes_.push_back(w.sizes().vec()), count_ += w.numel();
    const std::int64_t ranks = world_.size(), padded = (count_ + ranks - 1) / ranks * ranks;
    std::vector<at::Tensor> parts{at::zeros({padded - count_})};
    for (auto w = full.rbegin(); w != full.rend(); ++w) parts.insert(parts.begin(), w->flatten());
    shard_ = at::cat(parts).chunk(ranks)[world_.rank()].clone();
    gradient_ = at::empty_like(shard_);
    padding_ = at::zeros({padded - count_});
  }

  std::int64_t elements() const { return shard_.numel() * world_.size(); }
  void use(const at::Tensor& memory) {
    memory_ = memory.narrow(0, 0, elements());
    std::int64_t at = 0;
    for (const auto& sizes : sizes_) {
      const auto numel = c10::multiply_integers(sizes);
      // A separate version counter, so that autograd does not treat a gather as a modification.
      full_.push_back(memory_.narrow(0, at, numel).view(sizes).variable_data().requires_grad_());
      at += numel;
    }
  }
  void gather() { world_.all_gather(memory_.chunk(world_.size()), shard_).wait(); }
  const std::vector<at::Tensor>& full() const { return full_; }

  void reduce() {
    std::vector<at::Tensor> gradients;
    for (auto& w : full_) gradients.push_back(w.grad().flatten());
    gradients.push_back(padding_);
    world_.reduce_scatter(gradient_, at::cat(gradients).chunk(world_.size()), dtensor::ReduceOp::avg).wait();
    for (auto& w : full_) w.mutable_grad().reset();
  }

  const at::Tensor& shard() const { return shard_; }
  const at::Tensor& gradient() const { return gradient_; }

 private:
  dtensor::Communicator world_;
  std::vector<std::vector<std::int64_t>> sizes_;
  std::int64_t count_ = 0;
  at::Tensor shard_, gradient_, memory_, padding_;
  std::vector<at::Tensor> full_;
};

class FullySharded final : public ManualTraining {
 public:
  FullySharded(const dtensor::Communicator& world, const train::Options& options)
      : world_(world), heads_(train::gpt_config(options).heads) {
    const auto weights = make_weights(options);
    units_.reserve(weights.blocks.size() + 1);
    for (const auto& block : weights.blocks) units_.emplace_back(world, block);
    units_.emplace_back(world, std::vector{weights.embedding, weights.norm, weights.norm_bias, weights.head});
    const std::vector<at::Tensor> memory = {at::empty({units_[0].elements()}), at::empty({units_[0].elements()})};
    for (std::size_t i = 0; i < blocks(); ++i) units_[i].use(memory[i % 2]);
    units_.back().use(at::empty({units_.back().elements()}));
  }

 private:
  std::size_t blocks() const { return units_.size() - 1; }

  double forward_backward(const train::Batch& batch) override {
    const auto part = [&](const at::Tensor& t) { return t.chunk(world_.size())[world_.rank()]; };
    auto& rest = units_.back();
    rest.gather();
    const at::Tensor embedded = at::embedding(rest.full()[0], part(batch.ids));
    std::vector<at::Tensor> in{embedded.detach().requires_grad_()}, out;
    for (std::size_t i = 0; i < blocks(); ++i) {
      units_[i].gather();
      out.push_back(block(in.back(), units_[i].full(), heads_, {}));
      in.push_back(out.back().detach().requires_grad_());
    }
    const at::Tensor normal = at::layer_norm(in.back(), {in.back().size(-1)}, rest.full()[1], rest.full()[2]);
    const at::Tensor loss = cross_entropy(at::linear(normal, rest.full()[3]), part(batch.targets));
    loss.backward();
    for (std::size_t i = blocks(); i-- > 0;) {
      if (i + 1 < blocks()) units_[i].gather();
      out[i].backward(in[i + 1].grad());
      units_[i].reduce();
    }
    embedded.backward(in[0].grad());
    rest.reduce();
    const at::Tensor mean = loss.detach().clone();
    world_.all_reduce(mean, dtensor::ReduceOp::avg).wait();
    return mean.item<double>();
  }

  std::vector<at::Tensor> parameters() override {
    std::vector<at::Tensor> all;
    for (const auto& unit : units_) all.push_back(unit.shard());
    return all;
  }
  std::vector<at::Tensor> gradients() override {
    std::vector<at::Tensor> all;
    for (const auto& unit : units_) all.push_back(unit.gradient());
    return all;
  }
  double total_norm(const std::vector<at::Tensor>& gradients) override {
    const at::Tensor squares = at::stack(at::_foreach_norm(gradients)).square().sum();
    world_.all_reduce(squares, dtensor::ReduceOp::sum).wait();
    return std::sqrt(squares.item<double>());
  }
  void zero_grad() override {}

  dtensor::Communicator world_;
  std::int64_t heads_;
  std::vector<Unit> units_;
};

}  // namespace

std::unique_ptr<Training> fully_sharded(const dtensor::Communicator& world, const train::Options& options) {
  return std::make_unique<FullySharded>(world, options);
}

}  // namespace manual_spmd
