// Threads for thread ranks, kept between runs.
#pragma once

#include <functional>

namespace dtensor::local {

// Runs body(0) .. body(n - 1), each on its own thread, and waits for all. `body` must not throw. Callable from within
// a body. Throws before any body runs if the system cannot start enough threads.
void run_on_threads(int n, const std::function<void(int)>& body);

// Number of bodies that are running now in this process.
int running_threads();

}  // namespace dtensor::local
