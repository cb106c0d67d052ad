// The pipeline of a leaf's gradient in a backward pass:
//   collect     the sum of what the operators computed arrives at the last of the leaf's gradient hooks
//   join        what earlier passes without synchronization left in .grad is added
//   reduce      to the leaf's placements: by the leaf's ReduceStage (fully_shard), packed with other leaves
//               (deferred_reduction.h), or at once
//   accumulate  into .grad
//   notify      gradient-ready and post-accumulate-grad hooks run
#include "autograd/gradients/leaf_gradient.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include "autograd/conversion_nodes.h"
#include "autograd/gradients/deferred_reduction.h"
#include "dtensor/events.h"
#include "internal/aten_scopes.h"
#include "internal/bit_identical.h"
#include "internal/dispatch_modes.h"
#include "internal/host_work.h"
#include "internal/memory_kind.h"
#include "internal/microbatch_sums.h"
#include "internal/ranks/named_calls.h"
#include "internal/simulated.h"
#include "placement/stride_order.h"

namespace dtensor {
namespace {

DTensor handle_of(DTensorImpl& impl) {
  return DTensor(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&impl)));
}

// Whether autograd::grad captures the leaf's gradient, which must then be reduced when the hook returns.
bool is_captured(const at::Tensor& leaf) {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  if (info == nullptr || info->empty()) return false;
  const auto found = info->find(torch::autograd::impl::grad_accumulator(leaf).get());
  return found != info->end() && found->second.captures_ != nullptr;
}

// Some second-order gradients are regular tensors, equal on every rank.
DTensor as_dtensor_of(const DTensor& leaf, const at::Tensor& grad) {
  if (is_dtensor(grad)) return DTensor(grad);
  const Placements replicated(leaf.placements().size());
  return DTensor(wrap_local(grad, infer_spec(grad, impl_of(leaf.mesh()), replicated, grad.sizes(), grad.strides())));
}

// Moves the gradient of a parameter in host memory to the host.
DTensor move_to_leaf(const DTensor& gradient, const DTensor& leaf) {
  const auto& home = dtensor_or_null(leaf)->spec()->mesh;
  if (home->compute_mesh() == nullptr || gradient.mesh() == leaf.mesh()) return gradient;
  TORCH_CHECK(!at::GradMode::is_enabled(), "create_graph is not supported for a parameter in host memory (",
              leaf.spec_str(), "), because the copy of its gradient to the host is not part of the graph");
  const auto& spec = *dtensor_or_null(gradient)->spec();
  const auto local = copy_to_host(dtensor_or_null(gradient)->local());
  return DTensor(make_dtensor(intern_spec(home, spec.placements, spec.sizes, spec.strides, spec.dtype), local));
}

// Takes the gradient that NoGradientSync left unreduced, to reduce it together with the new one.
UnsynchronizedGradient take_unreduced(const DTensor& leaf, const Placements& wanted) {
  const auto& sum = leaf.grad();
  if (!is_dtensor(sum) || (DTensor(sum).placements() == wanted && DTensor(sum).mesh() == leaf.mesh())) return {};
  return UnsynchronizedGradient(leaf);
}

// Whether no other tensor refers to the memory of a gradient that autograd passes once.
bool is_sole(const at::Tensor& given) {
  const auto* impl = dtensor_or_null(given);
  return impl != nullptr && impl->local().defined() && owns_memory_alone(given, 1, impl->local(), 1);
}

// The gradient in its own memory, with the leaf's strides if those are dense, as autograd guarantees for .grad. `sole`:
// no other tensor shares the memory of `given`. Ranks may differ in whether memory is shared (an empty local tensor may
// have its own). This therefore changes neither strides nor the tensor's identity in the comparison of calls
// (count_origin).
DTensor owned(const DTensor& gradient, const DTensor& leaf, const at::Tensor& given, bool sole) {
  if (gradient.requires_grad()) return DTensor(gradient.clone()).redistribute(gradient.placements());
  auto* impl = dtensor_or_null(gradient);
  const auto& spec = *impl->spec();
  const auto& local = impl->local();
  if (!local.defined()) return gradient;
  const bool shared = !sole && (!is_dtensor(given) || shares_storage(local, dtensor_or_null(given)->local()));
  const auto strides = leaf.is_non_overlapping_and_dense() ? leaf.strides().vec()
                                                           : at::infer_dense_strides(gradient.sizes(), spec.strides);
  if (!shared && gradient.strides() == strides) {
    impl->count_origin();
    return gradient;
  }
  const LocalBelowAutogradGuard regular;
  const auto copy = at::empty_strided(local.sizes(), at::infer_dense_strides(local.sizes(), strides), local.options());
  return DTensor(
      make_dtensor(intern_spec(spec.mesh, spec.placements, spec.sizes, strides, spec.dtype), copy.copy_(local)));
}

