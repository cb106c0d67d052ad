// Who lists what: the tensors of all ranks, in one order, known to every rank, and who holds copies of them.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "checkpoint/format/values.h"
#include "dtensor/checkpoint.h"

namespace dtensor::files {

// A home holds the whole of a tensor between its ranks: the mesh of a DTensor (one name may be on several slices of a
// mesh, each with the ranks that list it there), or a single rank for a plain tensor.
struct ManifestEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<std::int64_t> sizes;
  std::int64_t owner_groups = 1;
  std::int64_t owner_group = -1;  // this rank's; -1 where it does not list the tensor
};

struct Manifest {
  std::vector<ManifestEntry> tensors;  // rank 0's first, in its order
  std::vector<Alias> aliases;          // further names of one and the same tensor
  CheckpointValues values;             // of all ranks
};

// What an error adds where ranks give one name to things that differ.
inline constexpr const char* kPerRankHint =
    "; what is a rank's own needs a name of its own (in Python, dtensor.checkpoint.PerRank gives it one)";

enum class Purpose : std::uint8_t {
  save,  // every rank of a tensor's mesh must list it
  load   // every rank of a view that shares no memory with its base must, since writing to the base takes them all
};

bool needs_reduction(const at::Tensor& tensor);  // it has a Partial placement

// Collective. Errors (a tensor that cannot be saved, lists that contradict each other) are the same on every rank.
// `values` may have other names on other ranks; a name that several have is of one value.
Manifest build_manifest(const StateTensors& mine, const Communicator& ranks, Purpose purpose, const std::string& what,
                        const CheckpointValues& values = {});

}  // namespace dtensor::files
