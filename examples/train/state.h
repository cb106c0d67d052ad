// A run that can be left and taken up again, on the same mesh or another: what belongs to it, when it is saved, when it
// is left, and from which step it goes on.
#pragma once

#include <optional>
#include <string>

#include "dtensor/checkpoint.h"
#include "run_flags.h"

namespace train {

// What batches are cut from. A run that goes on with another text would have other batches.
struct RunText {
  std::int64_t tokens = 0, fingerprint = 0;  // of them, as a tokenizer made them
  bool documents = false;                    // packed in sequences
};

class RunState {
 public:
  // `world` empty (one device beside a mesh): neither loads nor saves. `model_flags`: what a checkpoint's names and
  // sizes do not tell of the model, as flags.
  RunState(const RunFlags& flags, const RunText& text, std::string model_flags, dtensor::Communicator world);

  // To be told of everything that must be as it was: parameters, optimizer, random numbers.
  dtensor::Checkpoint& parts() { return parts_; }
  // Loads where --load or --resume asks for it. The step to begin with. Throws UsageError where the batches or the
  // model would be others, or nothing is left to do. Collective.
  std::int64_t begin();
  // Saves where --save asks for it: in the background every --save-every steps, and at the end, or when any rank was
  // asked to leave (signals.h): then it returns the signal, on every rank, and the run ends here. Collective.
  int after(std::int64_t step);

 private:
  std::string resume_run();  // what was loaded; empty: nothing
  void check_batches(const std::string& from) const;
  void check_model(const std::string& from) const;
  int requested() const;
  void save(bool wait);
  void say(const std::string& line) const;

  const RunFlags flags_;
  const RunText text_;
  const std::string model_flags_;
  dtensor::Communicator world_;
  std::int64_t step_ = 0, seed_, batch_, sequence_;
  RunText saved_text_;
  std::string saved_model_flags_;
  dtensor::Checkpoint parts_;
  std::optional<dtensor::CheckpointSeries> series_;  // of --keep
  std::optional<dtensor::PendingSave> pending_;      // without it
};

}  // namespace train
