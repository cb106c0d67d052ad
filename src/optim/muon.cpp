// A Muon step: momentum where the shards are, whole matrices on their owners, orthogonal ones back.
#include "dtensor/optim/muon.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"
#include "optim/exchange.h"
#include "optim/lists.h"
#include "optim/options.h"
#include "optim/roots.h"
#include "optim/updates.h"

namespace dtensor {
namespace {

using optim::Exchange;

double cost(const optim::Block& matrix) {
  const auto rows = static_cast<double>(matrix.shape[0]), columns = static_cast<double>(matrix.shape[1]);
  return rows * columns * std::min(rows, columns);
}

double scale(const optim::Block& matrix, const MuonOptions& o) {
  const auto rows = static_cast<double>(matrix.shape[0]), columns = static_cast<double>(matrix.shape[1]);
  return o.match_adamw_rms ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
}

at::ScalarType working_type(const OptimizerEntry& entry, const MuonOptions& o) {
  return o.bfloat16 ? at::kBFloat16 : entry.dtype;
}

std::vector<at::Tensor> momenta(const optim::Bucket& b, const MuonOptions& o) {
  const auto buffers = b.slots(0);
  at::_foreach_lerp_(buffers, b.gradients, 1 - o.momentum);
  return o.nesterov ? at::_foreach_lerp(b.gradients, buffers, o.momentum) : buffers;
}

void check(const MuonOptions& o) {
  optim::check_decay("Muon", "momentum", o.momentum);
  optim::check_not_negative("Muon", "weight_decay", o.weight_decay);
  TORCH_CHECK_VALUE(o.iterations >= 0, "Muon: iterations must not be negative, and are ", o.iterations);
}

}  // namespace

struct Muon::State {
  Exchange exchange;
  std::vector<optim::Block> matrices;  // by entry, as in the exchange
};

Muon::Muon(std::vector<at::Tensor> parameters, MuonOptions options)
    : Muon(std::vector<Group>{{std::move(parameters), options}}) {}

Muon::Muon(const std::vector<Group>& groups)
    : GroupOptimizer(groups, {"momentum_buffer"}, true, {"Muon", check}), state_(std::make_unique<State>()) {
  for (const Entry& entry : entries()) {
    TORCH_CHECK(entry.parameter.dim() >= 2, "Muon: parameter ", entry.name, " of sizes ", entry.parameter.sizes(),
                " is no matrix; give it to AdamW (muon_with_adamw)");
    state_->matrices.push_back(optim::whole_matrix(entry.parameter.sizes()));
    const optim::Block& matrix = state_->matrices.back();
    state_->exchange.add(entry.parameter, matrix.region, cost(matrix));
  }
  state_->exchange.assign();
}

Muon::~Muon() = default;

void Muon::update(const std::vector<Entry*>& active) {
  // Before momenta change.
  for (const Entry* entry : active) state_->exchange.check_ranks(static_cast<std::size_t>(entry - entries().data()));
  std::vector<Entry*> moving;
  std::vector<Exchange::Wanted> wanted;
  for (const optim::Bucket& b : optim::make_buckets(active, false)) {
    const auto all = momenta(b, options(b.group));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (b.parameters[i].numel() == 0) continue;
      moving.push_back(b.entries[i]);
      const auto number = static_cast<std::size_t>(b.entries[i] - entries().data());
      wanted.push_back({number, all[i].to(working_type(*b.entries[i], options(b.group)))});
    }
  }
  const auto gathered = state_->exchange.gather(wanted);
  std::vector<Exchange::Result> results;
  std::vector<optim::Update> updates;
  for (std::size_t i = 0; i < moving.size(); ++i) {
    const Entry& entry = *moving[i];
    const MuonOptions& o = options(entry.group);
    const std::size_t number = wanted[i].block;
    const optim::Block& matrix = state_->matrices[number];
    at::Tensor result;
    if (state_->exchange.owned(number)) {
      result = optim::newton_schulz(gathered[i].reshape(matrix.shape), o.iterations).reshape(matrix.region.sizes);
    }
    results.push_back({number, result, optim::local_buffer(entry, working_type(entry, o))});
    updates.push_back({entry.parameter, {}, o.lr * o.weight_decay, -o.lr * scale(matrix, o)});
  }
  state_->exchange.scatter(results);
  for (std::size_t i = 0; i < moving.size(); ++i) {
    updates[i].update = optim::placed(results[i].target.to(moving[i]->dtype), *moving[i]);
  }
  optim::apply(updates);
}

std::unique_ptr<CombinedOptimizer> muon_with_adamw(std::vector<at::Tensor> matrices, MuonOptions muon,
                                                   std::vector<at::Tensor> rest, AdamWOptions adamw) {
  std::vector<std::unique_ptr<Optimizer>> parts;
  parts.push_back(std::make_unique<Muon>(std::move(matrices), muon));
  parts.push_back(std::make_unique<AdamW>(std::move(rest), adamw));
  return std::make_unique<CombinedOptimizer>(std::move(parts));
}

}  // namespace dtensor
