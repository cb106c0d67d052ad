// A collective after which something is left to do on this rank.
#pragma once

#include <functional>
#include <memory>

#include "dtensor/comm.h"

namespace dtensor {

class RankRecord;

// Over when `work` is and `then` has run: at once where it is over already, else as soon as somebody waits for it,
// finds it done, or drops it. Where `work` fails, `then` does not run; a failure that nobody was told of is noted in
// `record`, of the rank that waits.
Work with_continuation(Work work, std::function<void()> then, std::shared_ptr<RankRecord> record);

}  // namespace dtensor
