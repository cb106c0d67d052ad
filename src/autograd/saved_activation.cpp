// Which tensors are saved by their source, and the gathered tensor that the nodes of one backward pass share.
#include "internal/saved_activation.h"

#include <ATen/core/grad_mode.h>

#include <mutex>

#include "dtensor/tensor.h"
#include "internal/dispatch_modes.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// Exists from the first node of a backward pass that unpacks the tensor until the tensor's gradient is complete, which
// is when all of them have run. A pass that needs no such gradient keeps it until these nodes are released. These
// events are the same on every rank, unlike the lifetime of the tensor of forward.
class Regathered {
 public:
  explicit Regathered(Placements placements) : placements_(std::move(placements)) {}

  at::Tensor of(const at::Tensor& source) {
    const DisableDispatchModesGuard hidden;
    if (at::GradMode::is_enabled()) return DTensor(source).redistribute(placements_);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!tensor_.defined()) tensor_ = DTensor(source).redistribute(placements_);
    return tensor_;
  }

  void drop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    tensor_.reset();
  }

 private:
  Placements placements_;
  std::mutex mutex_;
  at::Tensor tensor_;
};

namespace {

// Whether ranks only receive shards that they lack. A sum is not computed twice, and other moves save no memory.
bool is_all_gather(const TensorSpec& from, const TensorSpec& to) {
  const auto any = [](const Placement&, const Placement&) { return true; };
  const auto gathers = [](const Placement& a, const Placement& b) { return a.is_shard() && b.is_replicate(); };
  const auto moved = differing_axes(from, to, any);
  return moved != 0 && moved == differing_axes(from, to, gathers);
}

}  // namespace

at::Tensor gather_activation(const at::Tensor& x, const Placements& placements) {
  const at::Tensor result = DTensor(x).redistribute(placements);
  const DTensorImpl& from = *dtensor_or_null(x);
  DTensorImpl& to = *dtensor_or_null(result);
  if (!at::GradMode::is_enabled() || from.is_materialized_view() || !is_all_gather(*from.spec(), *to.spec()))
    return result;
  auto regathered = std::make_shared<Regathered>(placements);
  to.make_extras().gathered = {x, from.generation(), to.generation(), regathered};
  if (!result.requires_grad()) return result;
  // Weak: nodes that have run release it, also in a pass without this gradient (zero-bubble pipelines).
  result.register_hook([of_nodes = std::weak_ptr<Regathered>(regathered)](const at::Tensor&) {
    if (const auto shared = of_nodes.lock()) shared->drop();
  });
  return result;
}

SavedSource::SavedSource(const at::Tensor& tensor) : source_(tensor) {
  const auto* impl = dtensor_or_null(tensor);
  if (impl == nullptr || impl->extras() == nullptr) return;
  const GatheredActivation& gathered = impl->extras()->gathered;
  const bool valid = gathered.regathered && gathered.own == impl->generation() &&
                     gathered.generation == dtensor_or_null(gathered.source)->generation();
  if (valid) source_ = gathered.source, regathered_ = gathered.regathered;
}

at::Tensor SavedSource::unpack(const at::Tensor& saved) const { return regathered_ ? regathered_->of(saved) : saved; }

SavedActivation::SavedActivation(const at::Tensor& tensor) : of_(tensor) {
  saved_ = torch::autograd::SavedVariable(of_.source(), false);
  of_.reset();
}

at::Tensor SavedActivation::unpack() const { return of_.unpack(saved_.unpack()); }

void SavedActivation::reset() {
  saved_.reset_data();
  of_ = {};
}

}  // namespace dtensor
