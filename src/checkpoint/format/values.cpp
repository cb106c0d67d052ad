// JSON of values, of checkpoint.json and of the index that ranks send each other. Infinities and NaN, which JSON lacks,
// are objects {"double": "inf"}.
#include "checkpoint/format/values.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/format/json.h"
#include "checkpoint/format/safetensors.h"

namespace dtensor::files {
namespace {

using Json = nlohmann::json;

Json to_json(const CheckpointValues::mapped_type& value) {
  if (const auto* number = std::get_if<double>(&value); number != nullptr && !std::isfinite(*number)) {
    return {{"double", std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf"}};
  }
  return std::visit([](const auto& v) { return Json(v); }, value);
}

CheckpointValues::mapped_type value_of(const std::string& name, const Json& json, const std::string& path) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned()) return non_negative_integer(json, path, "value '" + name + "'");
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  const std::string special = json.is_object() && json.size() == 1 ? json.value("double", "") : "";
  if (special == "inf") return kInfinity;
  if (special == "-inf") return -kInfinity;
  TORCH_CHECK(special == "nan", path, " is damaged: value '", name, "' is ", excerpt(json),
              "; expected a number, string or bool");
  return std::nan("");
}

Json to_json(const CheckpointValues& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) json[name] = to_json(value);
  return json;
}

CheckpointValues values_of(const Json& json, const std::string& path) {
  CheckpointValues values;
  for (const auto& [name, value] : json.items()) values.emplace(name, value_of(name, value, path));
  return values;
}

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::uint64_t number_of(const Json& json, const std::string& path, const std::string& what) {
  const std::string& text = string_value(json, path, what);
  std::uint64_t number = 0;
  const auto end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, 16);
  TORCH_CHECK(text.size() == 16 && parsed.ec == std::errc() && parsed.ptr == end, path, " is damaged: ", what, " is '",
              text, "', not 16 hexadecimal digits");
  return number;
}

// Checksum of everything except the checksum itself, computed from the parsed JSON, so that whitespace does not matter.
std::uint64_t checksum_of(const Json& json) {
  Json rest = json;
  rest.erase("checksum");
  const std::string text = rest.dump();
  return checksum(text.data(), 1, static_cast<std::int64_t>(text.size()), 0).sum;
}

void check_version(const Json& json, const std::string& path) {
  const std::int64_t version = non_negative_integer(member(json, "version", path, "it"), path, "its version");
  // A ValueError, because the file is not damaged: another version of the library can read it.
  TORCH_CHECK_VALUE(version >= 1 && version <= kVersion, path, " has version ", version, "; this library reads up to ",
                    kVersion);
  TORCH_CHECK((version > 1) == json.contains("checksum"), path, " is damaged: it has version ", version, ", but ",
              version > 1 ? "no checksum" : "a checksum, which version 1 does not have");
  if (version == 1) return;
  const std::uint64_t stored = number_of(json.at("checksum"), path, "its checksum"), actual = checksum_of(json);
  TORCH_CHECK(stored == actual, path, " is damaged: its checksum is ", hex(actual), ", expected ", hex(stored));
}

TensorMetadata metadata_of(const std::string& name, const Json& about, const std::string& path, bool with_type) {
  const std::string what = "tensor '" + name + "'";
  TensorMetadata note{number_of(member(about, "checksum", path, what), path, "the checksum of " + what), {}, {}};
  if (!with_type) return note;
  note.dtype = string_value(member(about, "dtype", path, what), path, "the dtype of " + what);
  const Json& shape = member(about, "shape", path, what);
  TORCH_CHECK(shape.is_array(), path, " is damaged: the shape of ", what, " is ", excerpt(shape));
  for (const Json& n : shape) note.sizes.push_back(non_negative_integer(n, path, "a size of " + what));
  return note;
}

const Json& object(const Json& json, const char* name, const std::string& path) {
  const Json& found = member(json, name, path, "it");
  TORCH_CHECK(found.is_object(), path, " is damaged: its '", name, "' is ", excerpt(found), "; expected an object");
  return found;
}

}  // namespace

std::string values_text(const CheckpointValues& values) { return to_json(values).dump(); }
CheckpointValues parse_values(const std::string& text) { return values_of(Json::parse(text), "a list of values"); }

std::string checkpoint_text(const CheckpointValues& values, const std::vector<CheckpointEntry>& entries,
                            const std::vector<Alias>& aliases) {
  Json json = {{"format", "dtensor checkpoint"}, {"version", kVersion}};
  json["values"] = to_json(values);
  json["tensors"] = Json::object();
  for (const CheckpointEntry& e : entries) {
    json["tensors"][e.name] = {
        {"checksum", hex(e.checksum.value_or(0))}, {"dtype", e.format_dtype}, {"shape", e.sizes}};
  }
  json["aliases"] = Json::object();
  for (const Alias& a : aliases) json["aliases"][a.name] = a.entry;
  json["checksum"] = hex(checksum_of(json));
  return json.dump(1) + "\n";
}

CheckpointMetadata parse_checkpoint(const std::string& text, const std::string& path) {
  const Json json = parse_json(text, path);
  check_version(json, path);
  CheckpointMetadata file_metadata{.has_types = json.at("version") > 1,
                                   .values = values_of(object(json, "values", path), path)};
  for (const auto& [name, about] : object(json, "tensors", path).items()) {
    file_metadata.tensors.emplace(name, metadata_of(name, about, path, file_metadata.has_types));
  }
  for (const auto& [name, of] : object(json, "aliases", path).items()) {
    file_metadata.aliases.push_back({name, string_value(of, path, "the target of alias '" + name + "'")});
  }
  return file_metadata;
}

std::string index_text(const CheckpointIndex& index) {
  Json list = Json::array();
  for (const CheckpointEntry& e : index.entries) {
    list.push_back({e.name, static_cast<int>(e.dtype), e.sizes, e.file, e.offset, e.bytes,
                    e.checksum ? Json(hex(*e.checksum)) : Json(), e.format_dtype});
  }
  const auto bytes = Json::to_cbor({{"entries", std::move(list)}, {"values", to_json(index.values)}});
  return {bytes.begin(), bytes.end()};  // CBOR, because paths need not be UTF-8 as JSON requires
}

CheckpointIndex parse_index(const std::string& text) {
  const Json json = Json::from_cbor(text);
  CheckpointIndex index;
  index.values = values_of(json.at("values"), "the index");
  for (const Json& e : json.at("entries")) {
    index.entries.push_back({.name = e.at(0).get<std::string>(),
                             .dtype = static_cast<at::ScalarType>(e.at(1).get<int>()),
                             .sizes = e.at(2).get<std::vector<std::int64_t>>(),
                             .file = e.at(3).get<std::string>(),
                             .offset = e.at(4).get<std::int64_t>(),
                             .bytes = e.at(5).get<std::int64_t>(),
                             .format_dtype = e.at(7).get<std::string>()});
    if (e.at(6).is_string()) index.entries.back().checksum = number_of(e.at(6), "the index", "a checksum");
  }
  return index;
}

}  // namespace dtensor::files
