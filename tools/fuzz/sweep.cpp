// Tensors have 3 elements in each dimension (uneven on two ranks), so that sizes match; numbers are 1, dimensions 0,
// sizes 3. Names of arguments distinguish indices and masks from values.
#include "fuzz/sweep.h"

#include <ATen/ATen.h>

#include "ops/dispatch/operator_entry.h"

namespace dtensor::fuzz {
namespace {

constexpr int kMostDims = 6, kUsualDims = 2, kLength = 3;

bool says(const std::string& name, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return name.find(part) != std::string::npos; });
}

bool holds_tensor(const c10::Type& type) {
  const auto inner = type.containedTypes();
  return type.kind() == c10::TypeKind::TensorType ||
         std::any_of(inner.begin(), inner.end(), [](const auto& one) { return holds_tensor(*one); });
}

at::Tensor tensor_for(const c10::Argument& argument, int dims) {
  if (argument.is_out()) return at::empty(std::vector<std::int64_t>(static_cast<std::size_t>(dims), dims == 0 ? 0 : 1));
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(dims), kLength);
  if (says(argument.name(), {"pivots"})) return at::ones(sizes, at::kInt);
  if (says(argument.name(), {"ind", "target", "offset", "length", "repeats", "bag_size", "batch_sizes"}))
    return at::zeros(sizes, at::kLong);
  if (says(argument.name(), {"mask", "cond"})) return at::ones(sizes, at::kBool);
  const auto count = c10::multiply_integers(sizes);
  return at::linspace(0.25, 2, count).view(sizes);
}

std::vector<std::int64_t> numbers_for(const c10::Argument& argument, int dims) {
  const bool is_dims = says(argument.name(), {"dim", "axis"});
  const bool is_sizes = says(argument.name(), {"size", "shape", "length"}) && !says(argument.name(), {"kernel"});
  const auto said = argument.N().value_or(is_sizes ? dims : 1);
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(said), is_dims ? 0 : is_sizes ? kLength : 1);
  if (is_dims) std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::optional<c10::IValue> list_for(const c10::Argument& argument, const c10::Type& type, int dims) {
  switch (type.containedType(0)->kind()) {
    case c10::TypeKind::TensorType:
      return c10::List<at::Tensor>({tensor_for(argument, dims), tensor_for(argument, dims)});
    case c10::TypeKind::OptionalType:
      return c10::List<std::optional<at::Tensor>>({at::zeros({kLength}, at::kLong)});
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return c10::IValue(numbers_for(argument, dims));
    case c10::TypeKind::FloatType:
      return c10::IValue(std::vector<double>(static_cast<std::size_t>(argument.N().value_or(2)), 1));
    case c10::TypeKind::BoolType:
      return c10::IValue(c10::List<bool>(std::initializer_list<bool>{true, true, true}));
    case c10::TypeKind::NumberType:
      return c10::IValue(c10::List<at::Scalar>({at::Scalar(1), at::Scalar(1)}));
    default:
      return std::nullopt;
  }
}

// Nothing if the schema needs an argument that this file cannot create (a required generator, names of dimensions).
std::optional<c10::IValue> value_for(const c10::Argument& argument, const c10::Type& type, int dims) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return tensor_for(argument, dims);
    case c10::TypeKind::ListType:
      return list_for(argument, type, dims);
    case c10::TypeKind::OptionalType:
      if (!holds_tensor(type)) return c10::IValue();
      return value_for(argument, *type.containedType(0), dims);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return c10::IValue(says(argument.name(), {"dim", "axis"}) ? 0 : 1);
    case c10::TypeKind::FloatType:
      return c10::IValue(0.5);
    case c10::TypeKind::NumberType:
      return c10::IValue(at::Scalar(1));
    case c10::TypeKind::BoolType:
      return c10::IValue(false);
    case c10::TypeKind::StringType:
      return c10::IValue("sum");
    default:
      return std::nullopt;
  }
}

bool is_tensors(const c10::Argument& argument) { return holds_tensor(*argument.real_type()); }

// `dims` dimensions for the tensors of argument `at`, or for all tensors if it is -1.
std::optional<RegularCall> call_with(const c10::OperatorHandle& op, int dims, int at) {
  RegularCall call{op, {}};
  const auto& arguments = op.schema().arguments();
  for (int i = 0; i < std::ssize(arguments); ++i) {
    const auto& argument = arguments[static_cast<std::size_t>(i)];
    const bool varies = is_tensors(argument) && (at < 0 || at == i);
    auto value = argument.default_value();
    if (!value || varies) value = value_for(argument, *argument.real_type(), varies || at < 0 ? dims : kUsualDims);
    if (!value) return std::nullopt;
    call.args.push_back(std::move(*value));
  }
  return call;
}

void add_calls(const c10::OperatorHandle& op, std::vector<RegularCall>& calls) {
  std::vector<int> positions;
  for (int i = 0; i < std::ssize(op.schema().arguments()); ++i) {
    if (is_tensors(op.schema().arguments()[static_cast<std::size_t>(i)])) positions.push_back(i);
  }
  if (positions.size() > 1) positions.push_back(-1);
  for (const int at : positions) {
    for (int dims = 0; dims <= kMostDims; ++dims) {
      if (auto call = call_with(op, dims, at)) calls.push_back(std::move(*call));
    }
  }
}

}  // namespace

namespace {

// In ATen, an out= tensor with the result's number of elements keeps its sizes; here it gets the sizes of the result.
bool keeps_sizes(const std::string& name) {
  return says(name, {"range.out", "linspace", "logspace", "fftfreq", "rfftfreq"});
}

}  // namespace

std::vector<RegularCall> sweep_calls() {
  std::vector<RegularCall> calls;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && name.name.rfind("aten::", 0) == 0 && needs_kernel(*op) && !is_excluded(c10::toString(name)) &&
        !keeps_sizes(c10::toString(name)))
      add_calls(*op, calls);
  }
  return calls;
}

Draw sweep_draw(const std::vector<RegularCall>& calls, std::uint64_t seed, std::size_t i) {
  constexpr std::size_t step = 100003;  // A prime.

  static const auto mm = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  const at::Tensor a = at::arange(12, at::kFloat).view({4, 3});
  return {{mm, {a, a.t()}}, calls[i * step % calls.size()], {2}, -1, seed + i};
}

}  // namespace dtensor::fuzz
