// A Shampoo step: elementwise averages on the shards, gradients to the owners of blocks, directions back to the shards.
#include "dtensor/optim/shampoo.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/simulated.h"
#include "optim/blocks/block_exchange.h"
#include "optim/blocks/matrix_functions.h"
#include "optim/blocks/updates.h"
#include "optim/option_checks.h"
#include "optim/parameter_lists.h"

namespace dtensor {
namespace {

using optim::BlockExchange;

// State that the owner of a block stores.
struct Preconditioner {
  std::size_t block;  // index in the exchange
  optim::Block shape;
  std::vector<at::Tensor> factors, roots;

  auto order() const { return static_cast<std::int64_t>(shape.shape.size()); }
};

double cost(const optim::Block& block) {
  double sum = 0, numel = 1;
  for (const auto d : block.shape) numel *= static_cast<double>(d);
  for (const auto d : block.shape)
    sum += static_cast<double>(d * d) * static_cast<double>(d) + numel * static_cast<double>(d);
  return sum;
}

// A parameter during a step, in the dtype of the state.
struct PendingMove {
  detail::SlotOptimizer::Entry* entry;
  at::Tensor gradient, average, graft;  // graft: undefined without grafting
  bool preconditioned;
};

void accumulate(Preconditioner& p, const at::Tensor& gradient, const ShampooOptions& o) {
  const double weight = o.beta2 == 1 ? 1 : 1 - o.beta2;
  for (std::int64_t k = 0; k < p.order(); ++k) {
    const auto at = static_cast<std::size_t>(k);
    if (p.factors.size() <= at)
      p.factors.push_back(at::zeros({p.shape.shape[at], p.shape.shape[at]}, gradient.options()));
    const at::Tensor rows = optim::unfold(gradient, k);
    p.factors[at].mul_(o.beta2).add_(rows.mm(rows.t()), weight);
  }
}

bool uses_roots(std::int64_t t, const ShampooOptions& o) {
  return t == o.start || (t > o.start && t % o.frequency == 0);
}

// Returns false if there are no roots because a gradient was not finite. Other ranks cannot detect it yet, so the error
// is raised later.
bool take_roots(Preconditioner& p, std::int64_t t, const ShampooOptions& o) {
  const double correction = o.beta2 == 1 ? 1 : 1 - std::pow(o.beta2, static_cast<double>(t));
  std::vector<at::Tensor> roots;
  for (const at::Tensor& factor : p.factors) {
    if (!item_or(factor.isfinite().all(), true)) return false;
    try {
      roots.push_back(optim::inverse_root(factor / correction, p.order(), o.eps));
    } catch (const c10::LinAlgError&) {
      return false;
    }
  }
  p.roots = std::move(roots);
  return true;
}

at::Tensor direction(const Preconditioner& p, const at::Tensor& average, const at::Tensor& graft_squares) {
  at::Tensor d = average;
  for (std::size_t k = 0; k < p.roots.size(); ++k) d = optim::apply_along(p.roots[k], d, static_cast<std::int64_t>(k));
  return graft_squares.defined() ? d * (graft_squares.sqrt() / (d.norm() + 1e-16)) : d;
}

// The elementwise part, for all parameters of a bucket at once.
void average(const optim::Bucket& b, const ShampooOptions& o, std::vector<PendingMove>& moving) {
  std::vector<at::Scalar> first, second;
  for (const detail::SlotOptimizer::Entry* entry : b.entries) {
    const auto t = static_cast<double>(entry->steps);
    first.emplace_back(1 - std::pow(o.beta1, t));
    second.emplace_back(1 - std::pow(o.graft_beta2, t));
  }
  std::vector<at::Tensor> averages = b.gradients, grafts(b.entries.size());
  if (o.beta1 != 0) {
    averages = b.slots(0);
    at::_foreach_mul_(averages, o.beta1);
    at::_foreach_add_(averages, b.gradients, 1 - o.beta1);
    averages = at::_foreach_div(averages, first);
  }
  if (o.grafting == Grafting::adam) {
    const auto squares = b.slots(1);
    at::_foreach_mul_(squares, o.graft_beta2);
    at::_foreach_addcmul_(squares, b.gradients, b.gradients, 1 - o.graft_beta2);
    auto roots = at::_foreach_div(squares, second);
    at::_foreach_sqrt_(roots);
    at::_foreach_add_(roots, o.graft_eps);
    grafts = at::_foreach_div(averages, roots);
  }
  for (std::size_t i = 0; i < b.entries.size(); ++i) {
    const bool preconditioned = o.grafting == Grafting::none || b.entries[i]->steps >= o.start;
    moving.push_back({b.entries[i], b.gradients[i], averages[i], grafts[i], preconditioned});
  }
}

}  // namespace

struct Shampoo::State {
  BlockExchange exchange;
  std::vector<std::vector<Preconditioner>> blocks;  // by entry

