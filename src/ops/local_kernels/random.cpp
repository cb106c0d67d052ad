// Random operators. Values are functions of the global index, so they do not depend on the layout (random/fill.h). Each
// call advances the world's count of random operators by one; the operator kernel does so on ranks outside the mesh.
// Operators without such a form (multinomial, rrelu) run on replicated operands with a generator that has the same seed
// on every rank.
#include <ATen/CPUGeneratorImpl.h>

#include "internal/wrapper_subclass.h"
#include "ops/local_kernels/local_args.h"
#include "random/fill.h"
#include "random/state.h"

namespace dtensor {
namespace {

// The arguments of a fill. The target is a new tensor, or the operand of an in-place operator.
struct Fill {
  const LocalArgs& args;
  at::Tensor target;
  GlobalRegion region;
  RandomKey key;

  double number(std::string_view name, double absent = 0) const {
    return args.has(name) ? args.value(name).toScalar().toDouble() : absent;
  }
  // The argument as a tensor, if it is one.
  at::Tensor tensor(std::string_view name) const {
    return args.has(name) && args.value(name).isTensor() ? args.tensor(name) : at::Tensor();
  }
};

void uniform(const Fill& f) { fill_uniform(f.target, f.region, f.key, f.number("from"), f.number("to", 1)); }

void check_std(const at::Tensor& std) {
  TORCH_CHECK(!std.is_cpu() || std.numel() == 0 || std.min().item<double>() >= 0,
              "normal expects all elements of std >= 0, got ", std.min().item<double>());
}

void normal(const Fill& f) {
  const auto mean = f.tensor("mean");
  const auto std = f.tensor("std");
  if (!mean.defined() && !std.defined()) {
    return fill_normal(f.target, f.region, f.key, f.number("mean"), f.number("std", 1));
  }
  fill_normal(f.target, f.region, f.key);
  if (std.defined()) check_std(std);
  std.defined() ? f.target.mul_(std) : f.target.mul_(f.number("std", 1));
  mean.defined() ? f.target.add_(mean) : f.target.add_(f.number("mean"));
}

// bernoulli(self): the operand holds the probabilities. With `p` it only defines the shape.
void bernoulli(const Fill& f) {
  const auto p = f.args.has("p") ? f.tensor("p") : f.tensor("self");
  if (p.defined()) {
    TORCH_CHECK(!p.is_cpu() || p.numel() == 0 || (p.min().item<double>() >= 0 && p.max().item<double>() <= 1),
                "bernoulli expects p in [0, 1]");
    return fill_bernoulli(f.target, f.region, f.key, p);
  }
  fill_bernoulli(f.target, f.region, f.key, f.number("p", 0.5));
}

void integers(const Fill& f) {
  const auto bound = [&](std::string_view name) -> std::optional<std::int64_t> {
    if (!f.args.has(name) || f.args.value(name).isNone()) return std::nullopt;
    const auto& value = f.args.value(name);
    return value.isTensor() ? value.toTensor().item<std::int64_t>() : value.toInt();
  };
  const auto low = f.args.has("from") ? bound("from") : bound("low");
  const auto high = f.args.has("to") ? bound("to") : bound("high");
  if (!low && !high) return fill_integers(f.target, f.region, f.key);
  fill_integers(f.target, f.region, f.key, low.value_or(0), high);
}

void exponential(const Fill& f) { fill_exponential(f.target, f.region, f.key, f.number("lambd", 1)); }
void geometric(const Fill& f) { fill_geometric(f.target, f.region, f.key, f.number("p")); }
void cauchy(const Fill& f) { fill_cauchy(f.target, f.region, f.key, f.number("median"), f.number("sigma", 1)); }
void log_normal(const Fill& f) { fill_log_normal(f.target, f.region, f.key, f.number("mean", 1), f.number("std", 2)); }

bool is_inplace(const LocalCall& call) { return call.info.inplace; }

at::Tensor fresh(const LocalCall& call, const TensorSpec& spec) {
  return at::empty(spec.local_sizes, at::TensorOptions(spec.dtype).device(at::Device(call.mesh.device)));
}

template <void (*fill)(const Fill&)>
void random_fill(LocalCall& call) {
  const LocalArgs args(call);
  const auto& spec = *call.outputs[0];
  const auto key = next_random_key(call.mesh);
  const auto target = is_inplace(call) ? args.tensor("self") : fresh(call, spec);
  const bool wraps = is_wrapper_subclass(target);
  const auto memory = wraps ? fresh(call, spec) : target;
  fill({args, memory, region_of(spec), key});
  if (wraps) target.copy_(memory);
  set_results(call, {target});
}

void dropout_global(LocalCall& call) {
  const LocalArgs args(call);
  const auto key = next_random_key(call.mesh);
  const auto input = args.tensor("input");
  const auto keep = 1 - args.value("p").toDouble();
  TORCH_CHECK(keep >= 0 && keep <= 1, "dropout expects p in [0, 1], got ", 1 - keep);
  const bool train = args.value("train").isNone() || args.value("train").toBool();
  auto mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (train) {
    fill_bernoulli(mask, region_of(*call.outputs[0]), key, keep);
  } else {
    mask.fill_(true);
  }
  auto output = train ? input.mul(mask).mul_(keep == 0 ? 0 : 1 / keep) : input.clone();
  set_results(call, {std::move(output), std::move(mask)});
}

at::Generator generator_on(c10::DeviceType device, std::uint64_t seed) {
  if (device == at::kCPU) return at::detail::createCPUGenerator(seed);
  auto generator = at::globalContext().getAcceleratorHooksInterface(device).getNewGenerator();
  generator.set_current_seed(seed);
  return generator;
}

// Runs the ATen operator on replicated operands with a new generator of equal seed on all ranks. The values depend on
// the device type, not on the mesh.
void random_replicated(LocalCall& call) {
  const LocalArgs args(call);
  const auto key = next_random_key(call.mesh);
  TORCH_CHECK(args.has("generator"), call.info.name(),
              ": expected a random operator with a generator argument; this one draws from the device's default "
              "generator, whose state differs between ranks");
  const auto seed = philox::word64(philox::block(key, 0), 0);
  torch::jit::peek(call.stack, call.info.generator_arg, call.info.args.size()) = generator_on(call.mesh.device, seed);
  call.info.op.callBoxed(call.stack);
}

}  // namespace

void add_random_kernels(LocalKernels& kernels) {
  kernels.emplace("fill_uniform", random_fill<uniform>);
  kernels.emplace("fill_normal", random_fill<normal>);
  kernels.emplace("fill_bernoulli", random_fill<bernoulli>);
  kernels.emplace("fill_integers", random_fill<integers>);
  kernels.emplace("fill_exponential", random_fill<exponential>);
  kernels.emplace("fill_geometric", random_fill<geometric>);
  kernels.emplace("fill_cauchy", random_fill<cauchy>);
  kernels.emplace("fill_log_normal", random_fill<log_normal>);
  kernels.emplace("dropout_global", dropout_global);
  kernels.emplace("random_replicated", random_replicated);
}

}  // namespace dtensor
