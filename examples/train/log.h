// The log: one JSON object a line, one line a step, written as training goes.
#pragma once

#include <fstream>
#include <string>

#include "step_record.h"

namespace train {

class StepLog {
 public:
  explicit StepLog(const std::string& path);  // empty: no log. Throws UsageError where it cannot be written.
  // A line that cannot be written is told at once, on standard error, and does not end the training.
  void add(const StepRecord& record);
  // Throws std::runtime_error where any line is missing.
  void close();

 private:
  std::string path_;
  std::ofstream out_;
  bool lacks_ = false;
};

}  // namespace train
