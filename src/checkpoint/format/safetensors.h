// The format of safetensors files: which tensor goes into which file and where, headers, and what a file on disk holds.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "dtensor/checkpoint.h"

namespace dtensor::files {

// In the metadata of each file of a checkpoint: there must be a checkpoint.json beside it, of this version.
inline constexpr const char* kMarker = "dtensor_checkpoint";
inline constexpr int kVersion = 2;

// Bytes of JSON at the beginning of a file at most; the format's reference refuses more.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

// "F32", ...; null where the format has no name for it.
const char* format_name(at::ScalarType dtype);
// The sizes that the format gives a tensor: F4 counts elements, of which ATen's bytes hold two along the last
// dimension.
std::vector<std::int64_t> format_sizes(const CheckpointEntry& entry);

struct Header {
  std::string file;    // name within the folder
  std::string text;    // its first bytes: the length and the JSON, padded
  std::int64_t bytes;  // of the whole file
};

struct FileLayout {
  std::vector<CheckpointEntry> entries;  // in the order given, `file` a name
  std::vector<Header> headers;           // one a file
  std::string index;                     // model.safetensors.index.json; empty for one file
};

// Tensors in the order given, but wider elements first within a file so that each is aligned; a new file where the next
// tensor would exceed `max_file_bytes`, or its description the longest header. Throws where one description alone does.
FileLayout make_file_layout(std::vector<CheckpointEntry> tensors, std::int64_t max_file_bytes);

std::int64_t numel_of(at::IntArrayRef sizes);

struct FileContent {
  std::vector<CheckpointEntry> entries;
  bool marked = false;  // part of a checkpoint
};

// The tensors of a file on disk, by its header. Accepts what the format's reference (the Rust crate safetensors, which
// Python's package is) accepts, but for sizes that no int64 holds, and throws with the path and the values otherwise.
FileContent read_header(const std::string& path);

}  // namespace dtensor::files
