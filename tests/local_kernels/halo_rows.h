// Counts the rows that windows over split dimensions receive from neighbors.
#pragma once

#include <gtest/gtest.h>

#include "dtensor/events.h"

namespace dtensor::test {

// Number of rows of `row` bytes that this rank received.
template <class Body>
std::int64_t rows_received(std::int64_t row, const Body& body) {
  std::int64_t bytes = 0;
  const EventListener listener([&](const Event& e) { bytes += e.bytes; }, {Event::Kind::collective});
  body();
  EXPECT_EQ(bytes % row, 0);
  return bytes / row;
}

}  // namespace dtensor::test
