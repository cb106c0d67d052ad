// Arguments by name, index arithmetic and reductions over mesh axes for local kernels.
#include "ops/local_kernels/local_args.h"

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <limits>

#include "internal/bit_identical.h"
#include "internal/microbatch_sums.h"
#include "internal/simulated.h"

namespace dtensor {
int LocalArgs::find(std::string_view name) const {
  const auto index = call_.info.schema().argumentIndexWithName(name);
  return index ? *index : -1;
}

const c10::IValue& LocalArgs::value(std::string_view name) const {
  const int index = find(name);
  TORCH_CHECK(index >= 0, call_.info.name(), " has no argument '", name, "'");
  return torch::jit::peek(call_.stack, index, call_.info.args.size());
}

at::Tensor LocalArgs::tensor(std::string_view name) const {
  const auto& found = value(name);
  return found.isTensor() ? found.toTensor() : at::Tensor();
}

std::optional<at::ScalarType> LocalArgs::dtype() const {
  if (!has("dtype") || value("dtype").isNone()) return std::nullopt;
  return value("dtype").toScalarType();
}

int LocalArgs::operand_of(int argument) const {
  int operand = 0;
  for (int i = 0; i < argument; ++i) {
    if (!call_.info.args[i].holds_tensors()) continue;
    const auto& passed = torch::jit::peek(call_.stack, i, call_.info.args.size());
    operand += passed.isList() ? static_cast<int>(passed.toListRef().size()) : 1;
  }
  return operand;
}

const TensorSpec* LocalArgs::spec(std::string_view name) const {
  const int index = find(name);
  TORCH_CHECK(index >= 0, call_.info.name(), " has no argument '", name, "'");
  return call_.inputs[operand_of(index)].get();
}

std::vector<std::int64_t> LocalArgs::reduced_dims() const {
  const std::int64_t ndim = tensor("self").dim();
  std::vector<std::int64_t> dims;
  if (has("dim") && value("dim").isInt()) dims = {value("dim").toInt()};
  if (has("dim") && value("dim").isList()) dims = value("dim").toIntVector();
  if (dims.empty()) {
    for (std::int64_t d = 0; d < ndim; ++d) dims.push_back(d);
  }
  if (ndim == 0) dims.clear();
  for (auto& d : dims) d = c10::maybe_wrap_dim(d, ndim);
  return dims;
}

std::int64_t LocalArgs::dim() const { return c10::maybe_wrap_dim(integer("dim"), tensor("self").dim()); }

at::IntArrayRef LocalArgs::global_sizes(std::string_view name) const {
  const auto* known = spec(name);
  return known != nullptr ? at::IntArrayRef(known->sizes) : value(name).toTensor().sizes();
}

Segments own_segments(const TensorSpec* spec, std::int64_t dim, std::int64_t n) {
  if (spec == nullptr) return {Segment{0, n}};
  return own_segments(*spec->mesh, n, dim, spec->placements);
}

LocalIndex to_local_index(const at::Tensor& global, const Segments& segments) {
  LocalIndex result{at::zeros_like(global, at::kBool), at::zeros_like(global, at::kLong)};
  std::int64_t before = 0;  // local index of the segment's first element
  for (const auto& s : segments) {
    const auto inside = global.ge(s.offset).logical_and_(global.lt(s.offset + s.length));
    result.own.logical_or_(inside);
    result.local.add_((global - (s.offset - before)).mul_(inside));
    before += s.length;
  }
  return result;
}

at::Tensor to_global(const at::Tensor& local, const Segments& segments) {
  auto global = local;
  std::int64_t before = 0, shift = 0;
  for (const auto& s : segments) {
    const std::int64_t jump = s.offset - before - shift;  // increment of the shift from this segment on
    if (jump != 0) global = global + local.ge(before).to(at::kLong).mul_(jump);
    shift += jump;
    before += s.length;
  }
  return global;
}

void check_indices(const at::Tensor& index, std::int64_t size, const char* what) {
  if (index.numel() == 0 || is_simulated(index)) return;
  if (!index.is_cpu()) return at::_assert_async(index.ge(0).logical_and_(index.lt(size)).all(), what);
  const auto [low, high] = at::aminmax(index);
  const std::int64_t smallest = low.item<std::int64_t>(), largest = high.item<std::int64_t>();
  TORCH_CHECK_INDEX(smallest >= 0 && largest < size, what, " ", smallest < 0 ? smallest : largest,
                    " is out of bounds for size ", size);
}

at::Tensor all_reduce(const MeshImpl& mesh, at::Tensor tensor, ReduceOp op, AxisMask axes) {
  axes &= mesh.nontrivial_axes;
  if (axes == 0 || tensor.numel() == 0) return tensor;
  const bool is_bool = tensor.scalar_type() == at::kBool;
  auto buffer = (is_bool ? tensor.to(at::kByte) : tensor).contiguous();
  mesh.communicator(axes).all_reduce(buffer, op).wait();
  return is_bool ? buffer.to(at::kBool) : buffer;
}

at::Tensor reduce_contribution(const LocalCall& call, at::Tensor tensor, ReduceOp op, AxisMask axes, int index) {
  const auto& placements = call.outputs[index]->placements;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_partial(op)) axes &= ~(AxisMask{1} << a);
  }
  return all_reduce(call.mesh, std::move(tensor), op, axes);
}

