// Distributes the tensors, calls the operator, gathers the results and compares them. Partial inputs are t * {2, -1, 1,
// -1}.
#include "aten_cases/run_case.h"

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>

namespace dtensor::cases {
namespace {

Placement shard_or_replicate(std::int64_t ndim, std::int64_t dim) { return ndim == 0 ? Replicate() : Shard(dim); }

Placements replicate(std::int64_t, bool) { return {Replicate()}; }
Placements first_dim(std::int64_t ndim, bool) { return {shard_or_replicate(ndim, 0)}; }
Placements last_dim(std::int64_t ndim, bool) { return {shard_or_replicate(ndim, ndim - 1)}; }
Placements partial(std::int64_t, bool floating) { return {floating ? Partial() : Replicate()}; }
Placements both_dims(std::int64_t ndim, bool) {
  if (ndim <= 1) return {shard_or_replicate(ndim, 0), Replicate()};
  return {Shard(0), Shard(ndim - 1)};
}
Placements partial_and_shard(std::int64_t ndim, bool floating) {
  return {floating ? Partial() : Replicate(), shard_or_replicate(ndim, 0)};
}

at::Tensor scaled(const at::Tensor& tensor, double factor) {
  const bool small = c10::isFloat8Type(tensor.scalar_type());
  return small ? tensor.to(at::kFloat).mul(factor).to(tensor.scalar_type()) : tensor * factor;
}

// This rank's summand along a mesh axis of `parts` ranks; the sum is the tensor.
at::Tensor contribution(const at::Tensor& tensor, std::int64_t coordinate, std::int64_t parts) {
  static constexpr double factors[] = {2, -1, 1, -1};
  if (parts == 1) return tensor;
  at::Tensor part = scaled(tensor, factors[coordinate]);
  if (c10::isFloat8Type(tensor.scalar_type())) return part;
  const at::Tensor infinite = tensor.isfinite().logical_not();
  return coordinate == 0 ? at::where(infinite, tensor, part) : part.masked_fill(infinite, 0);
}

at::Tensor place(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements) {
  placements.resize(static_cast<std::size_t>(mesh.ndim()));
  Placements without = placements;
  for (Placement& p : without) {
    if (p.is_partial()) p = Replicate();
  }
  const DTensor sharded = distribute_tensor(tensor, mesh, without);
  if (without == placements) return sharded;
  at::Tensor part = sharded.to_local();
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_partial()) continue;
    part = contribution(part, (*mesh.coordinate())[axis], mesh.size(static_cast<std::int64_t>(axis)));
  }
  return DTensor::from_local(part, mesh, placements, tensor.sizes(), sharded.strides());
}

Placements placements_for(const Config& config, const at::Tensor& tensor, int index) {
  if (config.first_only && index > 0) return {Replicate()};
  return config.placements(tensor.dim(), tensor.is_floating_point());
}

double tolerance(c10::ScalarType type) {
  if (type == at::kHalf || type == at::kBFloat16) return 2e-2;
  return c10::isFloat8Type(type) ? 0.13 : 1e-4;
}

// Out of a float8's range, some of ATen's kernels give its largest number and others NaN.
at::Tensor normalize_overflow(const at::Tensor& expected, const at::Tensor& actual) {
  if (!c10::isFloat8Type(expected.scalar_type())) return actual;
  const at::Tensor wide = expected.to(at::kDouble), got = actual.to(at::kDouble);
  return at::where(at::isnan(got) & (wide.abs() >= 448), wide, got);
}

