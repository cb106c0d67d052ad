// Vector clocks of the streams of one device. Component i counts operations of stream i: those that are known to happen
// before a point.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dtensor::test::fake_cuda {

using Clock = std::vector<std::uint64_t>;

inline std::uint64_t component(const Clock& clock, int stream) {
  const auto i = static_cast<std::size_t>(stream);
  return i < clock.size() ? clock[i] : 0;
}

inline void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

// Adds an operation of `stream` and returns its number.
inline std::uint64_t advance(Clock& clock, int stream) {
  const auto i = static_cast<std::size_t>(stream);
  if (clock.size() <= i) clock.resize(i + 1);
  return ++clock[i];
}

}  // namespace dtensor::test::fake_cuda
