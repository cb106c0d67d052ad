// Scopes that a listener opens or closes while an operator runs take effect from then on.
#include <gtest/gtest.h>

#include <optional>

#include "dtensor/events.h"
#include "scope/scope_frames.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

using Kinds = EventListener::Kinds;

// Operands of a product that must redistribute one of them.
std::pair<at::Tensor, at::Tensor> operands(const DeviceMesh& mesh, bool trained) {
  const auto columns = [&] { return distribute_tensor(at::ones({4, 4}), mesh, {Shard(1)}); };
  return {columns().requires_grad_(trained), columns()};
}

TEST(ScopesInCalls, ListenerOpenedInsideAnOperatorReceivesTheNextOperator) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const bool trained : {false, true}) {
      const auto [x, w] = operands(mesh, trained);
      at::add(w, w);  // Cached from here on.
      int heard = 0;
      std::optional<EventListener> operators;
      const EventListener first(
          [&](const Event&) {
            if (!operators) operators.emplace([&](const Event&) { ++heard; }, Kinds{Event::Kind::op});
          },
          {Event::Kind::collective});
      at::mm(x, w);
      ASSERT_TRUE(operators.has_value()) << "nothing moved";
      EXPECT_TRUE(any_operator_scope());
      heard = 0;
      at::add(w, w);
      EXPECT_EQ(heard, 1);
      operators.reset();
      EXPECT_FALSE(any_operator_scope());
    }
  });
}

TEST(ScopesInCalls, ListenerThatClosesItselfRestoresTheFastPath) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const bool trained : {false, true}) {
      const auto [x, w] = operands(mesh, trained);
      int heard = 0;
      std::optional<EventListener> once;
      once.emplace([&](const Event&) { ++heard, once.reset(); }, Kinds{Event::Kind::op});
      at::add(x, w);
      at::add(x, w);
      EXPECT_EQ(heard, 1);
      EXPECT_FALSE(any_operator_scope());
    }
  });
}

}  // namespace
}  // namespace dtensor::test
