// The safetensors format: assignment of tensors to files and offsets, writing and reading of headers.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "dtensor/checkpoint.h"

namespace dtensor::files {

// Key in the metadata of each file of a checkpoint; a checkpoint.json of this version must be in the same folder.
inline constexpr const char* kMarker = "dtensor_checkpoint";
inline constexpr int kVersion = 2;

// Maximum size of the JSON header in bytes, as in the reference implementation.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

// "F32", ...; null if the format has no such dtype.
const char* format_name(at::ScalarType dtype);
// Sizes in the format: F4 counts elements, while ATen stores two per byte along the last dimension.
std::vector<std::int64_t> format_sizes(const CheckpointEntry& entry);

struct Header {
  std::string file;    // name within the folder
  std::string text;    // the first bytes: length and JSON, padded
  std::int64_t bytes;  // size of the file
};

struct FileLayout {
  std::vector<CheckpointEntry> entries;  // in the given order; `file` is a name
  std::vector<Header> headers;           // one per file
  std::string index;                     // model.safetensors.index.json; empty for one file
};

// Keeps the order of tensors, but within a file wider elements come first, so that all are aligned. A new file starts
// if the next tensor would exceed `max_file_bytes` or the maximum header size. Throws if a single description exceeds
// it.
FileLayout make_file_layout(std::vector<CheckpointEntry> tensors, std::int64_t max_file_bytes);

std::int64_t numel_of(at::IntArrayRef sizes);

struct FileContent {
  std::vector<CheckpointEntry> entries;
  bool marked = false;  // whether it is part of a checkpoint
};

// Reads the header of a file. Accepts what the reference (the Rust crate safetensors, also used by the Python package)
// accepts, except sizes beyond int64. Otherwise throws an error with the path and the values.
FileContent read_header(const std::string& path);

}  // namespace dtensor::files