  std::vector<Preconditioner>& of(const detail::SlotOptimizer::Entry& entry,
                                  const std::vector<detail::SlotOptimizer::Entry>& entries) {
    auto& own = blocks[static_cast<std::size_t>(&entry - entries.data())];
    if (!own.empty()) exchange.check_ranks(own.front().block);
    return own;
  }
};

namespace {

void check(const ShampooOptions& o) {
  optim::check_decay("Shampoo", "beta1", o.beta1);
  if (o.beta2 != 1) optim::check_decay("Shampoo", "beta2", o.beta2);  // beta2 = 1 means a sum
  optim::check_decay("Shampoo", "graft_beta2", o.graft_beta2);
  optim::check_not_negative("Shampoo", "eps", o.eps);
  optim::check_not_negative("Shampoo", "graft_eps", o.graft_eps);
  optim::check_not_negative("Shampoo", "weight_decay", o.weight_decay);
  TORCH_CHECK_VALUE(o.start >= 1 && o.frequency >= 1 && o.block_size >= 1, "Shampoo: start ", o.start, ", frequency ",
                    o.frequency, " and block_size ", o.block_size, " must be at least 1");
}

// Called on all ranks of the parameter's mesh, after all communication of the step.
void check_roots(const std::vector<bool>& failed, const std::vector<const detail::SlotOptimizer::Entry*>& of) {
  const auto found = std::find(failed.begin(), failed.end(), true);
  if (found == failed.end()) return;
  const detail::SlotOptimizer::Entry& entry = *of[static_cast<std::size_t>(found - failed.begin())];
  TORCH_CHECK(false, "Shampoo: the second moments of parameter ", entry.name, " of sizes ", entry.parameter.sizes(),
              " have no inverse roots: its gradient was not finite in this or an earlier step. Its state is unusable; ",
              "resume from a checkpoint and skip such steps (GradScaler, or error_if_nonfinite of ",
              "clip_grad_norm_)");
}

}  // namespace

Shampoo::Shampoo(std::vector<at::Tensor> parameters, ShampooOptions options)
    : Shampoo(std::vector<Group>{{std::move(parameters), options}}) {}

Shampoo::Shampoo(const std::vector<Group>& groups)
    : GroupOptimizer(groups, {"exp_avg", "graft_exp_avg_sq"}, true, {"Shampoo", check}),
      state_(std::make_unique<State>()) {
  for (const Entry& entry : entries()) {
    const ShampooOptions& o = options(entry.group);
    auto& own = state_->blocks.emplace_back();
    for (optim::Block& block : optim::split_into_blocks(entry.parameter.sizes(), o.block_size, o.merge_to)) {
      const std::size_t number = state_->exchange.add(entry.parameter, block.region, cost(block));
      own.push_back({number, std::move(block), {}, {}});
    }
  }
  state_->exchange.assign();
}

Shampoo::~Shampoo() = default;

std::int64_t Shampoo::owned_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& blocks : state_->blocks) {
    for (const Preconditioner& p : blocks) {
      for (const at::Tensor& t : p.factors) bytes += static_cast<std::int64_t>(t.nbytes());
      for (const at::Tensor& t : p.roots) bytes += static_cast<std::int64_t>(t.nbytes());
    }
  }
  return bytes;
}

