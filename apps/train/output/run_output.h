// Outputs of a run during training, the same for every program: a line on the terminal, the log and an event file. Also
// the plot at the end.
#pragma once

#include "train/output/log.h"
#include "train/output/progress.h"
#include "train/output/step_record.h"
#include "train/output/tensorboard.h"
#include "train/run_flags.h"

namespace train {

class RunOutput {
 public:
  // One rank of a run writes; on others, `writes` is false and all functions do nothing.
  RunOutput(const RunFlags& flags, bool writes);
  void add(const StepRecord& record);
  // Reports the mean loss of held-out text after `steps` steps, in a line on stdout.
  void add_evaluation(std::int64_t steps, double loss);
  const std::vector<double>& losses() const { return losses_; }  // Of the steps so far, if this rank writes.
  std::int64_t first_step() const { return first_step_; }        // Of the losses.
  // Throws std::runtime_error if a file is incomplete.
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
