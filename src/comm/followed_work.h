// A collective after which something is left to do on this rank.
#pragma once

#include <functional>

#include "dtensor/comm.h"

namespace dtensor {

// Over when `work` is and `then` has run: at once where it is over already, else as soon as somebody waits for it,
// finds it done, or drops it. Where `work` fails, `then` does not run.
Work followed(Work work, std::function<void()> then);

}  // namespace dtensor
