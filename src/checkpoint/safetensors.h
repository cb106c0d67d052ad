// The format of safetensors files: which tensor goes into which file and where, headers, and what a file on disk holds.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "dtensor/checkpoint.h"

namespace dtensor::files {

// "F32", ...; null where the format has no name for it.
const char* format_name(at::ScalarType dtype);

struct Header {
  std::string file;    // name within the folder
  std::string text;    // its first bytes: the length and the JSON, padded
  std::int64_t bytes;  // of the whole file
};

struct Layout {
  std::vector<CheckpointEntry> entries;  // in the order given, `file` a name
  std::vector<Header> headers;           // one a file
  std::string index;                     // model.safetensors.index.json; empty for one file
};

// Tensors in the order given, but wider elements first within a file so that each is aligned; a new file where the next
// tensor would exceed `max_file_bytes`.
Layout lay_out(std::vector<CheckpointEntry> tensors, std::int64_t max_file_bytes);

std::int64_t numel_of(at::IntArrayRef sizes);

// The tensors of a file on disk, by its header. Throws with the path where the file is not what it says.
std::vector<CheckpointEntry> read_header(const std::string& path);

}  // namespace dtensor::files
