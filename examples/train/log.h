// The log: one JSON object a line, one line a step, written as training goes.
#pragma once

#include <fstream>
#include <string>

#include "run.h"

namespace train {

class StepLog {
 public:
  explicit StepLog(const std::string& path);  // empty: no log. Throws UsageError where it cannot be written.
  void add(const StepRecord& record);

 private:
  std::ofstream out_;
};

// Throws UsageError unless a file can be written there. Leaves an existing file as it is.
void check_writable(const std::string& flag, const std::string& path);
// Throws UsageError where a checkpoint could not be saved in that folder.
void check_can_save(const std::string& flag, const std::string& path);

}  // namespace train
