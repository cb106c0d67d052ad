// The metadata of a checkpoint: checkpoint.json, and the serialized index of a folder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/format/checksum.h"
#include "dtensor/checkpoint.h"

namespace dtensor::files {

// An additional name of a tied tensor: `name` refers to the tensor `entry`.
struct Alias {
  std::string name, entry;
};

// JSON of values with their types, including infinities and NaN.
std::string values_text(const CheckpointValues& values);
CheckpointValues parse_values(const std::string& text);

// The text of checkpoint.json.
std::string checkpoint_text(const CheckpointValues& values, const std::vector<CheckpointEntry>& entries,
                            const std::vector<Alias>& aliases);

// Metadata of a tensor: its checksum, and since version 2 the dtype and sizes that the file's header must have.
struct TensorMetadata {
  std::uint64_t checksum = 0;
  std::string dtype;  // dtype name of the format
  std::vector<std::int64_t> sizes;
};
struct CheckpointMetadata {
  bool has_types = false;  // version 2: dtypes, sizes, and a checksum of the metadata
  CheckpointValues values = {};
  std::map<std::string, TensorMetadata> tensors = {};
  std::vector<Alias> aliases = {};
};
// Throws an error with `path` if the text is damaged.
CheckpointMetadata parse_checkpoint(const std::string& text, const std::string& path);

// Serializes the index for other ranks, and parses it.
std::string index_text(const CheckpointIndex& index);
CheckpointIndex parse_index(const std::string& text);

}  // namespace dtensor::files
