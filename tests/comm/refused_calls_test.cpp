// Calls that are refused for their arguments: on this rank alone, before any other hears of them.
#include "comm/fixture.h"

namespace dtensor::test {
namespace {

void expect_refused(const std::string& what, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing refuses: " << what;
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
  }
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
