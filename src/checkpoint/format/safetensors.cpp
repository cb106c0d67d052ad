// Layout of files: eight bytes with the header length, a JSON object, the tensors' bytes without gaps.
#include "checkpoint/format/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

namespace dtensor::files {
namespace {

using Json = nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors is little-endian, and so is this code");

using Group = std::vector<std::size_t>;  // tensors of one file

// Upper bound of the bytes that describe the entry in a header.
std::int64_t described_bytes(const CheckpointEntry& entry) {
  constexpr std::int64_t kNumber = 20, kRest = 100;
  const std::int64_t bytes = std::ssize(Json(entry.name).dump()) + kNumber * (std::ssize(entry.sizes) + 2) + kRest;
  TORCH_CHECK(bytes <= kMaxHeaderBytes - 2 * kRest, "a tensor whose name has ", entry.name.size(), " bytes (",
              entry.name.substr(0, 40), "...) does not fit in a safetensors header");
  return bytes;
}

std::vector<Group> split_into_files(const std::vector<CheckpointEntry>& tensors, std::int64_t max_file_bytes) {
  constexpr std::int64_t kMetadata = 200;
  std::vector<Group> files(1);
  std::int64_t filled = 0, header = kMetadata;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t described = described_bytes(tensors[i]);
    const bool full = filled + tensors[i].bytes > max_file_bytes || header + described > kMaxHeaderBytes;
    if (!files.back().empty() && full) {
      files.emplace_back();
      filled = 0, header = kMetadata;
    }
    filled += tensors[i].bytes, header += described;
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

// Sets file and offset of the group's entries.
Header place(const std::string& file, Group group, std::vector<CheckpointEntry>& entries) {
  std::stable_sort(group.begin(), group.end(), [&](std::size_t a, std::size_t b) {
    return c10::elementSize(entries[a].dtype) > c10::elementSize(entries[b].dtype);
  });
  Json json;
  json["__metadata__"] = {{"format", "pt"}, {kMarker, std::to_string(kVersion)}};
  std::int64_t position = 0;
  for (const std::size_t i : group) {
    CheckpointEntry& e = entries[i];
    json[e.name] = {
        {"dtype", e.format_dtype}, {"shape", format_sizes(e)}, {"data_offsets", {position, position + e.bytes}}};
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

std::int64_t numel_of(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

FileLayout make_file_layout(std::vector<CheckpointEntry> tensors, std::int64_t max_file_bytes) {
  FileLayout layout;
  for (CheckpointEntry& e : tensors) {
    e.bytes = numel_of(e.sizes) * static_cast<std::int64_t>(c10::elementSize(e.dtype));
    e.format_dtype = format_name(e.dtype);
  }
  const std::vector<Group> files = split_into_files(tensors, max_file_bytes);
  for (std::size_t i = 0; i < files.size(); ++i) {
    layout.headers.push_back(place(file_name(i, files.size()), files[i], tensors));
  }
  if (files.size() > 1) layout.index = index_of(tensors);
  layout.entries = std::move(tensors);
  return layout;
}

}  // namespace dtensor::files
