// Compares the times of two functions in short alternating blocks, so that disturbances affect both. Reports medians.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

inline double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Times of one call on one thread, in microseconds.
struct Pair {
  double regular = 0, ours = 0;
  double overhead = 0;  // Median of the differences of blocks.
};

// False: CPU time of this thread, which other programs do not affect. True: wall time, for comparison with programs
// that measure it.
inline bool wall_clock = false;

inline double now_microseconds() {
  std::timespec t{};
  clock_gettime(wall_clock ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e6 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_nsec);
}

// Called before each timed block: synchronizes with the device.
inline std::function<void()> before_block;

template <class F>
double time_block(const F& call, int calls) {
  if (before_block) before_block();
  const double begin = now_microseconds();
  for (int i = 0; i < calls; ++i) call();
  return (now_microseconds() - begin) / calls;
}

template <class Regular, class Ours>
Pair side_by_side(const Regular& regular, const Ours& ours, int calls, int blocks) {
  time_block(regular, calls), time_block(ours, calls);
  std::vector<double> a, b, difference;
  for (int i = 0; i < blocks; ++i) {
    a.push_back(time_block(regular, calls));
    b.push_back(time_block(ours, calls));
    difference.push_back(b.back() - a.back());
  }
  return {median(a), median(b), median(difference)};
}

}  // namespace bench
