// A call that is known is one that was decided: what has changed since (a scope, the rule book, the type of fractions)
// counts for it all the same.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "dtensor/inspect.h"
#include "dtensor/rule.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

TORCH_LIBRARY(known_calls, m) {
  for (const char* name : {"unruled", "late", "refused"}) {
    m.def(c10::str(name, "(Tensor x) -> Tensor").c_str());
    m.impl(name, c10::DispatchKey::CPU, [](const at::Tensor& x) { return x * 2; });
  }
}

at::Tensor call(const char* name, const at::Tensor& x) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(c10::str("known_calls::", name).c_str(), "");
  return op.typed<at::Tensor(const at::Tensor&)>().call(x);
}

DTensor shards(const DeviceMesh& mesh) { return distribute_tensor(at::arange(6, at::kLong) + 1, mesh, {Shard(0)}); }

TEST(KnownCalls, StrictRefusesWhatRanReplicatedBefore) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const auto x = shards(mesh);
    call("unruled", x);
    if (mesh.world().rank() == 0) clear_cache();  // what a rank still knows makes no difference
    const Strict strict;
    EXPECT_NE(error_of([&] { call("unruled", x); }).find("has no sharding rule"), std::string::npos);
  });
}

}  // namespace
}  // namespace dtensor::test
