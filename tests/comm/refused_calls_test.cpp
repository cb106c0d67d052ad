// Calls that are refused for their arguments: on this rank alone, before any other hears of them.
#include "comm/fixture.h"
#include "dtensor/comm_backend.h"

namespace dtensor::test {
namespace {

// Of memory that is gone when the next call is made.
void gather_something(const Communicator& world) {
  const std::vector<at::Tensor> all(static_cast<std::size_t>(world.size()));
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < all.size(); ++i) outputs.push_back(at::zeros({2}));
  world.all_gather(outputs, at::ones({2})).wait();
}

void expect_refused(const std::string& what, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing refuses: " << what;
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
  }
}

TEST(RefusedCalls, AreNone) {
  run_local(2, [](Communicator world) {
    for (int i = 0; i < 3; ++i) gather_something(world);
    if (world.rank() == 0) {
      expect_refused("1 outputs for 2 ranks", [&] { world.all_gather({at::zeros({2})}, at::ones({2})); });
      expect_refused("no avg for Int", [&] { world.all_reduce(at::ones({2}, at::kInt), ReduceOp::avg); });
      expect_refused("rank 7 of a communicator", [&] { world.broadcast(at::ones({2}), 7); });
    }
    const at::Tensor sum = at::ones({4});
    world.all_reduce(sum, ReduceOp::sum).wait();
    EXPECT_TRUE(sum.eq(2).all().item<bool>());
  });
}

TEST(RefusedCalls, RanksThatCountDifferentlySayWhatTheyCalled) {
  run_local(2, [](Communicator world) {
    for (int i = 0; i < 3; ++i) gather_something(world);
    if (world.rank() == 0) backend_of(world)->next_sequence(CollectiveKind::all_reduce);
    try {
      world.all_reduce(at::ones({4 + world.rank()}), ReduceOp::sum).wait();
      ADD_FAILURE();
    } catch (const CommError& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("rank 0 called all_reduce #5 (sum, Float [4])"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1 called all_reduce #4 (sum, Float [5])"), std::string::npos) << text;
    }
  });
}

TEST(RefusedCalls, WhereThereIsNoCommunicator) {
  run_local(2, [](Communicator world) {
    const Communicator none = world.split(-1, 0);
    EXPECT_FALSE(none);
    expect_refused("no communicator", [&] { (void)none.rank(); });
    expect_refused("no communicator", [&] { none.barrier(); });
    expect_refused("no communicator", [&] { none.all_reduce(at::ones({2}), ReduceOp::sum); });
    expect_refused("no communicator", [&] { none.abort("of no use"); });
    EXPECT_EQ(none.label(), "");
  });
}

}  // namespace
}  // namespace dtensor::test