std::int64_t index_of(const LocalCall& call, const char* name) {
  return *call.info.schema().argumentIndexWithName(name);
}

void set_argument(LocalCall& call, const char* name, c10::IValue value) {
  torch::jit::peek(call.stack, index_of(call, name), call.info.args.size()) = std::move(value);
}

static bool is_rounded(const at::Tensor& t) { return t.defined() && at::isReducedFloatingType(t.scalar_type()); }

void set_results(LocalCall& call, std::vector<at::Tensor> results) {
  const auto& args = call.info.args;
  for (std::size_t i = 0, r = 0; i < args.size(); ++i) {
    if (!args[i].mutated) continue;
    const auto target = torch::jit::peek(call.stack, i, args.size()).toTensor();
    auto& result = results[r++];
    TORCH_CHECK(target.sizes() == result.sizes(), call.info.name(),
                ": expected an out= or in-place tensor of the result's local sizes ", result.sizes(), ", got ",
                target.sizes());
    result = target.copy_(result);
  }
  if (is_bit_identical() && std::any_of(results.begin(), results.end(), is_rounded)) {
    note_indivisible_sum(kRoundedGradients);
  }
  torch::jit::drop(call.stack, args.size());
  for (auto& result : results) call.stack.emplace_back(std::move(result));
}

bool is_empty_shard(const TensorSpec& spec) {
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    if (spec.local_sizes[d] == 0 && spec.sizes[d] != 0) return true;
  }
  return false;
}

bool return_zeros_if_empty(LocalCall& call) {
  const auto& arguments = call.info.args;
  std::size_t next = 0;
  bool empty = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].holds_tensors()) continue;
    const auto& value = torch::jit::peek(call.stack, i, arguments.size());
    const std::size_t count = value.isList() ? value.toListRef().size() : 1;
    for (std::size_t k = 0; k < count; ++k, ++next) {
      const SpecPtr& spec = call.inputs[next];
      // An empty out= tensor does not imply an empty result.
      empty |= spec && !arguments[i].out && is_empty_shard(*spec);
    }
  }
  if (!empty) return false;
  std::vector<at::Tensor> results;
  for (const SpecPtr& spec : call.outputs) {
    const at::Device device(call.mesh.device);
    results.push_back(spec ? at::zeros(spec->local_sizes, at::TensorOptions(spec->dtype).device(device))
                           : at::Tensor());
  }
  return set_results(call, std::move(results)), true;
}

std::vector<at::Tensor> run_aten_operator(LocalCall& call) {
  const auto arguments = torch::jit::last(call.stack, call.info.args.size());
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  call.info.op.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (auto& value : stack) results.push_back(value.toTensor());
  return results;
}

at::Scalar reduce_identity(at::ScalarType type, ReduceOp op) {
  TORCH_INTERNAL_ASSERT(op == ReduceOp::max || op == ReduceOp::min);
  const bool lowest = op == ReduceOp::max;
  if (at::isFloatingType(type)) {
    const double infinity = std::numeric_limits<double>::infinity();
    return lowest ? -infinity : infinity;
  }
  if (type == at::kBool) return !lowest;
  at::Scalar identity;
  AT_DISPATCH_INTEGRAL_TYPES(type, "reduce_identity", [&] {
    identity = lowest ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max();
  });
  return identity;
}

}  // namespace dtensor
