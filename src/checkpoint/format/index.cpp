// The metadata of a folder or file, from headers, index and checkpoint.json, which must be consistent.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "checkpoint/format/files/file.h"
#include "checkpoint/format/files/saved_folder.h"
#include "checkpoint/format/json.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/values.h"

namespace dtensor {
namespace files {
namespace {

namespace fs = std::filesystem;

// File by tensor. File names with a path separator are rejected, because they could lead out of the folder.
std::unordered_map<std::string, std::string> read_weight_map(const std::string& path) {
  const nlohmann::json json = parse_json(read_text(path), path), &map = member(json, "weight_map", path, "it");
  TORCH_CHECK(map.is_object(), path, " is damaged: its weight_map is ", excerpt(map), "; expected an object");
  std::unordered_map<std::string, std::string> file_of;
  for (const auto& [name, file] : map.items()) {
    const std::string& text = string_value(file, path, "the file of '" + name + "'");
    const bool regular = !text.empty() && text.find('/') == std::string::npos && text != "." && text != "..";
    TORCH_CHECK(regular, path, " says that '", name, "' is in '", text, "'; expected a file name in the same folder");
    file_of[name] = text;
  }
  return file_of;
}

FileContent content_of_folder(const fs::path& folder) {
  const fs::path index = folder / kIndexFile;
  if (!fs::exists(fs::symlink_status(index))) return read_header((folder / "model.safetensors").string());
  auto file_of = read_weight_map(index.string());
  std::set<std::string> files;
  for (const auto& [name, file] : file_of) files.insert(file);
  FileContent all;
  for (const std::string& file : files) {
    FileContent content = read_header((folder / file).string());
    TORCH_CHECK(file == *files.begin() || content.marked == all.marked, (folder / file).string(),
                content.marked ? " is part of a checkpoint, but other files that "
                               : " is not part of a checkpoint, but other files that ",
                index.string(), content.marked ? " lists are not" : " lists are");
    all.marked = content.marked;
    for (CheckpointEntry& e : content.entries) {
      const auto found = file_of.find(e.name);
      if (found == file_of.end() || found->second != file) continue;
      file_of.erase(found);
      all.entries.push_back(std::move(e));
    }
  }
  TORCH_CHECK(file_of.empty(), index.string(), " says that '", file_of.begin()->first, "' is in ",
              file_of.begin()->second, ", which does not contain it");
  return all;
}

std::string dtype_and_sizes(const std::string& dtype, at::IntArrayRef sizes) { return c10::str(dtype, " ", sizes); }

void apply_metadata(const CheckpointMetadata& file_metadata, const std::string& path, bool marked,
                    CheckpointIndex& index) {
  TORCH_CHECK(marked || !file_metadata.has_types, path, ": the files in this folder were not saved with it");
  std::unordered_map<std::string, CheckpointEntry> entries;
  for (CheckpointEntry& e : index.entries) {
    const auto note = file_metadata.tensors.find(e.name);
    const bool listed = note != file_metadata.tensors.end();
    TORCH_CHECK(listed || !file_metadata.has_types, path, " does not list tensor '", e.name, "', which is stored in ",
                e.file);
    if (listed) e.checksum = note->second.checksum;
    const bool same =
        !file_metadata.has_types || (note->second.dtype == e.format_dtype && note->second.sizes == e.sizes);
    TORCH_CHECK(same, e.file, " is damaged: '", e.name, "' is ", dtype_and_sizes(e.format_dtype, e.sizes),
                " there, but ", dtype_and_sizes(note->second.dtype, note->second.sizes), " in ", path);
    entries.emplace(e.name, e);
  }
  for (const auto& [name, note] : file_metadata.tensors) {
    TORCH_CHECK(entries.contains(name), path, " lists tensor '", name, "', which no file in this folder contains");
  }
  for (const Alias& alias : file_metadata.aliases) {
    const auto found = entries.find(alias.entry);
    TORCH_CHECK(found != entries.end() && !entries.contains(alias.name), path, " is damaged: '", alias.name,
                "' is another name of '", alias.entry, "', ",
                found == entries.end() ? "which does not exist" : "but is also stored");
    index.entries.push_back(found->second);
    index.entries.back().name = alias.name;
  }
  index.values = file_metadata.values;
}

CheckpointIndex index_of_folder(const fs::path& folder) {
  FileContent content = content_of_folder(folder);
  CheckpointIndex index{std::move(content.entries), {}};
  const std::string file_metadata = (folder / kValuesFile).string();
  if (fs::exists(fs::symlink_status(file_metadata))) {
    apply_metadata(parse_checkpoint(read_text(file_metadata), file_metadata), file_metadata, content.marked, index);
    return index;
  }
  TORCH_CHECK(!content.marked, folder.string(), " is a checkpoint without ", kValuesFile,
              ": it cannot be verified (each of its files can still be loaded by its path)");
  return index;
}

// A file of a checkpoint is verified with the metadata in its folder.
CheckpointIndex index_of_file(const fs::path& file) {
  FileContent content = read_header(file.string());
  const fs::path folder = file.parent_path();
  if (!content.marked || !fs::exists(folder / kValuesFile)) return {std::move(content.entries), {}};
  CheckpointIndex index = index_of_folder(folder);
  index.values.clear();
  std::erase_if(index.entries,
                [&](const CheckpointEntry& e) { return fs::path(e.file).filename() != file.filename(); });
  return index;
}

}  // namespace
}  // namespace files

CheckpointIndex read_checkpoint_index(const std::string& path) {
  using namespace files;
  if (!fs::exists(path)) {
    const auto aside = find_moved_aside(path);
    TORCH_CHECK(
        false, "there is no checkpoint ", path,
        aside.empty() ? std::string() : "; " + aside.back() + " is the previous checkpoint, from an interrupted save");
  }
  return fs::is_directory(path) ? index_of_folder(path) : index_of_file(path);
}

}  // namespace dtensor
