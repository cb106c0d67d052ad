// Whether waits may time out.
#pragma once

namespace dtensor {

bool timeouts_suspended();

}  // namespace dtensor
