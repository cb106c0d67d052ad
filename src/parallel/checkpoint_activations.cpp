// One autograd node a segment: forward runs without grad mode, backward runs the segment again with it, differentiates
// that, and hands the inputs' gradients on. Captured parameters accumulate in the inner pass, by their own hooks.
#include "dtensor/checkpoint_activations.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "dtensor/debug.h"
#include "dtensor/hooks.h"
#include "dtensor/kept_results.h"
#include "dtensor/parallelize.h"
#include "dtensor/random.h"
#include "dtensor/tensor.h"

namespace dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Autocast is a setting of the thread.
struct Autocast {
  bool on[2];
  at::ScalarType dtype[2];
  static constexpr c10::DeviceType kDevices[2] = {at::kCPU, at::kCUDA};

  static Autocast now() {
    Autocast a{};
    for (int i = 0; i < 2; ++i) {
      a.on[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      a.dtype[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
    return a;
  }
  void set() const {
    for (int i = 0; i < 2; ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], on[i]);
      at::autocast::set_autocast_dtype(kDevices[i], dtype[i]);
    }
  }
};

struct Call {
  CheckpointedFunction fn;
  std::string module;  // path of the ModuleScopes around it
  ParallelModel plan = ParallelModel::in_force();
  Autocast autocast = Autocast::now();
  DeviceMesh mesh;  // whose random numbers fn may draw; none: no DTensor among the inputs
  RngState random;
  KeptResults kept;
};

struct Holder : torch::CustomClassHolder {
  explicit Holder(std::shared_ptr<Call> c) : call(std::move(c)) {}
  std::shared_ptr<Call> call;
};

// The surroundings of the first run, while it lives.
class AsBefore {
 public:
  explicit AsBefore(Call& call)
      : call_(call), autocast_(Autocast::now()), module_(call.module), plan_(call.plan), kept_(call.kept) {
    call.autocast.set();
    if (!call.mesh) return;
    random_ = get_rng_state(call.mesh);
    set_rng_state(call.mesh, call.random);
  }
  ~AsBefore() {
    autocast_.set();
    if (random_) set_rng_state(call_.mesh, *random_);
  }
  AsBefore(const AsBefore&) = delete;
  AsBefore& operator=(const AsBefore&) = delete;

 private:
  Call& call_;
  Autocast autocast_;
  ModuleScope module_;
  ParallelModel::Scope plan_;
  KeptResults::Replay kept_;
  std::optional<RngState> random_;
};

variable_list detached(const variable_list& saved) {
  variable_list inputs;
  for (const at::Tensor& t : saved) {
    inputs.push_back(t.defined() ? t.detach() : t);
    if (t.defined() && t.requires_grad()) inputs.back().requires_grad_();
  }
  return inputs;
}

// Differentiates what the second run gave, as far as the first run's results were used.
void run_backward(const variable_list& outputs, const variable_list& grads) {
  variable_list roots, root_grads;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad() || !grads[i].defined()) continue;
    roots.push_back(outputs[i]);
    root_grads.push_back(grads[i]);
  }
  const PartOfBackward part;
  if (!roots.empty()) torch::autograd::backward(roots, root_grads);
}

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* ctx, std::shared_ptr<Call> call, const at::Tensor& /*always*/,
                               at::TensorList inputs) {
    ctx->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(call));
    ctx->save_for_backward(inputs.vec());
    const KeptResults::Record record(call->kept);
    return call->fn(inputs.vec());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "checkpoint: no second derivative (create_graph)");
    Call& call = *static_cast<Holder*>(ctx->saved_data["call"].toCapsule().get())->call;
    const variable_list inputs = detached(ctx->get_saved_variables());
    variable_list outputs;
    {
      const AsBefore as_before(call);
      const at::AutoGradMode with_grad(true);
      outputs = call.fn(inputs);
    }
    TORCH_CHECK(outputs.size() == grads.size(), "checkpoint: the segment gave ", grads.size(),
                " tensors in forward and ", outputs.size(), " in backward");
    run_backward(outputs, grads);
    variable_list result(2);
    for (const at::Tensor& input : inputs) result.push_back(input.defined() ? input.grad() : at::Tensor());
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> checkpoint(const CheckpointedFunction& fn, const std::vector<at::Tensor>& inputs,
                                   const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return fn(inputs);
  auto call = std::make_shared<Call>();
  call->fn = fn;
  call->module = ModuleScope::path();
  call->kept = KeptResults(options.keep);
  for (const at::Tensor& t : inputs) {
    if (call->mesh || !is_dtensor(t)) continue;
    call->mesh = DTensor(t).mesh();
    call->random = get_rng_state(call->mesh);
  }
  // Results must require grad even where only captured parameters do.
  const at::Tensor always = at::empty({0}).requires_grad_();
  return Checkpoint::apply(call, always, at::TensorList(inputs));
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& fn, const at::Tensor& input,
                      const CheckpointOptions& options) {
  return checkpoint([fn](const std::vector<at::Tensor>& x) { return std::vector<at::Tensor>{fn(x[0])}; },
                    std::vector<at::Tensor>{input}, options)[0];
}

}  // namespace dtensor
