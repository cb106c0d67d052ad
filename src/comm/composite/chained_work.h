// A collective with a continuation on this rank.
#pragma once

#include <functional>
#include <memory>

#include "dtensor/comm.h"

namespace dtensor {

class RankRecord;

// Completes when `work` is complete and `then` has run. `then` runs at once if `work` is already complete, else at the
// next wait(), at a done() that finds `work` complete, or in the destructor. If `work` fails, `then` does not run. A
// failure that no wait() reported is noted in `record`, the record of the waiting rank.
Work with_continuation(Work work, std::function<void()> then, std::shared_ptr<RankRecord> record);

}  // namespace dtensor
