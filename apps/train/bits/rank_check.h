// Silent data corruption: a step is computed again with its parts on other ranks. A rank whose part then has another
// hash is named. See docs/design/bit_identical.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/optim.h"
#include "train/job.h"
#include "train/model/optimizer.h"

namespace train {

// World ranks that computed wrong numbers.
struct WrongRanks {
  std::vector<std::int64_t> ranks = {};  // Empty: none.
  bool certain = true;                   // False: at least one of them.
  std::string where = {};                // The first wrong result.
  std::string str() const;
};

// Prepares forward and backward of a step, in which this rank computes the part of rank (rank + shift) % size. The
// returned function runs them, and returns this rank's parts of the gradients, by name.
using ShiftedPass = std::function<std::function<dtensor::StateTensors()>(int shift)>;

// Runs two passes, so that two ranks compute each part, and compares hashes of the gradients and of what ranks sent. If
// they differ, further passes decide which rank is wrong: on a third rank; of two ranks, on each again. Collective.
WrongRanks find_wrong_ranks(const dtensor::Communicator& world, const ShiftedPass& prepare);

class WrongRankError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The check of a run.
class RankCheck {
 public:
  // The first update() is that which created the parameters.
  RankCheck(const Job& job, const Optimizer& optimizer) : job_(job), optimizer_(optimizer) { after_update(); }

  // run_batch(), repeated on other ranks. Its gradients and random numbers are those of the first pass. Collective.
  at::Tensor run(const Batch& batch);
  // What run() found since the last call; otherwise the ranks whose parameters or optimizer states changed since
  // after_update(). Collective.
  WrongRanks before_update();
  void after_update() { hash_ = optimizer_.local_hash(); }

 private:
  class ShiftedJob;

  const Job& job_;
  const Optimizer& optimizer_;
  std::map<int, std::shared_ptr<ShiftedJob>> jobs_;  // By shift.
  WrongRanks found_;
  std::string hash_;
};

}  // namespace train
