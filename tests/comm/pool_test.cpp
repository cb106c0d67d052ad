// The buffer pool and the event stream.
#include <rapidcheck.h>

#include <thread>

#include "comm/event_listeners.h"
#include "comm/fixture.h"
#include "comm/memory/pool/buffer_pool.h"

namespace dtensor::test {
namespace {

// Blocks of another rank would be in the caches of another core.
TEST(BufferPool, PrefersBlocksOfTheSameThread) {
  at::Tensor mine = pooled_empty({1 << 17}, at::kFloat), theirs = pooled_empty({1 << 17}, at::kFloat);
  const void* own = mine.const_data_ptr();
  mine.reset();
  std::thread([&] { theirs.reset(); }).join();
  EXPECT_EQ(pooled_empty({1 << 17}, at::kFloat).const_data_ptr(), own);
}

TEST(BufferPool, FreedBlockIsReused) {
  void* first = nullptr;
  {
    const at::Tensor t = pooled_empty({1 << 20}, at::kFloat);
    first = t.data_ptr();
  }
  const auto before = memory_pool_stats();
  const at::Tensor again = pooled_empty({2, 1 << 19}, at::kFloat);
  EXPECT_EQ(again.data_ptr(), first);
  EXPECT_EQ(memory_pool_stats().hits, before.hits + 1);
}

// The most recently freed block is probably in the processor's caches.
TEST(BufferPool, LastFreedBlockOfASizeIsReusedFirst) {
  constexpr int kBlocks = 3;
  std::vector<at::Tensor> held;
  std::vector<const void*> order;
  for (int i = 0; i < kBlocks; ++i) held.push_back(pooled_empty({1 << 20}, at::kByte));
  for (at::Tensor& t : held) order.insert(order.begin(), t.data_ptr()), t.reset();
  for (const void* expected : order) {
    held.push_back(pooled_empty({1 << 20}, at::kByte));
    EXPECT_EQ(held.back().data_ptr(), expected);
  }
}

TEST(BufferPool, TensorsAreContiguousAndAligned) {
  EXPECT_TRUE(rc::check([] {
    const auto sizes = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 7));
    RC_PRE(sizes.size() <= 5);
    const auto dtype = *rc::gen::element(at::kFloat, at::kBool, at::kBFloat16, at::kComplexDouble);
    at::Tensor t = pooled_empty(sizes, dtype);
    RC_ASSERT(t.sizes() == at::IntArrayRef(sizes));
    RC_ASSERT(t.is_contiguous() && t.scalar_type() == dtype);
    RC_ASSERT(reinterpret_cast<std::uintptr_t>(t.data_ptr()) % 64 == 0);
    t.fill_(1);
    RC_ASSERT(at::equal(t, at::ones(sizes, dtype)));
  }));
}

TEST(BufferPool, MayBeResizedAndRequireGrad) {
  at::Tensor t = pooled_empty({3}, at::kFloat);
  t.fill_(2);
  t.resize_({1 << 18});
  EXPECT_EQ(t[2].item<float>(), 2);
  at::Tensor g = pooled_empty({3}, at::kFloat).fill_(2).requires_grad_();
  (g * g).sum().backward();
  EXPECT_EQ(g.grad()[0].item<float>(), 4);
}

TEST(BufferPool, CachesAtMostItsLimit) {
  empty_memory_pool();
  set_memory_pool_limit(3 << 20);
  {
    std::vector<at::Tensor> held;
    for (int i = 0; i < 8; ++i) held.push_back(pooled_empty({1 << 20}, at::kByte));
  }
  EXPECT_LE(memory_pool_stats().cached_bytes, std::size_t{3 << 20});
  EXPECT_GT(memory_pool_stats().cached_bytes, std::size_t{0});
  empty_memory_pool();
  EXPECT_EQ(memory_pool_stats().cached_bytes, std::size_t{0});
  set_memory_pool_limit(std::size_t{1} << 30);
}

TEST(BufferPool, ServesManyThreads) {
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([n] {
      for (int i = 0; i < 50; ++i) {
        at::Tensor t = pooled_empty({(1 << 16) + i}, at::kInt);
        t.fill_(n);
        EXPECT_TRUE(t.eq(n).all().item<bool>());
      }
    });
  }
  for (auto& t : threads) t.join();
}

Event named(const char* name) {
  Event event;
  event.name = name;
  return event;
}

TEST(Events, EveryListenerOfAThreadReceivesEvents) {
  EXPECT_FALSE(is_listening(Event::Kind::collective));
  std::vector<std::string> outer, inner;
  {
    EventListener first([&](const Event& e) { outer.push_back(e.name); });
    emit_event(named("a"));
    {
      EventListener second([&](const Event& e) { inner.push_back(e.name); });
      emit_event(named("b"));
    }
    std::thread([] { EXPECT_FALSE(is_listening(Event::Kind::collective)); }).join();
    emit_event(named("c"));
  }
  EXPECT_FALSE(is_listening(Event::Kind::collective));
  EXPECT_EQ(outer, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(inner, (std::vector<std::string>{"b"}));
}

TEST(Events, OuterListenerMayEndBeforeInner) {
  int received = 0;
  auto outer = std::make_unique<EventListener>([](const Event&) {});
  EventListener inner([&](const Event&) { ++received; });
  outer.reset();
  emit_event({});
  EXPECT_EQ(received, 1);
}

TEST(Events, ListenerReceivesOnlyRequestedKinds) {
  std::vector<std::string> received;
  EventListener collectives([&](const Event& e) { received.push_back(e.name); }, {Event::Kind::collective});
  EXPECT_FALSE(is_listening(Event::Kind::op));
  EXPECT_TRUE(is_listening(Event::Kind::collective));
  {
    EventListener all([](const Event&) {});
    EXPECT_TRUE(is_listening(Event::Kind::op));
    Event event = named("an operator");
    event.kind = Event::Kind::op;
    emit_event(event);
    event = named("a collective");
    event.kind = Event::Kind::collective;
    emit_event(event);
  }
  EXPECT_FALSE(is_listening(Event::Kind::op));
  EXPECT_EQ(received, (std::vector<std::string>{"a collective"}));
}

TEST(Events, CollectivesReportTheirAxisAndBytes) {
  run_local(4, [](Communicator world) {
    const auto tp = world.subgroup({0, 1, 2, 3}, "tp");
    std::vector<Event> events;
    EventListener listener([&](const Event& e) { events.push_back(e); });
    const at::Tensor x = at::ones({8});
    std::vector<at::Tensor> parts(4);
    for (auto& p : parts) p = at::ones({8});
    tp.all_reduce(x, ReduceOp::sum).wait();
    tp.with_label("dp_tp").all_gather(parts, x).wait();
    world.reduce_scatter(x, parts, ReduceOp::sum).wait();
    ASSERT_EQ(events.size(), 3u);
    EXPECT_EQ(events[0].name, "all_reduce");
    EXPECT_EQ(events[0].axis, "tp");
    EXPECT_EQ(events[0].bytes, 48);  // 2 * 3/4 of 32
    EXPECT_EQ(events[1].axis, "dp_tp");
    EXPECT_EQ(events[1].bytes, 96);
    EXPECT_EQ(events[2].bytes, 96);
    EXPECT_LE(events[2].begin, events[2].end);
  });
}

}  // namespace
}  // namespace dtensor::test
