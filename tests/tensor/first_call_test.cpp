// Every public function that creates a DTensor, as the first call of a process: the following operators need the
// registered kernels. Each runs in a child process, which is this program with one test.
#include <spawn.h>
#include <sys/wait.h>

#include "dtensor/launch.h"
#include "support/ranks.h"

extern char** environ;

namespace dtensor::test {
namespace {

struct Maker {
  const char* name;
  std::function<DTensor(const DeviceMesh&)> make;  // Of ones, 4 x 2.
};

const std::vector<Maker>& makers() {
  static const auto regular = [] { return at::ones({4, 2}); };
  static const Placements rows{Shard(0)};
  static const std::vector<Maker> all = {
      {"from_local",
       [](auto& m) {
         return DTensor::from_local(at::ones({4 / m.size(), 2}), m, rows);
       }},
      {"distribute_tensor", [](auto& m) { return distribute_tensor(regular(), m, rows); }},
      {"distribute_tensor_from", [](auto& m) { return distribute_tensor_from(regular(), m, rows, 0); }},
      {"zeros",
       [](auto& m) {
         return DTensor(zeros({4, 2}, m, rows) + 1);
       }},
      {"ones",
       [](auto& m) {
         return ones({4, 2}, m, rows);
       }},
      {"full",
       [](auto& m) {
         return full({4, 2}, 1.0, m, rows);
       }},
      {"empty",
       [](auto& m) {
         return DTensor(empty({4, 2}, m, rows).fill_(1));
       }},
      {"rand",
       [](auto& m) {
         return DTensor(rand({4, 2}, m, rows) * 0 + 1);
       }},
      {"randn",
       [](auto& m) {
         return DTensor(randn({4, 2}, m, rows) * 0 + 1);
       }},
      {"arange",
       [](auto& m) {
         return DTensor(arange(8, m, {}).view({4, 2}).to(at::kFloat) * 0 + 1);
       }},
      {"MeshScope",
       [](auto& m) {
         const MeshScope scope(m, rows);
         return DTensor(at::ones({4, 2}));
       }},
      {"broadcast_state",
       [](auto& m) {
         const auto place = [](const std::string&, at::IntArrayRef) { return rows; };
         return DTensor(broadcast_state({{"x", regular()}}, m, place)[0].second);
       }},
  };
  return all;
}

void use(const Maker& maker, const Communicator& world) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size()});
  const auto x = maker.make(mesh).requires_grad_();
  const auto y = x.mm(x.t());
  EXPECT_TRUE(DTensor(y).full_tensor().equal(at::full({4, 4}, 2.0)));
  y.sum().backward();
  EXPECT_TRUE(DTensor(x.grad()).full_tensor().equal(at::full({4, 2}, 8.0)));
}

class FirstCall : public ::testing::TestWithParam<std::string> {};

const Maker& maker_named(const std::string& name) {
  return *std::find_if(makers().begin(), makers().end(), [&](const Maker& m) { return m.name == name; });
}

TEST_P(FirstCall, DISABLED_InChildOfThreads) {
  run_local(2, [](Communicator world) { use(maker_named(GetParam()), world); });
}

TEST_P(FirstCall, DISABLED_InChildOfLaunch) {
  std::string program = "program";
  char* argv[] = {program.data(), nullptr};
  EXPECT_EQ(launch(1, argv, [](Communicator world) { use(maker_named(GetParam()), world); }), 0);
}

int run_child(const std::string& test) {
  std::string program = "/proc/self/exe", filter = "--gtest_filter=" + test,
              disabled = "--gtest_also_run_disabled_tests";
  char* argv[] = {program.data(), filter.data(), disabled.data(), nullptr};
  pid_t child = 0;
  if (posix_spawn(&child, argv[0], nullptr, nullptr, argv, environ) != 0) return -1;
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST_P(FirstCall, MayBeThisFunction) {
  EXPECT_EQ(run_child("*FirstCall.DISABLED_InChildOfThreads/" + GetParam()), 0);
  EXPECT_EQ(run_child("*FirstCall.DISABLED_InChildOfLaunch/" + GetParam()), 0);
}

INSTANTIATE_TEST_SUITE_P(Makers, FirstCall, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& maker : makers()) names.emplace_back(maker.name);
                           return names;
                         }()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dtensor::test
