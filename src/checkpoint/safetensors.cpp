// The format of safetensors files: eight bytes of length, a JSON object, the tensors' bytes without a hole.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/file.h"

namespace dtensor::files {
namespace {

using Json = nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors is little-endian, and so is this code");

struct Name {
  at::ScalarType dtype;
  const char* text;
};
constexpr std::array<Name, 16> kNames = {{{at::kDouble, "F64"},
                                          {at::kFloat, "F32"},
                                          {at::kHalf, "F16"},
                                          {at::kBFloat16, "BF16"},
                                          {at::kLong, "I64"},
                                          {at::kInt, "I32"},
                                          {at::kShort, "I16"},
                                          {at::kChar, "I8"},
                                          {at::kByte, "U8"},
                                          {at::kBool, "BOOL"},
                                          {at::kComplexFloat, "C64"},
                                          {at::ScalarType::UInt16, "U16"},
                                          {at::ScalarType::UInt32, "U32"},
                                          {at::ScalarType::UInt64, "U64"},
                                          {at::ScalarType::Float8_e4m3fn, "F8_E4M3"},
                                          {at::ScalarType::Float8_e5m2, "F8_E5M2"}}};

at::ScalarType dtype_of(const std::string& text) {
  for (const Name& name : kNames) {
    if (text == name.text) return name.dtype;
  }
  return at::ScalarType::Undefined;
}

using Group = std::vector<std::size_t>;  // of one file

std::vector<Group> split_into_files(const std::vector<CheckpointEntry>& tensors, std::int64_t max_file_bytes) {
  std::vector<Group> files(1);
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!files.back().empty() && filled + tensors[i].bytes > max_file_bytes) {
      files.emplace_back();
      filled = 0;
    }
    filled += tensors[i].bytes;
    files.back().push_back(i);
  }
  return files;
}

std::string file_name(std::size_t index, std::size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

// Fills in file and offset of the group's entries.
Header place(const std::string& file, Group group, std::vector<CheckpointEntry>& entries) {
  std::stable_sort(group.begin(), group.end(), [&](std::size_t a, std::size_t b) {
    return c10::elementSize(entries[a].dtype) > c10::elementSize(entries[b].dtype);
  });
  Json json;
  json["__metadata__"] = {{"format", "pt"}};
  std::int64_t position = 0;
  for (const std::size_t i : group) {
    CheckpointEntry& e = entries[i];
    json[e.name] = {
        {"dtype", format_name(e.dtype)}, {"shape", e.sizes}, {"data_offsets", {position, position + e.bytes}}};
    e.offset = position;
    position += e.bytes;
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto length = static_cast<std::uint64_t>(text.size());
  std::string head(sizeof length, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  head += text;
  const auto data_begin = static_cast<std::int64_t>(head.size());
  for (const std::size_t i : group) {
    entries[i].file = file;
    entries[i].offset += data_begin;
  }
  return {file, std::move(head), data_begin + position};
}

std::string index_of(const std::vector<CheckpointEntry>& entries) {
  Json json;
  std::int64_t total = 0;
  for (const CheckpointEntry& e : entries) total += e.bytes;
  json["metadata"]["total_size"] = total;
  json["weight_map"] = Json::object();
  for (const CheckpointEntry& e : entries) json["weight_map"][e.name] = e.file;
  return json.dump(2);
}

}  // namespace

const char* format_name(at::ScalarType dtype) {
  for (const Name& name : kNames) {
    if (dtype == name.dtype) return name.text;
  }
  return nullptr;
}

std::int64_t numel_of(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

Layout lay_out(std::vector<CheckpointEntry> tensors, std::int64_t max_file_bytes) {
  Layout layout;
  for (CheckpointEntry& e : tensors) e.bytes = numel_of(e.sizes) * static_cast<std::int64_t>(c10::elementSize(e.dtype));
  const std::vector<Group> files = split_into_files(tensors, max_file_bytes);
  for (std::size_t i = 0; i < files.size(); ++i) {
    layout.headers.push_back(place(file_name(i, files.size()), files[i], tensors));
  }
  if (files.size() > 1) layout.index = index_of(tensors);
  layout.entries = std::move(tensors);
  return layout;
}

namespace {

// Whatever a damaged file says.
bool has_bytes(at::IntArrayRef sizes, std::int64_t item, std::int64_t bytes) {
  std::int64_t product = item;
  bool overflow = false, empty = false;
  for (const std::int64_t n : sizes) {
    if (n < 0) return false;
    empty = empty || n == 0;
    overflow = __builtin_mul_overflow(product, n, &product) || overflow;
  }
  return empty ? bytes == 0 : !overflow && product == bytes;
}

CheckpointEntry parse_entry(const std::string& name, const Json& json, std::int64_t data_begin, std::int64_t file_bytes,
                            const std::string& path) {
  CheckpointEntry e{.name = name, .file = path};
  e.dtype = dtype_of(json.at("dtype").get<std::string>());
  e.sizes = json.at("shape").get<std::vector<std::int64_t>>();
  const auto begin = json.at("data_offsets").at(0).get<std::int64_t>();
  const auto end = json.at("data_offsets").at(1).get<std::int64_t>();
  TORCH_CHECK(begin >= 0 && end >= begin, path, " is damaged: '", name, "' is from ", begin, " to ", end);
  TORCH_CHECK(end <= file_bytes - data_begin, path, " is truncated: '", name, "' ends at byte ", end,
              " of the data, which has ", file_bytes - data_begin);
  e.offset = data_begin + begin;
  e.bytes = end - begin;
  const auto item = e.dtype == at::ScalarType::Undefined ? 0 : static_cast<std::int64_t>(c10::elementSize(e.dtype));
  TORCH_CHECK(item == 0 || has_bytes(e.sizes, item, e.bytes), path, " is damaged: '", name, "' of sizes ",
              at::IntArrayRef(e.sizes), " and dtype ", e.dtype, " has ", e.bytes, " bytes");
  return e;
}

}  // namespace

std::vector<CheckpointEntry> read_header(const std::string& path) {
  const File file = File::open_to_read(path);
  const std::int64_t bytes = file.size();
  std::uint64_t length = 0;
  file.read(&length, sizeof length, 0);
  TORCH_CHECK(length <= static_cast<std::uint64_t>(bytes) - sizeof length, path,
              " is truncated or no safetensors file: it says that its header has ", length, " bytes, and has ", bytes);
  std::string text(length, '\0');
  file.read(text.data(), static_cast<std::int64_t>(length), sizeof length);
  std::vector<CheckpointEntry> entries;
  try {
    const Json all = Json::parse(text);
    for (const auto& [name, json] : all.items()) {
      if (name == "__metadata__") continue;
      entries.push_back(parse_entry(name, json, static_cast<std::int64_t>(sizeof length + length), bytes, path));
    }
  } catch (const Json::exception& error) {
    TORCH_CHECK(false, path, " is damaged or no safetensors file: ", error.what());
  }
  return entries;
}

}  // namespace dtensor::files
