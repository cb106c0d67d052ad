// Hashes of what a step computes (--hashes), by which a repetition on another mesh is compared with it (--replay).
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/events.h"
#include "train/args.h"

namespace train {

// Names and SHA-256 of a step's results by global contents, in the order of their computation. Calls of an operator in
// one module have one name.
using Hashes = std::vector<std::pair<std::string, std::string>>;

struct HashDifference {
  std::string first = {};  // Name and hashes of the first result that differs; empty: none.
  std::int64_t compared = 0, different = 0;
};

// Names that both have equally often are compared, since a layout may need other views than the recorded one.
HashDifference compare_hashes(const Hashes& recorded, const Hashes& repeated);

// The lines of a file, by step. Throws UsageError if it cannot be read.
std::map<std::int64_t, Hashes> read_hashes(const std::string& path);

// The newest checkpoint in the folder `load` of a step before `step`; `load` itself if it is a checkpoint or empty.
std::string checkpoint_before(const std::string& load, std::int64_t step);

// "in <module>, <phase>" of an operator or collective.
std::string place_of(const dtensor::Event& event);

// The text of each rank. Collective.
std::vector<std::string> gather_texts(const dtensor::Communicator& world, const std::string& text);

// Records the steps of a run, in a file or to compare them with one. Listens to operators while it lives, if requested.
class HashRecorder {
 public:
  HashRecorder(const Options& options, dtensor::Communicator world);

  // A hash of this rank; empty if only other ranks have the tensor.
  void add(std::string name, std::string hash) { own_.emplace_back(std::move(name), std::move(hash)); }
  // Completes a step, counted from 1: rank 0 writes a line. If the run is a replay, compares the step with the recorded
  // one instead. Collective.
  HashDifference finish(std::int64_t step);

 private:
  void add(const dtensor::Event& event);
  void write(std::int64_t step, const Hashes& hashes);

  std::string path_;
  dtensor::Communicator world_;
  std::map<std::int64_t, Hashes> recorded_;  // Of a replay.
  bool replay_;
  std::ofstream out_;
  Hashes own_;
  bool adding_ = false;  // Prevents recursion: reading a DTensor is an operator too.
  std::optional<dtensor::EventListener> operators_;
};

}  // namespace train
