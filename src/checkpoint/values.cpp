// Values and index as JSON. Numbers that JSON lacks (infinities, NaN) are objects {"double": "inf"}.
#include "checkpoint/values.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "checkpoint/file.h"
#include "checkpoint/safetensors.h"

namespace dtensor {
namespace files {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

Json to_json(const CheckpointValue& value) {
  if (const auto* number = std::get_if<double>(&value); number != nullptr && !std::isfinite(*number)) {
    return {{"double", std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf"}};
  }
  return std::visit([](const auto& v) { return Json(v); }, value);
}

CheckpointValue value_of(const std::string& name, const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  TORCH_CHECK(json.is_object() && json.contains("double"), "value '", name, "' is ", json.dump(),
              ", which is no number, string or bool");
  return std::stod(json.at("double").get<std::string>());
}

Json to_json(const CheckpointValues& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) json[name] = to_json(value);
  return json;
}

CheckpointValues values_of(const Json& json) {
  CheckpointValues values;
  for (const auto& [name, value] : json.items()) values.emplace(name, value_of(name, value));
  return values;
}

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::uint64_t number_of(const std::string& hex) { return std::stoull(hex, nullptr, 16); }

std::vector<CheckpointEntry> entries_of_folder(const fs::path& folder) {
  if (!fs::exists(folder / kIndexFile)) return read_header((folder / "model.safetensors").string());
  const Json json = Json::parse(read_text((folder / kIndexFile).string()));
  std::unordered_map<std::string, std::string> file_of;
  std::map<std::string, bool> files;
  for (const auto& [name, file] : json.at("weight_map").items()) {
    file_of[name] = file.get<std::string>();
    files[file_of[name]] = true;
  }
  std::vector<CheckpointEntry> entries;
  for (const auto& [file, unused] : files) {
    for (CheckpointEntry& e : read_header((folder / file).string())) {
      const auto found = file_of.find(e.name);
      if (found == file_of.end() || found->second != file) continue;
      file_of.erase(found);
      entries.push_back(std::move(e));
    }
  }
  TORCH_CHECK(file_of.empty(), (folder / kIndexFile).string(), " says that '", file_of.begin()->first, "' is in ",
              file_of.begin()->second, ", which does not have it");
  return entries;
}

void add_own(const Json& json, const std::string& path, CheckpointIndex& index) {
  const auto version = json.at("version").get<int>();
  TORCH_CHECK(version == 1, path, " has version ", version, "; this library reads 1");
  index.values = values_of(json.at("values"));
  std::unordered_map<std::string, std::size_t> position;
  for (std::size_t i = 0; i < index.entries.size(); ++i) position[index.entries[i].name] = i;
  for (const auto& [name, about] : json.at("tensors").items()) {
    const auto found = position.find(name);
    TORCH_CHECK(found != position.end(), path, " lists tensor '", name, "', which is in no file beside it");
    index.entries[found->second].checksum = number_of(about.at("checksum").get<std::string>());
  }
  for (const auto& [name, of] : json.at("aliases").items()) {
    const auto found = position.find(of.get<std::string>());
    TORCH_CHECK(found != position.end(), path, ": '", name, "' is another name of '", of, "', which is not there");
    index.entries.push_back(index.entries[found->second]);
    index.entries.back().name = name;
  }
}

}  // namespace

std::string values_text(const CheckpointValues& values) { return to_json(values).dump(); }

std::string checkpoint_text(const CheckpointValues& values, const std::vector<CheckpointEntry>& entries,
                            const std::vector<Alias>& aliases) {
  Json json = {{"format", "dtensor checkpoint"}, {"version", 1}};
  json["values"] = to_json(values);
  json["tensors"] = Json::object();
  for (const CheckpointEntry& e : entries) json["tensors"][e.name] = {{"checksum", hex(e.checksum.value_or(0))}};
  json["aliases"] = Json::object();
  for (const Alias& a : aliases) json["aliases"][a.name] = a.entry;
  return json.dump(1) + "\n";
}

std::string index_text(const CheckpointIndex& index) {
  Json list = Json::array();
  for (const CheckpointEntry& e : index.entries) {
    list.push_back({e.name, static_cast<int>(e.dtype), e.sizes, e.file, e.offset, e.bytes,
                    e.checksum ? Json(hex(*e.checksum)) : Json()});
  }
  return Json{{"entries", std::move(list)}, {"values", to_json(index.values)}}.dump();
}

CheckpointIndex parse_index(const std::string& text) {
  const Json json = Json::parse(text);
  CheckpointIndex index;
  index.values = values_of(json.at("values"));
  for (const Json& e : json.at("entries")) {
    index.entries.push_back({.name = e.at(0).get<std::string>(),
                             .dtype = static_cast<at::ScalarType>(e.at(1).get<int>()),
                             .sizes = e.at(2).get<std::vector<std::int64_t>>(),
                             .file = e.at(3).get<std::string>(),
                             .offset = e.at(4).get<std::int64_t>(),
                             .bytes = e.at(5).get<std::int64_t>()});
    if (e.at(6).is_string()) index.entries.back().checksum = number_of(e.at(6).get<std::string>());
  }
  return index;
}

}  // namespace files

CheckpointIndex read_checkpoint_index(const std::string& path) {
  using namespace files;
  TORCH_CHECK(fs::exists(path), "there is no checkpoint ", path,
              fs::exists(path + ".old") ? "; " + path + ".old is the one before an interrupted save" : std::string());
  if (!fs::is_directory(path)) return {read_header(path), {}};
  const fs::path folder(path), own = folder / kValuesFile;
  try {
    CheckpointIndex index{entries_of_folder(folder), {}};
    if (fs::exists(own)) add_own(Json::parse(read_text(own.string())), own.string(), index);
    return index;
  } catch (const Json::exception& error) {
    TORCH_CHECK(false, path, " has a damaged JSON file: ", error.what());
  }
}

}  // namespace dtensor
