// Draws calls. Floating-point tensors have small normal values and integer tensors small indices, so that mistakes are
// in sizes or dtypes.
#include "fuzz/draw.h"

#include <ATen/ATen.h>

#include <map>

#include "ops/dispatch/operator_entry.h"

namespace dtensor::fuzz {
namespace {

bool is_number(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

c10::IValue replaced(const c10::IValue& value, const cases::MakeTensor& make) {
  const auto one = [&](const at::Tensor& t) { return t.defined() && !is_number(t) ? make(t) : t; };
  if (value.isTensor()) return one(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(one(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorList())
      list.push_back(t && t->defined() ? std::optional(one(*t)) : std::nullopt);
    return list;
  }
  return value;
}

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "-";
  return c10::str(c10::toString(tensor.scalar_type()), tensor.sizes(), tensor.is_meta() ? " meta" : "");
}

std::string text_of(const c10::IValue& value) {
  if (value.isTensor()) return text_of(value.toTensor());
  if (!value.isList()) return value.isGenerator() ? "generator" : c10::str(value);
  std::string text = "{";
  for (const auto& item : value.toListRef()) text += text_of(item) + " ";
  return text + "}";
}

std::string name_of(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

// Uses the arguments of `known` for arguments of the same names. Arguments that only `op` has (out=) are empty tensors.
std::optional<RegularCall> as_relative(const RegularCall& known, const std::vector<at::Tensor>& results,
                                       const c10::OperatorHandle& op) {
  const auto& from = known.op.schema();
  RegularCall call{op, {}};
  std::size_t outs = 0;
  for (const auto& argument : op.schema().arguments()) {
    const auto index = from.argumentIndexWithName(argument.name());
    const bool out = argument.is_out() && argument.type()->kind() == c10::TypeKind::TensorType;
    if (index && *from.arguments()[static_cast<std::size_t>(*index)].type() == *argument.type()) {
      call.args.push_back(known.args[static_cast<std::size_t>(*index)]);
    } else if (out) {
      const auto type = outs < results.size() ? results[outs].scalar_type() : at::kFloat;
      call.args.emplace_back(at::empty({0}, at::TensorOptions(type)));
      ++outs;
    } else if (argument.default_value()) {
      call.args.push_back(*argument.default_value());
    } else {
      return std::nullopt;
    }
  }
  return call;
}

std::string base_of(std::string name) {
  if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.pop_back();
  return name;
}

at::Tensor filled(at::IntArrayRef sizes, at::ScalarType dtype, Random& random) {
  at::Tensor values = at::empty(sizes, at::kDouble);
  for (std::int64_t i = 0; i < values.numel(); ++i)
    values.mutable_data_ptr<double>()[i] = static_cast<double>(draw(random, -8, 8)) / 4;
  return c10::isIntegralType(dtype, true) ? values.abs_().to(dtype) : values.to(dtype);
}

at::Tensor of_other_rank(const at::Tensor& tensor, Random& random) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(draw(random, 0, 6)));
  for (auto& size : sizes) size = draw(random, 0, 3) == 0 ? draw(random, 0, 1) : draw(random, 1, 4);
  return filled(sizes, tensor.scalar_type(), random);
}

at::Tensor of_other_size(const at::Tensor& tensor, Random& random) {
  auto sizes = tensor.sizes().vec();
  if (sizes.empty()) return of_other_rank(tensor, random);
  const auto d = static_cast<std::size_t>(draw(random, 0, std::ssize(sizes) - 1));
  sizes[d] = draw(random, 0, 2) == 0 ? draw(random, 0, 1) : std::max<std::int64_t>(sizes[d] + draw(random, -2, 2), 0);
  return filled(sizes, tensor.scalar_type(), random);
}

at::Tensor of_other_dtype(const at::Tensor& tensor, Random& random) {
  static const at::ScalarType types[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,        at::kLong,
                                         at::kInt,   at::kBool,   at::kByte,     at::kComplexFloat};
  return tensor.to(types[draw(random, 0, std::ssize(types) - 1)]);
}

// out= tensors may have any size, and their dtype and device are converted.
at::Tensor mistaken(const at::Tensor& tensor, bool out, Random& random) {
  switch (draw(random, out ? 3 : 0, 9)) {
    case 0:
      return tensor.to(at::kMeta);
    case 1:
    case 2:
      return of_other_dtype(tensor, random);
    case 3:
    case 4:
    case 5:
      return of_other_size(tensor, random);
    default:
      return of_other_rank(tensor, random);
  }
}

}  // namespace

bool is_excluded(const std::string& name) {
  for (const char* part : {"aten::set_", "aten::_fused_moving_avg", "quantize", "mkldnn", "cudnn", "miopen", "sparse",
                           "_nested", "to_padded", "aten::record_stream", "aten::_resize_output", "aten::resize",
                           "aten::_nnpack"}) {  // Crashes on regular tensors with 5 dimensions.
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

std::string RegularCall::str() const {
  std::string text = name_of(op) + "(";
  for (const auto& arg : args) text += text_of(arg) + ", ";
  return text + ")";
}

std::vector<c10::IValue> replace_tensors(const std::vector<c10::IValue>& args, const cases::MakeTensor& make) {
  std::vector<c10::IValue> result;
  for (const auto& arg : args) result.push_back(replaced(arg, make));
  return result;
}

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& args) {
  std::vector<at::Tensor> tensors;
  replace_tensors(args, [&](const at::Tensor& t) { return tensors.push_back(t), t; });
  return tensors;
}

CallSource::CallSource(const std::string& folder) {
  std::map<std::string, std::vector<RegularCall>> by_name;
  std::map<std::string, std::vector<std::pair<RegularCall, std::vector<at::Tensor>>>> by_base;
  for (const auto& c : cases::load_cases(folder)) {
    RegularCall call{c.handle(), c.arguments([](const at::Tensor& t) { return t; })};
    std::int64_t elements = 0;
    for (const auto& t : tensors_of(call.args)) elements += t.numel();
    if (elements > 10000 || is_excluded(name_of(call.op))) continue;
    by_base[base_of(call.op.schema().name())].push_back({call, tensors_of(c.results())});
    by_name[name_of(call.op)].push_back(std::move(call));
  }
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || !needs_kernel(*op) || is_excluded(name_of(*op))) continue;
    auto& calls = by_name[name_of(*op)];
    for (const auto& known : by_base[base_of(name.name)]) {
      if (calls.size() >= 8) break;
      if (auto call = as_relative(known.first, known.second, *op)) calls.push_back(std::move(*call));
    }
  }
  for (auto& [name, calls] : by_name) {
    if (!calls.empty() && !tensors_of(calls[0].args).empty()) calls_.push_back(std::move(calls));
  }
}

