// Deferred gradients belong to the backward pass, not to a thread: its end callback owns them, so they are freed if the
// pass throws.
#include "autograd/gradients/deferred_reduction.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>

#include "dtensor/events.h"
#include "internal/dispatch_modes.h"
#include "internal/wrapper_subclass.h"
#include "redistribute/execute.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

// After this many bytes, gradients are reduced immediately, which bounds the packed and the in-flight memory. Bytes
// are counted in global sizes and per mesh, because all ranks of a mesh know these. Gradients on other meshes, which
// other ranks may not have, must not affect the count.
constexpr std::int64_t kMaxDeferredBytes = std::int64_t{25} << 20;

// Starts the sums of gradients that are Partial where their leaves are replicated.
void start_sums(GradientReduction& reduction) {
  const CollectiveTag tag([&] {
    std::vector<at::Tensor> locals;
    for (const auto& g : reduction.gradients) locals.push_back(dtensor_or_null(g.leaf)->local());
    return locals;
  });
  for (auto& gradient : reduction.gradients) {
    std::vector<std::int64_t> axes;
    for (std::size_t axis = 0; axis < gradient.placements.size(); ++axis) {
      if (gradient.placements[axis].is_partial()) axes.push_back(static_cast<std::int64_t>(axis));
    }
    reduction.add_sum(gradient, axes, gradient.leaf.mesh().communicator(axes), gradient.local.scalar_type());
  }
  reduction.start_sums();
}

class PassReductions {
 public:
  static PassReductions& current();
  void add(UnreducedGradient pending);
  void finish();

 private:
  std::int64_t& bytes_on(const DeviceMesh& mesh);
  std::vector<UnreducedGradient> take(const DeviceMesh& mesh);
  void reduce(std::vector<UnreducedGradient> list);

  std::vector<UnreducedGradient> pending_;
  std::vector<std::pair<DeviceMesh, std::int64_t>> bytes_;  // deferred, by mesh
  std::vector<std::unique_ptr<GradientReduction>> in_flight_;
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

void PassReductions::add(UnreducedGradient pending) {
  const auto same = std::find_if(pending_.begin(), pending_.end(), [&](const UnreducedGradient& g) {
    return g.leaf.is_same(pending.leaf) && g.placements == pending.placements;
  });
  if (same != pending_.end()) {  // from a recomputed segment
    same->local.add_(pending.local);
    if (pending.earlier.sum().defined()) same->earlier = std::move(pending.earlier);
    return;
  }
  const DeviceMesh mesh = pending.leaf.mesh();
  auto& bytes = bytes_on(mesh);
  bytes += pending.leaf.numel() * static_cast<std::int64_t>(pending.local.element_size());
  pending_.push_back(std::move(pending));
  if (bytes < kMaxDeferredBytes) return;
  bytes = 0;
  reduce(take(mesh));
}

std::int64_t& PassReductions::bytes_on(const DeviceMesh& mesh) {
  const auto known = std::find_if(bytes_.begin(), bytes_.end(), [&](const auto& b) { return b.first == mesh; });
  return (known == bytes_.end() ? bytes_.emplace_back(mesh, 0) : *known).second;
}

std::vector<UnreducedGradient> PassReductions::take(const DeviceMesh& mesh) {
  const auto mine = std::stable_partition(pending_.begin(), pending_.end(),
                                          [&](const UnreducedGradient& g) { return !(g.leaf.mesh() == mesh); });
  std::vector<UnreducedGradient> list(std::make_move_iterator(mine), std::make_move_iterator(pending_.end()));
  pending_.erase(mine, pending_.end());
  return list;
}

void PassReductions::reduce(std::vector<UnreducedGradient> list) {
  if (list.empty()) return;
  auto reduction = std::make_unique<GradientReduction>(GradientReduction{std::move(list)});
  start_sums(*reduction);
  if (!reduction->in_background()) return reduction->finish();
  for (auto& gradient : reduction->gradients) gradient.earlier.done();  // frees its memory before backward ends
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

}  // namespace

std::optional<Placements> deferred_placements(const DTensor& leaf, const DTensor& gradient, const Placements& wanted) {
  if (at::GradMode::is_enabled()) return std::nullopt;  // the reduction is part of the gradient's own graph
  const auto& spec = *dtensor_or_null(gradient)->spec();
  const bool on_host = dtensor_or_null(leaf)->spec()->mesh->compute_mesh() != nullptr;
  if (on_host || !spec.mesh->is_member || c10::isFloat8Type(spec.dtype)) return std::nullopt;
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

void defer_reduction(UnreducedGradient gradient) {
  check_is_no_wrapper(gradient.local, "redistribute");
  gradient.local = resolve_conj_and_neg(gradient.local);
  PassReductions::current().add(std::move(gradient));
}

}  // namespace dtensor