// Wraps the post-accumulate-grad hooks of a leaf (Python's). LeafGradientPipeline accumulates itself and runs them
// afterwards. Autograd, which gets no gradient to accumulate, would call them too, perhaps too early.
class AfterAccumulation final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterAccumulation(std::unique_ptr<PostAccumulateGradHook> hook) : hook_(std::move(hook)) {}
  void operator()(const at::Tensor&) override {}
  void run(const at::Tensor& leaf) { (*hook_)(leaf); }

 private:
  std::unique_ptr<PostAccumulateGradHook> hook_;
};

AfterAccumulation* hook_after_accumulation(const at::Tensor& leaf) {
  auto& hook = torch::autograd::impl::post_acc_grad_hooks(leaf);
  if (hook == nullptr) return nullptr;
  if (auto* ours = dynamic_cast<AfterAccumulation*>(hook.get())) return ours;
  auto ours = std::make_unique<AfterAccumulation>(std::move(hook));
  auto* result = ours.get();
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(ours));
  return result;
}

// The last of a leaf's gradient hooks. It accumulates the gradient itself (immediately, at the end of the pass, or when
// a schedule does), and leaves nothing for autograd to accumulate.
class LeafGradientPipeline final : public torch::autograd::FunctionPreHook {
 public:
  explicit LeafGradientPipeline(DTensorImpl& leaf) : leaf_(leaf) { leaf_.has_gradient_pipeline = true; }
  ~LeafGradientPipeline() override { leaf_.has_gradient_pipeline = false; }

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    const auto& given = grads.at(0);
    if (!given.defined()) return {given};
    const DisableDispatchModesGuard hidden;
    const Collected collected{handle_of(leaf_), given, is_sole(given)};
    const CollectiveTag tag([this] { return std::vector<at::Tensor>{leaf_.local()}; });
    hook_after_accumulation(collected.leaf);
    const auto gradient = as_dtensor_of(collected.leaf, given);
    if (is_bit_identical()) microbatches_.add(collected.leaf.grad().defined());
    if (is_captured(collected.leaf)) return {reduce_immediately(collected, gradient)};
    const auto* hooks = find_hooks(leaf_);
    if (NoGradientSync::current() || (hooks != nullptr && !hooks->syncs)) {
      accumulate_without_sync(collected, gradient);
    } else if (hooks == nullptr || !hooks->reduce || !hooks->reduce(collected.leaf, gradient)) {
      join_and_reduce(collected, gradient);
    }
    return {at::Tensor()};
  }

 private:
  struct Collected {
    DTensor leaf;
    const at::Tensor& given;
    bool sole;  // no other handle sees the memory of `given`
    DTensor owned(const DTensor& gradient) const { return dtensor::owned(gradient, leaf, given, sole); }
  };

  NamedCallScope::Name name_of_reduction() const {
    const auto* hooks = find_hooks(leaf_);
    return hooks == nullptr || hooks->reduction.empty() ? nullptr : NamedCallScope::name(hooks->reduction);
  }

  // A sum that was reduced before stays reduced, so it may reduce what is added.
  void accumulate_without_sync(const Collected& collected, const DTensor& gradient) const {
    const auto& sum = collected.leaf.grad();
    const bool converts = is_dtensor(sum) && DTensor(sum).placements() != gradient.placements();
    const NamedCallScope named(converts ? name_of_reduction() : nullptr);
    accumulate_gradient(collected.leaf, collected.owned(gradient));
  }

  Placements wanted() const { return replicate_partials(leaf_.spec()->placements); }

  DTensor reduce_immediately(const Collected& collected, const DTensor& gradient) const {
    const NamedCallScope named(name_of_reduction());
    return move_to_leaf(redistribute_gradient(gradient, wanted()), collected.leaf);
  }

  void join_and_reduce(const Collected& collected, const DTensor& gradient) const {
    auto earlier = take_unreduced(collected.leaf, wanted());
    const DTensor joined = earlier.sum().defined() ? DTensor(earlier.sum() + gradient) : gradient;
    if (const auto waits = deferred_placements(collected.leaf, joined, wanted())) {
      const auto own = collected.owned(joined.redistribute(*waits));
      return defer_reduction({collected.leaf, dtensor_or_null(own)->local(), *waits, std::move(earlier)});
    }
    const auto reduced = collected.owned(reduce_immediately(collected, joined));
    earlier.done();
    accumulate_gradient(collected.leaf, reduced);
  }

  DTensorImpl& leaf_;
  MicrobatchSums microbatches_;  // outlives its autograd metadata, which owns this
};

// The spec of a gradient in these placements, with the leaf's strides if those are dense, as autograd guarantees for
// .grad.
SpecPtr gradient_spec(const TensorSpec& leaf, const Placements& placements) {
  if (has_dense_order(leaf)) return with_placements(leaf, placements);
  return intern_spec(leaf.mesh, placements, leaf.sizes, at::infer_dense_strides(leaf.sizes, leaf.strides), leaf.dtype);
}

}  // namespace