void CallSource::keep(const std::function<bool(const RegularCall&)>& wanted) {
  std::vector<std::vector<RegularCall>> kept;
  for (const auto& calls : calls_) {
    std::vector<RegularCall> some;
    std::copy_if(calls.begin(), calls.end(), std::back_inserter(some), wanted);
    if (!some.empty()) kept.push_back(std::move(some));
  }
  calls_ = std::move(kept);
}

const RegularCall& CallSource::draw_valid(Random& random) const {
  const auto& some = calls_[static_cast<std::size_t>(draw(random, 0, std::ssize(calls_) - 1))];
  return some[static_cast<std::size_t>(draw(random, 0, std::ssize(some) - 1))];
}

RegularCall with_mistake(const RegularCall& valid, Random& random) {
  const auto count = std::ssize(tensors_of(valid.args));
  const auto at = draw(random, 0, std::max<std::int64_t>(count - 1, 0));
  const bool all = draw(random, 0, 5) == 0;
  std::int64_t i = 0;
  RegularCall call{valid.op, {}};
  const auto& arguments = valid.op.schema().arguments();
  for (std::size_t k = 0; k < valid.args.size(); ++k) {
    call.args.push_back(replaced(valid.args[k], [&](const at::Tensor& t) {
      return i++ == at || all ? mistaken(t, arguments[k].is_out(), random) : t;
    }));
  }
  return call;
}

}  // namespace dtensor::fuzz
