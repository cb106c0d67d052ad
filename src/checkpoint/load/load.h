// A load in two steps: what the checkpoint holds, then the tensors that are wanted of it.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "checkpoint/format/checksum.h"
#include "checkpoint/load/stored_pieces.h"
#include "checkpoint/mismatches.h"
#include "checkpoint/save/manifest.h"
#include "dtensor/checkpoint.h"

namespace dtensor::files {

class Loader {
 public:
  // Collective: rank 0 reads the index, all have it.
  Loader(const std::string& path, const Communicator& ranks, const LoadOptions& options);

  const CheckpointValues& values() const { return index_.values; }
  const CheckpointEntry* find(const std::string& name) const;

  // Collective. `problems`: what else does not fit; one error on all ranks together with the tensors'.
  void read(const StateTensors& targets, LoadProblems problems = {});

 private:
  // A name that is wanted, and the tensor that stands for it (tied tensors: one for several names).
  struct LoadRequest {
    std::string name;
    const CheckpointEntry* entry;
    std::int64_t owner_groups;
    std::size_t tensor;      // in the manifest
    at::Tensor target;       // undefined where this rank does not want it
    at::Tensor read_buffer;  // what is read into, for the target
  };
  std::vector<LoadRequest> match(const Manifest& manifest, const StateTensors& targets, LoadProblems& problems) const;
  void compare(const ManifestEntry& tensor, const CheckpointEntry& entry, LoadProblems& problems) const;
  void compare_dtype(const ManifestEntry& tensor, const CheckpointEntry& entry, LoadProblems& problems) const;
  void verify(const std::vector<LoadRequest>& requests, const std::vector<Checksum>& own) const;
  void check_tied(const std::vector<LoadRequest>& requests, const std::vector<Checksum>& all) const;

  // By a table of names.
  struct NamedTarget;
  void read_named(const StateTensors& targets, LoadProblems problems);
  NamedTarget named_target(const ManifestEntry& listed, const std::vector<std::string>& names,
                           std::unordered_set<std::string>& used, LoadProblems& problems) const;
  std::vector<NamedTarget> match_names(const Manifest& manifest, const StateTensors& targets,
                                       LoadProblems& problems) const;
  void compare_piece(const StoredPiece& piece, const CheckpointEntry& entry, const ManifestEntry& tensor,
                     LoadProblems& problems) const;

  std::string what_;
  Communicator ranks_;
  LoadOptions options_;
  CheckpointIndex index_;
  std::unordered_map<std::string, std::size_t> position_;
};

}  // namespace dtensor::files
