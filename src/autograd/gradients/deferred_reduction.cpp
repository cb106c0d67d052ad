// Deferred gradients belong to the backward pass, not to a thread: its end callback owns them, so they are freed if the
// pass throws.
#include "autograd/gradients/deferred_reduction.h"

#include <ATen/ATen.h>

#include <memory>
#include <optional>

#include "dtensor/events.h"
#include "dtensor/hooks.h"
#include "internal/dispatch_modes.h"
#include "mesh/mesh_impl.h"
#include "placement/stride_order.h"
#include "redistribute/batched.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

// After this many bytes, gradients are reduced immediately, which bounds the packed and the in-flight memory. Bytes
// are counted in global sizes and per mesh, because all ranks of a mesh know these. Gradients on other meshes, which
// other ranks may not have, must not affect the count.
constexpr std::int64_t kMaxDeferredBytes = std::int64_t{25} << 20;

struct PendingGradient {
  DTensor leaf, gradient;
  Placements wanted;
  UnsynchronizedGradient earlier = {};  // part of the gradient
  std::shared_ptr<const RedistributePlan> plan = {};

  const TensorSpec& spec() const { return *dtensor_or_null(gradient)->spec(); }
  // Spec of the reduced gradient, with the leaf's strides if those are dense, as autograd guarantees for .grad.
  SpecPtr reduced() const {
    const auto strides = leaf.is_non_overlapping_and_dense() ? leaf.strides() : at::IntArrayRef(spec().strides);
    return intern_spec(spec().mesh, wanted, spec().sizes, strides, spec().dtype);
  }
  const at::Tensor& local() const { return dtensor_or_null(gradient)->local(); }
};

struct InFlightReduction {
  std::vector<PendingGradient> list;
  RedistributeBucket bucket = {};

  void start() {
    const CollectiveTag tag([this] { return leaves(); });
    for (auto& w : list) {
      w.plan = find_plan(w.spec(), w.wanted);
      bucket.add(*w.plan, w.spec(), w.local());
    }
    bucket.advance();
  }
  void finish() {
    {
      const CollectiveTag tag([this] { return leaves(); });
      bucket.finish();
    }
    for (std::size_t k = 0; k < list.size(); ++k) {
      auto& w = list[k];
      const auto spec = w.reduced();
      const auto sum = to_stride_order(bucket[k].to(spec->dtype), *spec);
      w.earlier.done();
      accumulate_gradient(w.leaf, DTensor(make_dtensor(spec, sum)));
    }
  }
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> locals;
    for (const auto& w : list) locals.push_back(dtensor_or_null(w.leaf)->local());
    return locals;
  }
};

class PassReductions {
 public:
  static PassReductions& current();
  void add(PendingGradient pending);
  void finish();

 private:
  std::int64_t& bytes_on(const DeviceMesh& mesh);
  std::vector<PendingGradient> take(const DeviceMesh& mesh);
  void reduce(std::vector<PendingGradient> list);

  std::vector<PendingGradient> pending_;
  std::vector<std::pair<DeviceMesh, std::int64_t>> bytes_;  // deferred, by mesh
  std::vector<std::unique_ptr<InFlightReduction>> in_flight_;
};

struct OpenPass {
  int id;
  std::weak_ptr<PassReductions> pass;
};

PassReductions& PassReductions::current() {
  static thread_local std::vector<OpenPass> open_passes;
  const int id = current_backward_id();
  std::erase_if(open_passes, [](const OpenPass& open) { return open.pass.expired(); });
  for (const auto& open : open_passes) {
    if (open.id == id) return *open.pass.lock();
  }
  const auto pass = std::make_shared<PassReductions>();
  open_passes.push_back({id, pass});
  queue_backward_callback([pass] { pass->finish(); });
  return *pass;
}

