// Terminal output: a progress bar during training and a table at the end. Only one rank prints.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "train/run.h"

namespace train {

// A line on stderr: updated in place on a terminal, otherwise printed about ten times in a run.
class Progress {
 public:
  explicit Progress(std::int64_t steps);
  void show(const StepRecord& record);

 private:
  std::int64_t steps_;
  bool terminal_;
  double smooth_seconds_ = 0;
};

using Table = std::vector<std::pair<std::string, std::string>>;

// Describes the run, its speed and its communication. `where` is the text of mesh and backend.
Table summary(const Options& options, const std::string& where, const std::vector<StepRecord>& records);
Table memory_table(const MemoryUse& memory);
void print(const Table& table);  // On stdout.

std::string cut_to_terminal(std::string line, int descriptor);  // To the terminal's width, or 79.
std::string bytes_text(double bytes);                           // 1.5 MB
std::string received_bytes_text(const BytesByAxis& moved,
                                std::size_t steps = 1);  // shard 1.5 MB, tp 0.3 MB (per step).

}  // namespace train
