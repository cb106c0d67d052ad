// One call with a mistake on thread ranks, against what one device says of it.
#pragma once

#include "fuzz/child_processes.h"
#include "fuzz/draw.h"

namespace dtensor::fuzz {

// A draw: what is called, on which mesh, and on which rank the mistake is (-1: on all).
struct Draw {
  RegularCall valid, mistaken;
  std::vector<std::int64_t> mesh;
  int only_rank = -1;
  std::uint64_t seed = 0;  // of the placements
  std::string str() const;
};
Draw draw_call(const CallSource& source, std::uint64_t seed, std::uint64_t index);

// On one device: "ok", "raises" with the message, "unsteady" where the result depends on what lies in fresh memory or
// beside the operands (or is random), "beside" where the kernel writes there.
DrawResult run_regular(const RegularCall& call);

// On the ranks of the mesh. "ok": one device accepts the call and so does every rank, with equal results. "raises":
// every rank raises, the same error where all make the same call. "refused": the same though one device accepts it. All
// else is wrong: "differs", "accepted" (one device refuses), "diverged" (some ranks raise, or other errors; that of a
// value may come from the rank that holds it), "hang", "beside" (memory that is no operand's is written), "after" (a
// valid call afterwards gives a wrong result).
DrawResult run_on_ranks(const Draw& draw, const DrawResult& regular);

bool is_fine(const DrawResult& ending);

}  // namespace dtensor::fuzz
