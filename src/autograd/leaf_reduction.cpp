// What waits belongs to the backward pass, not to a thread: its end callback owns it, so that nothing is left of a pass
// that throws.
#include "autograd/leaf_reduction.h"

#include <ATen/ATen.h>

#include <memory>
#include <optional>

#include "comm/reduce_policy.h"
#include "dtensor/events.h"
#include "dtensor/hooks.h"
#include "mesh/mesh_impl.h"
#include "redistribute/bucket.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

// That many bytes of gradients are reduced without waiting for more: what is in flight beside backward, and what is
// packed, stays bounded. Counted in global sizes, which every rank knows alike.
constexpr std::int64_t kEnough = std::int64_t{25} << 20;

struct Waiting {
  DTensor leaf, gradient;
  Placements wanted;
  std::shared_ptr<const RedistributePlan> plan = {};

  const TensorSpec& spec() const { return *dtensor_or_null(gradient)->spec(); }
  // Under a ReducePolicy: the unrounded shares.
  const at::Tensor& local() const {
    const auto* unrounded = dtensor_or_null(gradient)->unrounded();
    return unrounded == nullptr ? dtensor_or_null(gradient)->local() : *unrounded;
  }
};

struct Flight {
  std::vector<Waiting> list;
  Bucket bucket = {};

  void start() {
    const CollectivesOf of([this] { return leaves(); });
    for (auto& w : list) {
      w.plan = find_plan(w.spec(), w.wanted);
      bucket.add(*w.plan, w.spec(), w.local());
    }
    bucket.advance();
  }
  void land() {
    {
      const CollectivesOf of([this] { return leaves(); });
      bucket.finish();
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      const auto& w = list[k];
      const auto sum = bucket[k].to(w.spec().dtype);
      accumulate_gradient(w.leaf, DTensor(make_dtensor(with_placements(w.spec(), w.wanted), sum)));
    }
  }
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> locals;
    for (const auto& w : list) locals.push_back(dtensor_or_null(w.leaf)->local());
    return locals;
  }
};

class Pass {
 public:
  static Pass& current();
  void add(Waiting waiting);
  void finish();

 private:
  void flush();

  std::vector<Waiting> waiting_;
  std::int64_t bytes_ = 0;
  std::vector<std::unique_ptr<Flight>> flights_;
};

struct Open {
  int id;
  std::weak_ptr<Pass> pass;
};

Pass& Pass::current() {
  static thread_local std::vector<Open> open_passes;
  const int id = current_backward();
  std::erase_if(open_passes, [](const Open& open) { return open.pass.expired(); });
  for (const auto& open : open_passes) {
    if (open.id == id) return *open.pass.lock();
  }
  const auto pass = std::make_shared<Pass>();
  open_passes.push_back({id, pass});
  at_backward_end([pass] { pass->finish(); });
  return *pass;
}

void Pass::add(Waiting waiting) {
  const auto same = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) {
    return w.leaf.is_same(waiting.leaf) && w.gradient.placements() == waiting.gradient.placements();
  });
  if (same != waiting_.end()) {  // of a segment that is recomputed
    same->gradient = DTensor(same->gradient + waiting.gradient);
    return;
  }
  bytes_ += waiting.gradient.numel() * static_cast<std::int64_t>(waiting.gradient.element_size());
  waiting_.push_back(std::move(waiting));
  if (bytes_ >= kEnough) flush();
}

void Pass::flush() {
  bytes_ = 0;
  if (waiting_.empty()) return;
  auto flight = std::make_unique<Flight>(Flight{std::exchange(waiting_, {})});
  flight->start();
  flight->bucket.in_background() ? flights_.push_back(std::move(flight)) : flight->land();
}

void Pass::finish() {
  const at::NoGradGuard no_grad;
  flush();
  for (const auto& flight : std::exchange(flights_, {})) flight->land();
}

bool is_sum(const TensorSpec& spec, const Placements& wanted, std::size_t axis) {
  return spec.placements[axis].is_partial() && wanted[axis].is_replicate() && spec.mesh->layout.shape[axis] > 1;
}

// The placements in which `gradient` may wait: sums of one kind stay sums on the axes where the leaf is whole.
std::optional<Placements> waiting_placements(const DTensor& gradient, const Placements& wanted) {
  const auto& spec = *dtensor_or_null(gradient)->spec();
  const bool unrounded = dtensor_or_null(gradient)->unrounded() != nullptr;
  if (!spec.mesh->is_member || c10::isFloat8Type(spec.dtype)) return std::nullopt;
  if (carried_type(spec.dtype) != at::ScalarType::Undefined && !unrounded) return std::nullopt;  // the plan knows how
  Placements waits = wanted;
  const Placement* sum = nullptr;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!is_sum(spec, wanted, i)) continue;
    if (sum == nullptr) sum = &spec.placements[i];
    if (spec.placements[i] == *sum) waits[i] = *sum;
  }
  // Shares that are not rounded yet are moved once: here, or all the way.
  if (sum == nullptr || (unrounded && waits != spec.placements)) return std::nullopt;
  return waits;
}

}  // namespace

bool reduce_at_end(const DTensor& leaf, const DTensor& gradient, const Placements& wanted) {
  if (at::GradMode::is_enabled()) return false;  // the reduction is part of the gradient's own graph
  const auto waits = waiting_placements(gradient, wanted);
  if (waits) Pass::current().add({leaf, gradient.redistribute(*waits), wanted});
  return waits.has_value();
}

}  // namespace dtensor
