// A run that can be stopped and resumed on the same mesh or another: its state, when it is saved, when it is stopped,
// and its first step.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "dtensor/checkpoint.h"
#include "run_flags.h"

namespace train {

// Identifies the text of the batches. Another text would give other batches.
struct RunText {
  std::int64_t tokens = 0, fingerprint = 0;  // Number and hash of the tokens.
  bool documents = false;                    // Packed in sequences.
};

class RunState {
 public:
  // An empty `world` (one device) neither loads nor saves. `model_flags`: flags that change the model without changing
  // names and sizes in a checkpoint.
  RunState(const RunFlags& flags, const RunText& text, std::string model_flags, dtensor::Communicator world);

  // Add everything that must be restored: parameters, optimizer, random numbers.
  dtensor::Checkpoint& parts() { return parts_; }
  // Called on every rank before each save.
  void before_save(std::function<void()> prepare) { before_save_ = std::move(prepare); }
  // Loads if --load or --resume is given. Returns the first step. Throws UsageError if batches or model would differ,
  // or if no steps are left. Collective.
  std::int64_t begin();
  // Saves if --save is given: every --save-every steps in the background, at the end, and if any rank received a
  // termination signal (signals.h). In the last case it returns the signal on every rank, and the run ends. Collective.
  int after(std::int64_t step);

 private:
  std::string resume_run();  // The loaded checkpoint; empty: none.
  void check_batches(const std::string& from) const;
  void check_model(const std::string& from) const;
  int requested() const;
  void save(bool wait);
  void finish_background();
  std::string saved(std::int64_t step) const;  // Path, step and bytes of a checkpoint, on rank 0.
  void say(const std::string& line) const;

  const RunFlags flags_;
  const RunText text_;
  const std::string model_flags_;
  dtensor::Communicator world_;
  std::int64_t step_ = 0, seed_, batch_, sequence_;
  RunText saved_text_;
  std::string saved_model_flags_;
  dtensor::Checkpoint parts_;
  std::function<void()> before_save_;
  std::optional<dtensor::CheckpointSeries> series_;  // Of --keep.
  std::optional<dtensor::PendingSave> pending_;      // Without --keep.
  std::int64_t background_step_ = 0;                 // Step of a save that is not complete; 0: none.
};

}  // namespace train
