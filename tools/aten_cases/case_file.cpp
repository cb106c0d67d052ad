// Reads the JSON and the bytes; creates values by the types of the schema.
#include "aten_cases/case_file.h"

#include <ATen/ATen.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace dtensor::cases {

using nlohmann::json;

namespace {

struct File {
  std::vector<json> tensors;
  std::vector<char> bytes;
};

}  // namespace

struct Case::Data {
  std::shared_ptr<const File> file;
  json value;
  std::string op;
};

namespace {

c10::ScalarType dtype_named(const std::string& name) {
  static const std::map<std::string, c10::ScalarType> table = {{"float32", at::kFloat},
                                                               {"float64", at::kDouble},
                                                               {"float16", at::kHalf},
                                                               {"bfloat16", at::kBFloat16},
                                                               {"int64", at::kLong},
                                                               {"int32", at::kInt},
                                                               {"int16", at::kShort},
                                                               {"int8", at::kChar},
                                                               {"uint8", at::kByte},
                                                               {"uint16", at::kUInt16},
                                                               {"uint32", at::kUInt32},
                                                               {"uint64", at::kUInt64},
                                                               {"bool", at::kBool},
                                                               {"complex32", at::kComplexHalf},
                                                               {"complex64", at::kComplexFloat},
                                                               {"complex128", at::kComplexDouble},
                                                               {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                               {"float8_e5m2", at::kFloat8_e5m2}};
  const auto it = table.find(name);
  TORCH_CHECK(it != table.end(), "case file: unknown dtype ", name);
  return it->second;
}

// A tensor with its recorded strides in new memory.
at::Tensor read_tensor(const File& file, std::size_t index) {
  const json& about = file.tensors.at(index);
  const auto type = dtype_named(about["dtype"]);
  const auto shape = about["shape"].get<std::vector<std::int64_t>>();
  const auto stride = about["stride"].get<std::vector<std::int64_t>>();
  const auto bytes = about["nbytes"].get<std::int64_t>();
  const at::TensorOptions options(type);
  if (bytes == 0) return at::empty_strided(shape, stride, options);
  const at::Tensor flat = at::empty({bytes / static_cast<std::int64_t>(c10::elementSize(type))}, options);
  std::memcpy(flat.mutable_data_ptr(), file.bytes.data() + about["offset"].get<std::size_t>(),
              static_cast<std::size_t>(bytes));
  return flat.as_strided(shape, stride);
}

double number(const json& value) {
  if (value.is_number()) return value.get<double>();
  const auto text = value.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return (text == "-inf" ? -1 : 1) * std::numeric_limits<double>::infinity();
}

c10::Layout layout_named(const std::string& name) {
  return name == "sparse_coo" || name == "torch.sparse_coo" ? c10::kSparse : c10::kStrided;
}

c10::MemoryFormat format_named(const std::string& name) {
  if (name == "contiguous_format") return c10::MemoryFormat::Contiguous;
  if (name == "channels_last") return c10::MemoryFormat::ChannelsLast;
  if (name == "channels_last_3d") return c10::MemoryFormat::ChannelsLast3d;
  return c10::MemoryFormat::Preserve;
}

const c10::Type& unwrapped(const c10::Type& type) {
  return type.kind() == c10::TypeKind::OptionalType ? *type.containedType(0) : type;
}

struct Builder {
  const File& file;
  const MakeTensor& make;

  at::Tensor tensor(const json& value) const { return make(read_tensor(file, value["t"].get<std::size_t>())); }

  static at::Tensor wrapped_number(const json& value) {
    at::Tensor tensor;
    if (value.contains("b")) tensor = at::scalar_tensor(value["b"].get<bool>(), at::kBool);
    if (value.contains("i")) tensor = at::scalar_tensor(value["i"].get<std::int64_t>(), at::kLong);
    if (value.contains("f")) tensor = at::scalar_tensor(number(value["f"]), at::kDouble);
    if (value.contains("c")) tensor = at::scalar_tensor(complex(value["c"]), at::kComplexDouble);
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  static c10::complex<double> complex(const json& value) { return {number(value[0]), number(value[1])}; }

  template <class T, class Fn>
  static c10::IValue list(const json& items, Fn fn) {
    c10::List<T> result;
    for (const json& item : items) result.push_back(fn(item));
    return result;
  }

  static std::int64_t integer(const json& item) {
    return item.contains("b") ? item["b"].get<bool>() : item["i"].get<std::int64_t>();
  }
  static double real(const json& item) { return item.contains("i") ? item["i"].get<double>() : number(item["f"]); }

  c10::IValue list_of(const json& items, const c10::Type& element) const {
    switch (element.kind()) {
      case c10::TypeKind::TensorType:
        return list<at::Tensor>(items, [&](const json& i) { return tensor(i); });
      case c10::TypeKind::OptionalType:
        return list<std::optional<at::Tensor>>(
            items, [&](const json& i) { return i.is_null() ? std::nullopt : std::optional(tensor(i)); });
      case c10::TypeKind::FloatType:
        return list<double>(items, real);
      case c10::TypeKind::BoolType:
        return list<bool>(items, [](const json& i) { return i["b"].get<bool>(); });
      case c10::TypeKind::NumberType: {
        c10::impl::GenericList result(c10::NumberType::get());
        for (const json& item : items) result.push_back(value(item, element));
        return result;
      }
      default:
        return list<std::int64_t>(items, integer);
    }
  }

  c10::IValue value(const json& v, const c10::Type& declared, std::optional<std::int32_t> length = {}) const {
    if (v.is_null()) return {};
    const c10::Type& type = unwrapped(declared);
    if (type.kind() == c10::TypeKind::ListType) {
      const json items = v.contains("l") ? v["l"] : json(std::vector<json>(static_cast<std::size_t>(*length), v));
      return list_of(items, *type.containedType(0));
    }
    if (v.contains("t")) return tensor(v);
    if (v.contains("wn")) return wrapped_number(v["wn"]);
    if (v.contains("b")) return v["b"].get<bool>();
    if (v.contains("i")) {
      return type.kind() == c10::TypeKind::FloatType ? c10::IValue(v["i"].get<double>())
                                                     : c10::IValue(v["i"].get<std::int64_t>());
    }
    if (v.contains("f")) return number(v["f"]);
    if (v.contains("c")) return complex(v["c"]);
    if (v.contains("s")) return v["s"].get<std::string>();
    if (v.contains("dtype")) return static_cast<std::int64_t>(dtype_named(v["dtype"]));
    if (v.contains("device")) return at::Device(v["device"].get<std::string>());
    if (v.contains("layout")) return static_cast<std::int64_t>(layout_named(v["layout"]));
    if (v.contains("memory_format")) return static_cast<std::int64_t>(format_named(v["memory_format"]));
    TORCH_CHECK(false, "case file: unsupported value ", v.dump());
  }
};

const MakeTensor identity = [](const at::Tensor& tensor) { return tensor; };

std::vector<json> read_array(const std::string& path) {
  std::ifstream in(path);
  TORCH_CHECK(in, "case file: cannot read ", path);
  return json::parse(in).get<std::vector<json>>();
}

std::vector<char> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  TORCH_CHECK(in, "case file: cannot read ", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

void describe(const File& file, const json& value, std::string& text) {
  if (value.contains("t")) {
    const json& about = file.tensors.at(value["t"].get<std::size_t>());
    text += about["dtype"].get<std::string>() + about["shape"].dump() + " ";
  } else if (value.contains("l")) {
    text += "{";
    for (const json& item : value["l"]) describe(file, item, text);
    text += "} ";
  } else {
    text += (value.is_null() ? "-" : value.begin()->dump()) + " ";
  }
}

}  // namespace

int Case::id() const { return data_->value["id"]; }
const std::string& Case::op() const { return data_->op; }

std::string Case::text() const {
  std::string text = "#" + std::to_string(id()) + " " + op() + " ";
  for (const json& value : data_->value["args"]) describe(*data_->file, value, text);
  return text;
}

namespace {

// Name and overload, as the dispatcher expects them.
std::pair<std::string, std::string> parts_of(const std::string& op) {
  const auto dot = op.find('.');
  const std::string overload = op.substr(dot + 1);
  return {op.substr(0, dot), overload == "default" ? "" : overload};
}

}  // namespace

bool Case::exists() const {
  const auto [name, overload] = parts_of(op());
  return c10::Dispatcher::singleton().findSchema({name, overload}).has_value();
}

c10::OperatorHandle Case::handle() const {
  const auto [name, overload] = parts_of(op());
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
}

std::vector<c10::IValue> Case::arguments(const MakeTensor& make) const {
  const auto& schema = handle().schema().arguments();
  const Builder builder{*data_->file, make};
  std::vector<c10::IValue> values;
  for (std::size_t i = 0; i < schema.size(); ++i) {
    values.push_back(builder.value(data_->value["args"][i], *schema[i].type(), schema[i].N()));
  }
  return values;
}

std::vector<c10::IValue> Case::results() const {
  const auto op_handle = handle();
  const auto& schema = op_handle.schema().returns();
  std::vector<c10::IValue> values;
  for (std::size_t i = 0; i < schema.size(); ++i) {
    values.push_back(Builder{*data_->file, identity}.value(data_->value["out"][i], *schema[i].type()));
  }
  return values;
}

std::vector<std::pair<std::string, c10::IValue>> Case::mutated() const {
  std::vector<std::pair<std::string, c10::IValue>> values;
  if (!data_->value.contains("mut")) return values;
  const auto op_handle = handle();
  for (const auto& argument : op_handle.schema().arguments()) {
    const auto it = data_->value["mut"].find(argument.name());
    if (it == data_->value["mut"].end()) continue;
    values.emplace_back(argument.name(), Builder{*data_->file, identity}.value(*it, *argument.type()));
  }
  return values;
}

std::vector<Case> load_cases(const std::string& folder) {
  auto file = std::make_shared<File>();
  file->tensors = read_array(folder + "/tensors.json");
  file->bytes = read_bytes(folder + "/tensors.bin");
  std::vector<Case> cases;
  for (json& value : read_array(folder + "/cases.json")) {
    auto data = std::make_shared<Case::Data>();
    data->file = file;
    data->op = value["op"].get<std::string>();
    data->value = std::move(value);
    cases.emplace_back(std::move(data));
  }
  return cases;
}

}  // namespace dtensor::cases
