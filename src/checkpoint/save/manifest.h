// The tensors that all ranks list, in one order, and which ranks hold replicas of them. Equal on all ranks.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "checkpoint/format/values.h"
#include "dtensor/checkpoint.h"

namespace dtensor::files {

// An owner group holds all elements of a tensor: the mesh of a DTensor, or a single rank for a regular tensor. A name
// may be on several slices of a mesh, each with the ranks that list it.
struct ManifestEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<std::int64_t> sizes;
  std::int64_t owner_groups = 1;
  std::int64_t owner_group = -1;  // this rank's group; -1: this rank does not list the tensor
};

struct Manifest {
  std::vector<ManifestEntry> tensors;  // rank 0's tensors first, in its order
  std::vector<Alias> aliases;          // additional names of tied tensors
  CheckpointValues values;             // values of all ranks
};

// Suffix of errors about names whose data differs between ranks.
inline constexpr const char* kPerRankHint =
    "; use a different name for each rank's data (in Python: dtensor.checkpoint.PerRank)";

enum class Purpose : std::uint8_t {
  save,  // all ranks of a tensor's mesh must list it
  load   // all ranks must list a view that has its own memory, because writing to its base is collective
};

bool needs_reduction(const at::Tensor& tensor);  // whether it has a Partial placement

// Collective. Errors (unsupported tensors, inconsistent lists) are the same on all ranks. Names in `values` may differ
// between ranks, but a name must have the same value on all ranks that have it.
Manifest build_manifest(const StateTensors& mine, const Communicator& ranks, Purpose purpose, const std::string& what,
                        const CheckpointValues& values = {});

}  // namespace dtensor::files