void compare(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  if (!expected.defined() || !actual.defined()) {
    if (expected.defined() != actual.defined())
      throw Mismatch(what + ": expected both results to be defined, or neither");
    return;
  }
  const at::Tensor full = (is_dtensor(actual) ? DTensor(actual).full_tensor() : actual).cpu();
  if (full.sizes() != expected.sizes() || actual.sizes() != expected.sizes()) {
    throw Mismatch(c10::str(what, ": sizes ", full.sizes(), " for ", expected.sizes()));
  }
  if (full.scalar_type() != expected.scalar_type() || actual.scalar_type() != expected.scalar_type()) {
    throw Mismatch(
        c10::str(what, ": ", actual.scalar_type(), " (values ", full.scalar_type(), ") for ", expected.scalar_type()));
  }
  const auto type = expected.scalar_type();
  const auto wide = c10::isComplexType(type) ? at::kComplexDouble : at::kDouble;
  const bool exact = c10::isIntegralType(type, true);
  const double tol = tolerance(type);
  const bool same = exact ? at::equal(full, expected)
                          : at::allclose(normalize_overflow(expected, full).to(wide), expected.to(wide), tol, tol,
                                         /*equal_nan=*/true);
  if (!same) {
    throw Mismatch(c10::str(what, " differs: ", full.flatten().slice(0, 0, 6), "\ninstead of ",
                            expected.flatten().slice(0, 0, 6)));
  }
}

c10::complex<double> regular_number(const c10::IValue& value) {
  return value.isBool() ? c10::Scalar(value.toBool()).toComplexDouble() : value.toScalar().toComplexDouble();
}

void compare_values(const c10::IValue& actual, const c10::IValue& expected, const std::string& what) {
  if (expected.isTensor() || actual.isTensor()) {
    return compare(actual.isNone() ? at::Tensor() : actual.toTensor(),
                   expected.isNone() ? at::Tensor() : expected.toTensor(), what);
  }
  if (expected.isList()) {
    const auto a = actual.toListRef(), e = expected.toListRef();
    if (a.size() != e.size()) throw Mismatch(c10::str(what, ": expected ", e.size(), " entries, got ", a.size()));
    for (std::size_t i = 0; i < a.size(); ++i) compare_values(a[i], e[i], what + "[" + std::to_string(i) + "]");
    return;
  }
  if (expected.isNone() && actual.isNone()) return;
  if (std::abs(regular_number(actual) - regular_number(expected)) > 1e-4) throw Mismatch(what + ": another number");
}

// Collects the placements of all DTensors of an argument.
void note_placements(const c10::IValue& value, std::vector<Placements>& out) {
  if (value.isList()) {
    for (const auto& item : value.toListRef()) note_placements(item, out);
  } else if (value.isTensor() && is_dtensor(value.toTensor())) {
    out.push_back(DTensor(value.toTensor()).placements());
  }
}

std::vector<Placements> all_placements(const c10::IValue& value) {
  std::vector<Placements> placements;
  note_placements(value, placements);
  return placements;
}

void compare_mutated(const Expected& expected, const c10::OperatorHandle& op, const std::vector<c10::IValue>& args,
                     const std::vector<std::vector<Placements>>& before) {
  for (const auto& [name, value] : expected.mutated) {
    const auto index = static_cast<std::size_t>(*op.schema().argumentIndexWithName(name));
    compare_values(args[index], value, "argument " + name);
    if (!op.hasTag(at::Tag::inplace_view) && all_placements(args[index]) != before[index]) {
      throw Mismatch("argument " + name + ": expected unchanged placements");
    }
  }
}

}  // namespace

const std::vector<Config>& configs() {
  static const std::vector<Config> all = {
      {"R", false, false, replicate},       {"S0", false, false, first_dim},
      {"Sl", false, false, last_dim},       {"S0_first", false, true, first_dim},
      {"Sl_first", false, true, last_dim},  {"P", false, false, partial},
      {"2d_S0_Sl", true, false, both_dims}, {"2d_P_S0", true, false, partial_and_shard}};
  return all;
}

