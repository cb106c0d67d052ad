// Random draws of rapidcheck, and properties for which its default of 100 draws is too slow.
#pragma once

#include <gtest/gtest.h>

#include <rapidcheck.h>

#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <vector>

namespace dtensor::test {

template <class T>
T one_of(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}

// Fails if one of `draws` fails. RC_PARAMS="max_success=3000" sets another number. `name` is part of the failure's
// text.
inline void check_property(const char* name, void (*property)(), int draws) {
  auto params = rc::detail::configuration().testParams;
  if (std::getenv("RC_PARAMS") == nullptr) params.maxSuccess = draws;
  rc::detail::TestMetadata metadata;
  metadata.id = name;
  const auto result = rc::detail::checkTestable(property, metadata, params);
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  EXPECT_TRUE(result.is<rc::detail::SuccessResult>()) << message.str();
}

}  // namespace dtensor::test
