// What a checkpoint says beside its tensors: checkpoint.json, and the index of a whole folder.
#pragma once

#include <string>

#include "checkpoint/checksum.h"
#include "dtensor/checkpoint.h"

namespace dtensor::files {

// A tensor that stands under another name (tied): `name` has what `entry` has.
struct Alias {
  std::string name, entry;
};

// JSON with all values in their types; infinities and NaN included.
std::string values_text(const CheckpointValues& values);

// checkpoint.json.
std::string checkpoint_text(const CheckpointValues& values, const std::vector<CheckpointEntry>& entries,
                            const std::vector<Alias>& aliases);

// One text for the whole index, to be sent to other ranks, and back.
std::string index_text(const CheckpointIndex& index);
CheckpointIndex parse_index(const std::string& text);

}  // namespace dtensor::files
