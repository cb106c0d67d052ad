// What a person sees: a progress bar while it trains, a table when it is done. Only one rank shows them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "run.h"

namespace train {

// A line on stderr: redrawn in place on a terminal, else printed some ten times a run.
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

// What ran, how fast, what moved. `where` is the mesh and backend in words.
Table summary(const Options& options, const std::string& where, const std::vector<StepRecord>& records);
Table memory_table(const MemoryUse& memory);
void print(const Table& table);  // on stdout

std::string cut_to_terminal(std::string line, int descriptor);  // to the width of the terminal there, else 79
std::string bytes_text(double bytes);                           // 1.5 MB
std::string received_bytes_text(const BytesByAxis& moved, std::size_t steps = 1);  // shard 1.5 MB, tp 0.3 MB (a step)

}  // namespace train
