// A listener that removes itself after one event.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "dtensor/comm.h"
#include "dtensor/events.h"

namespace dtensor::test {
namespace {

TEST(EventListenerLifetime, ListenerMayRemoveItselfInItsCallback) {
  run_local(2, [](Communicator world) {
    int received = 0, others = 0;
    std::unique_ptr<EventListener> once;
    const EventListener outer([&](const Event&) { ++others; }, {Event::Kind::collective});
    auto owned = std::make_shared<int>(7);
    const std::weak_ptr<int> seen = owned;
    auto listener = [&once, &received, &seen, kept = std::move(owned)](const Event&) {
      auto& count = received;
      const auto& of_listener = seen;
      once.reset();
      ++count;
      EXPECT_FALSE(of_listener.expired());  // its captures live until it returns
    };
    once = std::make_unique<EventListener>(std::move(listener), EventListener::Kinds{Event::Kind::collective});
    for (int i = 0; i < 2; ++i) world.all_reduce(at::ones({4}), ReduceOp::sum).wait();
    EXPECT_EQ(received, 1);
    EXPECT_EQ(others, 2);
  });
}

}  // namespace
}  // namespace dtensor::test
