// A load in two steps: reads the index, then the requested tensors.
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
  // Collective: rank 0 reads the index and broadcasts it.
  Loader(const std::string& path, const Communicator& ranks, const LoadOptions& options);

  // Under the names of the program.
  const CheckpointValues& values() const { return index_.values; }
  bool contains(const std::string& tensor) const { return find(renamed(tensor, options_.names, true)) != nullptr; }

  // Collective. `problems`: other mismatches, which are reported with those of the tensors in one error on all ranks.
  void read(const StateTensors& targets, LoadProblems problems = {});

 private:
  // A requested name and its tensor; tied tensors have several names.
  struct LoadRequest {
    std::string name;
    const CheckpointEntry* entry;
    std::int64_t owner_groups;
    std::size_t tensor;      // index in the manifest
    at::Tensor target;       // undefined if this rank does not request it
    at::Tensor read_buffer;  // read destination, see read_buffer_for()
  };
  const CheckpointEntry* find(const std::string& stored) const;
  std::vector<LoadRequest> match(const Manifest& manifest, const StateTensors& targets, LoadProblems& problems) const;
  void compare(const ManifestEntry& tensor, const CheckpointEntry& entry, LoadProblems& problems) const;
  void compare_dtype(const ManifestEntry& tensor, const CheckpointEntry& entry, LoadProblems& problems) const;
  void verify(const std::vector<LoadRequest>& requests, const std::vector<Checksum>& own) const;
  void check_tied(const std::vector<LoadRequest>& requests, const std::vector<Checksum>& all) const;

  // With LoadOptions::names.
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
