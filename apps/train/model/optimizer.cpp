// Creates the optimizer and runs its steps.
#include "train/model/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <stdexcept>

#include "dtensor/bit_identical.h"
#include "train/model/bytes.h"

namespace train {

using dtensor::NamedTensors;

namespace {

dtensor::AdamWOptions adamw(const OptimizerOptions& o) { return {.beta2 = o.beta2, .weight_decay = o.weight_decay}; }

// Names are passed with the parameters, so that a checkpoint names the state of each.
template <class Rule, class Options>
std::unique_ptr<dtensor::Optimizer> one_group(const NamedTensors& parameters, const Options& options) {
  typename Rule::Group group{.parameters = {}, .options = options, .names = {}};
  for (const auto& [name, tensor] : parameters) {
    group.names.push_back(name);
    group.parameters.push_back(*tensor);
  }
  return std::make_unique<Rule>(std::vector<typename Rule::Group>{std::move(group)});
}

// Whether a parameter is a matrix of a block. Embeddings, head and the gates of routers and of shared experts are
// look-up tables, and experts are packed in tensors with three dimensions.
bool is_matrix(const std::string& name, const at::Tensor& parameter, bool experts) {
  const bool gate = name.ends_with("gate.weight") || name.ends_with(".gate");
  return (parameter.dim() == 2 || (experts && parameter.dim() > 2)) && name.starts_with("layers.") && !gate;
}

std::unique_ptr<dtensor::Optimizer> muon(const NamedTensors& parameters, const OptimizerOptions& o) {
  NamedTensors matrices, rest;
  for (const auto& item : parameters) {
    (is_matrix(item.first, *item.second, o.muon_experts) ? matrices : rest).push_back(item);
  }
  const dtensor::MuonOptions options{.weight_decay = o.weight_decay, .match_adamw_rms = true};
  std::vector<std::unique_ptr<dtensor::Optimizer>> parts;
  parts.push_back(one_group<dtensor::Muon>(matrices, options));
  parts.push_back(one_group<dtensor::AdamW>(rest, adamw(o)));
  return std::make_unique<dtensor::CombinedOptimizer>(std::move(parts));
}

std::unique_ptr<dtensor::Optimizer> make(const NamedTensors& parameters, const OptimizerOptions& o) {
  if (o.name == "adamw") return one_group<dtensor::AdamW>(parameters, adamw(o));
  if (o.name == "sgd") {
    return one_group<dtensor::SGD>(parameters, dtensor::SGDOptions{.momentum = 0.9});
  }
  if (o.name == "shampoo") {
    const dtensor::ShampooOptions options{
        .beta2 = 0.95,
        .eps = o.shampoo.eps,
        .weight_decay = o.weight_decay,
        .grafting = o.shampoo.grafting == "adam" ? dtensor::Grafting::adam : dtensor::Grafting::none,
        .graft_beta2 = 0.95,
        .graft_eps = o.shampoo.graft_eps,
        .frequency = o.shampoo.frequency,
        .start = o.shampoo.start};
    return one_group<dtensor::Shampoo>(parameters, options);
  }
  if (o.name == "muon") return muon(parameters, o);
  throw std::invalid_argument("expected optimizer adamw, sgd, shampoo or muon, got " + o.name);
}

// State that the owner of a block keeps; state() returns it in equal parts.
bool is_of_block(const std::string& name) { return name.starts_with("factor.") || name.starts_with("root."); }

at::Tensor bytes_of(std::string text) { return at::from_blob(text.data(), {std::ssize(text)}, at::kByte).clone(); }

at::Tensor local_part(const at::Tensor& t) { return dtensor::is_dtensor(t) ? dtensor::DTensor(t).to_local() : t; }

at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters) gradients.push_back(p.grad());
  return dtensor::get_total_norm(gradients);
}

}  // namespace

Optimizer::Optimizer(const NamedTensors& parameters, OptimizerOptions options)
    : options_(std::move(options)), rule_(make(parameters, options_)) {
  for (const auto& [name, tensor] : parameters) parameters_.push_back(*tensor);
}

std::int64_t Optimizer::state_bytes() const {
  const auto* shampoo = dynamic_cast<const dtensor::Shampoo*>(rule_.get());
  std::int64_t bytes = shampoo == nullptr ? 0 : shampoo->owned_bytes();
  for (const at::Tensor& p : parameters_) {
    for (const auto& [name, tensor] : rule_->state(p)) bytes += is_of_block(name) ? 0 : local_bytes(tensor);
  }
  return bytes;
}

std::vector<std::string> Optimizer::content_hashes() const {
  std::vector<std::string> all;
  for (const at::Tensor& p : parameters_) {
    std::string own = dtensor::BitIdentical::content_hash(p);
    if (!own.empty()) {
      for (const auto& [name, tensor] : rule_->state(p)) own += dtensor::BitIdentical::content_hash(tensor);
    }
    all.push_back(own.empty() ? own : dtensor::BitIdentical::content_hash(bytes_of(own)));
  }
  return all;
}

std::string Optimizer::content_hash(const dtensor::Communicator& world) const {
  std::string all;
  // Ranks of other stages add zeros, which are less than any digit.
  for (const std::string& own : content_hashes()) all += own.empty() ? std::string(64, '\0') : own;
  const at::Tensor hashes = bytes_of(all);
  if (world) world.all_reduce(hashes, dtensor::ReduceOp::max).wait();
  return dtensor::BitIdentical::content_hash(hashes);
}

std::string Optimizer::local_hash() const {
  const at::NoGradGuard no_grad;
  std::string all;
  for (const at::Tensor& p : parameters_) {
    all += dtensor::BitIdentical::content_hash(local_part(p));
    for (const auto& [name, tensor] : state(p)) all += dtensor::BitIdentical::content_hash(local_part(tensor));
  }
  return dtensor::BitIdentical::content_hash(bytes_of(all));
}

at::Tensor Optimizer::step(const std::function<void(const at::Tensor&)>& look) {
  auto* adamw = dynamic_cast<dtensor::AdamW*>(rule_.get());  // Clips the gradients while it reads them.
  const bool clips = options_.clip > 0 && adamw == nullptr;
  at::Tensor norm = clips ? dtensor::clip_grad_norm_(parameters_, options_.clip) : gradient_norm(parameters_);
  if (look) look(norm);
  if (options_.clip > 0 && adamw != nullptr) adamw->divide_gradients(dtensor::clip_divisor(options_.clip, norm));
  rule_->set_lr(next_lr());
  rule_->step();
  rule_->zero_grad();
  ++steps_done_;
  return norm;
}

}  // namespace train