std::int64_t Shampoo::predicted_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < entries().size(); ++i) {
    const auto element = static_cast<std::int64_t>(c10::elementSize(entries()[i].dtype));
    for (const Preconditioner& p : state_->blocks[i]) {
      if (!state_->exchange.owned(p.block)) continue;
      for (const auto d : p.shape.shape) bytes += 2 * d * d * element;
    }
  }
  return bytes;
}

void Shampoo::update(const std::vector<Entry*>& active) {
  for (const Entry* entry : active) state_->of(*entry, entries());  // throws before averages change
  std::vector<PendingMove> moving;
  for (const optim::Bucket& b : optim::make_buckets(active, false)) average(b, options(b.group), moving);
  std::vector<BlockExchange::GatherRequest> wanted;
  for (const PendingMove& m : moving) {
    for (const Preconditioner& p : state_->of(*m.entry, entries())) {
      wanted.push_back({p.block, m.gradient});
      if (m.preconditioned) wanted.push_back({p.block, m.average});
      if (m.preconditioned && m.graft.defined()) wanted.push_back({p.block, m.graft, true});
    }
  }
  const std::vector<at::Tensor> gathered = state_->exchange.gather(wanted);
  auto next = gathered.begin();
  std::vector<BlockExchange::Result> results;
  std::vector<const Entry*> of;  // entry of each result
  std::vector<optim::Update> updates;
  for (const PendingMove& m : moving) {
    const ShampooOptions& o = options(m.entry->group);
    const at::Tensor buffer = m.preconditioned ? optim::local_buffer(*m.entry, m.entry->dtype) : at::Tensor();
    for (Preconditioner& p : state_->of(*m.entry, entries())) {
      const at::Tensor gradient = *next++, mean = m.preconditioned ? *next++ : at::Tensor();
      const at::Tensor squares = m.preconditioned && m.graft.defined() ? *next++ : at::Tensor();
      BlockExchange::Result result{p.block, {}, buffer, uses_roots(m.entry->steps, o)};
      if (state_->exchange.owned(p.block)) {
        accumulate(p, gradient.reshape(p.shape.shape), o);
        result.failed = result.may_fail && !take_roots(p, m.entry->steps, o);
        if (mean.defined())
          result.value = direction(p, mean.reshape(p.shape.shape), squares).reshape(p.shape.region.sizes());
      }
      if (m.preconditioned) results.push_back(std::move(result)), of.push_back(m.entry);
    }
    updates.push_back({m.entry->parameter, m.preconditioned ? buffer : m.graft, o.lr * o.weight_decay, -o.lr});
  }
  check_roots(state_->exchange.scatter(results), of);
  for (std::size_t i = 0; i < moving.size(); ++i) {
    if (moving[i].preconditioned) updates[i].update = optim::placed(updates[i].update, *moving[i].entry);
  }
  optim::apply(updates);
}