// Installs the pipeline after the user's hooks. The first register_hook in C++ drops all other hooks, so it is called
// here, and hooks of other languages are restored.
void install_gradient_pipeline_slow(DTensorImpl& impl) {
  auto* meta = static_cast<torch::autograd::AutogradMeta*>(impl.autograd_meta());
  const at::Tensor tensor = handle_of(impl);
  if (meta->cpp_hooks_list_ == nullptr) {
    auto there = std::move(meta->hooks_);
    tensor.register_hook([](const at::Tensor&) {});
    meta->hooks_.insert(meta->hooks_.begin(), std::make_move_iterator(there.begin()),
                        std::make_move_iterator(there.end()));
  }
  meta->hooks_.push_back(std::make_unique<LeafGradientPipeline>(impl));
  set_memory_kind(impl.local(), MemoryKind::parameter);
}

TensorHooks& make_hooks(const DTensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  TORCH_CHECK(impl != nullptr, "expected a DTensor to install a hook on, got an undefined tensor");
  auto& extras = impl->make_extras();
  if (!extras.hooks) extras.hooks = extras.source.hooks = std::make_shared<TensorHooks>(tensor.getIntrusivePtr());
  return *extras.hooks;
}

const ParameterSpecs& TensorHooks::specs(const DTensorImpl& parameter) {
  const auto& stored = parameter.spec();
  if (specs_.stored != stored) {
    specs_ = {stored, with_placements(*stored, gathered_placements(stored->placements)),
              gradient_spec(*stored, replicate_partials(stored->placements))};
  }
  return specs_;
}

void set_gradient_ready_hook(const DTensor& parameter, std::function<void(const DTensor& parameter)> hook) {
  make_hooks(parameter).gradient = std::move(hook);
}
void set_reduce_stage(const DTensor& parameter, ReduceStage hook, std::string name) {
  auto& hooks = make_hooks(parameter);
  hooks.reduce = std::move(hook);
  hooks.reduction = std::move(name);
}
void leave_gradient_to_accumulator(const DTensor& leaf) { dtensor_or_null(leaf)->has_gradient_pipeline = true; }

void watch_gradient(const DTensor& leaf) { install_gradient_pipeline(*dtensor_or_null(leaf)); }
void set_gradient_sync(const DTensor& parameter, bool on) { make_hooks(parameter).syncs = on; }

Placements gradient_placements(const DTensor& parameter) {
  return replicate_partials(checked_impl(parameter).spec()->placements);
}

static void notify(const DTensor& parameter) {
  const auto* hooks = find_hooks(*dtensor_or_null(parameter));
  if (hooks != nullptr && hooks->gradient) hooks->gradient(parameter);
  if (auto* after = hook_after_accumulation(parameter)) after->run(parameter);
}

bool owns_memory_alone(const at::Tensor& gradient, std::size_t handles, const at::Tensor& local,
                       std::size_t local_handles) {
  const bool view = gradient.is_view();
  return gradient.use_count() == handles && !(view && gradient._base().use_count() > 1) &&
         local.use_count() == local_handles && local.storage().use_count() <= (view ? 2u : 1u);
}

namespace {

// A sum of gradients is reduced over the axes on which one of them is.
Placements placements_of_sum(const at::Tensor& sum, const DTensor& gradient) {
  Placements placements = gradient.placements();
  if (!is_dtensor(sum) || DTensor(sum).mesh() != gradient.mesh()) return placements;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_partial()) placements[axis] = DTensor(sum).placements()[axis];
  }
  return placements;
}

}  // namespace

void accumulate_gradient(const DTensor& parameter, const DTensor& gradient) {
  auto& sum = parameter.mutable_grad();
  if (!sum.defined()) {
    // As in autograd's own accumulation: zero_grad could not detach a view in place, so a view is replaced.
    sum = gradient.is_view() && !gradient.requires_grad() ? gradient.variable_data() : at::Tensor(gradient);
  } else if (gradient.requires_grad()) {  // create_graph
    sum = DTensor(sum + gradient).redistribute(placements_of_sum(sum, gradient));
  } else {
    const at::NoGradGuard no_grad;
    sum.add_(gradient);
  }
  if (const auto* impl = dtensor_or_null(sum)) set_memory_kind(impl->local(), MemoryKind::gradient);
  notify(parameter);
}

void accumulate_gradient(const DTensor& parameter, at::Tensor local, const Placements& placements) {
  const auto& impl = checked_impl(parameter);
  auto spec = find_hooks(impl) == nullptr ? nullptr : impl.extras()->hooks->specs(impl).reduced;
  if (spec == nullptr || spec->placements != placements) spec = gradient_spec(*impl.spec(), placements);
  TORCH_CHECK(local.sizes().equals(spec->local_sizes) && local.scalar_type() == spec->dtype,
              "accumulate_gradient: expected a local gradient of sizes [", c10::Join(", ", spec->local_sizes), "] of ",
              spec->str(), ", got sizes ", local.sizes(), " and dtype ", local.scalar_type());
  accumulate_gradient(parameter, DTensor(make_dtensor(spec, to_stride_order(std::move(local), *spec))));
}

NoGradientSync::NoGradientSync() : scope_(open_scope(Flag{}, Recompute::unchanged)) {}
bool NoGradientSync::current() { return ScopedValue<Flag>::current() != nullptr; }

}  // namespace dtensor
