// The log: one JSON object in each line, one line for each step, written during training.
#pragma once

#include <fstream>
#include <string>

#include "train/output/step_record.h"

namespace train {

class StepLog {
 public:
  // An empty path disables the log. Throws UsageError if it cannot be written. The file does not change before the
  // first line.
  explicit StepLog(const std::string& path);
  // The first line of a new run replaces the file. A resumed run keeps the lines of earlier steps. If a line cannot be
  // written, a message is printed on standard error and training continues.
  void add(const StepRecord& record);
  // Throws std::runtime_error if any line is missing.
  void close();

 private:
  void open(std::int64_t first_step);

  std::string path_;
  std::ofstream out_;
  bool write_failed_ = false;
};

}  // namespace train