void PassReductions::add(PendingGradient pending) {
  const auto same = std::find_if(pending_.begin(), pending_.end(), [&](const PendingGradient& w) {
    return w.leaf.is_same(pending.leaf) && w.gradient.placements() == pending.gradient.placements();
  });
  if (same != pending_.end()) {  // from a recomputed segment
    same->gradient = DTensor(same->gradient + pending.gradient);
    if (pending.earlier.sum().defined()) same->earlier = std::move(pending.earlier);
    return;
  }
  const DeviceMesh mesh = pending.gradient.mesh();
  auto& bytes = bytes_on(mesh);
  bytes += pending.gradient.numel() * static_cast<std::int64_t>(pending.gradient.element_size());
  pending_.push_back(std::move(pending));
  if (bytes < kMaxDeferredBytes) return;
  bytes = 0;
  reduce(take(mesh));
}

std::int64_t& PassReductions::bytes_on(const DeviceMesh& mesh) {
  const auto known = std::find_if(bytes_.begin(), bytes_.end(), [&](const auto& b) { return b.first == mesh; });
  return (known == bytes_.end() ? bytes_.emplace_back(mesh, 0) : *known).second;
}

std::vector<PendingGradient> PassReductions::take(const DeviceMesh& mesh) {
  const auto mine = std::stable_partition(pending_.begin(), pending_.end(),
                                          [&](const PendingGradient& w) { return !(w.gradient.mesh() == mesh); });
  std::vector<PendingGradient> list(std::make_move_iterator(mine), std::make_move_iterator(pending_.end()));
  pending_.erase(mine, pending_.end());
  return list;
}

void PassReductions::reduce(std::vector<PendingGradient> list) {
  if (list.empty()) return;
  auto reduction = std::make_unique<InFlightReduction>(InFlightReduction{std::move(list)});
  reduction->start();
  if (!reduction->bucket.in_background()) return reduction->finish();
  for (auto& w : reduction->list) w.earlier.done();  // frees its memory before backward ends
  in_flight_.push_back(std::move(reduction));
}

void PassReductions::finish() {
  const DisableDispatchModesGuard hidden;
  const at::NoGradGuard no_grad;
  reduce(std::exchange(pending_, {}));
  for (const auto& reduction : std::exchange(in_flight_, {})) reduction->finish();
}

bool is_sum(const TensorSpec& spec, const Placements& wanted, std::size_t axis) {
  return spec.placements[axis].is_partial() && wanted[axis].is_replicate() && spec.mesh->layout.shape[axis] > 1;
}

// The placements in which `gradient` is deferred: Partial of one kind stays on the axes where the leaf is replicated.
std::optional<Placements> waiting_placements(const DTensor& gradient, const Placements& wanted) {
  const auto& spec = *dtensor_or_null(gradient)->spec();
  if (!spec.mesh->is_member || c10::isFloat8Type(spec.dtype)) return std::nullopt;
  Placements waits = wanted;
  const Placement* sum = nullptr;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!is_sum(spec, wanted, i)) continue;
    if (sum == nullptr) sum = &spec.placements[i];
    if (spec.placements[i] == *sum) waits[i] = *sum;
  }
  if (sum == nullptr) return std::nullopt;
  return waits;
}

}  // namespace

UnsynchronizedGradient::UnsynchronizedGradient(const DTensor& leaf)
    : leaf_(leaf), sum_(std::exchange(leaf.mutable_grad(), at::Tensor())) {}

UnsynchronizedGradient::~UnsynchronizedGradient() {
  if (sum_.defined() && !leaf_.grad().defined()) leaf_.mutable_grad() = std::move(sum_);
}

bool defer_reduction(const DTensor& leaf, const DTensor& gradient, const Placements& wanted,
                     UnsynchronizedGradient& earlier) {
  if (at::GradMode::is_enabled()) return false;  // the reduction is part of the gradient's own graph
  const auto waits = waiting_placements(gradient, wanted);
  if (waits) PassReductions::current().add({leaf, gradient.redistribute(*waits), wanted, std::move(earlier)});
  return waits.has_value();
}

}  // namespace dtensor
