// The file of a layout: `plan search --out` and --plan-out write it, --plan reads it.
#pragma once

#include <string>

#include "dtensor/estimate.h"

namespace train {

struct Plan {
  dtensor::ParallelLayout layout;
  std::int64_t batch = 0, seq = 0;  // 0: the file does not say
};

// Throws UsageError if the file of --plan is not one. A field that it does not know is an error, since the run would
// not be the planned one.
Plan read_plan(const std::string& file);
// `model`: a folder or a preset; empty: none.
void write_plan(const std::string& file, const Plan& plan, const dtensor::LayoutCost& cost,
                const std::string& model = {});

}  // namespace train
