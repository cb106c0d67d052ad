// One invalid call on thread ranks, compared with one device.
#pragma once

#include "fuzz/child_processes.h"
#include "fuzz/draw.h"

namespace dtensor::fuzz {

// A draw: the call, the mesh, and the rank with the mistake (-1: all ranks).
struct Draw {
  RegularCall valid, mistaken;
  std::vector<std::int64_t> mesh;
  int only_rank = -1;
  std::uint64_t seed = 0;  // Of the placements.
  std::string str() const;
};
Draw draw_call(const CallSource& source, std::uint64_t seed, std::uint64_t index);

// On one device: "ok"; "raises", with the message; "unsteady", if the result is random or depends on uninitialized or
// adjacent memory; "beside", if the kernel writes out of bounds.
DrawResult run_regular(const RegularCall& call);

// On the ranks of the mesh. "ok": one device and all ranks accept the call, with equal results. "raises": every rank
// throws, and the same error if all make the same call. "refused": the same, but one device accepts the call.
// Other words are failures. "differs": different results. "accepted": one device refuses. "diverged": only some ranks
// throw, or different errors; an error about a value may come from the rank that has it. "hang". "beside": a write out
// of bounds. "after": a later valid call gives a wrong result.
DrawResult run_on_ranks(const Draw& draw, const DrawResult& regular);

bool is_fine(const DrawResult& ending);

}  // namespace dtensor::fuzz
