// What a person sees when it is done: a table, pictures of the loss and of the load, and the comparison with one
// device.
#pragma once

#include <string>
#include <vector>

#include "run.h"

namespace moe_example {

// Returns the exit status: 1 where --compare found another curve.
int report(const Options& options, const train::Corpus& corpus, const std::string& where,
           const std::vector<StepRecord>& records);

}  // namespace moe_example
