// The log: one JSON object a line, one line a step, written as training goes.
#pragma once

#include <fstream>
#include <string>

#include "step_record.h"

namespace train {

class StepLog {
 public:
  // Empty: no log. Throws UsageError where it cannot be written. The file stays as it is until there is a line.
  explicit StepLog(const std::string& path);
  // The first line begins the file anew; that of a run that goes on takes its place behind the lines of the steps
  // before it that are there. A line that cannot be written is told at once, on standard error, and does not end the
  // training.
  void add(const StepRecord& record);
  // Throws std::runtime_error where any line is missing.
  void close();

 private:
  void open(std::int64_t first_step);

  std::string path_;
  std::ofstream out_;
  bool write_failed_ = false;
};

}  // namespace train
