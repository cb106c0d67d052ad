// Errors of a call on each of three ranks.
#pragma once

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {

using Call = std::function<void(const DeviceMesh&)>;

// Returns the error of each rank of a mesh of three. A rank that raises stays in the run, so that the others do not
// fail with it.
inline std::vector<std::string> errors_of(const Call& call) {
  std::vector<std::string> errors(3);
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    errors[static_cast<std::size_t>((*mesh.coordinate())[0])] = error_of([&] { call(mesh); });
  });
  return errors;
}

inline void expect_same_error(const Call& call, const std::string& part) {
  for (const auto& error : errors_of(call)) EXPECT_NE(error.find(part), std::string::npos) << error;
}

inline at::Tensor split(const DeviceMesh& mesh, const Shape& sizes, at::ScalarType type = at::kFloat,
                        std::int64_t dim = 0) {
  return distribute_tensor(at::ones(sizes, type), mesh, {Shard(dim)});
}

}  // namespace dtensor::test
