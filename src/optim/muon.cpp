// A Muon step: momentum on the shards, orthogonalization of full matrices on their owners, results back to the shards.
#include "dtensor/optim.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"
#include "optim/blocks/block_exchange.h"
#include "optim/blocks/matrix_functions.h"
#include "optim/blocks/updates.h"
#include "optim/option_checks.h"
#include "optim/parameter_lists.h"

namespace dtensor {
namespace {

using optim::BlockExchange;

double cost(const optim::Block& matrix) {
  const auto rows = static_cast<double>(matrix.shape[0]), columns = static_cast<double>(matrix.shape[1]);
  return rows * columns * std::min(rows, columns);
}

// Scale for the parameter's matrices, which have equal sizes.
double scale(const at::Tensor& parameter, const MuonOptions& o) {
  const auto rows = static_cast<double>(parameter.size(-2)), columns = static_cast<double>(parameter.size(-1));
  return o.match_adamw_rms ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
}

at::ScalarType working_type(const detail::SlotOptimizer::Entry& entry, const MuonOptions& o) {
  return o.bfloat16 ? at::kBFloat16 : entry.dtype;
}

at::Tensor orthogonal(const at::Tensor& momentum, const optim::Block& matrix, const MuonOptions& o) {
  return optim::newton_schulz(momentum.reshape(matrix.shape), o.iterations).reshape(matrix.region.sizes());
}

std::vector<at::Tensor> momenta(const optim::Bucket& b, const MuonOptions& o) {
  const auto buffers = b.slots(0);
  at::_foreach_lerp_(buffers, b.gradients, 1 - o.momentum);
  return o.nesterov ? at::_foreach_lerp(b.gradients, buffers, o.momentum) : buffers;
}

void check(const MuonOptions& o) {
  optim::check_decay("Muon", "momentum", o.momentum);
  optim::check_not_negative("Muon", "weight_decay", o.weight_decay);
  TORCH_CHECK_VALUE(o.iterations >= 0, "Muon: expected iterations >= 0, got ", o.iterations);
}

// One matrix of a parameter.
struct Matrix {
  std::size_t block;  // index in the exchange
  optim::Block shape;
};

void check_is_matrix(const detail::SlotOptimizer::Entry& entry) {
  const auto dims = entry.parameter.dim();
  TORCH_CHECK_VALUE(dims == 2 || dims == 3, "Muon: expected matrices [m, n] or stacks of matrices [k, m, n], got ",
                    "parameter ", entry.name, " of sizes ", entry.parameter.sizes(), "; use AdamW for it ",
                    "(muon_with_adamw)", dims < 2 ? "" : ", or make the parameter of its flatten(1) or flatten(0, -3)");
}

}  // namespace

struct Muon::State {
  BlockExchange exchange;
  std::vector<std::vector<Matrix>> matrices;  // by entry

  const std::vector<Matrix>& of(const detail::SlotOptimizer::Entry& entry,
                                const std::vector<detail::SlotOptimizer::Entry>& entries) const {
    return matrices[static_cast<std::size_t>(&entry - entries.data())];
  }
};

Muon::Muon(std::vector<at::Tensor> parameters, MuonOptions options)
    : Muon(std::vector<Group>{{std::move(parameters), options}}) {}

Muon::Muon(const std::vector<Group>& groups)
    : GroupOptimizer(groups, {"momentum_buffer"}, true, {"Muon", check}), state_(std::make_unique<State>()) {
  for (const Entry& entry : entries()) {
    check_is_matrix(entry);
    auto& own = state_->matrices.emplace_back();
    for (optim::Block& matrix : optim::matrices(entry.parameter.sizes())) {
      const std::size_t number = state_->exchange.add(entry.parameter, matrix.region, cost(matrix));
      own.push_back({number, std::move(matrix)});
    }
  }
  state_->exchange.assign();
}

Muon::~Muon() = default;

void Muon::update(const std::vector<Entry*>& active) {
  for (const Entry* entry : active) {  // before momenta change
    for (const Matrix& matrix : state_->of(*entry, entries())) state_->exchange.check_ranks(matrix.block);
  }
  std::vector<Entry*> moving;
  std::vector<BlockExchange::GatherRequest> wanted;
  for (const optim::Bucket& b : optim::make_buckets(active, false)) {
    const auto all = momenta(b, options(b.group));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (b.parameters[i].numel() == 0) continue;
      moving.push_back(b.entries[i]);
      const at::Tensor value = all[i].to(working_type(*b.entries[i], options(b.group)));
      for (const Matrix& matrix : state_->of(*b.entries[i], entries())) wanted.push_back({matrix.block, value});
    }
  }
  const auto gathered = state_->exchange.gather(wanted);
  auto next = gathered.begin();
  std::vector<BlockExchange::Result> results;
  std::vector<optim::Update> updates;
  for (const Entry* entry : moving) {
    const MuonOptions& o = options(entry->group);
    const at::Tensor target = optim::local_buffer(*entry, working_type(*entry, o));
    for (const Matrix& matrix : state_->of(*entry, entries())) {
      const at::Tensor& momentum = *next++;
      results.push_back({matrix.block, {}, target});
      if (state_->exchange.owned(matrix.block)) results.back().value = orthogonal(momentum, matrix.shape, o);
    }
    updates.push_back({entry->parameter, target, o.lr * o.weight_decay, -o.lr * scale(entry->parameter, o)});
  }
  state_->exchange.scatter(results);
  for (std::size_t i = 0; i < moving.size(); ++i) {
    updates[i].update = optim::placed(updates[i].update.to(moving[i]->dtype), *moving[i]);
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