std::vector<const Config*> distinct_configs(const Case& c) {
  std::vector<const Config*> result;
  std::vector<std::vector<Placements>> seen;
  for (const Config& config : configs()) {
    std::vector<Placements> placements;
    bool replicated = true;
    c.arguments([&](const at::Tensor& tensor) {
      placements.push_back(placements_for(config, tensor, static_cast<int>(placements.size())));
      for (const Placement& p : placements.back()) replicated &= p.is_replicate();
      return tensor;
    });
    const bool known = std::find(seen.begin(), seen.end(), placements) != seen.end();
    if (known || (replicated && !result.empty())) continue;
    seen.push_back(std::move(placements));
    result.push_back(&config);
  }
  return result;
}

// Synchronizes with the device, since copies to the host may not.
void settle(c10::DeviceType device) {
  if (device == c10::kCUDA) at::detail::getCUDAHooks().deviceSynchronize(0);
}

Expected recorded(const Case& c) { return {c.results(), c.mutated()}; }

namespace {

// CPU copies of tensors, also within lists.
c10::IValue on_host(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? value.toTensor().cpu() : value;
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& t : value.toTensorVector()) list.push_back(t.cpu());
  return list;
}

}  // namespace

Expected computed(const Case& c, c10::DeviceType device) {
  const auto op = c.handle();
  const auto args = c.arguments([&](const at::Tensor& tensor) { return tensor.to(device); });
  torch::jit::Stack stack(args.begin(), args.end());
  op.callBoxed(stack);
  settle(device);
  Expected expected;
  for (const auto& value : stack) expected.results.push_back(on_host(value));
  for (const auto& [name, value] : c.mutated()) {
    const auto index = static_cast<std::size_t>(*op.schema().argumentIndexWithName(name));
    expected.mutated.emplace_back(name, on_host(args[index]));
  }
  return expected;
}

void run_on_rank(const Case& c, const Config& config, const Communicator& world, const Expected& expected,
                 c10::DeviceType device) {
  const int half = world.size() >= 2 ? 2 : 1;
  const std::vector<std::int64_t> shape =
      config.two_dims ? std::vector<std::int64_t>{half, world.size() / half} : std::vector<std::int64_t>{world.size()};
  const DeviceMesh mesh = init_device_mesh(world, device, shape);
  int index = 0;
  const std::vector<c10::IValue> args = c.arguments(
      [&](const at::Tensor& tensor) { return place(tensor, mesh, placements_for(config, tensor, index++)); });
  std::vector<std::vector<Placements>> before;
  for (const auto& arg : args) before.push_back(all_placements(arg));
  const auto op = c.handle();
  torch::jit::Stack stack(args.begin(), args.end());
  op.callBoxed(stack);
  settle(device);
  const auto& results = expected.results;
  TORCH_CHECK(stack.size() == results.size(), "expected ", results.size(), " results, got ", stack.size());
  for (std::size_t i = 0; i < stack.size(); ++i) compare_values(stack[i], results[i], "result " + std::to_string(i));
  compare_mutated(expected, op, args, before);
}

Outcome run_case(const Case& c, const Config& config, int ranks, c10::DeviceType device) {
  Expected expected;
  try {
    expected = device == c10::kCPU ? recorded(c) : computed(c, device);
  } catch (const std::exception& e) {
    const bool broken = std::string(e.what()).find("CUDA error") != std::string::npos;  // For the rest of the process.
    return {broken ? Outcome::Kind::raise : Outcome::Kind::elsewhere, e.what()};
  }
  RunOptions options;
  options.timeout = std::chrono::minutes(1);
  std::atomic<bool> mismatch = false;
  try {
    run_local(
        ranks,
        [&](const Communicator& world) {
          try {
            run_on_rank(c, config, world, expected, device);
          } catch (const Mismatch&) {
            mismatch = true;
            throw;
          }
        },
        options);
  } catch (const std::exception& e) {
    return {mismatch ? Outcome::Kind::wrong : Outcome::Kind::raise, e.what()};
  }
  return {};
}

}  // namespace dtensor::cases
