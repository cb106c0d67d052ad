// `llm export`: a folder that transformers loads.
#pragma once

#include <optional>
#include <string>

#include "llm/model.h"

namespace llm {

// Writes the model's tensors with merged adapters, under the names of its family. Dtypes are those of `source`, or
// `dtype`. Copies the other files of `source` (configuration, tokenizer) and updates the configuration's dtype.
// Replaces an earlier export; other files of the folder stay. Collective.
void export_folder(const Model& model, const Family& family, const std::string& source, const std::string& out,
                   const dtensor::Communicator& world, std::optional<at::ScalarType> dtype = {});

// Throws UsageError if export_folder would refuse the folder. Not collective; called before the ranks start.
void check_export(const std::string& source, const std::string& out);

// Whether the folder has a file of weights, in any format.
bool has_weights(const std::string& folder);

// A dtype that represents all floating-point tensors of the folder exactly, so that an export equals the source.
at::ScalarType widest_stored(const std::string& folder);

}  // namespace llm
