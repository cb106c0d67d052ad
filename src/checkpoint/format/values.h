// What a checkpoint says beside its tensors: checkpoint.json, and the index of a whole folder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/format/checksum.h"
#include "dtensor/checkpoint.h"

namespace dtensor::files {

// A tensor that stands under another name (tied): `name` has what `entry` has.
struct Alias {
  std::string name, entry;
};

// JSON with all values in their types; infinities and NaN included.
std::string values_text(const CheckpointValues& values);
CheckpointValues parse_values(const std::string& text);

// checkpoint.json.
std::string checkpoint_text(const CheckpointValues& values, const std::vector<CheckpointEntry>& entries,
                            const std::vector<Alias>& aliases);

// What it says of a tensor: its checksum, and from version 2 on what the file's header must say too.
struct TensorMetadata {
  std::uint64_t checksum = 0;
  std::string dtype;  // as the format calls it
  std::vector<std::int64_t> sizes;
};
struct CheckpointMetadata {
  bool has_types = false;  // version 2: dtypes, sizes, and a checksum of all that is said
  CheckpointValues values = {};
  std::map<std::string, TensorMetadata> tensors = {};
  std::vector<Alias> aliases = {};
};
// Throws with `path` where it is damaged.
CheckpointMetadata parse_checkpoint(const std::string& text, const std::string& path);

// One text for the whole index, to be sent to other ranks, and back.
std::string index_text(const CheckpointIndex& index);
CheckpointIndex parse_index(const std::string& text);

}  // namespace dtensor::files
