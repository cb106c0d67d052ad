// What is told of a run's steps while it goes on, the same of every program: a line on the terminal, the log, an event
// file; and its plot at the end.
#pragma once

#include "log.h"
#include "progress.h"
#include "run_flags.h"
#include "step_record.h"
#include "tensorboard.h"

namespace train {

class RunOutput {
 public:
  // One rank of a run writes; for others, `writes` is false and nothing is done.
  RunOutput(const RunFlags& flags, bool writes);
  void add(const StepRecord& record);
  // The mean loss of held-out text after so many steps; a line on stdout.
  void add_evaluation(std::int64_t steps, double loss);
  const std::vector<double>& losses() const { return losses_; }  // of the steps so far, where it writes
  std::int64_t first_step() const { return first_step_; }        // of them
  // Throws std::runtime_error where not all of the files was written.
  void close();

 private:
  bool writes_;
  StepLog log_;
  TensorBoard board_;
  Progress progress_;
  std::vector<double> losses_;
  std::int64_t first_step_ = 0;
};

}  // namespace train
