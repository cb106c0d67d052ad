// `llm export`: a folder that transformers loads.
#pragma once

#include <optional>
#include <string>

#include "model.h"

namespace llm {

// Writes the model's tensors, adapters merged, under the names of its family, in the dtypes that `source` stores them
// in or in `dtype`; all other files of `source` (configuration, tokenizer) are copied, and the configuration's dtype
// follows. An earlier export there is replaced, other files of the folder stay. Collective.
void export_folder(const Model& model, const Family& family, const std::string& source, const std::string& out,
                   const dtensor::Communicator& world, std::optional<at::ScalarType> dtype = {});

// Throws UsageError where export_folder would refuse the folder. Not collective; before the ranks start.
void check_export(const std::string& source, const std::string& out);

// A dtype that holds what every floating tensor of the folder holds, so that it is written back as it was.
at::ScalarType widest_stored(const std::string& folder);

}  // namespace llm
