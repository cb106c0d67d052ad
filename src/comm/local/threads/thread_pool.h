// Threads for thread ranks, kept between runs.
#pragma once

#include <functional>

namespace dtensor::local {

// Runs body(0) .. body(n - 1), each on a thread of its own, and waits for all. `body` does not throw. Callable from
// within a body. Throws, before any body runs, where the system gives no more threads.
void run_on_threads(int n, const std::function<void(int)>& body);

// How many bodies run at this moment, in the whole process.
int running_threads();

}  // namespace dtensor::local