namespace {

// Shards a matrix that one rank owns evenly over all ranks of its parameter's mesh.
at::Tensor spread(const at::Tensor& owned, std::int64_t size, const detail::SlotOptimizer::Entry& entry) {
  if (!is_dtensor(entry.parameter)) return owned;
  const DeviceMesh mesh = DTensor(entry.parameter).mesh();
  const auto axes = static_cast<std::size_t>(mesh.ndim());
  const at::Tensor local =
      owned.defined() ? owned : at::zeros({size, size}, at::TensorOptions(entry.dtype).device(mesh.device_type()));
  return DTensor::from_local(local, mesh, Placements(axes, Partial()), {size, size})
      .redistribute(Placements(axes, Shard(0)));
}

// The load target of such a matrix, sharded in the same way.
at::Tensor spread_target(std::int64_t size, const detail::SlotOptimizer::Entry& entry) {
  if (!is_dtensor(entry.parameter)) {
    const LocalNoGradGuard scope;
    return at::zeros({size, size}, entry.parameter.options().dtype(entry.dtype));
  }
  const DeviceMesh mesh = DTensor(entry.parameter).mesh();
  return zeros({size, size}, mesh, Placements(static_cast<std::size_t>(mesh.ndim()), Shard(0)),
               at::TensorOptions(entry.dtype));
}

// The full matrix; undefined on ranks outside the mesh. Collective.
at::Tensor collect(const at::Tensor& spread) {
  if (!is_dtensor(spread)) return spread;
  return DTensor(spread).mesh().is_member() ? DTensor(spread).full_tensor() : at::Tensor();
}

// The owner's root: the identity before the first computation (`start` may have been lowered). Undefined on other
// ranks.
at::Tensor root_of(const Preconditioner& p, std::size_t dim, const at::Tensor& factor) {
  if (dim < p.roots.size()) return p.roots[dim];
  return factor.defined() ? at::eye(factor.size(0), factor.options()) : at::Tensor();
}

std::string name_of(const std::string& prefix, const char* what, std::size_t block, std::size_t dim) {
  return prefix + what + "." + std::to_string(block) + "." + std::to_string(dim);
}

}  // namespace

void Shampoo::save_extra_state(const Entry& entry, const std::string& prefix, OptimizerState& state) const {
  const auto& blocks = state_->of(entry, entries());
  for (std::size_t b = 0; b < blocks.size() && entry.steps > 0; ++b) {
    for (std::size_t k = 0; k < blocks[b].shape.shape.size(); ++k) {
      const std::int64_t size = blocks[b].shape.shape[k];
      const auto one = [&](const char* what, const at::Tensor& mine) {
        state.tensors.emplace_back(name_of(prefix, what, b, k), spread(mine, size, entry));
      };
      const auto& factors = blocks[b].factors;
      const at::Tensor factor = k < factors.size() ? factors[k] : at::Tensor();
      one("factor", factor);
      if (entry.steps >= options(entry.group).start) one("root", root_of(blocks[b], k, factor));
    }
  }
}

bool Shampoo::is_slot_required(const Entry& entry, std::size_t slot) const {
  const ShampooOptions& o = options(entry.group);
  return slot == 0 ? o.beta1 != 0 : o.grafting == Grafting::adam;
}

void Shampoo::extra_state_targets(Entry& entry, std::int64_t steps, const std::string& prefix, StateTensors& tensors,
                                  std::vector<std::function<void()>>& commits) {
  auto& blocks = state_->of(entry, entries());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::vector<at::Tensor> factors, roots;
    for (std::size_t k = 0; k < blocks[b].shape.shape.size() && steps > 0; ++k) {
      const auto one = [&](const char* what, std::vector<at::Tensor>& own) {
        own.push_back(spread_target(blocks[b].shape.shape[k], entry));
        tensors.emplace_back(name_of(prefix, what, b, k), own.back());
      };
      one("factor", factors);
      if (steps >= options(entry.group).start) one("root", roots);
    }
    commits.emplace_back([this, &block = blocks[b], factors, roots] {
      const LocalNoGradGuard scope;
      const auto take = [&](const std::vector<at::Tensor>& from, std::vector<at::Tensor>& to) {
        to.clear();
        for (const at::Tensor& target : from) {
          at::Tensor full = collect(target);
          if (state_->exchange.owned(block.block)) to.push_back(std::move(full));
        }
      };
      take(factors, block.factors);
      take(roots, block.roots);
    });
  }
}

}  // namespace dtensor
