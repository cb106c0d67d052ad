// Reads a call's arguments by name.
#include "sharding_prop/operators/op_call.h"

#include <c10/core/WrapDimMinimal.h>

namespace dtensor {
namespace {

const OpCall& as_call(const OpArgs& args) { return static_cast<const OpCall&>(args); }

std::vector<std::int64_t> to_integers(const c10::IValue& value) {
  if (value.isNone()) return {};
  if (value.isInt()) return {value.toInt()};
  if (value.isSymInt()) return {value.toSymInt().guard_int(__FILE__, __LINE__)};
  if (value.isIntList()) return value.toIntVector();
  std::vector<std::int64_t> result;
  for (const c10::IValue& entry : value.toListRef()) result.push_back(to_integers(entry).at(0));
  return result;
}

const Operand& operand_at(const OpArgs& args, int operand) {
  const OpCall& call = as_call(args);
  TORCH_CHECK(operand >= 0 && static_cast<std::size_t>(operand) < call.operands.size(), call.info->name(), " has ",
              call.operands.size(), " tensor operands, but its rule reads operand ", operand);
  return call.operands[static_cast<std::size_t>(operand)];
}

}  // namespace

const OpArgs::Extents& OpArgs::Extents::require(std::size_t rank) const {
  TORCH_CHECK(size() >= rank, as_call(*op_).info->name(), ": operand `", std::string(op_->operand_arg(operand_)),
              "` needs at least ", rank, " dimensions, but its sizes are ", op_->sizes(operand_));
  return *this;
}

const c10::IValue& OpArgs::arg(std::string_view name) const {
  const OpCall& call = as_call(*this);
  const auto index = call.info->schema().argumentIndexWithName(name);
  TORCH_CHECK(index, call.info->name(), " has no argument '", std::string(name), "'");
  return call.args[static_cast<std::size_t>(*index)];
}

bool OpArgs::has_arg(std::string_view name) const {
  return as_call(*this).info->schema().argumentIndexWithName(name).has_value();
}

std::int64_t OpArgs::integer(std::string_view name) const {
  const std::vector<std::int64_t> values = integers(name);
  TORCH_CHECK(!values.empty(), as_call(*this).info->name(), ": argument '", std::string(name), "' needs a number");
  return values[0];
}

bool OpArgs::boolean(std::string_view name) const { return arg(name).toBool(); }

double OpArgs::number(std::string_view name, double if_none) const {
  const c10::IValue& value = arg(name);
  if (value.isNone()) return if_none;
  return value.isDouble() ? value.toDouble() : value.toScalar().toDouble();
}

std::vector<std::int64_t> OpArgs::integers(std::string_view name) const { return to_integers(arg(name)); }

std::vector<std::int64_t> OpArgs::integers(std::string_view name, std::size_t count) const {
  std::vector<std::int64_t> values = integers(name);
  if (values.size() == 1) values.resize(count, values[0]);
  TORCH_CHECK(values.size() == count, as_call(*this).info->name(), ": argument '", std::string(name), "' needs 1 or ",
              count, " numbers, not ", values.size());
  return values;
}

std::int64_t OpArgs::dim(std::string_view name) const {
  return c10::maybe_wrap_dim(integer(name), static_cast<std::int64_t>(sizes(0).size()));
}

std::vector<std::int64_t> OpArgs::dims(std::string_view name) const {
  const auto rank = static_cast<std::int64_t>(sizes(0).size());
  if (rank == 0) return {};
  std::vector<std::int64_t> result = integers(name);
  if (result.empty()) {
    result.resize(static_cast<std::size_t>(rank));
    std::iota(result.begin(), result.end(), 0);
  }
  for (std::int64_t& d : result) d = c10::maybe_wrap_dim(d, rank);
  return result;
}

int OpArgs::operand_count() const { return static_cast<int>(as_call(*this).operands.size()); }

std::string_view OpArgs::operand_arg(int operand) const {
  const int arg = operand_at(*this, operand).arg;
  return as_call(*this).info->schema().arguments()[static_cast<std::size_t>(arg)].name();
}

bool OpArgs::defined(int operand) const { return operand_at(*this, operand).defined; }

OpArgs::Extents OpArgs::sizes(int operand) const { return {*this, operand, operand_at(*this, operand).sizes}; }

OpArgs::Extents OpArgs::strides(int operand) const { return {*this, operand, operand_at(*this, operand).strides}; }

bool OpArgs::has_partial(int operand) const {
  const SpecPtr& spec = operand_at(*this, operand).spec;
  return spec && spec->has_partial;
}

c10::ScalarType OpArgs::dtype(int operand) const { return operand_at(*this, operand).dtype; }

c10::DeviceType OpArgs::device() const {
  const MeshRef& mesh = as_call(*this).mesh;
  return mesh ? mesh->device : c10::DeviceType::CPU;
}

int OpArgs::operand(std::string_view name) const {
  const OpCall& call = as_call(*this);
  const int index = call.info->schema().argumentIndexWithName(name).value_or(-1);
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    if (call.operands[i].arg == index) return static_cast<int>(i);
  }
  return -1;
}

int OpArgs::result_count() const {
  const OpCall& call = as_call(*this);
  const auto& returns = call.info->schema().returns();
  const bool is_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  return static_cast<int>(call.outputs.empty() && !is_list ? returns.size() : call.outputs.size());
}

const OutputMeta& OpArgs::result(int index) const { return as_call(*this).outputs.at(static_cast<std::size_t>(index)); }

}  // namespace dtensor
